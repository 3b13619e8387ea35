"""Measure the cost of user stacks per wait, per new stack and per minute with 1,000 new ones; and how many are whole.

The cost of a wait is the run time of all BPF programs of a tool, divided by the waits that the threads count
themselves. The tools and offtop's ways to unwind run alone, in turns.

The cost of a new stack has two parts: copying it in the kernel, and unwinding the copy, which includes the process that
reads unwind rules from binaries. No other part of offtop runs meanwhile.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench import headless, tools, wholeness
from bench.answer import Answer, Bar, UnanswerableError, middle, table
from bench.workload import Stacks, build_stacks
from offtop.kernel.binary.files import Files
from offtop.kernel.bpf import features, libbpf
from offtop.kernel.bpf.program import Program, Unwind, attach
from offtop.kernel.scope.config import BpfConfig, Settings
from offtop.kernel.symbols.kallsyms import HiddenSymbols
from offtop.kernel.unwind.stack_copies import Copies
from offtop.kernel.unwind.unwinder import RuleMaps, Unwinder
from offtop.model.values.snapshot import Filters

_ROUNDS = 3
_WAYS = {
    "auto": Unwind(),
    "each unwound": Unwind(check_every=0),
    "fp": Unwind("fp"),
    "off": Unwind("off"),
}
"""`auto` compares a stack with the thread's last one, and unwinds those that differ."""
_PEER = tools.OFFCPUTIME
_COLUMNS = (*(f"offtop, {way}" for way in _WAYS), _PEER)
_THREADS, _WAIT_US, _MIN_US = 20, 2_000, 1_000
_LEARN_S, _COUNT_S = 0.5, 0.8
_OWN_FRAMES = 6
"""Fixed frames of stacks.c: clock_nanosleep, nanosleep, rest, thread, start_thread and clone3."""
_SHORT, _DEEP = 7 - _OWN_FRAMES, 32 - _OWN_FRAMES

_BINARIES = 6
"""The first one is not counted, because the reader opens libc too."""
_COPIES = 60
_COPY_WAIT_US = 10_000
_ALL = 100_000
"""Limit of copies per second, larger than the number of waits."""
_LOOK_S, _PATIENCE_S = 0.002, 15.0

_MINUTE = 1_000
_LEARN_TICKS, _TICKS = 2, 6

_MOST_SHORT, _MOST_DEEP = 1.5, 2.0
_MOST_COMPARED = 0.5
_MOST_COLD_MS, _MOST_WARM_MS = 20.0, 1.0
_MOST_COPY_US = 15.0
_MOST_MORE_PCT = 2.0
_MOST_PCT = 6.0
"""Limit for all of offtop, whose average is limited to 5% by --cpu-budget."""


def ask(waits: Path) -> Answer:
    plain, linked = build_stacks(waits.parent)
    found = features.detect(libbpf.KernelTypes())
    if not Unwind().uses_rules(found):
        raise UnanswerableError("BPF programs cannot unwind by rules on this machine: x86-64 or arm64 is needed")
    missing: list[str] = []
    with tools.counting():
        parts = [_of_waits(plain, linked), _of_new(plain, found), _of_minute(plain)]
        try:
            parts.append(wholeness.ask(linked))
        except UnanswerableError as error:
            missing += ["", f"Whole stacks: not measured, {error}"]
    lines = [line for part in parts for line in ("", part.title, *part.lines)][1:]
    bars = [bar for part in parts for bar in part.bars]
    return Answer("User stacks", [*lines, *missing], bars, {part.title: part.figures for part in parts})


def _of_waits(plain: Path, linked: Path) -> Answer:
    """Measure the cost per wait."""
    kinds = {
        f"{_SHORT + _OWN_FRAMES} user frames": (plain, _SHORT),
        f"{_DEEP + _OWN_FRAMES} user frames": (plain, _DEEP),
        f"{_DEEP + _OWN_FRAMES}, with frame pointers": (linked, _DEEP),
    }
    of: dict[tuple[str, str], list[float]] = {}
    turns = [lambda way=way: _of_offtop(kinds, way) for way in _WAYS.values()] + [lambda: _of_peer(kinds)]
    for number in range(_ROUNDS):
        for at in range(len(turns)):
            at = (at + number) % len(turns)
            for kind, ns in turns[at]():
                of.setdefault((kind, _COLUMNS[at]), []).append(ns)
    short, deep, _ = kinds
    costs = {key: median(every) for key, every in of.items()}
    verified, unwound, _, off = _COLUMNS[:-1]
    frame_ns = (costs[deep, unwound] - costs[short, unwound]) / (_DEEP - _SHORT)
    rows = [(kind, *(middle(of[kind, column]) for column in _COLUMNS)) for kind in kinds]
    unwinding, verifying = (
        ", ".join(f"{costs[kind, column] - costs[kind, off]:,.0f} ns of {kind}" for kind in (short, deep))
        for column in (unwound, verified)
    )
    lines = [
        *table((f"ns per wait of {_WAIT_US // 1000} ms, all programs", *_COLUMNS), rows),
        f"unwinding by rules, and storing: {unwinding}; {frame_ns:.0f} ns per frame",
        f"comparing it with the thread's last stack instead: {verifying}",
    ]
    bars = [
        Bar(f"a wait of {kind} by rules, as a part of offcputime's", costs[kind, unwound] / costs[kind, _PEER], most)
        for kind, most in ((short, _MOST_SHORT), (deep, _MOST_DEEP))
    ]
    share = (costs[deep, verified] - costs[deep, off]) / max(1, costs[deep, unwound] - costs[deep, off])
    bars.append(Bar(f"comparing a stack of {deep}, as a part of unwinding it", share, _MOST_COMPARED))
    figures: dict[str, object] = {
        "ns_per_wait": {kind: {column: of[kind, column] for column in _COLUMNS} for kind in kinds},
        "ns_per_frame": frame_ns,
    }
    return Answer("What a wait costs", lines, bars, figures)


_Kinds = dict[str, tuple[Path, int]]
"""Description → program, and number of functions to wait through."""


def _of_offtop(kinds: _Kinds, way: Unwind) -> Iterator[tuple[str, float]]:
    """Yield kind and ns per wait."""
    with ExitStack() as stack:
        held = {kind: stack.enter_context(_waiting(*one)) for kind, one in kinds.items()}
        for one in held.values():
            one.hold()
        source = stack.enter_context(headless.watching(Filters(pids=tuple(one.pid for one in held.values())), way))
        for kind, one in held.items():
            one.go()
            for _ in range(2):
                time.sleep(_LEARN_S / 2)
                source.read()
            yield kind, _counted(one, os.getpid())
            one.hold()


def _of_peer(kinds: _Kinds) -> Iterator[tuple[str, float]]:
    for kind, one in kinds.items():
        with _waiting(*one) as threads:
            arguments = [*tools.command(_PEER, _MIN_US), "-p", str(threads.pid)]
            with tools.running(arguments) as process:
                tools.wait_until_attached(process)
                time.sleep(_LEARN_S / 2)
                yield kind, _counted(threads, process.pid)


def _waiting(program: Path, functions: int) -> Stacks:
    return Stacks(program, "same", _THREADS, functions, _WAIT_US)


def _counted(threads: Stacks, pid: int) -> float:
    """Return the run time of a process's BPF programs per wait, in ns."""
    before, waits = tools.runs(pid), threads.waits
    time.sleep(_COUNT_S)
    return tools.runs(pid).since(before).switch_ns / max(1, threads.waits - waits)


def _of_new(plain: Path, found: features.Features) -> Answer:
    """Measure the cost of a new stack: copying it, and unwinding the copy with the reader."""
    with ExitStack() as stack:
        program = attach(found)
        stack.callback(program.close)
        copies = Copies(program.maps["copies"], program.maps["copies_left"], a_second=_ALL)
        stack.callback(copies.close)
        unwinder = Unwinder(Files(), "auto", RuleMaps.of(program.maps))
        stack.callback(unwinder.end)
        unwinder.start()
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=plain.parent)))
        cold: list[float] = []
        for number in range(_BINARIES):
            binary = Path(shutil.copy(plain, directory / f"{number}"))
            cold += _walked(program, copies, unwinder, Stacks(binary, "same", 1, _DEEP, _COPY_WAIT_US), 1)
        del cold[0]
        new, fresh = (
            _walked(program, copies, unwinder, Stacks(plain, kind, 1, _DEEP, _COPY_WAIT_US), _COPIES)[1:]
            for kind in ("new", "fresh")
        )
        copy_us, kb = _copied(program, copies, Stacks(plain, "same", 10, _DEEP, _COPY_WAIT_US // 2))
    frames = _DEEP + _OWN_FRAMES
    rows = [
        (f"the first stack of a binary, {frames} frames", middle(cold)),
        (f"{_DEEP} of {frames} frames in functions that are new", middle(new)),
        (f"1 of {frames} frames in such a function", middle(fresh)),
    ]
    lines = [
        *table(("CPU of unwinding one copy, with the reader, µs", ""), rows),
        f"its copy in the kernel: {copy_us:.1f} µs, of {kb:.0f} KB",
    ]
    bars = [
        Bar("the first stack of a binary", median(cold) / 1000, _MOST_COLD_MS, " ms"),
        Bar("a stack through one new function", median(fresh) / 1000, _MOST_WARM_MS, " ms"),
        Bar("the copy of a stack", copy_us, _MOST_COPY_US, " µs"),
    ]
    figures: dict[str, object] = {"cold_us": cold, "new_us": new, "fresh_us": fresh, "copy_us": copy_us, "copy_kb": kb}
    return Answer("What a new stack costs", lines, bars, figures)


def _walked(program: Program, copies: Copies, unwinder: Unwinder, threads: Stacks, most: int) -> list[float]:
    """Return the CPU of unwinding each of `most` copies, including the reader, in µs."""
    took: list[float] = []
    with threads:
        _watch(program, threads.pid)
        until = time.monotonic() + _PATIENCE_S
        while len(took) < most:
            for copy in copies.take(_ALL):
                before_ns = _cpu_ns(unwinder)
                if unwinder.unwind_copy(copy):
                    took.append((_cpu_ns(unwinder) - before_ns) / 1000)
            if time.monotonic() > until:
                raise UnanswerableError(f"{len(took)} copies of {most} came in {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)
    return took[:most]


def _cpu_ns(unwinder: Unwinder) -> int:
    """Return the CPU time of this thread and of the reader."""
    reader_ns = Path(f"/proc/{unwinder.reader_pid}/schedstat").read_text().split()[0] if unwinder.reader_pid else 0
    return time.thread_time_ns() + int(reader_ns)


def _copied(program: Program, copies: Copies, threads: Stacks) -> tuple[float, float]:
    """Return the time per copy in µs, and its size in KB.

    The time is that of waits with a copy minus that of waits without.
    """
    per_wait: list[float] = []
    sizes: list[int] = []
    with threads:
        _watch(program, threads.pid)
        for more in (True, False):
            copies.take(_ALL if more else 0)
            before, waits = tools.runs(os.getpid()), threads.waits
            until = time.monotonic() + _COUNT_S
            while time.monotonic() < until:
                sizes += [len(copy.stack) for copy in copies.take(_ALL if more else 0)]
                time.sleep(_LOOK_S)
            waits = threads.waits - waits
            per_wait.append(tools.runs(os.getpid()).since(before).switch_ns / waits)
            if more and len(sizes) < 0.9 * waits:
                raise UnanswerableError(f"only {len(sizes)} of {waits} waits were copied")
    return (per_wait[0] - per_wait[1]) / 1000, sum(sizes) / len(sizes) / 1024


def _watch(program: Program, pid: int) -> None:
    """Let the BPF programs count waits of that process only."""
    config = BpfConfig(program.maps, features.detect(libbpf.KernelTypes()), HiddenSymbols())
    config.write(Settings(Filters(pids=(pid,), min_ns=_MIN_US * 1000)))


def _of_minute(plain: Path) -> Answer:
    """Measure offtop's CPU, in percent of one CPU, with 1,000 new stacks per minute."""
    kinds = {
        "nothing new": "same",
        "other ways through known functions": "mixed",
        "one new function each": "fresh",
        f"{_DEEP} new functions each": "new",
    }
    of = {description: _at_work(plain, kind) for description, kind in kinds.items()}
    rows = [(description, middle(cpu_pct, 2)) for description, cpu_pct in of.items()]
    none, _, one, worst = (median(cpu_pct) for cpu_pct in of.values())
    lines = table((f"{_MINUTE:,} waits a minute, {_DEEP + _OWN_FRAMES} frames", "CPU of offtop, %"), rows)
    bars = [
        Bar(f"CPU for {_MINUTE:,} stacks a minute with one new function each", one - none, _MOST_MORE_PCT, "%"),
        Bar(f"CPU of all of offtop, with {_DEEP} new functions each", worst, _MOST_PCT, "%"),
    ]
    return Answer(f"{_MINUTE:,} new stacks a minute", lines, bars, {"cpu_pct": of})


def _at_work(plain: Path, kind: str) -> list[float]:
    """Return offtop's CPU, in percent of one CPU, in each one-second tick."""
    cpu_pct: list[float] = []
    with (
        Stacks(plain, kind, 1, _DEEP, 60_000_000 // _MINUTE) as threads,
        headless.watching(Filters(pids=(threads.pid,))) as source,
    ):
        for _ in range(_LEARN_TICKS + _TICKS):
            time.sleep(1)
            cpu_pct.append(headless.tick(source).cost.cpu_pct)
    return cpu_pct[_LEARN_TICKS:]
