/*
 * Makes one kind of wait happen, a known number of times, in a thread that a test watches.
 *
 *	waits KIND TIMES EACH_MS DIRECTORY
 *
 * Says `ready OTHER` (OTHER: pid of the process that ends the waits, 0 where none is needed), reads one
 * byte from stdin, waits TIMES times, says `done TIMES`, and reads stdin until it ends.
 *
 * The waits are the main thread's, always below main < alpha < beta < gamma < wait_KIND. The system call
 * is made in wait_KIND itself where the name of the kind has no `-libc`, so that user frames are the same
 * whatever libc it is. With `end`, a wait is ended when the other side has seen the thread asleep and
 * EACH_MS have gone by: each wait begins before it is ended, which makes the count exact.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "waits.h"

int times, each_ms, waiter_pid, fds[2], files[2];
const char *directory;
struct timespec each;
struct shared *shared;
char *page;

void fail(const char *what)
{
	fprintf(stderr, "waits: %s: %s\n", what, strerror(errno));
	exit(1);
}

long check(long result, const char *what)
{
	if (result < 0)
		fail(what);
	return result;
}

void pause_us(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};

	nanosleep(&t, NULL);
}

int open_in(const char *name, int flags)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return check(open(path, flags | O_CREAT | O_CLOEXEC, 0600), path);
}

NOINLINE void gamma(const struct kind *kind, int i)
{
	shared->asked = i + 1;
	kind->wait(i);
	__asm__ volatile(""); /* keeps this frame: the call above is not the last thing done */
}

NOINLINE void beta(const struct kind *kind, int i)
{
	gamma(kind, i);
	__asm__ volatile("");
}

NOINLINE void alpha(const struct kind *kind)
{
	for (int i = 0; i < times; i++)
		beta(kind, i);
	__asm__ volatile("");
}

static const struct kind *chosen;

/* Ended in the middle of a wait: queues and semaphores would outlive us. */
static void on_end(int signal)
{
	if (chosen->clean)
		chosen->clean();
	_exit(0);
}

static bool waits_now(void)
{
	char path[64], text[512] = "";

	snprintf(path, sizeof(path), "/proc/%d/stat", waiter_pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		exit(0); /* it is gone */
	close(fd);
	return strchr("SDTt", strrchr(text, ')')[2]);
}

static void be_the_other_side(const struct kind *kind)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (kind->other)
		kind->other();
	shared->prepared = true;
	for (int i = 0; i < times; i++) {
		while (shared->asked <= i)
			pause_us(200);
		if (!kind->at_once)
			pause_us(each_ms * 1000L);
		while (!kind->at_once && !waits_now())
			pause_us(200);
		kind->end(i);
	}
	pause();
	exit(0);
}

int main(int argc, char **argv)
{
	const struct kind *kind = NULL;
	pid_t other = 0;
	char byte;

	if (argc != 5) {
		fprintf(stderr, "usage: waits KIND TIMES EACH_MS DIRECTORY\n");
		return 2;
	}
	const struct kind *rooms[] = {channel_kinds, disk_kinds, event_kinds, lock_kinds};
	for (size_t room = 0; room < sizeof(rooms) / sizeof(*rooms); room++)
		for (const struct kind *k = rooms[room]; k->name; k++)
			if (!strcmp(k->name, argv[1]))
				kind = k;
	if (!kind) {
		fprintf(stderr, "waits: no kind is called %s\n", argv[1]);
		return 2;
	}
	times = atoi(argv[2]);
	each_ms = atoi(argv[3]);
	directory = argv[4];
	each = (struct timespec){each_ms / 1000, each_ms % 1000 * 1000000L};
	waiter_pid = getpid();
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	page = aligned_alloc(4096, 4096);
	memset(page, 0, 4096);
	chosen = kind;
	if (kind->prepare)
		kind->prepare();
	if (kind->end) {
		other = check(fork(), "fork");
		if (!other)
			be_the_other_side(kind);
		while (!shared->prepared) {
			if (waitpid(other, NULL, WNOHANG) == other)
				return 1; /* it has said why */
			pause_us(1000);
		}
	}
	signal(SIGTERM, on_end);
	printf("ready %d\n", other);
	fflush(stdout);
	if (read(0, &byte, 1) == 1) {
		alpha(kind);
		printf("done %d\n", times);
		fflush(stdout);
		while (read(0, &byte, 1) > 0)
			;
	}
	if (other)
		kill(other, SIGKILL);
	if (kind->clean)
		kind->clean();
	return 0;
}
