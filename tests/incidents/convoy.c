/* Eight threads take turns at one mutex, and each holds it for 5 ms. */
#include <pthread.h>
#include <time.h>

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

static void *work(void *unused)
{
	struct timespec rest = {0, 5000000};

	for (;;) {
		pthread_mutex_lock(&one);
		nanosleep(&rest, 0);
		pthread_mutex_unlock(&one);
	}
	return unused;
}

int main(void)
{
	pthread_t threads[8];

	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], 0, work, 0);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], 0);
	return 0;
}
