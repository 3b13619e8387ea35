"""Test which kernel lock a thread waits for and who holds it.

A child holds it for as long as it wants.
"""

import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.kernel.bpf import features, libbpf
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Filters, Holder, Waiting
from offtop.model.values.stack import FIRST_STACK
from offtop.model.values.wake import OFFWAKE, Object
from offtop.model.windows.window import merge
from tests.conftest import lacks
from tests.kernel import programs, watch
from tests.kernel.programs import Program
from tests.kernel.watch import MS, Watch

pytestmark = pytest.mark.kernel

HOLDS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <string.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#define PAGE 4096
#define LARGE (2ul << 30)

static const char *kind, *path;
static int fds[2], faults, others;
static char *page, *large;
static volatile int is_over;

/* Holds the lock while it writes to a page that is not present yet. */
static void *holder(void *unused)
{
	prctl(PR_SET_NAME, "holder");
	tell("holder", (void *)syscall(SYS_gettid));
	if (!strcmp(kind, "memory"))
		for (int i = 0; !is_over; i++)
			mprotect(large, LARGE, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE);
	else if (write(fds[1], page, 16) != 16)
		exit(1);
	return unused;
}

static void *waiter(void *which)
{
	char name[16], c;
	unsigned char there[1];

	snprintf(name, sizeof(name), "waiter-%ld", (long)which);
	prctl(PR_SET_NAME, name);
	tell(name, (void *)syscall(SYS_gettid));
	if (!strcmp(kind, "inode"))
		pwrite(fds[1], "x", 1, 0);
	else if (!strcmp(kind, "path"))
		setxattr(path, "user.x", "x", 1, 0);
	else if (!strcmp(kind, "position"))
		lseek(fds[1], 0, SEEK_CUR);
	else if (!strcmp(kind, "pipe"))
		read(fds[0], &c, 1);
	else if (!strcmp(kind, "memory"))
		while (!is_over)
			mincore(page, PAGE, there);
	return which;
}

int main(int count, char **words)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffd_msg message;
	static char content[PAGE] __attribute__((aligned(PAGE)));
	pthread_t threads[3];

	kind = words[1];
	path = words[2];
	setvbuf(stdout, 0, _IOLBF, 0);
	page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = {.range = {(unsigned long)page, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	struct uffdio_copy copy = {.dst = (unsigned long)page, .src = (unsigned long)content, .len = PAGE};
	faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
		return 1;
	if (!strcmp(kind, "memory")) { /* all of it is the zero page, which costs only time */
		large = mmap(0, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		madvise(large, LARGE, MADV_NOHUGEPAGE);
		for (unsigned long at = 0; at < LARGE; at += PAGE)
			((volatile char *)large)[at];
	} else if (!strcmp(kind, "pipe") ? pipe(fds) : (fds[1] = open(path, O_CREAT | O_RDWR, 0600)) < 0)
		return 1;
	next();
	pthread_create(&threads[0], 0, holder, 0);
	if (strcmp(kind, "memory"))
		read(faults, &message, sizeof(message)); /* the holder has the lock now */
	for (long i = 1; i <= 2; i++)
		pthread_create(&threads[i], 0, waiter, (void *)i);
	usleep(50000);
	next();
	is_over = 1;
	ioctl(faults, UFFDIO_COPY, &copy);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], 0);
	next();
	return 0;
}
"""


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("locks") / "holds", HOLDS, "-pthread", "-w")


@pytest.fixture(scope="module")
def live() -> Generator[Watch]:
    if not features.detect(libbpf.KernelTypes()).locks:
        lacks("task_struct.blocker")
    with watch.watching() as live:
        yield live


@contextmanager
def held(live: Watch, binary: Path, kind: str, path: Path, mode: str = "offcpu") -> Generator[Program]:
    """Run a child with a lock holder and two waiters."""
    with programs.running([binary, kind, path]) as child:
        live.source.set_filters(Filters(min_ns=MS, pids=(child.pid,)))
        live.source.set_mode(mode)
        live.tick()
        child.go()
        yield child


def in_progress(live: Watch, child: Program, name: str) -> Waiting:
    return live.last.waiting[ThreadKey(child.pid, child.at[name])]


def until_scanned(live: Watch, child: Program, count: int = 2) -> list[Waiting]:
    """Return the waiters' waits once a scan has found them; not each tick has a scan."""
    keys = [ThreadKey(child.pid, child.at[f"waiter-{n}"]) for n in range(1, count + 1)]
    waits: list[Waiting] = []
    while len(waits) < count or any(one.site.kernel < FIRST_STACK for one in waits):
        live.tick(0.02)
        waits = [live.last.waiting[key] for key in keys if key in live.last.waiting]
    return waits


def on(live: Watch, one: Waiting) -> Object:
    return live.last.catalog.wake(one.site.wake).object


@pytest.mark.parametrize("kind", ["inode", "path", "position", "pipe"])
@pytest.mark.parametrize("mode", ["offcpu", OFFWAKE])
def test_two_waiters_for_a_lock_share_it_and_its_holder(
    live: Watch, binary: Path, tmp_path: Path, kind: str, mode: str
) -> None:
    path = tmp_path / "file"
    with held(live, binary, kind, path, mode) as child:
        waits = until_scanned(live, child)
        assert [one.holder for one in waits] == [Holder(child.pid, child.at["holder"], "holder")] * 2
        (what,) = {on(live, one) for one in waits}
        stat = (path if path.exists() else tmp_path).stat()
        inode = f"{stat.st_ino} of {os.major(stat.st_dev)}:{os.minor(stat.st_dev)}"
        pipes = [fd.readlink() for fd in Path(f"/proc/{child.pid}/fd").iterdir() if "pipe" in str(fd.readlink())]
        in_json = {
            "inode": [Object("rwsem", f"i_rwsem of {path}")],
            "path": [Object("rwsem", f"i_rwsem of inode {inode}")],
            "position": [Object("mutex", f"f_pos_lock of {path}")],
            "pipe": [Object("mutex", f"mutex of {pipe}") for pipe in pipes],
        }
        assert what in in_json[kind]
        assert in_progress(live, child, "holder").holder == NO_HOLDER, "the holder waits for its page"
        child.go()
        window = merge([live.tick(), live.tick(0.1), live.tick(0.1)])  # waits of a just exited thread may be late
        ended = Counter[Object]()
        for n in (1, 2):
            for key, totals in watch.sites_of(window, child.at[f"waiter-{n}"]).items():
                ended[window.catalog.wake(key.wake).object] += totals.waits
        assert ended[what] == 2
        assert not any(one.holder.tid for one in live.last.waiting.values())


def test_the_lock_of_a_processs_memory_is_named(live: Watch, binary: Path, tmp_path: Path) -> None:
    with held(live, binary, "memory", tmp_path) as child:
        by_object = Counter[Object]()
        holders: set[Holder] = set()
        for _ in range(100):
            window = live.tick(0.02)
            for n in (1, 2):
                for key, totals in watch.sites_of(window, child.at[f"waiter-{n}"]).items():
                    by_object[window.catalog.wake(key.wake).object] += totals.waits
            holders |= {one.holder for one in live.last.waiting.values()}
            if holders - {NO_HOLDER} and by_object[Object("rwsem", "mmap_lock", child.pid)]:
                break
        assert by_object[Object("rwsem", "mmap_lock", child.pid)]
        assert Holder(child.pid, child.at["holder"], "holder") in holders


def test_a_filtered_holder_is_reported_too(live: Watch, binary: Path, tmp_path: Path) -> None:
    with held(live, binary, "inode", tmp_path / "file") as child:
        live.source.set_filters(Filters(min_ns=MS, tids=(child.at["waiter-1"],)))
        until_scanned(live, child, 1)
        assert [*live.last.waiting] == [ThreadKey(child.pid, child.at["waiter-1"])]
        assert in_progress(live, child, "waiter-1").holder == Holder(child.pid, child.at["holder"], "holder")
