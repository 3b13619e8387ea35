/* Timers, any of many things, processes, signals, and the CPU itself. */
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include "waits.h"

static NOINLINE void wait_sleep(int i) { sys(SYS_nanosleep, &each, NULL, 0, 0); }

static NOINLINE void wait_sleep_libc(int i) { nanosleep(&each, NULL); }

static void prepare_timer(void) { fds[0] = check(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create"); }

static NOINLINE void wait_timerfd(int i)
{
	struct itimerspec once = {.it_value = each};
	uint64_t expired;

	timerfd_settime(fds[0], 0, &once, NULL);
	sys(SYS_read, fds[0], &expired, 8, 0);
}

static NOINLINE void wait_poll(int i)
{
	struct pollfd one = {.fd = fds[0], .events = POLLIN};
	struct timespec left = each;

	sys(SYS_ppoll, &one, 1, &left, NULL);
}

static NOINLINE void wait_select(int i)
{
	fd_set one;
	struct timespec left = each;

	FD_ZERO(&one);
	FD_SET(fds[0], &one);
	sys6(SYS_pselect6, fds[0] + 1, (long)&one, 0, 0, (long)&left, 0);
}

static void prepare_epoll(void)
{
	struct epoll_event readable = {.events = EPOLLIN};

	prepare_pipe();
	files[0] = check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
	check(epoll_ctl(files[0], EPOLL_CTL_ADD, fds[0], &readable), "epoll_ctl");
}

static NOINLINE void wait_epoll(int i)
{
	struct epoll_event event;

	sys6(SYS_epoll_pwait, files[0], (long)&event, 1, each_ms, 0, 8);
}

static void prepare_inotify(void)
{
	files[0] = check(inotify_init1(IN_CLOEXEC), "inotify_init1");
	check(inotify_add_watch(files[0], directory, IN_CREATE), "inotify_add_watch");
}

static NOINLINE void wait_inotify(int i)
{
	char event[512];

	sys(SYS_read, files[0], event, sizeof(event), 0);
}

static void end_inotify(int i)
{
	char name[32];

	snprintf(name, sizeof(name), "event-%d", i);
	close(open_in(name, O_RDWR));
}

static struct io_uring_sqe *submissions;
static atomic_uint *submission_tail;
static atomic_uint *completion_head;

static void prepare_io_uring(void)
{
	struct io_uring_params p = {0};

	files[0] = check(syscall(SYS_io_uring_setup, 4, &p), "io_uring_setup");
	size_t bytes = p.sq_off.array + p.sq_entries * 4 + p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	char *rings = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, files[0], IORING_OFF_SQ_RING);

	if (!(p.features & IORING_FEAT_SINGLE_MMAP) || rings == MAP_FAILED)
		fail("mapping of the rings");
	submissions = mmap(NULL, p.sq_entries * sizeof(*submissions), PROT_READ | PROT_WRITE, MAP_SHARED, files[0],
			   IORING_OFF_SQES);
	submission_tail = (void *)(rings + p.sq_off.tail);
	completion_head = (void *)(rings + p.cq_off.head);
	for (unsigned i = 0; i < p.sq_entries; i++)
		((unsigned *)(rings + p.sq_off.array))[i] = i;
}

static NOINLINE void wait_io_uring(int i)
{
	submissions[i % 4] = (struct io_uring_sqe){.opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (long)&each, .len = 1};
	*submission_tail += 1;
	sys6(SYS_io_uring_enter, files[0], 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
	*completion_head += 1;
}

static aio_context_t aio;

static void prepare_aio(void) { check(syscall(SYS_io_setup, 1, &aio), "io_setup"); }

static NOINLINE void wait_aio(int i)
{
	struct io_event event;

	sys6(SYS_io_getevents, aio, 1, 1, (long)&event, (long)&each, 0);
}

static inline __attribute__((always_inline)) void sleep_and_exit(void)
{
	sys(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0);
	sys(SYS_nanosleep, &each, NULL, 0, 0);
	_exit(0);
}

static NOINLINE void wait_child(int i)
{
	pid_t child = fork();

	if (!child)
		sleep_and_exit();
	sys(SYS_wait4, child, NULL, 0, NULL);
}

/* Its children are nobody's to wait for: waitpid would be one more wait. */
static void prepare_vfork(void) { signal(SIGCHLD, SIG_IGN); }

static NOINLINE void wait_vfork_libc(int i)
{
	if (!vfork())
		sleep_and_exit();
}

static void prepare_signal(void)
{
	sigset_t blocked;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
}

static NOINLINE void wait_sigwait(int i)
{
	unsigned long usr1 = 1UL << (SIGUSR1 - 1);

	sys(SYS_rt_sigtimedwait, &usr1, NULL, &each, 8);
}

static void on_signal(int signal) {}

static void prepare_sigsuspend(void)
{
	prepare_signal();
	signal(SIGUSR1, on_signal);
}

static NOINLINE void wait_sigsuspend(int i)
{
	unsigned long none = 0;

	sys(SYS_rt_sigsuspend, &none, 8, 0, 0);
}

static void end_sigsuspend(int i) { kill(waiter_pid, SIGUSR1); }

static NOINLINE void wait_stopped(int i) { sys(SYS_kill, waiter_pid, SIGSTOP, 0, 0); }

static void end_stopped(int i) { kill(waiter_pid, SIGCONT); }

static NOINLINE void wait_rcu(int i) { sys(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0, 0); }

static void pin(void)
{
	cpu_set_t one;
	int cpu = sched_getcpu();

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	check(sched_setaffinity(0, sizeof(one), &one), "sched_setaffinity");
}

static void spin_us(long us)
{
	struct timespec began, now;

	clock_gettime(CLOCK_MONOTONIC, &began);
	do {
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - began.tv_sec) * 1000000 + (now.tv_nsec - began.tv_nsec) / 1000 < us);
}

static long preemptions(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nivcsw;
}

/* Spins on a CPU that it shares with the other side, until it was put aside once more. */
static NOINLINE void wait_run_queue(int i)
{
	for (long before = preemptions(); preemptions() == before;)
		spin_us(100);
}

/* The other side is in the way. */
static void end_run_queue(int i)
{
	for (;;)
		spin_us(1000);
}

/* Spins until its cgroup was paused once more: by cpu.stat, given as DIRECTORY/cpu.stat. */
static long pauses(void)
{
	char text[1024] = "";
	int fd = open_in("cpu.stat", O_RDONLY);
	long n = read(fd, text, sizeof(text) - 1);
	char *at = n > 0 ? strstr(text, "nr_throttled ") : NULL;

	close(fd);
	return at ? atol(at + strlen("nr_throttled ")) : 0;
}

static NOINLINE void wait_throttle(int i)
{
	for (long before = pauses(); pauses() == before;)
		spin_us(100);
}

const struct kind event_kinds[] = {
	{"sleep", NULL, wait_sleep},
	{"sleep-libc", NULL, wait_sleep_libc},
	{"timerfd", prepare_timer, wait_timerfd},
	{"poll", prepare_pipe, wait_poll},
	{"select", prepare_pipe, wait_select},
	{"epoll", prepare_epoll, wait_epoll},
	{"inotify", prepare_inotify, wait_inotify, end_inotify},
	{"io-uring", prepare_io_uring, wait_io_uring},
	{"aio", prepare_aio, wait_aio},
	{"child", NULL, wait_child},
	{"vfork-libc", prepare_vfork, wait_vfork_libc},
	{"sigwait", prepare_signal, wait_sigwait},
	{"sigsuspend", prepare_sigsuspend, wait_sigsuspend, end_sigsuspend},
	{"stopped", NULL, wait_stopped, end_stopped},
	{"rcu", NULL, wait_rcu},
	{"run-queue", pin, wait_run_queue, end_run_queue, .at_once = true},
	{"throttle", pin, wait_throttle},
	{0},
};
