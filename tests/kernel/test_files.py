"""File operations: counts and bytes are exact, and time agrees with the clock of the program that does them."""

import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.kernel.accounting.file_calls import path_of
from offtop.kernel.bpf.file_program import PATH
from offtop.model.values import histogram as log2
from offtop.model.values.files import NO_CALLS, FileActivity, FileTotals, added
from offtop.model.values.snapshot import Filters
from tests.kernel import hangs, programs
from tests.kernel.watch import Watch, resize_maps, watching_kernel_stacks

S = 1_000_000_000
CHILD = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <dirent.h>
#include <time.h>
static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
int main(int argc, char **argv)
{
	static char block[1 << 16];
	long long synced = 0, began;
	int fd, pair[2], ends[2], event = eventfd(1, 0);
	unsigned long long one;
	struct iovec parts[2] = {{block, 100}, {block + 100, 200}};

	next();
	fd = open(argv[1], O_RDWR | O_CREAT, 0600);
	for (int i = 0; i < 100; i++)
		pwrite(fd, block, 4096, i * 4096);
	for (int i = 0; i < 50; i++)
		pread(fd, block, 1000, i * 4096);
	for (int i = 0; i < 7; i++)
		readv(fd, parts, 2);
	pread(fd, block, 1000, 1 << 30); /* beyond the end */
	pread(fd, (char *)1, 1000, 0); /* EFAULT */
	for (int i = 0; i < 5; i++) {
		pwrite(fd, block, 1 << 16, 0);
		began = now();
		fsync(fd);
		synced += now() - began;
	}
	ftruncate(fd, 1000);
	open("/nonexistent", O_RDONLY);
	pipe(pair);
	socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
	write(pair[1], block, 10);
	read(pair[0], block, 10);
	write(ends[1], block, 10);
	read(ends[0], block, 10);
	read(event, &one, 8);
	lseek(fd, 0, SEEK_SET);
	sendfile(ends[1], fd, 0, 700);
	tell("synced", (void *)synced);
	next();
	pwrite(fd, block, 4096, 0);
	next();
	return 0;
}
"""


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("files") / "child", CHILD, "-Wno-unused-result")


@pytest.fixture(scope="module")
def counting() -> Generator[Watch]:
    with watching_kernel_stacks(with_files=True) as watched:
        yield watched


def activity(watched: Watch) -> FileActivity:
    found = watched.tick().files
    assert found is not None
    return found


def by_operation(found: FileActivity, pid: int, name: str) -> dict[str, FileTotals]:
    return {
        key.operation: totals for key, totals in found.totals.items() if key.pid == pid and found.name(key.file) == name
    }


def counts(found: dict[str, FileTotals]) -> dict[str, tuple[int, int]]:
    return {operation: (totals.calls, totals.bytes) for operation, totals in found.items()}


def test_counts_and_bytes_are_exact(counting: Watch, child: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with programs.running([child, path]) as program:
        counting.begin()
        program.go()
        found = by_operation(activity(counting), program.pid, str(path))
    assert counts(found) == {
        "openat": (1, 0),
        "pwrite": (105, 100 * 4096 + 5 * 65536),
        "pread": (52, 50 * 1000),
        "readv": (7, 7 * 300),
        "fsync": (5, 0),
        "ftruncate": (1, 0),
        "sendfile": (1, 700),
    }
    for totals in found.values():
        assert log2.count(totals.histogram) == totals.calls
        assert 0 <= totals.off_cpu_ns <= totals.total_ns
        assert totals.total_ns / totals.calls <= totals.max_ns <= totals.total_ns
        assert totals.now_ns == 0


def test_only_files_directories_and_block_devices_count(counting: Watch, child: Path, tmp_path: Path) -> None:
    with programs.running([child, tmp_path / "data"]) as program:
        counting.begin()
        program.go()
        found = activity(counting)
    mine = {found.name(key.file) for key in found.totals if key.pid == program.pid}
    assert mine == {str(tmp_path / "data")}


def test_a_directory_counts(counting: Watch, tmp_path: Path) -> None:
    code = f"import os, sys; sys.stdin.read(1); [os.listdir({str(tmp_path)!r}) for _ in range(4)]"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE) as process:
        time.sleep(0.5)
        counting.begin()
        process.communicate(b"g")
        found = by_operation(activity(counting), process.pid, str(tmp_path))
    assert counts(found) == {"openat": (4, 0), "getdents": (8, 0)}


def test_time_agrees_with_the_programs_own_clock(counting: Watch, child: Path) -> None:
    path = Path("/var/tmp") / f"offtop-test-{os.getpid()}"  # /tmp may be in memory, where fsync takes no time
    try:
        with programs.running([child, path]) as program:
            counting.begin()
            program.go()
            found = by_operation(activity(counting), program.pid, str(path))["fsync"]
    finally:
        path.unlink()
    own_ns = program.at["synced"]
    if own_ns < 5 * 100_000:
        pytest.skip(f"5 fsyncs take {own_ns:,} ns here: too little to compare")
    assert 0.98 * own_ns <= found.total_ns <= own_ns
    assert found.off_cpu_ns >= 0.3 * found.total_ns


def test_a_call_in_progress_counts_as_it_goes_and_once(counting: Watch, child: Path, tmp_path: Path) -> None:
    with hangs.frozen_ext4(tmp_path) as mounted, programs.running([child, mounted / "data"]) as program:
        program.go()
        counting.begin()
        hangs.freeze(mounted)
        program.go_on_alone()
        ticks: list[dict[str, FileTotals]] = []
        for _ in range(3):
            time.sleep(0.3)
            ticks.append(by_operation(activity(counting), program.pid, str(mounted / "data")))
        hangs.thaw(mounted)
        program.listen()
        ticks.append(by_operation(activity(counting), program.pid, str(mounted / "data")))
    first, second, third, last = (tick["pwrite"] for tick in ticks)
    assert [one.calls for one in (first, second, third, last)] == [0, 0, 0, 1]
    assert first.now_ns < second.now_ns < third.now_ns
    assert second.total_ns == second.now_ns - first.now_ns
    assert third.total_ns == third.now_ns - second.now_ns
    assert all(one.off_cpu_ns >= 0.9 * one.total_ns for one in (first, second, third))
    assert sum(one.total_ns for one in (first, second, third, last)) == last.max_ns
    assert (last.now_ns, last.bytes, log2.count(last.histogram)) == (0, 4096, 1)


def test_only_the_selected_process_counts(child: Path, tmp_path: Path) -> None:
    with (
        programs.running([child, tmp_path / "one"]) as one,
        programs.running([child, tmp_path / "other"]) as other,
        watching_kernel_stacks(Filters(pids=(one.pid,)), with_files=True) as watched,
    ):
        one.go()
        other.go()
        assert {key.pid for key in activity(watched).totals} == {one.pid}


def test_offtop_itself_does_not_count(counting: Watch, tmp_path: Path) -> None:
    counting.begin()
    (tmp_path / "own").write_text("x")
    own = {os.getpid(), *counting.source._parts.helper_pids}  # pyright: ignore[reportPrivateUsage]
    assert own.isdisjoint(key.pid for key in activity(counting).totals)


def tracepoints() -> int:
    """Return how many raw tracepoints this process has attached programs to."""
    links = 0
    for fd in Path("/proc/self/fdinfo").iterdir():
        try:
            links += "raw_tracepoint" in fd.read_text()
        except OSError:
            continue
    return links


def test_nothing_is_attached_in_other_modes() -> None:
    with watching_kernel_stacks() as watched:
        before = tracepoints()
        assert watched.tick().files is None
        watched.source.set_files(True)
        assert tracepoints() == before + 3
        assert watched.tick().files is not None
        watched.source.set_files(True)
        assert tracepoints() == before + 3
        watched.source.set_files(False)
        assert tracepoints() == before
        assert watched.tick().files is None
        watched.source.set_files(True)
        assert watched.tick().files is not None
    assert tracepoints() <= before


def test_calls_without_room_are_lost_and_counted(child: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resize_maps(monkeypatch, {"file_totals_0": 2, "file_totals_1": 2})
    with (
        programs.running([child, tmp_path / "data"]) as program,
        watching_kernel_stacks(Filters(pids=(program.pid,)), with_files=True) as watched,
    ):
        program.go()
        found = activity(watched)
    assert found.lost > 0
    assert found.lost + sum(totals.calls for totals in found.totals.values()) == 105 + 52 + 7 + 5 + 3


def test_path_is_put_together_from_its_pieces() -> None:
    assert path_of(PATH.pack(9, 0, b"data\0var\0")) == "/var/data"
    assert path_of(PATH.pack(9, 1, b"data\0var\0")) == "…/var/data"
    assert path_of(PATH.pack(0, 0, b"")) == "/"
    assert path_of(PATH.pack(4, 0, b"\xff\x1bx\0")) == "/\udcff\x1bx"


def test_deep_paths_are_cut_at_their_upper_end(counting: Watch, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*(f"directory-{number}" for number in range(40)))
    deep.mkdir(parents=True)
    counting.begin()
    subprocess.run(["sh", "-c", f"echo x > {deep}/data; echo y >> {deep}/data"], check=True)
    found = activity(counting)
    names = {found.name(key.file) for key in found.totals}
    assert any(name.startswith("…/directory-") and name.endswith("/directory-39/data") for name in names)


def test_spans_add_up() -> None:
    assert added([]) is None
    assert added([None, FileActivity()]) == FileActivity()
    assert NO_CALLS.plus(FileTotals(1, 2, 3, 4, 5, log2.of(5), 6)) == FileTotals(1, 2, 3, 4, 5, log2.of(5), 6)
