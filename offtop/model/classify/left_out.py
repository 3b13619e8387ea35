"""Where waits were that have no stack because of the CPU budget: an estimate.

While stacks are left out (snapshot.Thinned), waits below the raised minimum count as short waits, but one per CPU and
16 ms has its stack all the same. The time of a process in short waits is known, and these samples show where it was.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from offtop.model.values import histogram as log2
from offtop.model.values.stack import FIRST_STACK, SHORT
from offtop.model.windows import breakdown
from offtop.model.windows.breakdown import PartTuple
from offtop.model.windows.history import HistoryTick
from offtop.units import average, threads

_FEWEST_SAMPLES = 5
_Table = Mapping[tuple[int, ...], PartTuple]


class LeftOut(NamedTuple):
    """Which waits have no stack, although they reached the minimum."""

    raised_ns: int
    """Shorter ones."""
    below_ns: float
    """Average length of the waits below the minimum, which count as short waits, too."""
    waits_ns: int
    """How long they took in all, with their run-queue time."""


def left_out_in(ticks: Iterable[HistoryTick]) -> LeftOut | None:
    """Return what was left out in any of these ticks; None: nothing."""
    raised_ns = below = below_ns = min_ns = waits_ns = 0
    for tick in ticks:
        thinned = tick.header.cost.thinned
        waits_ns += thinned.waits_ns
        if not thinned.stacks_from_ns:
            continue
        raised_ns, min_ns = max(raised_ns, thinned.stacks_from_ns), tick.header.filters.min_ns
        for leaf, part in tick.leaves.items():
            if leaf.category == breakdown.SHORT:
                below, below_ns = below + part.waits, below_ns + part.total_ns
        below, below_ns = below - thinned.waits, below_ns - thinned.waits_ns
    if not raised_ns:
        return None
    return LeftOut(raised_ns, min(float(min_ns), max(0.0, below_ns / below)) if below > 0 else 0.0, waits_ns)


def estimated_ns(table: _Table, with_idle: _Table, left_out: LeftOut) -> dict[tuple[int, ...], int]:
    """Return how much time of waits without a stack was probably at each row of a table by site (breakdown.by_site).

    `with_idle`: the same table with idle waits. Short waits may have been idle, too, but are never called so.
    """
    return {row: ns for row, ns in _estimated_ns(table, with_idle, left_out).items() if row in table}


def likely_idle(table: _Table, with_idle: _Table, left_out: LeftOut, span_ns: int) -> str:
    """Return a clause about waits without a stack that were probably idle, if they are half of the time in the table.

    The arguments are those of `estimated_ns`.
    """
    idle_ns = sum(ns for row, ns in _estimated_ns(table, with_idle, left_out).items() if row not in table)
    if 2 * idle_ns < sum(part[1] for part in table.values()) or average(idle_ns, span_ns) < 1:
        return ""
    return f"about {threads(average(idle_ns, span_ns))} threads wait without a stack, and are likely idle"


def _estimated_ns(table: _Table, with_idle: _Table, left_out: LeftOut) -> dict[tuple[int, ...], int]:
    """Return what `estimated_ns` does, for all rows of `with_idle`.

    Of a process with n short waits of s ns in all, and samples of L ns on average, so many have no stack that n waits
    take s ns: (s - n * below) / (L - below), each L ns long. All together take at most as long as the waits
    whose stacks were left out.
    """
    samples: dict[int, list[tuple[tuple[int, ...], int, int]]] = {}
    for row, part in with_idle.items():
        if row[0] >= FIRST_STACK:
            sampled, sampled_ns = _shorter(part, left_out.raised_ns)
            if sampled > 0 and sampled_ns > 0:
                samples.setdefault(row[3], []).append((row, sampled, sampled_ns))
    short: dict[int, tuple[int, int]] = {}
    for (kernel, _, _, pid), (waits, total_ns, _, _) in table.items():
        if kernel == SHORT:
            many, ns = short.get(pid, (0, 0))
            short[pid] = many + waits, ns + total_ns
    found: dict[tuple[int, ...], float] = {}
    for pid, (many, ns) in short.items():
        some = samples.get(pid, [])
        sampled, sampled_ns = sum(waits for _, waits, _ in some), sum(total_ns for _, _, total_ns in some)
        above_ns = ns - many * left_out.below_ns
        if sampled < _FEWEST_SAMPLES or above_ns <= 0 or sampled_ns <= sampled * left_out.below_ns:
            continue
        left_out_ns = min(ns, above_ns * sampled_ns / (sampled_ns - sampled * left_out.below_ns))
        found.update((row, left_out_ns * total_ns / sampled_ns) for row, _, total_ns in some)
    most = min(1.0, left_out.waits_ns / max(1.0, sum(found.values())))
    return {row: round(ns * most) for row, ns in found.items()}


def _shorter(part: PartTuple, than_ns: int) -> tuple[int, int]:
    """Return number and time of the waits that are shorter; by the histogram if some are longer."""
    waits, total_ns, max_ns, histogram = part
    if max_ns < than_ns:
        return waits, min(total_ns, waits * max_ns)  # total_ns has waits in progress, too
    lanes = [(n, (log2.low_ns(lane) + log2.high_ns(lane)) // 2) for lane, n in enumerate(log2.counts(histogram)) if n]
    some = [(n, middle_ns) for n, middle_ns in lanes if middle_ns < than_ns]
    return sum(n for n, _ in some), sum(n * middle_ns for n, middle_ns in some)
