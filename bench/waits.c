// SPDX-License-Identifier: MIT
/*
 * Threads that wait in known ways, one workload after the other, as standard input asks for them, a line
 * each: WORKLOAD THREADS WAIT_US SECONDS
 *
 *   sleep      each sleeps WAIT_US, over and over
 *   pipe       pairs pass a byte to and fro; who has it sleeps WAIT_US first (0: passes it on at once)
 *   lock       all take one mutex; who has it sleeps WAIT_US
 *   spin       all run on one CPU, and wait for each other's time slices
 *   sync       each writes a page and has it synced, every WAIT_US
 *   sites      each sleeps WAIT_US in each of 5 functions in turn
 *   park       each waits for the end
 *   spread     each sleeps from WAIT_US / 2 to 3 / 2 WAIT_US, over and over: no sleep is like the one before
 *   few        one of 100 does the same, the others wait for the end
 *
 * At its end each thread prints its tid, the ns it lived, and how many of those it was off CPU: all but
 * what the kernel's CPU clock of the thread says. A dot on a line ends a workload.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long wait_us;
static int64_t end_ns;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t all_there;

static int64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int going(void)
{
	return clock_ns(CLOCK_MONOTONIC) < end_ns;
}

static void rest(void)
{
	struct timespec t = {wait_us / 1000000, wait_us % 1000000 * 1000};

	nanosleep(&t, NULL);
}

static void sleeping(int number)
{
	while (going())
		rest();
}

static int (*pipes)[2];

static void passing(int number)
{
	char byte = 0;

	/* The pipe's end is the other's end: the first to be late closes it. */
	if (number % 2 == 0 && write(pipes[number ^ 1][1], &byte, 1) != 1)
		return;
	while (going() && read(pipes[number][0], &byte, 1) == 1) {
		if (wait_us)
			rest();
		if (write(pipes[number ^ 1][1], &byte, 1) != 1)
			break;
	}
	close(pipes[number ^ 1][1]);
}

static void locking(int number)
{
	while (going()) {
		pthread_mutex_lock(&lock);
		rest();
		pthread_mutex_unlock(&lock);
	}
}

static void spinning(int number)
{
	while (going())
		for (volatile int i = 0; i < 100000; i++)
			;
}

static void syncing(int number)
{
	char page[4096] = {0}, path[] = "waits-XXXXXX";
	int fd = mkstemp(path);

	unlink(path);
	while (fd >= 0 && going() && pwrite(fd, page, sizeof(page), 0) > 0) {
		fdatasync(fd);
		rest();
	}
}

#define SITE(name) static __attribute__((noinline)) void name(void) { rest(); asm volatile(""); }
SITE(site_a) SITE(site_b) SITE(site_c) SITE(site_d) SITE(site_e)

static void visiting(int number)
{
	while (going()) {
		site_a();
		site_b();
		site_c();
		site_d();
		site_e();
	}
}

static void parked(int number)
{
	struct timespec t = {end_ns / 1000000000, end_ns % 1000000000};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void spreading(int number)
{
	unsigned int seed = number + 1;

	while (going()) {
		int64_t us = wait_us / 2 + rand_r(&seed) % (wait_us + 1);
		struct timespec t = {us / 1000000, us % 1000000 * 1000};

		nanosleep(&t, NULL);
	}
}

static void few(int number)
{
	if (number % 100)
		parked(number);
	else
		spreading(number);
}

static void (*workload)(int number);

static void *thread(void *argument)
{
	int64_t born_ns = clock_ns(CLOCK_MONOTONIC);

	pthread_barrier_wait(&all_there);
	workload((intptr_t)argument);
	int64_t lived_ns = clock_ns(CLOCK_MONOTONIC) - born_ns;
	printf("%d %lld %lld\n", gettid(), (long long)lived_ns,
	       (long long)(lived_ns - clock_ns(CLOCK_THREAD_CPUTIME_ID)));
	return NULL;
}

static int run(int n)
{
	pthread_attr_t small;
	pthread_t *threads = calloc(n, sizeof(*threads));

	if (workload == passing) {
		pipes = calloc(n + 1, sizeof(*pipes));
		for (int i = 0; i < (n + 1) / 2 * 2; i++)
			if (pipe(pipes[i]))
				return 1;
	}
	cpu_set_t all, last;
	sched_getaffinity(0, sizeof(all), &all);
	if (workload == spinning) {
		CPU_ZERO(&last);
		CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &last);
		sched_setaffinity(0, sizeof(last), &last);
	}
	pthread_barrier_init(&all_there, NULL, n);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	for (intptr_t i = 0; i < n; i++)
		if (pthread_create(&threads[i], &small, thread, (void *)i)) {
			fprintf(stderr, "waits: no more than %d threads can be had here\n", (int)i);
			return 1;
		}
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	sched_setaffinity(0, sizeof(all), &all);
	free(threads);
	puts(".");
	fflush(stdout);
	return 0;
}

int main(void)
{
	static const struct {
		const char *name;
		void (*run)(int);
	} workloads[] = {{"sleep", sleeping}, {"pipe", passing},   {"lock", locking}, {"spin", spinning},
			 {"sync", syncing},   {"sites", visiting}, {"park", parked},
			 {"spread", spreading}, {"few", few}};
	char name[16];
	double seconds;
	int n, failed = 0;

	while (!failed && scanf("%15s %d %ld %lf", name, &n, &wait_us, &seconds) == 4 && n > 0) {
		workload = NULL;
		for (size_t i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++)
			if (!strcmp(name, workloads[i].name))
				workload = workloads[i].run;
		end_ns = clock_ns(CLOCK_MONOTONIC) + (int64_t)(seconds * 1e9);
		failed = !workload || run(n);
	}
	return failed;
}
