"""Measure a tick on a simulated machine with many threads.

offtop reads a kernel that does not exist: up to 50,000 threads that wait as often as 2 million switches a second make
them. Only what BPF has recorded is made up, as the bytes that the kernel would return: task scans and the tables of a
tick. All that offtop does with it is real, up to the picture for the screen. In each tick the time that it has counted
is compared with the time that the threads have waited.

The figures are CPU times of the process, so this needs no quiet machine. Not simulated: the cost of the BPF programs
(see `switch` and `scale`), user stacks, and processes in /proc.
"""

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np
import psutil
from numpy.typing import NDArray

from bench.answer import Answer, Bar, UnanswerableError, middle, table
from offtop import paths
from offtop.commands import choices
from offtop.kernel import live
from offtop.kernel.bpf import layout, libbpf
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.bpf.program import Program, Unwind, attach
from offtop.kernel.bpf.scan_rows import RUNS_ROW, SITE_KEY_ROW, SITE_ROW, STACK_ROW, TASK_ROW, THREAD_ROW
from offtop.kernel.symbols.kallsyms import KernelSymbols
from offtop.model.classify import categories
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values.snapshot import Filters, Snapshot
from offtop.model.values.table import TOTAL_NS, Table
from offtop.model.values.waits import SWITCHED_OUT_NS, Waits
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.view import View
from offtop.model.windows.history import HISTORY_NS
from offtop.ui.actions.session import Session

_TICKS, _WARM_TICKS = 8, 14
"""The window is full after 10 ticks."""
_RUN_NS = 10_000
_PLACES_OF_A_THREAD = 3
_THREADS_OF_A_PROCESS = 500
_FIRST_PID = 1 << 22
"""No real thread has this id or a larger one (PID_MAX_LIMIT, include/linux/threads.h)."""
_PLACES = (
    ("do_nanosleep", "hrtimer_nanosleep", "common_nsleep", "__x64_sys_clock_nanosleep"),
    ("futex_do_wait", "__futex_wait", "futex_wait", "do_futex", "__x64_sys_futex"),
    ("anon_pipe_read", "vfs_read", "ksys_read"),
    ("ep_poll", "do_epoll_wait", "__x64_sys_epoll_wait"),
    ("unix_stream_read_generic", "unix_stream_recvmsg", "sock_recvmsg", "__sys_recvfrom"),
    ("schedule_timeout", "wait_woken", "inet_wait_for_connect", "__inet_stream_connect"),
)
"""Functions of the kernel stacks, leaf first."""
_MOST_SECONDS = 0.5
_MOST_SLOPE = 1.5


class _Case(NamedTuple):
    threads: int
    active: int
    wait_us: int

    def __str__(self) -> str:
        return f"{self.threads:,} threads, {self.active:,} active, waits of {self.wait_us / 1000:g} ms"


_CASES = (
    _Case(10_000, 10_000, 2_000_000),
    _Case(50_000, 500, 2_000_000),
    _Case(50_000, 50_000, 2_000_000),
    _Case(50_000, 50_000, 25_000),
)


class _Measured(NamedTuple):
    read_s: list[float]
    """CPU time of reading a tick."""
    history_s: list[float]
    """Of adding it to the history, with the search for suspects."""
    picture_s: list[float]
    mb: float
    """PSS of the process."""

    @property
    def tick_s(self) -> list[float]:
        return [sum(parts) for parts in zip(self.read_s, self.history_s, self.picture_s, strict=True)]


def ask(_waits: Path) -> Answer:
    measured = {case: _in_own_process(case) for case in _CASES}
    rows = [
        (str(case), *(middle([1000 * s for s in column]) for column in (m.tick_s, *m[:3])), f"{m.mb:,.0f}")
        for case, m in measured.items()
    ]
    few, all_active, busy = (median(measured[case].tick_s) for case in _CASES[1:])
    slope = all_active / median(measured[_CASES[0]].tick_s) / (_CASES[2].active / _CASES[0].active)
    return Answer(
        "A tick of a simulated machine",
        table(("", "CPU a tick, ms", "reading", "history", "picture", "PSS, MB"), rows),
        [
            Bar(f"CPU a tick, {_CASES[1]}", few, _MOST_SECONDS, " s"),
            Bar(f"CPU a tick, {_CASES[2]}", all_active, _MOST_SECONDS, " s"),
            Bar(f"CPU a tick, {_CASES[3]}", busy, _MOST_SECONDS, " s"),
            Bar("growth of a tick's CPU, as a multiple of the growth in active threads", slope, _MOST_SLOPE),
        ],
        {str(case): m._asdict() for case, m in measured.items()},
    )


def _in_own_process(case: _Case) -> _Measured:
    command = [sys.executable, "-m", "bench.simulated", *map(str, case)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if ended.returncode:
        raise UnanswerableError(f"{case}: {ended.stderr.strip().splitlines()[-1]}")
    return _Measured(**json.loads(ended.stdout))


def _measure(case: _Case) -> _Measured:
    with ExitStack() as opened:
        watched = subprocess.Popen(["sleep", "1000"])
        opened.callback(watched.wait)
        opened.callback(watched.kill)
        simulated = SimulatedThreads(case)
        opened.enter_context(mock.patch.object(live, "attach", simulated.attach))
        opened.enter_context(mock.patch.object(libbpf, "read_iterator", simulated.scan))
        rules = categories.parse(paths.categories().read_text())
        source = live.LiveSource(rules, Filters(pids=(watched.pid,)), unwind=Unwind("off"))
        opened.callback(source.close)
        session = Session(source, rules, WITHOUT_RULES, View(), HISTORY_NS, None, choices.suspect_weights())
        times: list[tuple[float, float, float]] = []
        due_s = time.monotonic()
        for _ in range(_WARM_TICKS + _TICKS):
            began_s = time.process_time()
            snapshot = source.read()
            assert snapshot
            read_s = time.process_time() - simulated.spent_s
            simulated.spent_s = 0.0
            begun_s = time.process_time()
            tick = session.history.add(snapshot)
            if tick and session.suspects:
                session.suspects.tick(session.history)
            added_s = time.process_time()
            session.pictures.of(View(), Room(rows=20, tree=12, latency=True))
            drawn_s = time.process_time()
            times.append((read_s - began_s, added_s - begun_s, drawn_s - added_s))
            simulated.check(snapshot)
            due_s = max(due_s + 1, time.monotonic())
            time.sleep(max(0, due_s - time.monotonic()))
        mb = psutil.Process().memory_full_info().pss / 1e6 - simulated.mb
    columns = [list(column) for column in zip(*times[_WARM_TICKS:], strict=True)]
    return _Measured(columns[0], columns[1], columns[2], mb)


class _Recorded:
    """What a buffer has recorded of each thread."""

    def __init__(self, threads: int) -> None:
        self.records = np.zeros(threads, THREAD_ROW)
        self.sites = np.zeros((threads, _PLACES_OF_A_THREAD), SITE_ROW)

    @property
    def mb(self) -> float:
        return (self.records.nbytes + self.sites.nbytes) / 1e6

    def clear(self) -> None:
        self.records[:] = np.zeros((), THREAD_ROW)
        self.sites[:] = np.zeros((), SITE_ROW)


class SimulatedThreads:
    """Threads that wait and run in turn, and what BPF would have recorded of them."""

    def __init__(self, case: _Case) -> None:
        count = case.threads
        number = np.arange(count)
        self._tid = _FIRST_PID + number
        self._pid = _FIRST_PID + number // _THREADS_OF_A_PROCESS * _THREADS_OF_A_PROCESS
        self._begin_ns = np.zeros(count, np.int64)
        """When the wait in progress began, or will."""
        self._wait_ns = 1000 * case.wait_us * (0.5 + (number % 1000) / 1000)
        self._wait_ns = self._wait_ns.astype(np.int64)
        self._wait_ns[case.active :] = 1 << 60
        self._waits, self._reported_ns, self._reported_exec = np.zeros((3, count), np.int64)
        self._reported_waits = np.full(count, -1)
        self._first_ns = 0
        """Time of the first tick."""
        self._checked_ns: tuple[int, int] | None = None
        """Time that was counted, and that the threads waited, until the second one."""
        self._buffers = _Recorded(count), _Recorded(count)
        self._active, self._switched_ns = 0, 0
        """The buffer that is being written, and since when."""
        self._names = np.array([b"worker-%d" % one for one in (number % 100).tolist()], "S16")
        symbols = KernelSymbols.read()
        stacks = [[symbols.address_of(name) for name in place] for place in _PLACES]
        self._stacks = [[address + 5 for address in stack if address] for stack in stacks]
        """A return address is behind its function's begin."""
        self.mb = sum(one.mb for one in self._buffers)
        self.spent_s = 0.0
        """CPU time of the simulation itself."""

    def attach(self, *args: Any, **options: Any) -> Program:
        """Attach offtop's BPF programs, and replace the maps that are read in each tick."""
        program = attach(*args, **options)
        maps = cast("dict[str, Any]", program.maps)
        self._scan_mode = maps["scan_mode"] = _Written(maps["scan_mode"])
        maps["active_buffer"] = _Written(maps["active_buffer"], self._flip)
        for buffer in range(2):
            maps[f"sites_{buffer}"] = _Drained(lambda buffer=buffer: self._sites(buffer))
            maps[f"exited_{buffer}"] = _Drained(lambda: ())
        maps["kernel_stacks"] = _StackTable(maps["kernel_stacks"], self._stacks)
        return program

    def check(self, snapshot: Snapshot) -> None:
        """Compare the time that was counted with the time that the threads have waited since the second tick.

        A wait that the first task scan finds counts from the first tick on.
        """
        if not self._first_ns:
            self._first_ns = snapshot.at_ns
            return
        assert isinstance(snapshot.threads, Table) and isinstance(snapshot.waiting, Waits)
        switched_out_ns = np.maximum(self._first_ns, snapshot.waiting.list.rows[:, SWITCHED_OUT_NS])
        in_progress_ns = np.maximum(0, snapshot.at_ns - switched_out_ns)
        counted_ns = int(snapshot.threads.numbers[:, TOTAL_NS].sum() + in_progress_ns.sum())
        run_ns = self._waits * _RUN_NS - np.clip(self._begin_ns - snapshot.at_ns, 0, _RUN_NS)
        waited_ns = int((snapshot.at_ns - run_ns).sum())
        before_ns = self._checked_ns = self._checked_ns or (counted_ns, waited_ns)
        counted_ns, waited_ns = counted_ns - before_ns[0], waited_ns - before_ns[1]
        if abs(counted_ns - waited_ns) > waited_ns / 1e4:
            raise AssertionError(f"{counted_ns / 1e9:,.3f} s counted instead of {waited_ns / 1e9:,.3f}")

    @contextmanager
    def _apart(self) -> Generator[None]:
        """Count the CPU time of the block as the simulation's own."""
        began_s = time.process_time()
        yield
        self.spent_s += time.process_time() - began_s

    def scan(self, _link: int) -> bytes:
        """Return the output of a task scan."""
        with self._apart():
            return self._scan()

    def _scan(self) -> bytes:
        mode = int.from_bytes(self._scan_mode.value, "little")
        if mode & layout.SCAN_RUNS:
            runs = np.zeros(len(self._tid), RUNS_ROW)
            runs["pid"], runs["tid"], runs["pcount"] = self._pid, self._tid, self._waits
            return runs.tobytes()
        for buffer in range(2):
            if mode & layout.SCAN_BUFFERS[buffer]:
                return self._scan_records(self._buffers[buffer])
        return self._scan_waits(bool(mode & layout.SCAN_PRIME))

    def _scan_records(self, recorded: _Recorded) -> bytes:
        at = np.flatnonzero(recorded.records["state"])
        rows = np.zeros(len(at), [("task", TASK_ROW), ("record", THREAD_ROW)])
        self._fill_tasks(rows["task"], at)
        rows["task"]["flags"] = layout.SCANNED_THREAD
        rows["record"] = recorded.records[at]
        recorded.records[at] = np.zeros((), THREAD_ROW)
        return rows.tobytes()

    def _scan_waits(self, is_prime: bool) -> bytes:
        now_ns = time.monotonic_ns()
        if not self._first_ns:
            self._begin_ns[:] = self._switched_ns = now_ns
        self._advance(now_ns)
        records = self._buffers[self._active].records
        is_waiting = self._begin_ns <= now_ns
        so_far_ns = np.where(is_waiting, now_ns - self._begin_ns, 0)
        exec_ns = self._waits * _RUN_NS
        did = records["state"] != 0
        records["exec_ns"][did], records["exec_at_ns"][did] = exec_ns[did], now_ns
        records["exec_off_ns"][did] = (records["offcpu_ns"] + so_far_ns)[did]
        has_run = (exec_ns != self._reported_exec) & ~did
        self._reported_exec[did | has_run] = exec_ns[did | has_run]
        is_new = (so_far_ns >= Filters().min_ns) & (self._reported_ns != self._begin_ns)
        has_stack = is_waiting & (is_prime | is_new)
        self._reported_ns[has_stack] = self._begin_ns[has_stack]
        with_stack, without = np.flatnonzero(has_stack), np.flatnonzero(has_run & ~has_stack)
        rows = np.zeros(len(with_stack), [("task", TASK_ROW), ("stack", STACK_ROW)])
        others = np.zeros(len(without), TASK_ROW)
        for tasks, at, flag in ((rows["task"], with_stack, layout.SCANNED_STACK), (others, without, 0)):
            self._fill_tasks(tasks, at)
            tasks["flags"] = np.where(has_run[at], flag | layout.SCANNED_RAN, flag)
            tasks["switched_out_ns"], tasks["exec_ns"] = np.where(is_waiting, self._begin_ns, 0)[at], exec_ns[at]
        stacks = rows["stack"]
        stacks["registers"]["pcount"], stacks["registers"]["call"] = self._waits[with_stack], -1
        for place, stack in enumerate(self._stacks):
            of_place = self._places(with_stack) == place
            stacks["depth"][of_place] = len(stack)
            stacks["frames"][of_place, : len(stack)] = stack
        return rows.tobytes() + others.tobytes()

    def _fill_tasks(self, tasks: NDArray[np.void], at: NDArray[np.int64]) -> None:
        tasks["pid"], tasks["tid"], tasks["comm"], tasks["state"] = self._pid[at], self._tid[at], self._names[at], 1
        tasks["start_ns"] = tasks["tid_acquired_ns"] = 1

    def _places(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return (at + self._waits[at] % _PLACES_OF_A_THREAD) % len(self._stacks)

    def _flip(self, _value: bytes) -> None:
        with self._apart():
            now_ns = time.monotonic_ns()
            self._advance(now_ns)
            self._switch_buffers(now_ns)

    def _switch_buffers(self, now_ns: int) -> None:
        records = self._buffers[self._active].records
        is_waiting = (records["state"] != 0) & (self._begin_ns <= now_ns)
        records["switched_out_ns"][is_waiting] = self._begin_ns[is_waiting]
        self._active, self._switched_ns = 1 - self._active, now_ns

    def _advance(self, to_ns: int) -> None:
        """Record the waits that have ended by then. All waits of a thread are of the same length."""
        recorded = self._buffers[self._active]
        records = recorded.records
        at = np.flatnonzero(self._begin_ns + self._wait_ns <= to_ns)
        begin_ns, wait_ns = self._begin_ns[at], self._wait_ns[at]
        ended = 1 + (to_ns - begin_ns - wait_ns) // (wait_ns + _RUN_NS)
        is_first = records["waits"][at] == 0
        first = at[is_first]
        records["first_switched_out_ns"][first], records["first_off_ns"][first] = begin_ns[is_first], wait_ns[is_first]
        records["first_kernel"][first] = layout.FIRST_ID + self._places(first)
        records["first_kind"][first] = layout.KIND_SITE
        records["tid_acquired_ns"][at] = records["state"][at] = 1
        lane = np.clip(np.log2(wait_ns).astype(np.int64) - 8, 0, layout.LANES - 1)
        records["waits"][at] += ended
        records["offcpu_ns"][at] += ended * wait_ns
        records["max_ns"][at] = wait_ns
        records["histogram"][at, lane] += ended.astype(np.uint32)
        for number in range(_PLACES_OF_A_THREAD):
            slot = (self._waits[at] + number) % _PLACES_OF_A_THREAD
            count = (ended + _PLACES_OF_A_THREAD - 1 - number) // _PLACES_OF_A_THREAD
            numbers = recorded.sites["numbers"]
            numbers[at, slot, 0] += count
            numbers[at, slot, 1] += count * wait_ns
            numbers[at, slot, 3] = np.where(count, wait_ns, numbers[at, slot, 3])
            recorded.sites["lanes"][at, slot, lane] += count.astype(np.uint32)
        self._waits[at] += ended
        self._begin_ns[at] = begin_ns + ended * (wait_ns + _RUN_NS)
        began = np.flatnonzero((self._begin_ns > self._switched_ns) & (self._begin_ns <= to_ns))
        records["tid_acquired_ns"][began] = records["state"][began] = 1

    def _sites(self, buffer: int) -> Iterator[tuple[memoryview, memoryview]]:
        with self._apart():
            rows = self._site_rows(buffer)
        yield rows

    def _site_rows(self, buffer: int) -> tuple[memoryview, memoryview]:
        sites = self._buffers[buffer].sites
        at, slot = np.nonzero(sites["numbers"][:, :, 0])
        keys = np.zeros(len(at), SITE_KEY_ROW)
        keys["pid"], keys["tid"], keys["tid_acquired_ns"] = self._pid[at], self._tid[at], 1
        keys["kernel"] = layout.FIRST_ID + (at + slot) % len(self._stacks)
        values = sites[at, slot]
        sites[at] = np.zeros((), SITE_ROW)
        return memoryview(keys.tobytes()), memoryview(values.tobytes())


class _Written:
    """A map that keeps what is written to it, and may call a function."""

    def __init__(self, real: Map, react: Callable[[bytes], object] = bytes) -> None:
        self.value, self._react, self.memory_bytes = bytes(4), react, real.memory_bytes

    def update(self, _key: bytes, value: bytes) -> None:
        self.value = value
        self._react(value)


class _Drained:
    """A table of a tick."""

    memory_bytes = 0

    def __init__(self, drain: Any) -> None:
        self.drain = self.read = drain

    def delete(self, _key: bytes) -> None:
        pass


class _StackTable:
    """The kernel stacks, by id."""

    memory_bytes = 0

    def __init__(self, real: Map, stacks: list[list[int]]) -> None:
        self.entries, self.value_bytes = real.entries, real.value_bytes
        self._values: Mapping[bytes, bytes] = {
            (layout.FIRST_ID + number).to_bytes(8, "little"): layout.STACK.pack(
                len(stack), layout.END_COMPLETE, *stack, *[0] * (layout.FRAMES + 1 - len(stack))
            )
            for number, stack in enumerate(stacks)
        }

    def lookup(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def drain(self) -> Iterator[tuple[memoryview, memoryview]]:
        yield memoryview(b"").cast("B"), memoryview(b"")


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it must not outlive the bench
    print(json.dumps(_measure(_Case(*map(int, sys.argv[1:])))._asdict()))
