/* LD_PRELOAD library that makes each flush of a disk take 20 ms. */
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

static int late(long call, int fd)
{
	struct timespec flush = {0, 20000000};

	nanosleep(&flush, 0);
	return syscall(call, fd);
}

int fsync(int fd)
{
	return late(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	return late(SYS_fdatasync, fd);
}
