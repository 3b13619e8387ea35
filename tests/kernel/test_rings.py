"""Requests to io_uring on files are counted exactly, from their submission to their completion."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.kernel.bpf.file_program import why_without_rings
from offtop.model.values import histogram as log2
from offtop.model.values.files import FILE, FileTotals
from offtop.model.values.snapshot import Filters
from tests.kernel import hangs, programs
from tests.kernel.test_files import activity, by_operation, counts, stacks
from tests.kernel.watch import Watch, watching, watching_kernel_stacks

pytestmark = pytest.mark.kernel

S = 1_000_000_000
RING = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <linux/io_uring.h>
static int ring;
static struct io_uring_params setup;
static char *queues;
static struct io_uring_sqe *entries;
#define AT(offset) ((unsigned *)(queues + (offset)))
static void *map(long bytes, long offset)
{
	return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, offset);
}
static int make_ring(void)
{
	ring = syscall(SYS_io_uring_setup, 64, &setup);
	if (ring < 0 || !(setup.features & IORING_FEAT_SINGLE_MMAP))
		return -1;
	queues = map(setup.cq_off.cqes + setup.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_SQ_RING);
	entries = map(setup.sq_entries * sizeof(*entries), IORING_OFF_SQES);
	return 0;
}
__attribute__((noinline)) static int submit(int opcode, int fd, void *at, int bytes, long offset, int flags)
{
	unsigned tail = *AT(setup.sq_off.tail), number = tail & *AT(setup.sq_off.ring_mask);
	struct io_uring_sqe *entry = &entries[number];

	memset(entry, 0, sizeof(*entry));
	entry->opcode = opcode;
	entry->fd = fd;
	entry->addr = (unsigned long)at;
	entry->len = bytes;
	entry->off = offset;
	entry->flags = flags;
	AT(setup.sq_off.array)[number] = number;
	__atomic_store_n(AT(setup.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	return syscall(SYS_io_uring_enter, ring, 1, flags & IOSQE_CQE_SKIP_SUCCESS ? 0 : 1, IORING_ENTER_GETEVENTS, 0, 0);
}
/* Submit one request, and wait for its result. */
__attribute__((noinline)) static int request(int opcode, int fd, void *at, int bytes, long offset, int flags)
{
	submit(opcode, fd, at, bytes, offset, flags);
	unsigned head = *AT(setup.cq_off.head);
	int result = ((struct io_uring_cqe *)AT(setup.cq_off.cqes))[head & *AT(setup.cq_off.ring_mask)].res;
	__atomic_store_n(AT(setup.cq_off.head), head + 1, __ATOMIC_RELEASE);
	return result;
}
"""
CHILD = (
    RING
    + r"""
int main(int argc, char **argv)
{
	static char block[1 << 16];
	struct iovec parts[2] = {{block, 100}, {block + 100, 200}};
	int fd = open(argv[1], O_RDWR | O_CREAT, 0600), pair[2];

	if (make_ring())
		return 3;
	syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &fd, 1);
	pipe(pair);
	next();
	for (int i = 0; i < 20; i++)
		request(IORING_OP_WRITE, fd, block, 4096, i * 4096, 0);
	for (int i = 0; i < 10; i++)
		request(IORING_OP_READ, fd, block, 1000, i * 4096, 0);
	for (int i = 0; i < 5; i++)
		request(IORING_OP_READV, 0, parts, 2, 0, IOSQE_FIXED_FILE); /* the registered descriptor */
	request(IORING_OP_READ, fd, block, 1000, 1 << 30, 0); /* beyond the end */
	request(IORING_OP_READ, fd, (char *)1, 1000, 0, 0); /* EFAULT */
	request(IORING_OP_FSYNC, fd, 0, 0, 0, 0);
	request(IORING_OP_FALLOCATE, fd, (void *)8192L, 0, 1 << 20, 0);
	request(IORING_OP_WRITE, pair[1], block, 10, 0, 0); /* no file */
	request(IORING_OP_READ, pair[0], block, 10, 0, 0);
	request(IORING_OP_NOP, -1, 0, 0, 0, 0);
	request(IORING_OP_READ, 1000, block, 10, 0, 0); /* EBADF */
	next();
	request(IORING_OP_WRITE, fd, block, 4096, 0, IOSQE_ASYNC);
	next();
	return 0;
}
"""
)
COUNTS = {
    "uring-write": (20, 20 * 4096),
    "uring-read": (17, 10 * 1000 + 5 * 300),
    "uring-fsync": (1, 0),
    "uring-fallocate": (1, 0),
}
"""Requests and bytes of CHILD up to its second stop, by operation."""
WRITER = (
    RING
    + r"""
static __attribute__((noinline)) void save(int fd)
{
	request(IORING_OP_WRITE, fd, "x", 1, 0, 0);
	__asm__ volatile("");
}
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT, 0600);

	if (make_ring())
		return 3;
	for (;;) {
		next();
		for (int i = 0; i < 20; i++)
			save(fd);
	}
}
"""
)


def build(directory: Path, source: str) -> Path:
    if Path("/proc/sys/kernel/io_uring_disabled").read_text().strip() != "0":
        pytest.skip("io_uring is disabled here (kernel.io_uring_disabled)")
    return programs.build(directory / "child", source, "-Wno-unused-result")


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("rings"), CHILD)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("rings"), WRITER)


@contextmanager
def counting(filters: Filters = Filters(), with_stacks: bool = False) -> Generator[Watch]:
    with (watching if with_stacks else watching_kernel_stacks)(filters, counted=[FILE]) as watched:
        if why := why_without_rings(watched.source._parts.features):  # pyright: ignore[reportPrivateUsage]
            pytest.skip(why)
        yield watched


def requests(watched: Watch, pid: int, path: Path) -> dict[str, FileTotals]:
    return {
        operation: totals
        for operation, totals in by_operation(activity(watched), pid, str(path)).items()
        if operation.startswith("uring-")
    }


def test_requests_and_bytes_are_exact(child: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with programs.running([child, path]) as program, counting(Filters(pids=(program.pid,))) as watched:
        watched.begin()
        program.go()
        found = activity(watched)
    assert {found.name(key.file) for key in found.totals if key.operation.startswith("uring-")} == {str(path)}
    mine = {key.operation: totals for key, totals in found.totals.items() if key.operation.startswith("uring-")}
    assert counts(mine) == COUNTS
    assert found.lost == 0
    for totals in mine.values():
        assert log2.count(totals.histogram) == totals.calls
        assert totals.total_ns / totals.calls <= totals.max_ns <= totals.total_ns
        assert (totals.off_cpu_ns, totals.now_ns) == (0, 0)


def test_a_request_in_progress_counts_as_it_goes_and_once(child: Path, tmp_path: Path) -> None:
    with (
        hangs.frozen_ext4(tmp_path) as mounted,
        programs.running([child, mounted / "data"]) as program,
        counting(Filters(pids=(program.pid,))) as watched,
    ):
        program.go()
        watched.begin()
        hangs.freeze(mounted)
        program.go_on_alone()
        ticks: list[FileTotals] = []
        for _ in range(3):
            time.sleep(0.3)
            ticks.append(requests(watched, program.pid, mounted / "data")["uring-write"])
        hangs.thaw(mounted)
        program.listen()
        ticks.append(requests(watched, program.pid, mounted / "data")["uring-write"])
    first, second, third, last = ticks
    assert [one.calls for one in ticks] == [0, 0, 0, 1]
    assert 0 < first.now_ns < second.now_ns < third.now_ns
    assert third.total_ns == third.now_ns - second.now_ns
    assert sum(one.total_ns for one in ticks) == last.max_ns > 0.8 * S
    assert (last.now_ns, last.bytes) == (0, 4096)


def test_with_minimum_0_each_request_has_the_stack_of_its_submission(writer: Path, tmp_path: Path) -> None:
    with (
        programs.running([writer, tmp_path / "data"]) as program,
        counting(Filters(pids=(program.pid,), min_ns=0), with_stacks=True) as watched,
    ):
        for _ in range(3):  # the first stacks are copied, until the unwind rules are loaded
            program.go()
            activity(watched)
        program.go()
        found = activity(watched)
        of_program = stacks(watched, found, program.pid, "uring-write")
    totals = by_operation(found, program.pid, str(tmp_path / "data"))["uring-write"]
    ((path, one),) = of_program.items()
    assert path[-3:] == ("submit", "request", "save")
    assert (one.calls, one.bytes, one.total_ns) == (20, 20, totals.total_ns)


@pytest.mark.variant
@pytest.mark.skipif(not shutil.which("fio"), reason="fio is not here: apt-get install fio")
@pytest.mark.parametrize("options", [(), ("--fixedbufs", "--registerfiles"), ("--sqthread_poll",)])
def test_counts_bytes_and_mean_time_are_those_of_fio(options: tuple[str, ...]) -> None:
    path = Path("/var/tmp") / f"offtop-rings-{os.getpid()}"  # /tmp may be in memory, where direct I/O is refused
    command = ["fio", "--name=job", "--ioengine=io_uring", "--direct=1", "--output-format=json", f"--filename={path}"]
    command += ["--rw=randread", "--bs=256k", "--number_ios=100", "--size=32M", "--iodepth=1", *options]
    try:
        path.write_bytes(os.urandom(32 << 20))
        with counting() as watched:
            watched.begin()
            ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
            counted = activity(watched)
    finally:
        path.unlink()
    by_fio = json.loads(ended.stdout[ended.stdout.index("{") :])["jobs"][0]["read"]
    (found,) = (
        totals
        for key, totals in counted.totals.items()
        if key.operation == "uring-read" and counted.name(key.file) == str(path)
    )
    assert (found.calls, found.bytes) == (by_fio["total_ios"], by_fio["io_bytes"]) == (100, 100 * (256 << 10))
    if not by_fio["slat_ns"]["mean"] or by_fio["clat_ns"]["mean"] < 100_000:
        return  # another thread submits, so fio does not know when; or too short to compare
    assert by_fio["clat_ns"]["mean"] * 0.98 <= found.total_ns / found.calls <= by_fio["lat_ns"]["mean"]
