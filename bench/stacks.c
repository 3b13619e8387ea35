// SPDX-License-Identifier: MIT
/*
 * Threads that wait through as many functions as is asked for: stacks KIND THREADS FUNCTIONS WAIT_US
 *
 *   same       each wait has the stack of the one before
 *   mixed      each has another one, through functions that others went through, too
 *   fresh      each has another one, through one function that no other went through
 *   new        each has another one, through functions that no other went through
 *
 * Each line on standard input is answered with the number of waits that have ended. Its end ends the threads.
 *
 * -D: LINKED, where it is built with frame pointers, which takes rbp from the functions.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST 100

static void (*const functions[4096])(void);
static __thread void (**path)(void);
static atomic_ulong waits;
static int count;
static long wait_us;
static char kind;

/* Half of them keep rbp, as compilers do that have no other use for it. */
#ifdef LINKED
#define ODD "r12"
#else
#define ODD "rbp"
#endif
#define F(n, kept) \
	static __attribute__((noinline)) void f_##n(void) \
	{ \
		asm volatile("" ::: "rbx", kept); \
		(*++path)(); \
		asm volatile("" ::: "rbx", kept); \
	}
#define F16(n) \
	F(n##0, "r12") F(n##1, ODD) F(n##2, "r12") F(n##3, ODD) F(n##4, "r12") F(n##5, ODD) F(n##6, "r12") F(n##7, ODD) \
	F(n##8, "r12") F(n##9, ODD) F(n##a, "r12") F(n##b, ODD) F(n##c, "r12") F(n##d, ODD) F(n##e, "r12") F(n##f, ODD)
#define EACH(of, n) \
	of(n##0) of(n##1) of(n##2) of(n##3) of(n##4) of(n##5) of(n##6) of(n##7) \
	of(n##8) of(n##9) of(n##a) of(n##b) of(n##c) of(n##d) of(n##e) of(n##f)
#define NAME(n) f_##n,
#define F256(n) EACH(F16, n)
#define N16(n) EACH(NAME, n)
#define N256(n) N16(n##0) N16(n##1) N16(n##2) N16(n##3) N16(n##4) N16(n##5) N16(n##6) N16(n##7) \
	N16(n##8) N16(n##9) N16(n##a) N16(n##b) N16(n##c) N16(n##d) N16(n##e) N16(n##f)

F256(0) F256(1) F256(2) F256(3) F256(4) F256(5) F256(6) F256(7)
F256(8) F256(9) F256(a) F256(b) F256(c) F256(d) F256(e) F256(f)
static void (*const functions[4096])(void) = {
	N256(0) N256(1) N256(2) N256(3) N256(4) N256(5) N256(6) N256(7)
	N256(8) N256(9) N256(a) N256(b) N256(c) N256(d) N256(e) N256(f)
};

static __attribute__((noinline)) void rest(void)
{
	struct timespec t = {wait_us / 1000000, wait_us % 1000000 * 1000};

	nanosleep(&t, NULL);
	asm volatile("");
}

static void *thread(void *unused)
{
	void (*way[MOST + 1])(void);

	for (unsigned n = 0;; n++) {
		for (int i = 0; i < count; i++)
			switch (kind) {
			case 's': way[i] = functions[i]; break;
			case 'm': way[i] = functions[2 * i + (n >> (i & 31) & 1)]; break;
			case 'f': way[i] = functions[i ? i : MOST + n % (4096 - MOST)]; break;
			case 'n': way[i] = functions[(n * count + i) & 4095]; break;
			}
		way[count] = rest;
		path = way;
		(*way)();
		atomic_fetch_add(&waits, 1);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t one;

	if (argc != 5 || (count = atoi(argv[3])) < 1 || count > MOST || !strchr("smfn", argv[1][0]))
		return 2;
	kind = argv[1][0];
	wait_us = atol(argv[4]);
	for (int i = atoi(argv[2]); i > 0; i--)
		if (pthread_create(&one, NULL, thread, NULL))
			return 1;
	while (getchar() == '\n') {
		printf("%lu\n", waits);
		fflush(stdout);
	}
	return 0;
}
