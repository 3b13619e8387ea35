"""Where the time of threads went: running, runnable, blocked, and the residue.

The parts of a thread that existed for the whole span add up to the span; what is missing is its residue. Steal and
interrupts may explain it, and only the rest is an error. The residue of a thread that started or exited meanwhile means
nothing: its parts count, its span does not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from offtop.model.values.catalog import Catalog, ThreadKey, code_of, thread_of
from offtop.model.values.snapshot import EXITED, Machine, ThreadTotals
from offtop.model.values.table import THREADS, Groups, Ints, Mask, table_of, thread_codes
from offtop.model.windows.breakdown import Leaf, Part
from offtop.model.windows.window import Window
from offtop.units import percent

K = TypeVar("K")
_RESIDUE_DIVISOR = 100
"""A residue above this fraction of the span (1/n) may belong to a thread that started or exited in it."""
_TID_MASK = (1 << 32) - 1
_FIELD = {name: number for number, name in enumerate(ThreadTotals._fields)}
_COLUMNS = [_FIELD[name] for name in ("running_ns", "runqueue_ns", "offcpu_ns", "waits", "involuntary")]


class Account(NamedTuple):
    """Times of one or several threads over one span."""

    threads: int = 0
    """How many threads there are."""
    through: int = 0
    """How many of them existed for the whole span."""
    running_ns: int = 0
    ready_ns: int = 0
    """Runnable, on the run queue."""
    blocked_ns: int = 0
    residue_ns: int = 0
    """What is missing of the span, for threads that existed for all of it. Slightly negative if the kernel updated its
    own sums late."""
    voluntary: int = 0
    """Finished waits in which the thread blocked or slept."""
    involuntary: int = 0
    """Finished waits that were preemptions."""
    worst_ns: int = 0
    """Blocked time of the thread that was blocked longest."""

    @property
    def sum_ns(self) -> int:
        return self.running_ns + self.ready_ns + self.blocked_ns + self.residue_ns

    def plus(self, other: "Account") -> "Account":
        """Return the account of the threads of both."""
        sums = Account(*(a + b for a, b in zip(self, other, strict=True)))
        return sums._replace(worst_ns=max(self.worst_ns, other.worst_ns))


NO_ACCOUNT = Account()


class Accounts(NamedTuple):
    """A row for each thread that did anything, or waited all the time."""

    codes: Ints
    """Codes of the threads, ascending (table.thread_codes)."""
    numbers: Ints
    """(n, 5) running, runnable and off-CPU ns, waits, involuntary waits."""
    through: Mask
    span_ns: int = 0

    def only(self, whom: Callable[[ThreadKey], bool]) -> "Accounts":
        return self._rows(np.array([whom(thread_of(code)) for code in self.codes.tolist()], np.bool_))

    def of_process(self, pid: int) -> "Accounts":
        return self._rows(self.codes >> 32 == pid)

    def of_processes(self, whom: Callable[[int], bool]) -> "Accounts":
        pids, which = np.unique(self.codes >> 32, return_inverse=True)
        return self._rows(np.array([whom(pid) for pid in pids.tolist()], np.bool_)[which])

    def _rows(self, rows: Mask) -> "Accounts":
        return Accounts(self.codes[rows], self.numbers[rows], self.through[rows], self.span_ns)

    def by_thread(self) -> Mapping[ThreadKey, Account]:
        return self._by(self.codes, thread_of)

    def by_process(self) -> Mapping[int, Account]:
        return self._by(self.codes >> 32, int)

    def by(self, pools: Mapping[tuple[int, ...], tuple[int, ...]]) -> Mapping[tuple[int, ...], Account]:
        """Group by what `pools` has for a thread, and by thread if it has nothing."""
        codes = self.codes.copy()
        for row, code in enumerate(self.codes.tolist()):
            pid, number = pools.get(thread_of(code), (0, 0))
            if number:
                codes[row] = pid << 32 | (number & _TID_MASK)
        return self._by(codes, lambda code: (code >> 32, _signed(code & _TID_MASK)))

    def of(self, pid: int | None, tid: int | None = None) -> Account:
        """Return the account of a process, of one thread, or of everything."""
        chosen = np.ones(len(self.codes), np.bool_)
        if pid is not None:
            chosen &= self.codes >> 32 == pid
        if tid is not None:
            chosen &= self.codes & _TID_MASK == tid
        some = self._rows(chosen)
        return next(iter(some._by(np.zeros(len(some.codes), np.int64), int).values()), NO_ACCOUNT)

    def _by(self, codes: Ints, key_of: Callable[[int], K]) -> dict[K, Account]:
        groups = Groups(codes)
        residue_ns = np.where(self.through, self.span_ns - self.numbers[:, 0] - self.numbers[:, 2], 0)
        more = np.stack((np.ones(len(codes), np.int64), self.through.astype(np.int64), residue_ns), axis=1)
        sums = groups.sums(np.concatenate((self.numbers, more), axis=1))
        worst_ns = groups.maxima(self.numbers[:, 2] - self.numbers[:, 1])
        found: dict[K, Account] = {}
        for code, row, worst in zip(groups.codes.tolist(), sums.tolist(), worst_ns.tolist(), strict=True):
            running, ready, off, waits, involuntary, threads, through, residue = row
            found[key_of(code)] = Account(
                threads, through, running, ready, off - ready, residue, waits - involuntary, involuntary, worst
            )
        return found


def _signed(low: int) -> int:
    return low - (1 << 32) if low >> 31 else low


def accounts(windows: Sequence[Window], whole: bool = True) -> Accounts:
    """Return the accounts of all threads over consecutive `windows` (at least one).

    `whole`: include the threads that waited all the time.
    """
    ids: list[Ints] = []
    numbers: list[Ints] = []
    for window in windows:
        table = table_of(THREADS, window.threads)
        ids.append(table.ids)
        numbers.append(table.numbers[:, _COLUMNS])
        if (whole or len(windows) > 1) and len(window.still):
            waited = np.zeros((len(window.still), len(_COLUMNS)), np.int64)
            waited[:, 2] = window.span_ns
            ids.append(window.still.ids[:, :2])
            numbers.append(waited)
    codes = thread_codes(np.concatenate(ids))
    alive = codes != code_of(EXITED)
    groups = Groups(codes[alive])
    sums = groups.sums(np.concatenate(numbers)[alive])
    span_ns = sum(window.span_ns for window in windows)
    end_ns, catalog = windows[-1].at_ns, windows[-1].catalog
    return Accounts(groups.codes, sums, _existed_throughout(groups.codes, sums, span_ns, end_ns, catalog), span_ns)


def _existed_throughout(codes: Ints, sums: Ints, span_ns: int, end_ns: int, catalog: Catalog) -> Mask:
    """Return which threads existed for the whole span."""
    through = np.ones(len(codes), np.bool_)
    residue_ns = span_ns - sums[:, 0] - sums[:, 2]
    for row in np.flatnonzero(residue_ns > span_ns // _RESIDUE_DIVISOR).tolist():
        code = int(codes[row])
        life = catalog.life(thread_of(code))
        through[row] = life.from_ns <= end_ns - span_ns and not 0 < life.to_ns <= end_ns
    return through


class Residue(NamedTuple):
    """What explains a residue, in ns; `unexplained_ns` is an error of the account."""

    steal_ns: int = 0
    interrupt_ns: int = 0
    unexplained_ns: int = 0


NO_LEFT = Residue()


def explained(residue_ns: int, whole_ns: int, machine: Machine) -> Residue:
    """Return what explains a residue that is part of `whole_ns`, the residue of the machine.

    Steal and interrupts are assumed to have hit all threads alike.
    """
    if residue_ns <= 0 or whole_ns <= 0:
        return Residue(unexplained_ns=residue_ns)
    share = min(1.0, residue_ns / whole_ns)
    steal_ns = min(residue_ns, round(machine.steal_ns * share))
    interrupt_ns = min(residue_ns - steal_ns, round(machine.interrupt_ns * share))
    return Residue(steal_ns, interrupt_ns, residue_ns - steal_ns - interrupt_ns)


def unexplained_pct(every: Accounts, machine: Machine) -> float:
    """Return the CPU time that nothing accounts for, in percent; 0 if unknown.

    It includes time that threads have beyond what the CPUs have.
    """
    cpu_ns = machine.cpus * every.span_ns
    if not cpu_ns:
        return 0.0
    whole = every.of(None)
    left = explained(whole.residue_ns, whole.residue_ns, machine)
    return max(0.0, percent(left.unexplained_ns, cpu_ns), percent(whole.running_ns - cpu_ns, cpu_ns))


def blocked(parts: Mapping[Leaf, Part]) -> list[tuple[Leaf, int]]:
    """Return the time of each leaf, longest first."""
    times = [(leaf, part.total_ns) for leaf, part in parts.items() if part.total_ns > 0]
    return sorted(times, key=lambda item: (-item[1], item[0]))
