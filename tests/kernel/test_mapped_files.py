"""Page faults on mapped files count as a file operation if their thread sleeps in them, and only then."""

import os
import signal
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.kernel.bpf.file_program import why_without_faults
from offtop.model.values import histogram as log2
from offtop.model.values.files import FILE, MMAP_READ, FileTotals
from offtop.model.values.snapshot import Filters
from tests.kernel import hangs, programs
from tests.kernel.test_files import activity, by_operation, stacks
from tests.kernel.watch import Watch, watching, watching_kernel_stacks

pytestmark = pytest.mark.kernel

S = 1_000_000_000
PAGES = 300
CHILD = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#define PAGES 300
static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static long long slept, took, sum;
__attribute__((noinline)) static void touch(volatile char *page)
{
	struct rusage before, after;
	long long began;

	getrusage(RUSAGE_SELF, &before);
	began = now();
	sum += *page;
	began = now() - began;
	getrusage(RUSAGE_SELF, &after);
	if (after.ru_nvcsw > before.ru_nvcsw) {
		slept += 1;
		took += began;
	}
}
__attribute__((noinline)) static void touch_all(char **pages)
{
	slept = took = 0;
	for (int i = 0; i < PAGES; i++)
		touch(pages[i * 7 % PAGES]);
	tell("slept", (void *)slept);
	tell("took", (void *)took);
}
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDONLY);
	char *whole = mmap(0, PAGES * 4096, PROT_READ, MAP_SHARED, fd, 0), *one[PAGES], *parts[PAGES], *memory[PAGES];

	for (int i = 0; i < PAGES; i++) {
		one[i] = whole + i * 4096;
		parts[i] = mmap(0, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, (PAGES - 1 - i) * 4096);
		madvise(parts[i], 4096, MADV_RANDOM);
		memory[i] = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	madvise(whole, PAGES * 4096, MADV_RANDOM);
	next();
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	touch_all(one); /* read from the disk */
	next();
	touch_all(one); /* mapped already */
	touch_all(memory); /* of no file */
	next();
	madvise(whole, PAGES * 4096, MADV_DONTNEED);
	touch_all(one); /* in the page cache */
	next();
	munmap(whole, PAGES * 4096);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	touch_all(parts); /* each in a mapping of its own */
	next();
	return 0;
}
"""
LOOKER = r"""
#include <fcntl.h>
#include <sys/mman.h>
__attribute__((noinline)) static char load(volatile char *page)
{
	char found = *page;
	__asm__ volatile("");
	return found;
}
__attribute__((noinline)) static char look_up(volatile char *page)
{
	char found = load(page);
	__asm__ volatile("");
	return found;
}
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDONLY);
	char *whole = mmap(0, 1 << 16, PROT_READ, MAP_SHARED, fd, 0), sum;

	next();
	sum = look_up(whole);
	next();
	return sum & 0;
}
"""


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("mapped") / "child", CHILD, "-Wno-unused-result")


@pytest.fixture(scope="module")
def looker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("mapped") / "looker", LOOKER, "-Wno-unused-result")


@contextmanager
def counting(filters: Filters = Filters(), with_stacks: bool = False) -> Generator[Watch]:
    with (watching if with_stacks else watching_kernel_stacks)(filters, counted=[FILE]) as watched:
        if why := why_without_faults(watched.source._parts.features):  # pyright: ignore[reportPrivateUsage]
            pytest.skip(why)
        yield watched


@pytest.fixture
def data() -> Generator[Path]:
    path = Path("/var/tmp") / f"offtop-mapped-{os.getpid()}"  # /tmp may be in memory, where nothing is read
    try:
        path.write_bytes(os.urandom(PAGES * 4096))
        with path.open("rb") as file:
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink()


def faults(watched: Watch, pid: int, path: Path) -> FileTotals:
    """Return the totals of a process's faults since the last tick; those on other files must not exist."""
    found = activity(watched)
    mine: Mapping[str, FileTotals] = {
        found.name(key.file): totals
        for key, totals in found.totals.items()
        if key.pid == pid and key.operation == MMAP_READ
    }
    assert mine.keys() <= {str(path)}
    return mine.get(str(path), FileTotals())


def test_faults_in_which_the_thread_sleeps_count_exactly_and_no_others(child: Path, data: Path) -> None:
    with programs.running([child, data]) as program, counting(Filters(pids=(program.pid,))) as watched:
        watched.begin()
        program.go()
        read, slept, took_ns = faults(watched, program.pid, data), program.at["slept"], program.at["took"]
        program.go()
        again = faults(watched, program.pid, data)
        program.go()
        cached = faults(watched, program.pid, data)
        program.go()
        apart, slept_apart = faults(watched, program.pid, data), program.at["slept"]
    assert slept > PAGES / 2
    assert (read.calls, log2.count(read.histogram), read.bytes) == (slept, slept, 0)
    assert 0.75 * took_ns <= read.total_ns <= took_ns
    assert read.total_ns / read.calls <= read.max_ns <= read.total_ns
    assert 0.5 * read.total_ns <= read.off_cpu_ns <= read.total_ns
    assert again == cached == FileTotals()
    assert slept_apart > PAGES / 2
    assert apart.calls == slept_apart


def test_a_fault_in_progress_counts_as_it_goes_and_once_with_its_stacks(looker: Path, tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(os.urandom(1 << 16))
    with (
        hangs.fuse(tmp_path, tmp_path / "content") as mounted,
        programs.running([looker, mounted.program]) as program,
        counting(Filters(pids=(program.pid,), min_ns=S // 10), with_stacks=True) as watched,
    ):
        watched.begin()
        mounted.stop()
        program.go_on_alone()
        ticks: list[FileTotals] = []
        for _ in range(3):
            time.sleep(0.3)
            ticks.append(faults(watched, program.pid, mounted.program))
        os.kill(mounted.pid, signal.SIGCONT)
        program.listen()
        found = activity(watched)
        ticks.append(by_operation(found, program.pid, str(mounted.program))[MMAP_READ])
        of_program = stacks(watched, found, program.pid, MMAP_READ)
        (stack,) = found.stacks
        kernel = [frame.name for frame in watched.last.catalog.stack(stack.kernel).frames]
    first, second, third, last = ticks
    assert [one.calls for one in ticks] == [0, 0, 0, 1]
    assert 0 < first.now_ns < second.now_ns < third.now_ns
    assert third.total_ns == third.now_ns - second.now_ns
    assert sum(one.total_ns for one in ticks) == last.max_ns > 0.9 * S
    assert last.off_cpu_ns <= last.total_ns
    assert (last.now_ns, log2.count(last.histogram)) == (0, 1)
    assert [path[:2] for path in of_program] == [("load", "look_up")]
    assert [one.calls for one in of_program.values()] == [1]
    assert "filemap_fault" in kernel


def test_a_thread_that_is_killed_in_a_fault_leaves_none_in_progress(looker: Path, tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(os.urandom(1 << 16))
    with (
        hangs.fuse(tmp_path, tmp_path / "content") as mounted,
        programs.running([looker, mounted.program]) as program,
        counting(Filters(pids=(program.pid,))) as watched,
    ):
        watched.begin()
        mounted.stop()
        program.go_on_alone()
        time.sleep(0.3)
        assert faults(watched, program.pid, mounted.program).now_ns > 0
        os.kill(program.pid, signal.SIGKILL)
        os.kill(mounted.pid, signal.SIGCONT)  # a thread that waits for an answer cannot be killed before it
        programs.until(lambda: Path(f"/proc/{program.pid}/stat").read_text().split()[2] == "Z")
        killed = faults(watched, program.pid, mounted.program)
        later = faults(watched, program.pid, mounted.program)
    assert (killed.calls, killed.now_ns) == (1, 0)
    assert later == FileTotals()
