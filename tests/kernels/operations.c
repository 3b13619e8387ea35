/*
 * Calls on a file and requests to a disk, a known number of times.
 *
 *   operations file PATH: opens and closes it; 100 writes of 4,096 bytes, 50 reads of 1,000, 7 writes of 65,536 with
 *     fsync after each. Prints the time of all fsync calls, in ns and hexadecimal.
 *   operations mapped PATH: 40 page faults on pages that are not in memory. Prints in how many of them it slept. Then 30
 *     reads of 1,000 bytes by io_uring. Prints how many it made: 0 if the kernel has no io_uring.
 *   operations disk DEVICE: 40 reads of 4,096 bytes, 30 writes of 8,192, without the page cache.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void next(void)
{
	char c;

	puts("ready");
	fflush(stdout);
	if (read(0, &c, 1) != 1)
		exit(0);
}

static void check(long done, long asked)
{
	if (done != asked) {
		perror("operations");
		exit(1);
	}
}

static long sleeps(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw;
}

static long touch_pages(int fd, int pages)
{
	volatile char *page = mmap(0, pages * 4096, PROT_READ, MAP_SHARED, fd, 0);
	long slept = 0;

	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	madvise((void *)page, pages * 4096, MADV_RANDOM);
	for (int i = 0; i < pages; i++) {
		long before = sleeps();
		(void)page[i * 7 % pages * 4096];
		slept += sleeps() > before;
	}
	return slept;
}

static long read_by_ring(int fd, char *block, int times)
{
	struct io_uring_params setup = {};
	int ring = syscall(SYS_io_uring_setup, 8, &setup);

	if (ring < 0)
		return 0;
	char *queue = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	struct io_uring_sqe *entry = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	unsigned *tail = (unsigned *)(queue + setup.sq_off.tail), *seen = (unsigned *)(queue + setup.cq_off.head);
	for (int i = 0; i < times; i++) {
		memset(entry, 0, sizeof(*entry));
		entry->opcode = IORING_OP_READ;
		entry->fd = fd;
		entry->addr = (unsigned long)block;
		entry->len = 1000;
		((unsigned *)(queue + setup.sq_off.array))[*tail & (setup.sq_entries - 1)] = 0;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		check(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0), 1);
		__atomic_store_n(seen, *seen + 1, __ATOMIC_RELEASE);
	}
	return times;
}

int main(int argc, char **argv)
{
	char *block;
	long long synced_ns = 0;

	if (argc != 3 || posix_memalign((void **)&block, 4096, 1 << 16))
		return 1;
	next();
	if (*argv[1] == 'd') {
		int fd = open(argv[2], O_RDWR | O_DIRECT);

		for (int i = 0; i < 40; i++)
			check(pread(fd, block, 4096, i * 16384), 4096);
		for (int i = 0; i < 30; i++)
			check(pwrite(fd, block, 8192, i * 16384), 8192);
		close(fd);
	} else if (*argv[1] == 'm') {
		int fd = open(argv[2], O_RDWR | O_CREAT, 0600);

		for (int i = 0; i < 40; i++)
			check(pwrite(fd, block, 4096, i * 4096), 4096);
		check(fsync(fd), 0);
		printf("slept %lx\n", touch_pages(fd, 40));
		printf("requests %lx\n", read_by_ring(fd, block, 30));
	} else {
		int fd = open(argv[2], O_RDWR | O_CREAT, 0600);

		for (int i = 0; i < 100; i++)
			check(pwrite(fd, block, 4096, i * 4096), 4096);
		for (int i = 0; i < 50; i++)
			check(pread(fd, block, 1000, i * 4096), 1000);
		for (int i = 0; i < 7; i++) {
			check(pwrite(fd, block, 1 << 16, 0), 1 << 16);
			long long began_ns = now_ns();
			check(fsync(fd), 0);
			synced_ns += now_ns() - began_ns;
		}
		close(fd);
	}
	printf("synced_ns %llx\n", synced_ns);
	next();
	return 0;
}
