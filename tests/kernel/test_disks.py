"""Requests to block devices: counts and bytes are exact, up to what is reported as lost."""

import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.model.values import histogram as log2
from offtop.model.values.disks import DISK, DiskActivity, DiskTotals
from offtop.model.values.snapshot import Filters
from tests.kernel import programs
from tests.kernel.test_files import stacks, tracepoints
from tests.kernel.watch import S, Watch, watching, watching_kernel_stacks

pytestmark = pytest.mark.kernel

READS, WRITES = 200, 100
CHILD = r"""
#include <fcntl.h>
#include <stdlib.h>
static char *block;
__attribute__((noinline)) void load(int fd, long i)
{
	if (pread(fd, block, 4096, i * 16384) != 4096)
		exit(1);
	__asm__ volatile("");
}
__attribute__((noinline)) void save(int fd, long i)
{
	if (pwrite(fd, block, 8192, i * 16384) != 8192)
		exit(1);
	__asm__ volatile("");
}
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_DIRECT);

	posix_memalign((void **)&block, 4096, 8192);
	for (;;) {
		next();
		for (long i = 0; i < 200; i++)
			load(fd, i);
		for (long i = 0; i < 100; i++)
			save(fd, i);
	}
}
"""


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("disks") / "child", CHILD, "-D_GNU_SOURCE", "-Wno-unused-result")


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    image = tmp_path_factory.mktemp("disks") / "image"
    image.write_bytes(bytes(8 << 20))
    command = ["losetup", "--find", "--show", str(image)]
    device = subprocess.run(command, check=True, timeout=30, capture_output=True, text=True).stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "-d", device], check=True, timeout=30)


@pytest.fixture(scope="module")
def counting() -> Generator[Watch]:
    with watching_kernel_stacks(counted=[DISK]) as watched:
        yield watched


def activity(watched: Watch) -> DiskActivity:
    found = watched.tick().disks
    assert found is not None
    return found


def test_counts_and_bytes_are_exact(counting: Watch, child: Path, loop: str) -> None:
    with programs.running([child, loop]) as program:
        counting.begin()
        before_ms = milliseconds(loop)
        program.go()
        found = activity(counting)
        of_kernel_ms = milliseconds(loop) - before_ms
    mine = {
        key.operation: totals
        for key, totals in found.totals.items()
        if key.pid == program.pid and found.name(key.device) == Path(loop).name
    }
    reads, writes = mine["read"], mine["sync-write"]
    assert READS - found.lost <= reads.requests <= READS
    assert WRITES - found.lost <= writes.requests <= WRITES
    assert (reads.bytes, writes.bytes) == (4096 * reads.requests, 8192 * writes.requests)
    for totals in (reads, writes):
        check(totals)
    device = next(sums for number, sums in found.devices.items() if found.name(number) == Path(loop).name)
    assert (device.reads.requests, device.writes.requests) >= (reads.requests, writes.requests)
    if not found.lost:
        every = device.every
        assert (every.queue_ns + every.device_ns) / 1e6 == pytest.approx(of_kernel_ms, rel=0.05, abs=4)


def test_requests_that_reach_the_minimum_have_the_stacks_of_program_and_kernel(child: Path, loop: str) -> None:
    with programs.running([child, loop]) as program:
        with watching(Filters(pids=(program.pid,), min_ns=1000), counted=[DISK]) as watched:
            for _ in range(2):  # the first stacks are copied, until the unwind rules are loaded
                program.go()
                activity(watched)
            program.go()
            found = activity(watched)
            reads, writes = (stacks(watched, found, program.pid, operation) for operation in ("read", "sync-write"))
            catalog = watched.last.catalog
            kernels = {tuple(frame.name for frame in catalog.stack(key.kernel).frames) for key in found.stacks}
        with watching(Filters(pids=(program.pid,), min_ns=10 * S), counted=[DISK]) as watched:
            program.go()
            short = activity(watched)
    for by_stack, function, operation in ((reads, "load", "read"), (writes, "save", "sync-write")):
        ((path, ended),) = by_stack.items()
        assert path[1:] == (function,)
        (totals,) = (one for key, one in found.totals.items() if key.operation == operation and key.pid == program.pid)
        assert ended.calls == totals.requests > 0
        assert (ended.bytes, ended.max_ns) == (totals.bytes, totals.max_ns)
        assert ended.total_ns == totals.queue_ns + totals.device_ns
    for kernel in kernels:
        assert "blk_mq_submit_bio" in kernel
        assert not kernel[0].startswith(("bpf_", "__bpf", "__traceiter"))
    assert any(key.pid == program.pid for key in short.totals)
    assert not short.stacks


def milliseconds(disk: str) -> int:
    """Return the time of all reads, writes and flushes of a disk, as the kernel adds it up (iostats.rst).

    Each of the three is cut to whole ms.
    """
    lines = (line.split() for line in Path("/proc/diskstats").read_text().splitlines())
    fields = next(fields for fields in lines if fields[2] == Path(disk).name)
    return int(fields[6]) + int(fields[10]) + int(fields[19])


def check(totals: DiskTotals) -> None:
    assert totals.queue_ns + totals.device_ns >= totals.max_ns > 0
    for histogram in (totals.histogram, totals.queue_histogram, totals.device_histogram):
        assert log2.count(histogram) == totals.requests
    assert (totals.errors, totals.now_ns, totals.in_queue, totals.in_device) == (0, 0, 0, 0)


def test_nothing_is_attached_in_other_modes() -> None:
    with watching_kernel_stacks() as watched:
        before = tracepoints()
        assert watched.tick().disks is None
        watched.source.set_counted(DISK, True)
        assert tracepoints() == before + 9
        assert [watched.tick().disks is None for _ in range(3)] == [True, False, False], "it began within a tick"
        watched.source.set_counted(DISK, False)
        assert tracepoints() == before
        assert watched.tick().disks is None
