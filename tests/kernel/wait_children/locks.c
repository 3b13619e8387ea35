/*
 * Locks, the program's own and the kernel's. Where another process holds them there are two, and it takes
 * the next one before it lets this one go, so that the next wait is a wait too.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <time.h>

#include "waits.h"

static void open_files(void)
{
	files[0] = open_in("a", O_RDWR);
	files[1] = open_in("b", O_RDWR);
}

static NOINLINE void wait_futex(int i)
{
	static int word;

	sys(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &each);
}

static void make_mutexes(int protocol)
{
	pthread_mutexattr_t across;

	pthread_mutexattr_init(&across);
	pthread_mutexattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setprotocol(&across, protocol);
	for (int i = 0; i < 2; i++)
		pthread_mutex_init(&shared->mutexes[i], &across);
}

static void prepare_mutexes(void) { make_mutexes(PTHREAD_PRIO_NONE); }

static void prepare_pi_mutexes(void) { make_mutexes(PTHREAD_PRIO_INHERIT); }

static void other_mutex(void) { pthread_mutex_lock(&shared->mutexes[0]); }

static NOINLINE void wait_mutex_libc(int i)
{
	pthread_mutex_lock(&shared->mutexes[i % 2]);
	pthread_mutex_unlock(&shared->mutexes[i % 2]);
}

static void end_mutex(int i)
{
	pthread_mutex_lock(&shared->mutexes[(i + 1) % 2]);
	pthread_mutex_unlock(&shared->mutexes[i % 2]);
}

static NOINLINE void wait_cond_libc(int i)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += each.tv_nsec;
	until.tv_sec += each.tv_sec + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&mutex);
	pthread_cond_timedwait(&condition, &mutex, &until);
	pthread_mutex_unlock(&mutex);
}

static void other_flock(void)
{
	open_files(); /* descriptions of its own: an inherited one would share the lock */
	flock(files[0], LOCK_EX);
}

static NOINLINE void wait_flock(int i)
{
	sys(SYS_flock, files[i % 2], LOCK_EX, 0, 0);
	sys(SYS_flock, files[i % 2], LOCK_UN, 0, 0);
}

static void end_flock(int i)
{
	flock(files[(i + 1) % 2], LOCK_EX);
	flock(files[i % 2], LOCK_UN);
}

static void set_lock(int fd, short type)
{
	struct flock whole = {.l_type = type, .l_whence = SEEK_SET};

	fcntl(fd, F_SETLKW, &whole);
}

static void other_fcntl(void) { set_lock(files[0], F_WRLCK); }

static NOINLINE void wait_fcntl(int i)
{
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	sys(SYS_fcntl, files[i % 2], F_SETLKW, &whole, 0);
	set_lock(files[i % 2], F_UNLCK);
}

static void end_fcntl(int i)
{
	set_lock(files[(i + 1) % 2], F_WRLCK);
	set_lock(files[i % 2], F_UNLCK);
}

static void prepare_semaphore(void)
{
	files[0] = check(semget(IPC_PRIVATE, 1, 0600), "semget");
}

static NOINLINE void wait_semaphore(int i)
{
	struct sembuf take = {.sem_op = -1};

	sys(SYS_semtimedop, files[0], &take, 1, &each);
}

static void clean_semaphore(void) { semctl(files[0], 0, IPC_RMID); }

/*
 * Who writes to a file holds its inode's rwsem, and the mutex of its position too, also while the page that
 * it writes from is fetched; fetched by us (userfaultfd), so that both are held for as long as we please.
 */
static int faults;
static const char *source_page[2];
static bool inside[2];

static void *hold_inode(void *which)
{
	for (int i = (int)(long)which;; i += 2) {
		while (i >= 2 && shared->asked < i) /* wait i - 2 still wants this lock, and we would steal it */
			pause_us(100);
		madvise((void *)source_page[i % 2], 4096, MADV_DONTNEED);
		check(write(files[i % 2], source_page[i % 2], 16), "write");
	}
	return NULL;
}

static void until_inside(int which)
{
	struct uffd_msg message;

	while (!inside[which]) {
		check(read(faults, &message, sizeof(message)), "read of a userfaultfd");
		for (int i = 0; i < 2; i++)
			if (message.arg.pagefault.address / 4096 == (unsigned long)source_page[i] / 4096)
				inside[i] = true;
	}
}

static void other_inode_lock(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	pthread_t thread;

	faults = check(syscall(SYS_userfaultfd, O_CLOEXEC), "userfaultfd");
	check(ioctl(faults, UFFDIO_API, &api), "UFFDIO_API");
	for (int i = 0; i < 2; i++) {
		source_page[i] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct uffdio_register range = {
			.range = {(unsigned long)source_page[i], 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
		check(ioctl(faults, UFFDIO_REGISTER, &range), "UFFDIO_REGISTER");
		pthread_create(&thread, NULL, hold_inode, (void *)(long)i);
	}
	until_inside(0);
	until_inside(1);
}

static NOINLINE void wait_inode_lock(int i) { sys(SYS_pwrite64, files[i % 2], "x", 1, 0); }

static NOINLINE void wait_position_lock(int i) { sys(SYS_lseek, files[i % 2], 0, SEEK_CUR, 0); }

static void end_inode_lock(int i)
{
	static char content[4096] __attribute__((aligned(4096)));
	struct uffdio_copy copy = {
		.dst = (unsigned long)source_page[i % 2], .src = (unsigned long)content, .len = 4096};

	until_inside((i + 1) % 2);
	inside[i % 2] = false;
	check(ioctl(faults, UFFDIO_COPY, &copy), "UFFDIO_COPY");
}

const struct kind lock_kinds[] = {
	{"futex", NULL, wait_futex},
	{"mutex-libc", prepare_mutexes, wait_mutex_libc, end_mutex, other_mutex},
	{"mutex-pi-libc", prepare_pi_mutexes, wait_mutex_libc, end_mutex, other_mutex},
	{"cond-libc", NULL, wait_cond_libc},
	{"flock", open_files, wait_flock, end_flock, other_flock},
	{"fcntl", open_files, wait_fcntl, end_fcntl, other_fcntl},
	{"semaphore", prepare_semaphore, wait_semaphore, .clean = clean_semaphore},
	{"inode-lock", open_files, wait_inode_lock, end_inode_lock, other_inode_lock},
	{"position-lock", open_files, wait_position_lock, end_inode_lock, other_inode_lock},
	{0},
};
