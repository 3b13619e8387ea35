"""Compare file operations and requests to disks between offtop and bpftrace, which use the same tracepoints.

Both count the same process at the same time. It makes known calls: on a file on a disk, past the page cache, so that
each takes a while; and on a loop device over such a file, to which nothing else sends requests.

The cost: CPU time of system calls that are no file operations (getppid, as in `perf bench syscall basic`) and of reads
from the page cache, with each tool alone in its turn, and with two programs at the same tracepoints that do nothing.
What BPF programs take there is CPU time of the calling thread, and unlike wall time it does not contain that of other
processes. For requests, which end in interrupts: the kernel's count of ns in BPF programs, divided by requests.
"""

import ctypes as ct
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import headless, tools
from bench.accuracy import apart_pct, wait_for_ticks
from bench.answer import Answer, Bar, UnanswerableError, middle, table
from bench.machine import need
from bench.workload import Operations, build_operations
from offtop.kernel.bpf import libbpf
from offtop.kernel.procfs import syscalls
from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from offtop.model.values.snapshot import Filters

_DISK_DIRECTORY = "/var/tmp"
"""/tmp may be in memory, where a file has no disk."""
_TIMES, _BYTES, _SYNCS = 200, 256 << 10, 50
_LONG_NS = 100_000
"""Mean time from which on the limit for times applies: below it, what the tools do between their clocks counts."""
_MOST_PCT = 2.0
_SETTLE_S = 1.0
_CALLS = ("pwrite", "pread", "fsync")

_FILE_PROGRAM = """
tracepoint:raw_syscalls:sys_enter /pid == {pid} && ({calls})/ {{ @start[tid] = nsecs; }}
tracepoint:raw_syscalls:sys_exit /@start[tid]/
{{
  @ns[args->id] = sum(nsecs - @start[tid]);
  @many[args->id] = count();
  @bytes[args->id] = sum(args->ret);
  delete(@start[tid]);
}}
"""
_EVERY_CALL = """
tracepoint:raw_syscalls:sys_enter /args->id == {number}/ {{ @start[tid] = nsecs; }}
tracepoint:raw_syscalls:sys_exit /@start[tid]/
{{
  $ns = nsecs - @start[tid];
  @ns[pid, args->id] = sum($ns);
  @bytes[pid, args->id] = sum(args->ret);
  @lanes[pid, args->id] = hist($ns);
  delete(@start[tid]);
}}
"""
"""As much as offtop counts of a read, but for the file."""
_DISK_PROGRAM = """
tracepoint:block:block_io_start /{selected}/ {{ @start[args->dev, args->sector] = nsecs; }}
tracepoint:block:block_rq_issue /@start[args->dev, args->sector]/ {{ @issue[args->dev, args->sector] = nsecs; }}
tracepoint:block:block_rq_complete /@issue[args->dev, args->sector]/
{{
  $start = @start[args->dev, args->sector];
  $issue = @issue[args->dev, args->sector];
  @ns[args->rwbs] = sum(nsecs - $start);
  @many[args->rwbs] = count();
  @bytes[args->rwbs] = sum(args->nr_sector * 512);
  @queue[args->rwbs] = hist($issue - $start);
  @device[args->rwbs] = hist(nsecs - $issue);
  delete(@start[args->dev, args->sector]);
  delete(@issue[args->dev, args->sector]);
}}
tracepoint:sched:sched_switch /0/ {{ }}
"""
"""sched_switch: so that it shows that it is attached."""
_RWBS = {"W": "sync-write", "R": "read"}

_ROUNDS = 5
_SYSCALLS, _READS, _READ_BYTES, _REQUESTS = 1_000_000, 200_000, 4096, 2000
_RAW_TRACEPOINT = 17  # BPF_PROG_TYPE_RAW_TRACEPOINT
_RETURN_0 = bytes.fromhex("b700000000000000 9500000000000000")
"""`r0 = 0; exit`."""
_MOST_NS = 60
_MOST_OF_BPFTRACE = 1.25
_STATISTICS_TICKS = 4
"""Until offtop has the kernel stop counting the time of programs, which costs time itself."""
_NO_STACKS_NS = 60_000_000_000
"""A minimum that no request reaches: bpftrace takes no stacks either."""
_BASIC, _CACHED, _REQUEST = "a call that is no file operation", "a read of 4 KB in memory", "a request"
_NOTHING, _EMPTY, _OFFCPU, _FILES, _BPFTRACE = "nothing", "two empty programs", "offtop", "offtop, listed", "bpftrace"
_COLUMNS = (_NOTHING, _EMPTY, _OFFCPU, _FILES, _BPFTRACE)


class _Counted(NamedTuple):
    many: int = 0
    bytes: int = 0
    ns: int = 0

    def plus(self, other: "_Counted") -> "_Counted":
        return _Counted(*(one + another for one, another in zip(self, other, strict=True)))


class _Compared(NamedTuple):
    made: _Counted
    """What the process did; 0 ns: it cannot know."""
    by_offtop: _Counted
    by_bpftrace: _Counted
    lost: int = 0
    """By offtop, which reports it."""

    @property
    def apart_pct(self) -> float:
        return apart_pct(self.by_offtop.ns, self.by_bpftrace.ns)

    @property
    def is_long(self) -> bool:
        return self.by_bpftrace.ns >= _LONG_NS * max(1, self.by_bpftrace.many)


def ask(waits: Path) -> Answer:
    program = build_operations(waits.parent)
    compared = {**_compare_files(program), **_compare_disks(program)}
    rows: list[tuple[str, ...]] = []
    bars: list[Bar] = []
    for name, one in compared.items():
        ours, theirs = one.by_offtop, one.by_bpftrace
        means = (
            f"{counted.ns / counted.many / 1e3:,.1f}" if counted.ns else "-" for counted in (one.made, ours, theirs)
        )
        rows.append(
            (name, *(f"{counted.many}, {counted.bytes:,}" for counted in one[:3]), *means, f"{one.apart_pct:+.2f}%")
        )
        bars += [
            Bar(f"{name}: count, from bpftrace's", abs(ours.many - theirs.many), one.lost),
            Bar(f"{name}: bytes, from bpftrace's", abs(ours.bytes - theirs.bytes), one.lost * _BYTES),
            Bar(f"{name}: count, from what was done", abs(ours.many - one.made.many), one.lost),
        ]
        if one.is_long:
            bars.append(Bar(f"{name}: time, from bpftrace's", abs(one.apart_pct), _MOST_PCT, "%"))
    head = ("count, bytes", "made", tools.OFFTOP, tools.BPFTRACE, *("µs: its own", tools.OFFTOP, tools.BPFTRACE, ""))
    return Answer(
        "File operations and requests, both tools at once",
        table(head, rows),
        bars,
        {name: {"lost": one.lost, **_figures(one)} for name, one in compared.items()},
    )


def _figures(one: _Compared) -> dict[str, object]:
    return {
        "made": one.made._asdict(),
        "offtop": one.by_offtop._asdict(),
        "bpftrace": one.by_bpftrace._asdict(),
        "apart_pct": one.apart_pct,
    }


def _number(name: str) -> int:
    """Return the number of a system call, whether or not its name ends in 64."""
    return max(syscalls.number_of(name), syscalls.number_of(f"{name}64"))


def _compare_files(program: Path) -> dict[str, _Compared]:
    numbers = {name: _number(name) for name in _CALLS}
    with tempfile.TemporaryDirectory(dir=_DISK_DIRECTORY) as directory, ExitStack() as stack:
        path = Path(directory, "data")
        process = stack.enter_context(Operations(program, path, is_direct=True))
        calls = " || ".join(f"args->id == {number}" for number in numbers.values())
        made: dict[str, _Counted] = {}
        with _both("file", _FILE_PROGRAM.format(pid=process.pid, calls=calls), Path(directory)) as counts:
            for name in _CALLS:
                times, size = (_SYNCS, 0) if name == "fsync" else (_TIMES, _BYTES)
                made[name] = _Counted(times, times * size, process.make(name, times, size).wall_ns)
        ticks, by_bpftrace = counts
        lost = sum(tick["files"]["lost"] for tick in ticks)
        rows = [row for tick in ticks for row in tick["files"]["rows"] if row["pid"] == process.pid]
        by_offtop = {
            name: _sum(
                _Counted(row["calls"], row["bytes"], row["total_ns"])
                for row in rows
                if (row["op"], row["file"]) == (name, str(path))
            )
            for name in _CALLS
        }
    return {
        name: _Compared(made[name], by_offtop[name], by_bpftrace.get(str(numbers[name]), _Counted()), lost)
        for name in _CALLS
    }


def _compare_disks(program: Path) -> dict[str, _Compared]:
    with tempfile.TemporaryDirectory(dir=_DISK_DIRECTORY) as directory, ExitStack() as stack:
        device = stack.enter_context(_loop(Path(directory, "image")))
        process = stack.enter_context(Operations(program, device, is_direct=True))
        number = device.stat().st_rdev
        selected = f"args->dev == {os.major(number) << 20 | os.minor(number)} && args->nr_sector > 0"
        made: dict[str, _Counted] = {}
        with _both("disk", _DISK_PROGRAM.format(selected=selected), Path(directory)) as counts:
            for call, operation in (("pwrite", "sync-write"), ("pread", "read")):
                process.make(call, _TIMES, _BYTES)
                made[operation] = _Counted(_TIMES, _TIMES * _BYTES)
        ticks, by_flags = counts
        lost = sum(tick["disks"]["lost"] for tick in ticks)
        rows = [row for tick in ticks for row in tick["disks"]["rows"] if row["disk"] == device.name]
        by_offtop = {
            name: _sum(
                _Counted(row["requests"], row["bytes"], row["queue_ns"] + row["device_ns"])
                for row in rows
                if (row["op"], row["pid"]) == (name, process.pid)
            )
            for name in made
        }
        by_bpftrace = {
            name: _sum(counted for flags, counted in by_flags.items() if flags.startswith(letter))
            for letter, name in _RWBS.items()
        }
    return {
        f"{name} on a loop device": _Compared(made[name], by_offtop[name], by_bpftrace[name], lost) for name in made
    }


@contextmanager
def _both(mode: str, program: str, directory: Path) -> Generator[tuple[list[Any], dict[str, _Counted]]]:
    """Run offtop and bpftrace during the block.

    Yields lists that are filled after the block: offtop's ticks, and bpftrace's sums by the key of its maps.
    """
    ticks: list[Any] = []
    sums: dict[str, _Counted] = {}
    lines, report = directory / "ticks", directory / "report"
    with tools.counting(), lines.open("wb") as to_lines, report.open("wb") as to_report:
        command = [str(tools.offtop()), "--json", "--mode", mode]
        with (
            tools.running(command, to_lines) as offtop,
            tools.running(tools.one_liner(program, "-f", "json"), to_report) as bpftrace,
        ):
            tools.wait_until_attached(offtop)
            tools.wait_until_attached(bpftrace)
            wait_for_ticks(lines, 1)
            time.sleep(_SETTLE_S)
            yield ticks, sums
            wait_for_ticks(lines, lines.read_bytes().count(b"\n") + 2)
            for process in (offtop, bpftrace):
                tools.end(process, signal.SIGINT)
    ticks += [json.loads(line) for line in lines.read_text().splitlines()]
    maps: dict[str, dict[str, int]] = {}
    for line in report.read_text().splitlines():
        if line and (found := json.loads(line))["type"] == "map":
            maps |= found["data"]
    for key, many in maps.get("@many", {}).items():
        sums[key] = _Counted(many, maps["@bytes"][key], maps["@ns"][key])


def _sum(each: Iterable[_Counted]) -> _Counted:
    total = _Counted()
    for one in each:
        total = total.plus(one)
    return total


@contextmanager
def _loop(image: Path) -> Generator[Path]:
    """Make a loop device over a new file, past the page cache."""
    losetup = need("losetup", "mount")
    with image.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _TIMES * _BYTES)
    command = [losetup, "--find", "--show", "--direct-io=on", str(image)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if made.returncode:
        raise UnanswerableError(made.stderr.strip())
    device = made.stdout.strip()
    try:
        yield Path(device)
    finally:
        subprocess.run([losetup, "-d", device], check=True, timeout=30)


def ask_cost(waits: Path) -> Answer:
    program = build_operations(waits.parent)
    rounds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(dir=_DISK_DIRECTORY) as directory, ExitStack() as stack:
        file = stack.enter_context(Operations(program, Path(directory, "data"), is_direct=False))
        file.make("pwrite", 1, _READ_BYTES)
        device = stack.enter_context(_loop(Path(directory, "image")))
        disk = stack.enter_context(Operations(program, device, is_direct=True))
        disk.make("pwrite", _TIMES, _BYTES)
        for number in range(_ROUNDS):
            first = number % len(_COLUMNS)
            for column in _COLUMNS[first:] + _COLUMNS[:first]:
                with _WATCHERS[column]():
                    basic, cached = file.make("getppid", _SYSCALLS), file.make("again", _READS, _READ_BYTES)
                rounds.setdefault((_BASIC, column), []).append(basic.cpu_ns / _SYSCALLS)
                rounds.setdefault((_CACHED, column), []).append(cached.cpu_ns / _READS)
            for column, watch in ((_FILES, _listing_disks), (_BPFTRACE, _tracing_disks)):
                with tools.counting(), watch() as pid:
                    before = _block_ns(pid)
                    disk.make("pread", _REQUESTS, _READ_BYTES)
                    rounds.setdefault((_REQUEST, column), []).append((_block_ns(pid) - before) / _REQUESTS)
    return _cost(rounds)


def _cost(rounds: Mapping[tuple[str, str], list[float]]) -> Answer:
    calls = [(name, *(middle(rounds[name, column]) for column in _COLUMNS)) for name in (_BASIC, _CACHED)]
    requests = [(_REQUEST, *(middle(rounds.get((_REQUEST, column), ())) for column in _COLUMNS))]
    at = {key: median(values) for key, values in rounds.items()}
    beyond = at[_BASIC, _FILES] - at[_BASIC, _EMPTY]
    bars = [
        Bar(f"{_BASIC}, listed, beyond two empty programs", beyond, _MOST_NS, " ns"),
        *(
            Bar(f"{name}, beyond nothing, relative to bpftrace", _ratio(at, name), _MOST_OF_BPFTRACE)
            for name in (_BASIC, _CACHED)
        ),
        Bar(f"{_REQUEST}, relative to bpftrace", at[_REQUEST, _FILES] / at[_REQUEST, _BPFTRACE], _MOST_OF_BPFTRACE),
    ]
    lines = [
        *table(("CPU time of a call, ns", *_COLUMNS), calls),
        "",
        *table(("in BPF programs, ns", *_COLUMNS), requests),
    ]
    figures: dict[str, object] = {f"{name}: {column}": values for (name, column), values in rounds.items()}
    return Answer("What listing file operations and requests costs", lines, bars, figures)


def _ratio(at: Mapping[tuple[str, str], float], name: str) -> float:
    return (at[name, _FILES] - at[name, _NOTHING]) / (at[name, _BPFTRACE] - at[name, _NOTHING])


def _block_ns(pid: int) -> int:
    """Return the run time (ns) of a process's programs at block tracepoints; of bpftrace, of all programs."""
    return tools.at_tracepoints(pid, "block_")[1] or tools.runs(pid).switch_ns


@contextmanager
def _running_empty_programs() -> Generator[None]:
    lib, fds = libbpf.library(), list[int]()
    try:
        for name in (b"sys_enter", b"sys_exit"):
            fds.append(lib.bpf_prog_load(_RAW_TRACEPOINT, b"bench_empty", b"GPL", _RETURN_0, ct.c_size_t(2), None))
            fds.append(lib.bpf_raw_tracepoint_open(name, fds[-1]))
        if min(fds) < 0:
            raise UnanswerableError("the kernel refused a program that does nothing")
        yield
    finally:
        for fd in fds:
            if fd >= 0:
                os.close(fd)


@contextmanager
def _watching(lists_files: bool = False) -> Generator[None]:
    with headless.watching() as source:
        source.set_counted(FILE, lists_files)
        for _ in range(_STATISTICS_TICKS):
            headless.tick(source)
        yield


@contextmanager
def _listing_disks() -> Generator[int]:
    with headless.watching(Filters(min_ns=_NO_STACKS_NS)) as source:
        source.set_counted(DISK, True)
        headless.tick(source)
        yield os.getpid()


@contextmanager
def _tracing_calls() -> Generator[None]:
    with tools.running(tools.one_liner(_EVERY_CALL.format(number=_number("pread")))) as process:
        with tools.counting():
            tools.wait_until_attached(process)
        time.sleep(_SETTLE_S)
        yield


@contextmanager
def _tracing_disks() -> Generator[int]:
    with tools.running(tools.one_liner(_DISK_PROGRAM.format(selected="args->nr_sector > 0"))) as process:
        tools.wait_until_attached(process)
        time.sleep(_SETTLE_S)
        yield process.pid


_WATCHERS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    _NOTHING: nullcontext,
    _EMPTY: _running_empty_programs,
    _OFFCPU: _watching,
    _FILES: lambda: _watching(lists_files=True),
    _BPFTRACE: _tracing_calls,
}
