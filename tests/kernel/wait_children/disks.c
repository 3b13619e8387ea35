/* Files that have to come from a disk or to reach it, and memory that was moved out to one. */
#include <fcntl.h>
#include <sys/mman.h>

#include "waits.h"

#define STEP_BYTES (256 * 1024) /* from one cold page to the next: farther than any read-ahead */
#define SWAP_BYTES (96L << 20)

static void prepare_cold_file(int flags)
{
	size_t bytes = (size_t)times * STEP_BYTES;
	static char content[STEP_BYTES];

	files[0] = open_in("cold", O_RDWR);
	for (int i = 0; i < times; i++)
		check(pwrite(files[0], content, STEP_BYTES, (off_t)i * STEP_BYTES), "pwrite");
	check(fsync(files[0]), "fsync");
	check(-posix_fadvise(files[0], 0, bytes, POSIX_FADV_DONTNEED), "posix_fadvise");
	close(files[0]);
	files[0] = open_in("cold", O_RDWR | flags);
	posix_fadvise(files[0], 0, bytes, POSIX_FADV_RANDOM);
}

static void prepare_read(void) { prepare_cold_file(0); }

static void prepare_direct(void) { prepare_cold_file(O_DIRECT); }

static NOINLINE void wait_read(int i) { sys(SYS_pread64, files[0], page, 4096, (long)i * STEP_BYTES); }

static NOINLINE void wait_write_direct(int i) { sys(SYS_pwrite64, files[0], page, 4096, (long)i * STEP_BYTES); }

static volatile char *mapped;

static void prepare_fault(void)
{
	prepare_cold_file(0);
	mapped = mmap(NULL, (size_t)times * STEP_BYTES, PROT_READ, MAP_SHARED, files[0], 0);
	madvise((void *)mapped, (size_t)times * STEP_BYTES, MADV_RANDOM);
}

static NOINLINE void wait_fault(int i) { (void)mapped[(long)i * STEP_BYTES]; }

static NOINLINE void wait_fsync(int i)
{
	sys(SYS_pwrite64, files[0], page, 4096, (long)i * 4096);
	sys(SYS_fsync, files[0], 0, 0, 0);
}

static void prepare_swap(void)
{
	mapped = mmap(NULL, SWAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Touches far more than its cgroup may hold: pages go out to swap and come back. */
static NOINLINE void wait_swap(int i)
{
	for (long at = 0; at < SWAP_BYTES; at += 4096)
		mapped[at] += 1;
}

static void open_file(void) { files[0] = open_in("file", O_RDWR); }

const struct kind disk_kinds[] = {
	{"read", prepare_read, wait_read},
	{"read-direct", prepare_direct, wait_read},
	{"write-direct", prepare_direct, wait_write_direct},
	{"fault", prepare_fault, wait_fault},
	{"fsync", open_file, wait_fsync},
	{"swap", prepare_swap, wait_swap},
	{0},
};
