"""Which threads and waits were counted, in words."""

from dataclasses import replace
from typing import Protocol

from offtop.model.aggregate.row_names import cgroup_name
from offtop.model.values.snapshot import Cost, Filters, Machine, Sampling
from offtop.model.values.state import letters
from offtop.printable import printable
from offtop.units import average, duration, percent, span, threads

_OWN_ONLY = "own processes only"
_CONTAINER_ONLY = "this container only"
LOST_UNKNOWN = "lost: unknown"
"""If threads that came and went between two polls are not counted."""
_FEW_IDS = 3


class _MeasuredSpan(Protocol):
    """A span that was measured."""

    @property
    def filters(self) -> Filters: ...

    @property
    def sampling(self) -> Sampling | None: ...


def counted(filters: Filters) -> str:
    """Return what is counted, empty if everything is.

    The --within function has a line of its own.
    """
    words: list[str] = []
    for word, ids in (("pid", filters.pids), ("tid", filters.tids)):
        if ids:
            few = f"{word} {','.join(map(str, ids))}"
            words.append(f"only {few if len(ids) <= _FEW_IDS else f'{len(ids)} {word}s'}")
    if filters.cgroup:
        words.append(f"only cgroup {printable(cgroup_name(filters.cgroup))}")
    if filters.who != "all":
        words.append(f"{filters.who} threads")
    if filters.states:
        words.append(f"state {letters(filters.states)}")
    if filters.max_ns:
        words.append(f"max {duration(filters.max_ns)}")
    return " ".join(words)


def counted_in_full(filters: Filters) -> str:
    within = f"within {printable(filters.within)}" if filters.within else ""
    words = " ".join(filter(None, (counted(filters), within)))
    return f"{words or 'all threads'}, minimum {span(filters.min_ns)}"


def how_sure(sampling: Sampling, span_ns: int) -> list[str]:
    """Return how much shorter waits may be, and how many threads may wait elsewhere.

    A wait may be shorter by the gap between two polls at each end.
    """
    shorter, elsewhere = span(2 * sampling.apart_ns(span_ns)), threads(average(sampling.guessed_ns, span_ns))
    return [f"waits up to {shorter} shorter", f"up to {elsewhere} elsewhere"]


def inexact_words(cost: Cost, machine: Machine, thinned_ns: int, total_ns: int) -> list[str]:
    """Return what offtop leaves out to keep to its CPU budget, and whether it verifies kernel stacks.

    `thinned_ns`: part of `total_ns` that has no stack for that reason.
    """
    words: list[str] = []
    thinned = cost.thinned
    if thinned.stacks_from_ns:
        some = "" if thinned.level or thinned.cpus >= machine.cpus else f" on {thinned.cpus} of {machine.cpus} CPUs"
        words.append(f"stacks from {span(thinned.stacks_from_ns)} up{some}")
    if share_pct := round(percent(thinned_ns, total_ns)):
        words.append(f"{share_pct}% of the time without stacks")
    if cost.scan_every > 1:
        words.append(f"waits scanned every {cost.scan_every} ticks")
    if thinned.is_over:
        words.append("over budget: -p watches less")
    if cost.kernel_check_every:
        words.insert(1, f"kernel stacks verified (1 in {cost.kernel_check_every} checked)")
    return words


def rate(sampling: Sampling, span_ns: int) -> str:
    """Return `~21 Hz`."""
    return f"~{sampling.rate_hz(span_ns):.0f} Hz"


def how_sampled(sampling: Sampling, span_ns: int) -> str:
    """Return `~21 Hz, own processes only`."""
    return ", ".join(filter(None, (rate(sampling, span_ns), visible_processes(sampling))))


def visible_processes(sampling: Sampling) -> str:
    """Return which processes alone are visible; empty if all are."""
    return _OWN_ONLY if sampling.own_only else _CONTAINER_ONLY if sampling.container_only else ""


def sampled(sampling: Sampling | None, span_ns: int) -> str:
    """Return `sampled ~21 Hz, own processes only`; empty if every wait was recorded."""
    return f"sampled {how_sampled(sampling, span_ns)}" if sampling else ""


def counted_otherwise(then: _MeasuredSpan, now: _MeasuredSpan, before: str) -> str:
    """Return why a change since `before` may come only from counting in another way: `then` and `now` say in which.

    It is empty if both were counted in the same way.
    """
    words: list[str] = []
    if (then.sampling is None) != (now.sampling is None):
        words.append(f"{before} was {'not ' if then.sampling is None else ''}sampled")
    was, is_now = (visible_processes(one.sampling) if one.sampling else "" for one in (then, now))
    if was != is_now:
        words.append(f"{before} has {was or 'processes of all users'}")
    if replace(then.filters, min_ns=0) != replace(now.filters, min_ns=0):
        words.append(f"{before} counted other threads or waits")
    elif then.filters.min_ns != now.filters.min_ns:
        words.append(f"the minimum of {before} was {span(then.filters.min_ns)}")
    return "; ".join(words)
