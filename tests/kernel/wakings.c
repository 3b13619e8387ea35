/* Threads that wake each other in known ways: `wakings KIND TIMES MS`, as tests/kernel/wakings.py says. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define MOST 256
#define PAGE 4096
#define STORM 8 /* as in bpf/offcpu.h */
#define BURST_NS 100000

static int times, each_ms, calls, fds[2] = {-1, -1}, others[2] = {-1, -1}, spliced = -1;
static char random_bytes[4096], page[PAGE];
static int words[MOST];
static pthread_t threads[MOST];
static volatile int is_over;
static const char *way = "";

static void tell(const char *name, long value)
{
	printf("%s %lx\n", name, value);
}

static long monotonic_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void next(void)
{
	char c;

	puts("ready");
	fflush(stdout);
	if (read(0, &c, 1) != 1)
		exit(0);
}

static NOINLINE void rest(void)
{
	struct timespec t = {each_ms / 1000, each_ms % 1000 * 1000000L};

	nanosleep(&t, 0);
}

static NOINLINE void wait_futex(int *word)
{
	while (!__atomic_exchange_n(word, 0, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
}

static NOINLINE void wake_futex(int *word)
{
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

/* Until there is something to be read. */
static NOINLINE void await(int fd)
{
	static int turn;
	static struct pollfd many[64];
	struct pollfd one = {fd, POLLIN, 0};
	struct timespec t = {3600, 0};
	int spare[2], count = atoi(way), by_turns = !strcmp(way, "turns") && turn++ % 2;
	fd_set set;

	FD_ZERO(&set);
	if (*way)
		FD_SET(fd, &set);
	if (!strcmp(way, "poll") || by_turns) {
		poll(&one, 1, -1);
	} else if (!strcmp(way, "ppoll")) {
		ppoll(&one, 1, &t, 0);
	} else if (!strcmp(way, "select")) {
		select(fd + 1, &set, 0, 0, 0);
	} else if (!strcmp(way, "pselect") || !strcmp(way, "turns")) {
		pselect(fd + 1, &set, 0, 0, &t, 0);
	} else if (count) { /* the others are never ready, and the last ones are none */
		for (int i = 1; i < count && !many[i].events; i++)
			many[i] = (struct pollfd){pipe(spare) ? -1 : spare[0], POLLIN, 0};
		for (int i = count; i < 64; i++)
			many[i].fd = -1;
		many[0] = one;
		poll(many, 64, -1);
	}
}

static NOINLINE void wait_fd(void)
{
	static int turn;
	long long value;
	off64_t from = 0;
	int fd = others[0] >= 0 && turn++ % 2 ? others[0] : fds[0];

	await(fd);
	if (spliced < 0 && read(fd, &value, sizeof(value)) < 1)
		exit(1);
	if (spliced >= 0 && splice(spliced, &from, fds[1], 0, PAGE, 0) < 1)
		exit(1);
}

static NOINLINE void wake_fd(void)
{
	static int turn;
	long long value = 1;
	int fd = others[1] >= 0 && turn++ % 2 ? others[1] : fds[1];

	if (spliced < 0 && write(fd, &value, sizeof(value)) < 1)
		exit(1);
	if (spliced >= 0 && read(fds[0], page, PAGE) < 1)
		exit(1);
}

static NOINLINE void *sleeper(void *unused)
{
	prctl(PR_SET_NAME, "sleeper");
	tell("sleeper", gettid());
	for (int i = 0; i < times; i++)
		fds[0] < 0 ? wait_futex(&words[0]) : wait_fd();
	wait_futex(&words[1]);
	return unused;
}

static NOINLINE void *waker(void *unused)
{
	prctl(PR_SET_NAME, "waker");
	tell("waker", gettid());
	wait_futex(&words[2]);
	for (int i = 0; i < times; i++) {
		rest();
		fds[0] < 0 ? wake_futex(&words[0]) : wake_fd();
	}
	wait_futex(&words[1]);
	return unused;
}

static NOINLINE void *runner(void *number)
{
	long own = (long)number;
	char name[16];

	snprintf(name, sizeof(name), "runner-%ld", own);
	prctl(PR_SET_NAME, name);
	tell(name, gettid());
	for (int i = 0; i < times; i++) {
		wait_futex(&words[own]);
		wake_futex(&words[own + 1]);
	}
	wait_futex(&words[MOST - 1]);
	return number;
}

static NOINLINE void burn(int ms)
{
	struct timespec t;
	long end_ns, now_ns;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	end_ns = t.tv_sec * 1000000000L + t.tv_nsec + ms * 1000000L;
	do {
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
		now_ns = t.tv_sec * 1000000000L + t.tv_nsec;
	} while (now_ns < end_ns);
}

static NOINLINE void *player(void *number)
{
	long own = (long)number;

	prctl(PR_SET_NAME, own ? "pong" : "ping");
	tell(own ? "pong" : "ping", gettid());
	for (int i = 0; i < times; i++) {
		wait_futex(&words[own]);
		burn(each_ms);
		wake_futex(&words[1 - own]);
	}
	wait_futex(&words[MOST - 1]);
	return number;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static long waiting, took_ns[MOST];

/* Return how many gaps of BURST_NS there may be in the broadcasts: in what they took beyond the shortest one. */
static long gaps(void)
{
	long shortest_ns = took_ns[0], found = 0;

	for (int i = 1; i < times; i++)
		if (took_ns[i] < shortest_ns)
			shortest_ns = took_ns[i];
	for (int i = 0; i < times; i++)
		found += (took_ns[i] - shortest_ns + BURST_NS / 2) / BURST_NS;
	return found;
}

static NOINLINE void *member(void *number)
{
	prctl(PR_SET_NAME, "member");
	pthread_mutex_lock(&lock);
	while (!is_over) {
		waiting++;
		pthread_cond_wait(&changed, &lock);
	}
	pthread_mutex_unlock(&lock);
	return number;
}

static NOINLINE void *spinner(void *unused)
{
	prctl(PR_SET_NAME, "stranger");
	tell("stranger", gettid());
	while (!is_over)
		if (calls)
			syscall(SYS_getrandom, random_bytes, sizeof(random_bytes), 0);
	return unused;
}

/* Wakes as another program once half of it is done: at other addresses, with the same functions. */
static NOINLINE void wake_and_become_another(void)
{
	char at[16], half[16], ms[16];

	for (int i = 0; i < times / 2; i++) {
		rest();
		wake_fd();
	}
	snprintf(at, sizeof(at), "%d", fds[1]);
	snprintf(half, sizeof(half), "%d", times - times / 2);
	snprintf(ms, sizeof(ms), "%d", each_ms);
	execl("/proc/self/exe", "wakings", "another", half, ms, at, (char *)0);
	_exit(1);
}

static NOINLINE void on_one_cpu(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof(one), &one);
}

/* Let no ordinary thread preempt this one. */
static void run_first(void)
{
	struct sched_param first = {1};

	if (sched_setscheduler(0, SCHED_FIFO, &first))
		exit(1);
}

/* Wakes the sleeper, and keeps it from the CPU for a while. */
static NOINLINE void *greedy(void *unused)
{
	prctl(PR_SET_NAME, "greedy");
	tell("greedy", gettid());
	run_first();
	wait_futex(&words[2]);
	for (int i = 0; i < times; i++) {
		rest();
		wake_futex(&words[0]);
		burn(5 * each_ms);
	}
	wait_futex(&words[1]);
	return unused;
}

static struct sockaddr_in listen_tcp(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t length = sizeof(at);

	fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(fds[0], (void *)&at, length) || listen(fds[0], 1) || getsockname(fds[0], (void *)&at, &length))
		exit(1);
	tell("port", ntohs(at.sin_port));
	return at;
}

static void connect_tcp(void)
{
	struct sockaddr_in at = listen_tcp();
	int listens = fds[0], yes = 1;

	fds[1] = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fds[1], (void *)&at, sizeof(at)))
		exit(1);
	fds[0] = accept(listens, 0, 0);
	setsockopt(fds[1], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	close(listens);
}

static void on_signal(int unused)
{
	(void)unused;
}

int main(int count, char **words_given)
{
	const char *kind = words_given[1], *colon = strchr(kind, ':');

	if (count < 4)
		return 2;
	if (colon) {
		way = strndup(kind, colon - kind);
		kind = colon + 1;
	}
	times = atoi(words_given[2]);
	each_ms = atoi(words_given[3]);
	if (!strcmp(kind, "another")) {
		fds[1] = atoi(words_given[4]);
		for (int i = 0; i < times; i++) {
			rest();
			wake_fd();
		}
		pause();
	}
	tell("main", gettid());
	if (!strcmp(kind, "pipe") && pipe(fds))
		return 1;
	if (!strcmp(kind, "splice")) {
		spliced = open("/proc/self/exe", O_RDONLY);
		if (spliced < 0 || pipe(fds) || fcntl(fds[1], F_SETPIPE_SZ, PAGE) < 0)
			return 1;
		wait_fd(); /* which finds room */
	}
	if (!strcmp(kind, "unix") && socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		return 1;
	if (!strcmp(kind, "eventfd"))
		fds[0] = fds[1] = eventfd(0, 0);
	if (!strcmp(kind, "tcp"))
		connect_tcp();
	if (!strcmp(kind, "two-tcp")) {
		connect_tcp();
		memcpy(others, fds, sizeof(fds));
		connect_tcp();
	}
	if (!strcmp(kind, "relay")) {
		for (long i = 0; i < 5; i++)
			pthread_create(&threads[i], 0, runner, (void *)i);
		usleep(50000);
		next();
		for (int i = 0; i < times; i++) {
			rest();
			wake_futex(&words[0]);
		}
		usleep(50000);
	} else if (!strcmp(kind, "storm")) {
		on_one_cpu();
		for (long i = 0; i < 100; i++)
			pthread_create(&threads[i], 0, member, (void *)i);
		run_first();
		usleep(50000);
		next();
		long storms = 0, woken = 0, most = 0;
		for (int i = 0; i < times; i++) {
			rest();
			pthread_mutex_lock(&lock);
			long begin_ns = monotonic_ns(), some = waiting;
			waiting = 0;
			pthread_cond_broadcast(&changed);
			took_ns[i] = monotonic_ns() - begin_ns;
			pthread_mutex_unlock(&lock);
			storms += some >= STORM;
			woken += some >= STORM ? some : 0;
			most = some > most ? some : most;
		}
		usleep(50000);
		tell("storms", storms);
		tell("woken", woken);
		tell("most", most);
		tell("gaps", gaps());
	} else if (!strcmp(kind, "pingpong")) {
		for (long i = 0; i < 2; i++)
			pthread_create(&threads[i], 0, player, (void *)i);
		usleep(50000);
		next();
		wake_futex(&words[0]);
		usleep(times * 2 * each_ms * 3000 / 2 + 100000);
	} else if (!strcmp(kind, "late")) {
		on_one_cpu();
		pthread_create(&threads[0], 0, sleeper, 0);
		pthread_create(&threads[1], 0, greedy, 0);
		usleep(50000);
		next();
		wake_futex(&words[2]);
		usleep(times * 7 * each_ms * 1000 + 100000);
	} else if (!strcmp(kind, "exec")) {
		if (pipe(fds))
			return 1;
		next();
		pid_t child = fork();
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			prctl(PR_SET_NAME, "first");
			wake_and_become_another();
		}
		tell("child", child);
		for (int i = 0; i < times; i++)
			wait_fd();
	} else if (!strcmp(kind, "timer") || !strcmp(kind, "timer-calls")) {
		calls = !strcmp(kind, "timer-calls");
		on_one_cpu();
		pthread_create(&threads[0], 0, spinner, 0);
		usleep(50000);
		next();
		for (int i = 0; i < times; i++)
			rest();
		is_over = 1;
	} else if (!strcmp(kind, "nap")) {
		if (pipe(fds))
			return 1;
		next();
		for (int i = 0; i < times; i++) { /* the last one has left behind what it polled */
			way = i % 2 ? "poll" : "select";
			wake_fd();
			wait_fd();
			poll(0, 0, each_ms);
		}
	} else if (!strcmp(kind, "timerfd")) {
		struct itimerspec at = {.it_value = {0, each_ms * 1000000L}};
		fds[0] = timerfd_create(CLOCK_MONOTONIC, 0);
		next();
		for (int i = 0; i < times; i++) {
			timerfd_settime(fds[0], 0, &at, 0);
			wait_fd();
		}
	} else if (!strcmp(kind, "timerfds")) {
		struct itimerspec at = {.it_value = {0, each_ms * 1000000L}};
		struct rlimit many = {times + 64, times + 64};
		setrlimit(RLIMIT_NOFILE, &many);
		next();
		for (int i = 0; i < times; i++) { /* which all stay open */
			fds[0] = timerfd_create(CLOCK_MONOTONIC, 0);
			timerfd_settime(fds[0], 0, &at, 0);
			wait_fd();
		}
	} else if (!strcmp(kind, "accept")) {
		struct sockaddr_in at = listen_tcp();
		next();
		if (!fork()) {
			for (int i = 0; i < times; i++) {
				rest();
				connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&at, sizeof(at));
			}
			_exit(0);
		}
		for (int i = 0; i < times; i++)
			close(accept(fds[0], 0, 0));
	} else if (!strcmp(kind, "signal")) {
		signal(SIGUSR1, on_signal);
		pid_t sleeps = getpid();
		next();
		pid_t sender = fork();
		if (!sender) {
			for (int i = 0; i < times; i++) {
				rest();
				kill(sleeps, SIGUSR1);
			}
			_exit(0);
		}
		tell("sender", sender);
		for (int i = 0; i < times; i++)
			pause();
		waitpid(-1, 0, 0);
	} else if (!strcmp(kind, "exit") || !strcmp(kind, "killed")) {
		next();
		for (int i = 0; i < times; i++) {
			pid_t child = fork();
			if (!child && !strcmp(kind, "killed")) {
				ualarm(each_ms * 1000, 0);
				for (;;)
					;
			}
			if (!child) {
				rest();
				_exit(0);
			}
			waitpid(child, 0, 0);
		}
	} else {
		pthread_create(&threads[0], 0, sleeper, 0);
		pthread_create(&threads[1], 0, waker, 0);
		usleep(50000);
		next();
		wake_futex(&words[2]);
		usleep(times * (each_ms + 5) * 1000 + 100000);
	}
	next();
	return 0;
}
