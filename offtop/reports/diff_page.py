"""Print what `offtop diff` found: what changed between two recordings, as tables or JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch
from offtop.model.aggregate.baseline_rows import LEAST
from offtop.model.aggregate.difference import PARTS, Change, Measured, changes, measured
from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.list_rows import activity_of, rows_of
from offtop.model.aggregate.scope_text import counted_in_full, counted_otherwise, sampled
from offtop.model.aggregate.suspect_text import SuspectTexts
from offtop.model.classify.categories import Categories
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import RuleSource
from offtop.model.classify.suspect import NOTHING_FOUND, Found, Suspect, SuspectName, averages
from offtop.model.classify.suspect_weights import Weights
from offtop.model.values.catalog import Catalog
from offtop.model.values.disks import DISK, LIST_MODES, LIST_NOUNS
from offtop.model.values.files import FILE
from offtop.model.values.snapshot import Filters, Sampling
from offtop.model.windows.breakdown import NO_PART, Part
from offtop.model.windows.history import HistoryTick
from offtop.printable import printable
from offtop.reports.tick import passing
from offtop.reports.whole import whole_of
from offtop.units import duration, signed, threads

_HEADS = {"categories": "CATEGORY", "reasons": "WAITED FOR", "processes": "PROCESS", "places": "WHERE"}
_IO_HEADS = {FILE: "FILE OPERATION", DISK: "REQUEST TO DISK"}
_IO_KEYS = {FILE: "files", DISK: "disks"}
_MOST_ROWS = 20


class SeenSuspect(NamedTuple):
    """A suspect of a recording."""

    harm: float
    """The most of a tick."""
    says: str
    """The sentence of that tick. Raw."""
    waiting: float = 0.0
    """Threads on average that waited behind it in the whole recording."""


class Compared(NamedTuple):
    """One of the two recordings."""

    name: str
    taken_ns: int
    """CLOCK_REALTIME of its end."""
    measures: Measured
    filters: Filters
    """What was measured."""
    sampling: Sampling | None
    """None: every wait was seen."""
    lost: str
    """Losses by kind, as text; empty: none."""
    suspects: Mapping[SuspectName, SeenSuspect]
    """They are not filtered."""
    io: Mapping[str, Measured]
    """By mode (disks.LIST_MODES): the ticks in which what it lists was counted, if there are any."""


def compared(
    source: Source,
    name: str,
    categories: Categories,
    rules: RuleSource,
    chosen: Filter,
    idle: bool,
    delay_ns: int,
    weights: Weights,
) -> Compared:
    """Read and measure one recording. Raises OfftopError if it has no whole tick."""
    cause_finder = CauseFinder(source.names, rules)
    watch = SuspectWatch(source, weights, rules)
    ticks: list[tuple[Found, int]] = []
    worst: dict[SuspectName, tuple[float, Suspect, Catalog]] = {}
    io = _IoMeasures(chosen)

    def add(tick: HistoryTick) -> None:
        io.add(tick)
        found = watch.at(tick.number) or NOTHING_FOUND
        ticks.append((found, tick.span_ns))
        for one in found.suspects:
            if one.name not in worst or one.harm > worst[one.name][0]:
                worst[one.name] = one.harm, one, tick.header.catalog

    whole = whole_of(source, categories, cause_finder, delay_ns, chosen=chosen, watch=watch, each=add)
    waiting = averages(ticks)
    suspects = {
        name: SeenSuspect(harm, SuspectTexts(catalog, source.names, cause_finder).sentence(one).says, waiting[name])
        for name, (harm, one, catalog) in worst.items()
    }
    tick = passing(whole, chosen, cause_finder)
    measures = measured(tick.shares, whole.span_ns, whole.window.catalog, cause_finder, idle)
    window = whole.window
    lost = ", ".join(f"{kind} {many:,}" for kind, many in window.lost.items() if many)
    return Compared(name, window.taken_ns, measures, window.filters, window.sampling, lost, suspects, io.measured)


class _IoMeasures:
    """Adds up the file operations and requests to disks of a recording, by program."""

    def __init__(self, chosen: Filter) -> None:
        self._chosen = chosen
        self._spans_ns: dict[str, int] = {}
        self._sums: dict[str, dict[str, Part]] = {mode: {} for mode in LIST_MODES}

    def add(self, tick: HistoryTick) -> None:
        for mode in LIST_MODES:
            activity = activity_of(tick.header, mode)
            if activity is None:
                continue
            self._spans_ns[mode] = self._spans_ns.get(mode, 0) + tick.span_ns
            sums = self._sums[mode]
            for row in rows_of(activity, tick.span_ns, tick.header.catalog, [self._chosen]).rows:
                io = row.io
                name, part = f"{io.process}: {io.what}", Part(io.totals.calls, io.totals.total_ns, io.totals.max_ns)
                sums[name] = sums.get(name, NO_PART).plus(part._replace(histogram=row.totals.histogram))

    @property
    def measured(self) -> Mapping[str, Measured]:
        """By mode; what was never counted is absent."""
        return {mode: Measured(ns, {_IO_KEYS[mode]: self._sums[mode]}) for mode, ns in self._spans_ns.items()}


def write(before: Compared, after: Compared, out: TextIO, as_json: bool, width: int = 0) -> None:
    if as_json:
        out.write(f"{_json(before, after)}\n")
        return
    out.writelines(f"{line[:width].rstrip() if width else line.rstrip()}\n" for line in _lines(before, after))


def _lines(before: Compared, after: Compared) -> Iterable[str]:
    for word, one in (("before", before), ("after", after)):
        measures = one.measures
        whole = (
            f"{word:<7}{threads(measures.waiting):>8} waiting in {duration(measures.span_ns)} of {printable(one.name)}"
        )
        lost = f"lost {one.lost}" if one.lost else ""
        yield "; ".join(filter(None, (whole, sampled(one.sampling, measures.span_ns), lost)))
    if difference := counted_otherwise(before, after, "before"):
        yield f"{difference[:1].upper()}{difference[1:]}, so some of these differences may not be real."
        for word, one in (("before", before), ("after", after)):
            yield f"{word:<7}{counted_in_full(one.filters)}"
    yield from _suspect_lines(before, after)
    for by in PARTS:
        yield from _table(changes(before.measures, after.measures, by), _HEADS[by])
    for mode in LIST_MODES:
        if mode in before.io and mode in after.io:
            yield from _table(changes(before.io[mode], after.io[mode], _IO_KEYS[mode]), _IO_HEADS[mode])
        elif mode in before.io or mode in after.io:
            yield ""
            which = "before" if mode in before.io else "after"
            yield f"{LIST_NOUNS[mode].capitalize()} were counted in {which} only, so they are not compared."


def _table(every: Sequence[Change], head: str) -> Iterable[str]:
    shown = [one for one in every if abs(one.change) >= LEAST][:_MOST_ROWS]
    yield ""
    yield f"{'BEFORE':>8} {'AFTER':>8} {'CHANGE':>9} {'p99 was':>7} {'p99 is':>7}      {head}"
    yield from map(_line, shown)
    if len(shown) < len(every):
        rest = sum(one.change for one in every[len(shown) :])
        yield f"{'':>8} {'':>8} {signed(rest):>9} {'':>7} {'':>7}      {len(every) - len(shown):,} more"


class _SuspectChange(NamedTuple):
    name: SuspectName
    says: str
    """Raw."""
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


def _suspects(before: Compared, after: Compared) -> list[_SuspectChange]:
    """Return the suspects of either recording, largest change first."""
    every = [
        _SuspectChange(
            name,
            (after.suspects.get(name) or before.suspects[name]).says,
            before.suspects[name].waiting if name in before.suspects else 0.0,
            after.suspects[name].waiting if name in after.suspects else 0.0,
        )
        for name in {**before.suspects, **after.suspects}
    ]
    return sorted(every, key=lambda one: (-abs(one.change), one.name))


def _suspect_lines(before: Compared, after: Compared) -> Iterable[str]:
    every = _suspects(before, after)
    if not every:
        return
    yield ""
    yield f"{'BEFORE':>8} {'AFTER':>8} {'CHANGE':>9}      SUSPECT: what others wait for"
    for one in every[:_MOST_ROWS]:
        mark = "gone" if not one.after else "new" if not one.before else ""
        numbers = f"{threads(one.before):>8} {threads(one.after):>8} {signed(one.change):>9}"
        yield f"{numbers} {mark:<4} {printable(one.says)}"
    if len(every) > _MOST_ROWS:
        yield f"{'':>8} {'':>8} {'':>9}      {len(every) - _MOST_ROWS:,} more"


def _line(one: Change) -> str:
    was_ns, is_ns = one.p99_ns
    mark = "new" if one.is_new else "gone" if one.is_gone else ""
    return (
        f"{threads(one.waiting_before):>8} {threads(one.waiting_after):>8} {signed(one.change):>9} "
        f"{duration(was_ns):>7} {duration(is_ns):>7} {mark:<4} {printable(one.name)}"
    )


def _json(before: Compared, after: Compared) -> str:
    from offtop.reports import header_objects, suspect_objects  # here, so that tables start sooner
    from offtop.reports.json_encoding import encode

    ends = {
        word: {
            "file": printable(one.name),
            "taken_ns": one.taken_ns,
            "span_ns": one.measures.span_ns,
            "filters": header_objects.filters_object(one.filters),
            "sampling": header_objects.sampling_object(one.sampling, one.measures.span_ns),
        }
        for word, one in (("before", before), ("after", after))
    }
    tables = {by: [_change(one) for one in changes(before.measures, after.measures, by)] for by in PARTS}
    suspects = [
        {
            **suspect_objects.suspect_names(one.name),
            "text": printable(one.says),
            "waiting_before": round(one.before, 6),
            "waiting_after": round(one.after, 6),
            "change": round(one.change, 6),
            "new": not one.before,
            "gone": not one.after,
        }
        for one in _suspects(before, after)
    ]
    tables |= {
        _IO_KEYS[mode]: [_change(one) for one in changes(before.io[mode], after.io[mode], _IO_KEYS[mode])]
        for mode in LIST_MODES
        if mode in before.io and mode in after.io
    }
    return encode({**ends, **tables, "suspects": suspects})


def _change(one: Change) -> dict[str, Any]:
    was_ns, is_ns = one.p99_ns
    return {
        "name": printable(one.name),
        "waiting_before": round(one.waiting_before, 6),
        "waiting_after": round(one.waiting_after, 6),
        "change": round(one.change, 6),
        "total_ns_before": one.before.total_ns,
        "total_ns_after": one.after.total_ns,
        "p99_ns_before": was_ns,
        "p99_ns_after": is_ns,
        "new": one.is_new,
        "gone": one.is_gone,
    }
