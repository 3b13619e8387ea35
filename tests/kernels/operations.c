/*
 * Calls on a file and requests to a disk, a known number of times.
 *
 *   operations file PATH: opens and closes it; 100 writes of 4,096 bytes, 50 reads of 1,000, 7 writes of 65,536 with
 *     fsync after each. Prints the time of all fsync calls, in ns and hexadecimal.
 *   operations disk DEVICE: 40 reads of 4,096 bytes, 30 writes of 8,192, without the page cache.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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
