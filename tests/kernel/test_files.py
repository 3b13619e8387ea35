"""File operations: counts and bytes are exact, and time agrees with the clock of the program that does them."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.errors import KernelError
from offtop.kernel.accounting import file_calls
from offtop.kernel.accounting.file_calls import path_of
from offtop.kernel.bpf import file_program
from offtop.kernel.bpf.file_program import PATH, why_without_faults, why_without_rings
from offtop.model.values import histogram as log2
from offtop.model.values.disks import DiskActivity
from offtop.model.values.files import FILE, NO_CALLS, FileActivity, FileTotals, added
from offtop.model.values.io_stacks import StackTotals
from offtop.model.values.snapshot import Filters
from tests.kernel import hangs, programs
from tests.kernel.watch import Watch, resize_maps, watching, watching_kernel_stacks

pytestmark = pytest.mark.kernel

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
COUNTS = {
    "openat": (1, 0),
    "pwrite": (105, 100 * 4096 + 5 * 65536),
    "pread": (52, 50 * 1000),
    "readv": (7, 7 * 300),
    "fsync": (5, 0),
    "ftruncate": (1, 0),
    "sendfile": (1, 700),
}
"""Calls and bytes of CHILD up to its second stop, by operation."""


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("files") / "child", CHILD, "-Wno-unused-result")


@pytest.fixture(scope="module")
def counting() -> Generator[Watch]:
    with watching_kernel_stacks(counted=[FILE]) as watched:
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
    with programs.running([child, path]) as program, counting.only(program.pid):
        counting.begin()
        program.go()
        found = by_operation(activity(counting), program.pid, str(path))
    assert counts(found) == COUNTS
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


def test_a_renamed_file_has_its_new_name_soon(counting: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_calls, "_NAME_NS", 0)
    old, new = tmp_path / "data.tmp", tmp_path / "data"
    script = "import sys; f = open(sys.argv[1], 'wb', 0)\nfor line in sys.stdin: f.write(b'x'), print(flush=True)"
    writer = subprocess.Popen([sys.executable, "-c", script, old], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdin and writer.stdout
    with writer, counting.only(writer.pid):

        def written(name: Path) -> int:
            """Have it write once, and return how many writes there are to the file of that name in the tick."""
            assert writer.stdin and writer.stdout
            writer.stdin.write(b"go\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == b"\n"
            found = by_operation(activity(counting), writer.pid, str(name))
            return found["write"].calls if "write" in found else 0

        assert written(old) == 1
        old.rename(new)
        assert any(written(new) for _ in range(3))  # the old name is read, dropped, and read again
        writer.stdin.close()


def test_only_the_selected_process_counts(child: Path, tmp_path: Path) -> None:
    with (
        programs.running([child, tmp_path / "one"]) as one,
        programs.running([child, tmp_path / "other"]) as other,
        watching_kernel_stacks(Filters(pids=(one.pid,)), counted=[FILE]) as watched,
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
        features = watched.source._parts.features  # pyright: ignore[reportPrivateUsage]
        attached = 3 + (not why_without_faults(features)) + 2 * (not why_without_rings(features))
        watched.source.set_counted(FILE, True)
        assert tracepoints() == before + attached
        assert [watched.tick().files is None for _ in range(3)] == [True, False, False], "it began within a tick"
        watched.source.set_counted(FILE, True)
        assert tracepoints() == before + attached
        watched.source.set_counted(FILE, False)
        assert tracepoints() == before
        assert watched.tick().files is None
        watched.source.set_counted(FILE, True)
        assert [watched.tick().files is None for _ in range(2)] == [True, False]
    assert tracepoints() <= before


def test_programs_of_another_version_are_refused_and_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = file_program._SIZES  # pyright: ignore[reportPrivateUsage]
    with watching() as live:
        before = tracepoints()
        monkeypatch.setitem(sizes, "file_lost", (4, 16))
        with pytest.raises(KernelError, match="different versions"):
            live.source.set_counted(FILE, True)
        assert tracepoints() == before
        monkeypatch.undo()
        live.source.set_counted(FILE, True)
        assert tracepoints() > before


def test_calls_without_room_are_lost_and_counted(child: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resize_maps(monkeypatch, {"file_totals_0": 2, "file_totals_1": 2})
    with (
        programs.running([child, tmp_path / "data"]) as program,
        watching_kernel_stacks(Filters(pids=(program.pid,)), counted=[FILE]) as watched,
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


WRITER = r"""
#include <fcntl.h>
__attribute__((noinline)) void store(int fd)
{
	pwrite(fd, "x", 1, 0);
	__asm__ volatile("");
}
__attribute__((noinline)) void log_line(int fd)
{
	store(fd);
	__asm__ volatile("");
}
__attribute__((noinline)) void save(int fd)
{
	store(fd);
	__asm__ volatile("");
}
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT, 0600);

	for (;;) {
		next();
		for (int i = 0; i < 20; i++)
			log_line(fd);
		next();
		save(fd);
	}
}
"""


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("files") / "writer", WRITER, "-Wno-unused-result")


def stacks(
    watched: Watch, found: FileActivity | DiskActivity, pid: int, operation: str = ""
) -> dict[tuple[str, ...], StackTotals]:
    """Return the totals of a process's calls or requests by its functions, leaf first, up to main."""
    catalog, names = watched.last.catalog, watched.source.names
    mine = {
        key: totals
        for key, totals in found.stacks.items()
        if key.row.pid == pid and operation in ("", key.row.operation)
    }
    watched.source.wait_for_names({frame for key in mine for frame in catalog.stack(key.user).frames}, 30)
    table: dict[tuple[str, ...], StackTotals] = {}
    for key, totals in mine.items():
        every = [names.of(frame) for frame in catalog.stack(key.user).frames]
        own = tuple(every[: every.index("main")]) if "main" in every else tuple(every)
        table[own] = table.get(own, StackTotals()).plus(totals)
    return table


def test_long_calls_have_the_stacks_of_program_and_kernel_and_short_ones_none(writer: Path, tmp_path: Path) -> None:
    with (
        hangs.frozen_ext4(tmp_path) as mounted,
        programs.running([writer, mounted / "data"]) as program,
        watching(Filters(pids=(program.pid,), min_ns=S // 10), counted=[FILE]) as watched,
    ):
        program.go()
        short = activity(watched)
        hangs.freeze(mounted)
        program.go_on_alone()
        time.sleep(0.2)
        in_progress = activity(watched)
        hangs.thaw(mounted)
        program.listen()
        found = activity(watched)
        of_program = stacks(watched, found, program.pid)
        (stack,) = found.stacks
        kernel = [frame.name for frame in watched.last.catalog.stack(stack.kernel).frames]
    totals = by_operation(found, program.pid, str(mounted / "data"))["pwrite"]
    assert [one.calls for one in short.totals.values()] == [20]
    assert not short.stacks and not in_progress.stacks
    assert {path[1:]: one for path, one in of_program.items()} == {
        ("store", "save"): StackTotals(1, 1, totals.max_ns, totals.max_ns)
    }
    assert "pwrite" in next(iter(of_program))[0]
    assert {"percpu_rwsem_wait", "vfs_write"} <= set(kernel)


def test_with_minimum_0_the_stacks_add_up_to_all_calls(writer: Path, tmp_path: Path) -> None:
    with (
        programs.running([writer, tmp_path / "data"]) as program,
        watching(Filters(pids=(program.pid,), min_ns=0), counted=[FILE]) as watched,
    ):
        for _ in range(3):  # the first stacks are copied, until the unwind rules are loaded
            program.go()
            activity(watched)
            program.go()
            activity(watched)
        program.go()
        logged = activity(watched)
        of_program = stacks(watched, logged, program.pid)
        program.go()
        saved = stacks(watched, activity(watched), program.pid)
    (totals,) = (totals for key, totals in logged.totals.items() if key.pid == program.pid)
    ((path, one),) = of_program.items()
    assert (path[1:], totals.calls) == (("store", "log_line"), 20)
    assert one == StackTotals(totals.calls, totals.bytes, totals.total_ns, totals.max_ns)
    assert [(path[1:], one.calls) for path, one in saved.items()] == [(("store", "save"), 1)]


def test_calls_at_stacks_without_room_are_counted_all_the_same(
    writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resize_maps(monkeypatch, {"file_stacks_0": 1, "file_stacks_1": 1})
    with (
        programs.running([writer, tmp_path / "one"]) as one,
        programs.running([writer, tmp_path / "other"]) as other,
        watching_kernel_stacks(Filters(pids=(one.pid, other.pid), min_ns=0), counted=[FILE]) as watched,
    ):
        before = watched.last.lost.get("sites", 0)
        one.go()
        other.go()
        found = activity(watched)
    assert sum(totals.calls for totals in found.totals.values()) == 2 * 20
    assert sum(totals.calls for totals in found.stacks.values()) == 20
    assert watched.last.lost["sites"] - before == 20


def test_a_trigger_names_the_slow_call_in_batch(writer: Path, tmp_path: Path) -> None:
    with hangs.frozen_ext4(tmp_path) as mounted, programs.running([writer, mounted / "data"]) as program:
        command = [Path(sys.executable).with_name("offtop"), "-b", "--json", "-n", "3", "-p", str(program.pid)]
        offtop = subprocess.Popen(
            [*command, "--trigger", "file.max > 200ms", "--fail-on-trigger"], stdout=subprocess.PIPE, text=True
        )
        assert offtop.stdout
        first = json.loads(offtop.stdout.readline())
        program.go()
        hangs.freeze(mounted)
        program.go_on_alone()
        time.sleep(0.5)
        hangs.thaw(mounted)
        program.listen()
        rest = [json.loads(line) for line in offtop.stdout]
        assert offtop.wait(30) == 5
    assert (first["mode"], first["outliers"]) == ("offcpu", [])  # the rule only has the calls counted
    assert "files" in first
    (one,) = (one for tick in rest for one in tick["outliers"])
    assert (one["mode"], one["what"], one["process"]) == ("file", f"pwrite {mounted / 'data'}", "writer")
    assert one["value"] > 200_000_000


ENDLESS = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
print("ready", flush=True)
while True:
    os.pwrite(fd, b"x", 0)
    time.sleep(0.0005)
"""


def test_of_many_short_calls_some_have_a_stack_whatever_the_budget(tmp_path: Path) -> None:
    with (
        programs.running([sys.executable, "-c", ENDLESS, tmp_path / "data"]) as program,
        watching(Filters(pids=(program.pid,), min_ns=0), budget_pct=0.02, counted=[FILE]) as watched,
    ):
        time.sleep(1)
        activity(watched)
        time.sleep(1)
        found = activity(watched)
        raised_ns = watched.last.cost.thinned.stacks_from_ns
    (totals,) = (totals for key, totals in found.totals.items() if key.operation == "pwrite")
    assert raised_ns > totals.max_ns
    assert 0 < sum(one.calls for one in found.stacks.values()) < totals.calls / 2


FIO_CALLS, FIO_BYTES = 100, 256 << 10


@pytest.mark.variant
@pytest.mark.skipif(not shutil.which("fio"), reason="fio is not here: apt-get install fio")
@pytest.mark.parametrize(("direction", "operation"), [("read", "pread"), ("write", "pwrite")])
def test_counts_bytes_and_mean_time_are_those_of_fio(counting: Watch, direction: str, operation: str) -> None:
    path = Path("/var/tmp") / f"offtop-fio-{os.getpid()}"  # /tmp may be in memory, where direct I/O is refused
    command = ["fio", "--name=job", "--ioengine=psync", "--direct=1", "--output-format=json", f"--filename={path}"]
    command += [f"--rw=rand{direction}", f"--bs={FIO_BYTES}", f"--number_ios={FIO_CALLS}", "--size=32M"]
    try:
        path.write_bytes(os.urandom(32 << 20))
        counting.begin()
        ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
        counted = activity(counting)
    finally:
        path.unlink()
    by_fio = json.loads(ended.stdout[ended.stdout.index("{") :])["jobs"][0][direction]
    (found,) = (
        totals
        for key, totals in counted.totals.items()
        if key.operation == operation and counted.name(key.file) == str(path)
    )
    assert (found.calls, found.bytes) == (by_fio["total_ios"], by_fio["io_bytes"]) == (100, 100 * FIO_BYTES)
    mean_ns = by_fio["clat_ns"]["mean"]
    if mean_ns < 100_000:
        pytest.skip(f"a call takes {mean_ns:,.0f} ns here: too little to compare")
    assert found.total_ns / found.calls == pytest.approx(mean_ns, rel=0.02)
