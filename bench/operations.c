// SPDX-License-Identifier: MIT
/*
 * operations PATH [direct]
 *
 * Calls on one file or block device, as standard input asks for them, a line each: CALL TIMES BYTES
 *
 *   pwrite, pread   so many bytes each, one behind the other
 *   again           pread of the first bytes
 *   fsync
 *   getppid         no call on a file
 *
 * Prints how many ns they took in all, and how many of those the thread had a CPU.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
	int fd = argc > 1 ? open(argv[1], O_RDWR | O_CREAT | (argc > 2 ? O_DIRECT : 0), 0600) : -1;
	char call[16], *data;
	long times, bytes;

	if (fd < 0 || posix_memalign((void **)&data, 4096, 1 << 20))
		return 1;
	memset(data, 'o', 1 << 20);
	while (scanf("%15s %ld %ld", call, &times, &bytes) == 3 && bytes <= 1 << 20) {
		int64_t began_ns = clock_ns(CLOCK_MONOTONIC), cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);

		for (long i = 0; i < times; i++) {
			long done = *call == 'g' ? (getppid(), bytes)
				    : *call == 'a' ? pread(fd, data, bytes, 0)
				    : *call == 'f' ? fsync(fd) + bytes
				    : call[1] == 'r' ? pread(fd, data, bytes, i * bytes)
						     : pwrite(fd, data, bytes, i * bytes);
			if (done != bytes) {
				perror(call);
				return 1;
			}
		}
		cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
		printf("%lld %lld\n", (long long)(clock_ns(CLOCK_MONOTONIC) - began_ns), (long long)cpu_ns);
		fflush(stdout);
	}
	return 0;
}
