/*
 * What every kind of wait has to hand. The words are those of waits.c, which says what happens when.
 */
#ifndef WAITS_H
#define WAITS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

struct kind {
	const char *name;
	void (*prepare)(void); /* before `ready` */
	void (*wait)(int i);   /* one wait */
	void (*end)(int i);    /* by the other side: ends wait `i`, which is going on */
	void (*other)(void);   /* by the other side, before `ready` */
	void (*clean)(void);   /* when all is over */
	bool at_once;	       /* `end` does not wait until the thread waits */
};

/* Each ends with a kind that has no name. */
extern const struct kind channel_kinds[], disk_kinds[], event_kinds[], lock_kinds[];

extern int times, each_ms, waiter_pid;
extern const char *directory;
extern struct timespec each;

/* What both sides see. */
extern struct shared {
	atomic_int asked;     /* waits that the thread has begun, or is just about to */
	atomic_bool prepared; /* the other side is ready */
	pthread_mutex_t mutexes[2];
} *shared;

/* What a kind works on, whatever it is. */
extern int fds[2], files[2];
extern char *page; /* 4096 bytes of nothing */

void fail(const char *what);
long check(long result, const char *what); /* fails where the result is negative */
void pause_us(long us);
int open_in(const char *name, int flags); /* a file of this name in the directory, made if need be */
void prepare_pipe(void);

/* A system call without a libc frame above it. */
static inline __attribute__((always_inline)) long sys6(long nr, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall" : "=a"(result) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#else
	return syscall(nr, a, b, c, d, e, f);
#endif
}
#define sys(nr, a, b, c, d) sys6(nr, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

#endif
