/* LD_PRELOAD: a disk that takes 20 ms for a flush. */
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
