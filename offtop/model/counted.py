"""What of all threads and waits was counted at all, in words."""

from dataclasses import replace

from offtop.model.printable import printable
from offtop.model.rows import cgroup_name
from offtop.model.snapshot import Filters, Sampling
from offtop.model.state import letters
from offtop.units import average, duration, span, threads

_FEW_IDS = 3


def counted(filters: Filters) -> str:
    """Empty where it is all. What is within a function has a line of its own."""
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


def how_sure(sampling: Sampling, span_ns: int) -> str:
    """By how much the ends of a wait may be off, and how many of the threads that wait may do so elsewhere."""
    apart, elsewhere = span(sampling.apart_ns(span_ns)), threads(average(sampling.guessed_ns, span_ns))
    return f"waits +-{apart}, up to {elsewhere} elsewhere"


def rate(sampling: Sampling, span_ns: int) -> str:
    """`~21 Hz`"""
    return f"~{sampling.rate_hz(span_ns):.0f} Hz"


def counted_otherwise(then: Filters, now: Filters, before: str) -> str:
    """Why what changed since `before`, which was counted by `then`, may be no change; empty where nothing says so."""
    if replace(then, min_ns=0) != replace(now, min_ns=0):
        return f"{before} counted other threads or waits"
    return f"the minimum of {before} was {span(then.min_ns)}" if then.min_ns != now.min_ns else ""
