/* Produces known waits until it is stopped: processes and threads that start, sleep and exit, and two threads that pass
 * a byte back and forth. Prints how many of each it made.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLEEP_NS 3000000
#define REST_NS 180000000
#define FORKS 20
#define THREADS 40
#define TURNS 2000
#define DEEPEST 64

static volatile struct {
	int ends;
	unsigned long forks, threads;
} *shared;

static __attribute__((noinline)) void nap(long ns)
{
	struct timespec rest = {0, ns};
	syscall(SYS_nanosleep, &rest, 0);
	__asm__ volatile("");
}

/* Each depth has a different stack. */
static __attribute__((noinline)) void at_depth(int depth)
{
	if (depth)
		at_depth(depth - 1);
	else
		nap(SLEEP_NS);
	__asm__ volatile("");
}

static void forking(void)
{
	prctl(PR_SET_NAME, "soak-fork");
	while (!shared->ends) {
		for (int i = 0; i < FORKS; i++)
			if (!fork()) {
				prctl(PR_SET_NAME, "soak-child");
				at_depth(i);
				_exit(0);
			}
		for (int i = 0; i < FORKS; i++)
			wait(0);
		shared->forks += FORKS;
		nap(REST_NS);
	}
}

static void *one_nap(void *depth)
{
	prctl(PR_SET_NAME, "soak-worker");
	at_depth((long)depth % DEEPEST);
	return 0;
}

static void threading(void)
{
	pthread_t all[THREADS];
	static long depth;

	prctl(PR_SET_NAME, "soak-thread");
	while (!shared->ends) {
		for (int i = 0; i < THREADS; i++)
			pthread_create(&all[i], 0, one_nap, (void *)depth++);
		for (int i = 0; i < THREADS; i++)
			pthread_join(all[i], 0);
		shared->threads += THREADS;
		nap(REST_NS);
	}
}

static int to[2], fro[2];

static void *answering(void *unused)
{
	char byte;

	printf("answering %ld\n", (long)syscall(SYS_gettid));
	fflush(stdout);
	while (read(to[0], &byte, 1) == 1)
		if (write(fro[1], &byte, 1) != 1)
			break;
	return 0;
}

static void switching(void)
{
	pthread_t other;
	char byte = 0;

	prctl(PR_SET_NAME, "soak-pipe");
	if (pipe(to) || pipe(fro))
		exit(1);
	pthread_create(&other, 0, answering, 0);
	while (!shared->ends) {
		for (int i = 0; i < TURNS; i++)
			if (write(to[1], &byte, 1) != 1 || read(fro[0], &byte, 1) != 1)
				exit(1);
		nap(5000000);
	}
	pause();	/* so that the kernel's own count can be read */
}

int main(void)
{
	void (*parts[])(void) = {forking, threading, switching};
	pid_t pids[3];
	char byte;

	shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 3; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			parts[i]();
			_exit(0);
		}
	}
	printf("switching %d\nready 0\n", pids[2]);
	fflush(stdout);
	if (read(0, &byte, 1) < 0)
		return 1;
	shared->ends = 1;
	waitpid(pids[0], 0, 0);
	waitpid(pids[1], 0, 0);
	printf("forks %lu\nthreads %lu\ndone 0\n", shared->forks, shared->threads);
	fflush(stdout);
	return read(0, &byte, 1) < 0;
}
