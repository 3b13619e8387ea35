// Threads take turns at one mutex, for 20 us each, which makes about ten thousand short waits per second. After a line
// on stdin, one of them holds it for 1.5 s, once.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int planted;

static void compute(long us)
{
	struct timespec from, now;

	clock_gettime(CLOCK_MONOTONIC, &from);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - from.tv_sec) * 1000000L + (now.tv_nsec - from.tv_nsec) / 1000 < us);
}

__attribute__((noinline)) static void keep_it_long(void)
{
	usleep(1500000);
	__asm__ volatile("");
}

__attribute__((noinline)) static void take_turns(int may_keep)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		if (may_keep && atomic_exchange(&planted, 0))
			keep_it_long();
		else
			compute(20);
		pthread_mutex_unlock(&mutex);
		usleep(20);
	}
}

static void *work(void *keeper)
{
	take_turns(keeper != 0);
	return 0;
}

int main(void)
{
	pthread_t threads[3];

	for (long i = 0; i < 3; i++)
		pthread_create(&threads[i], 0, work, (void *)(i == 0 ? &planted : 0));
	while (getchar() != EOF)
		atomic_store(&planted, 1);
}
