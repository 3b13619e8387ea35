"""A recording on one page: time range, suspects, totals, longest waits, outliers, wakers, and waits in progress."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import nlargest
from typing import NamedTuple, TextIO

import numpy as np

from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch, history_for
from offtop.model.aggregate import location
from offtop.model.aggregate.disk_rows import disk_rows
from offtop.model.aggregate.file_rows import file_rows
from offtop.model.aggregate.stack_problems import Problems
from offtop.model.aggregate.suspect_text import SuspectTexts
from offtop.model.aggregate.waker_rows import by_wake
from offtop.model.classify.categories import Categories
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES, RuleSource
from offtop.model.classify.suspect import Found
from offtop.model.classify.suspect_weights import Weights
from offtop.model.outliers.text import one_line
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.outlier import Group, groups
from offtop.model.values.snapshot import EXITED, Snapshot
from offtop.model.values.stack import NO_STACK, Names
from offtop.model.values.table import NO_SITES, SITES, THREADS, K, Kind, Table, V, summed, table_of
from offtop.model.values.wake import KINDS, NOBODY, STILL_WAITING, THREAD, WAKEUP, Storm, Waker, gathers
from offtop.model.windows.breakdown import ALL, FILTERED, Idle, PartTuple, Scope, without_standing
from offtop.model.windows.history import HistoryTick, moved_in
from offtop.model.windows.stuck import LEAST_AGE_NS, NOTHING_STUCK, Stuck
from offtop.model.windows.window import Window, merge
from offtop.printable import printable
from offtop.reports import disk_table, file_table, tick_text
from offtop.reports.tick import in_progress, passing
from offtop.reports.tick_rows import waiters
from offtop.reports.wanted import Wanted
from offtop.units import NS_PER_S, average, count, duration, threads

_ROWS = 10
_LONGEST = 5
_WAKERS = 5
_UNKNOWN = NOBODY, "(unknown)"
_WITH_STANDING = ", before standing waits were known"
_IN_PROGRESS = "in progress at the end"
_MOST_LOCATIONS = 10_000
"""Most wakers' stacks whose names are cached."""
_OUTLIERS = 10
_SUSPECTS = 10
_AS_MUCH = 0.95
"""A later sentence about a suspect, with larger ages, replaces one with so much of its harm."""
_STUCK = 20
"""Most stacks listed as stuck."""
_MERGED_AT_ONCE = 64
"""Number of windows that are merged at a time, so that memory does not grow with the length of the recording."""
_HISTORY_BYTES = 1 << 20


class _Suspected(NamedTuple):
    """One suspect in all its ticks."""

    harm_ns: float
    """Its harm in all ticks, each times the length of the tick."""
    most: float
    """Its largest harm in one tick."""
    sentence: str
    """The sentence about it in the last tick with about that harm. Who must act may change, but not of what program."""
    first_ns: int
    said_ns: int
    last_ns: int
    """CLOCK_REALTIME of its first tick, of that of the sentence, and of its last tick."""


class _Longest(NamedTuple):
    max_ns: int
    taken_ns: int
    """End of the tick in which the wait ended (CLOCK_REALTIME)."""
    site: SiteKey
    category: str
    text: str
    """Process, thread and location."""


@dataclass(slots=True)
class _WakerTotals:
    """Totals of the wakers of one name."""

    blocked_ns: int = 0
    wakeups: int = 0
    locations: Counter[str] = field(default_factory=Counter[str])
    """Number of wakeups by the waker's location."""
    storm: Storm = field(default_factory=Storm)


class _Wakers:
    """The wakers of waits that are not idle, by name."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._every: dict[tuple[str, str], _WakerTotals] = {}
        """Keyed by kind and name: a thread may be named `timeout`."""
        self._locations: dict[tuple[int, int], str] = {}
        self._in_progress_ns = 0
        """Time of waits still in progress."""
        self._since_ns = 0
        """The beginning of the first tick."""

    def add(self, tick: HistoryTick) -> None:
        window, catalog = tick.window, tick.window.catalog
        self._since_ns = self._since_ns or window.at_ns - window.span_ns
        moved = moved_in([tick], self._since_ns)
        for one in (tick, moved) if moved else (tick,):
            self._add_time(by_wake(without_standing(one.shares), Scope(ALL, idle=False, blocked=True)), window)
        for wake, storm in window.storms.items():
            one = self._of(catalog.wake(wake).waker)
            one.storm = one.storm.plus(storm)

    def _add_time(self, by_wakes: Mapping[tuple[int, ...], PartTuple], window: Window) -> None:
        catalog = window.catalog
        for (wake,), (waits, total_ns, _, _) in by_wakes.items():
            if wake < 0:
                continue
            found = catalog.wake(wake)
            waker = found.waker
            if waker == STILL_WAITING and gathers(window.mode, WAKEUP):
                self._in_progress_ns += total_ns
            elif found.has_waker:
                one = self._of(waker)
                one.blocked_ns += total_ns
                one.wakeups += waits
                if waits:
                    one.locations[self._location(catalog, waker)] += waits

    @property
    def lines(self) -> list[str]:
        """The lines to print; empty if wakers were not recorded."""
        known = [item for item in self._every.items() if item[0] != _UNKNOWN]
        ended = nlargest(_WAKERS, known, key=lambda item: item[1].blocked_ns)
        if _UNKNOWN in self._every:
            ended.append((_UNKNOWN, self._every[_UNKNOWN]))
        rows = [_waker_line(self._shown(*key), one) for key, one in ended if one.wakeups]
        if rows and self._in_progress_ns > 0:
            rows.append(f"{duration(self._in_progress_ns):>8} {'':>8} {'(still waiting)':<24} {_IN_PROGRESS}")
        stormed = nlargest(_WAKERS, self._every.items(), key=lambda item: item[1].storm.woken)
        storms = [_storm_line(self._shown(*key), one.storm) for key, one in stormed if one.storm.woken]
        head = ["WAKERS THAT ENDED MOST BLOCKED TIME", f"{'BLOCKED':>8} {'WAKEUPS':>8} {'WAKER':<24} THROUGH"]
        return [*(head if rows else []), *rows, *(["WAKEUP STORMS"] if storms else []), *storms]

    def _of(self, waker: Waker) -> _WakerTotals:
        key = _UNKNOWN if waker.kind == NOBODY else (waker.kind, printable(waker.label))
        return self._every.setdefault(key, _WakerTotals())

    def _shown(self, kind: str, name: str) -> str:
        """Return the name, with the kind appended if something of another kind has the same name."""
        is_alone = kind != THREAD or not any((other, name) in self._every for other in KINDS if other != THREAD)
        return name if is_alone else f"{name} ({kind})"

    def _location(self, catalog: Catalog, waker: Waker) -> str:
        ids = waker.kernel, waker.user
        if ids not in self._locations:
            if len(self._locations) >= _MOST_LOCATIONS:
                self._locations.clear()
            self._locations[ids] = printable(location.in_short(catalog, *ids, self._names))
        return self._locations[ids]


def _waker_line(name: str, one: _WakerTotals) -> str:
    ((location_text, _),) = one.locations.most_common(1)
    return f"{duration(one.blocked_ns):>8} {count(one.wakeups):>8} {name[:24]:<24} {location_text}"


def _storm_line(name: str, storm: Storm) -> str:
    many = f"{storm.storms:,} storm{'s' * (storm.storms != 1)} woke {storm.woken:,} threads, {storm.largest:,} at once"
    return f"{name}: {many}; {storm.slept_again:,} slept again within 1ms: {storm.wasted_switches:,} switches"


def write(
    source: Source,
    name: str,
    categories: Categories,
    width: int,
    out: TextIO,
    rules: RuleSource = WITHOUT_RULES,
    weights: Weights | None = None,
) -> None:
    """Write the report of a recording with the file name `name`.

    `width`: columns to cut lines at; 0: do not cut. `weights`: of suspects; None: do not look for any.
    """
    totals = _Totals(source, categories, rules, weights)
    while (snapshot := source.read()) is not None:
        totals.add(snapshot)
    lines = [f"{printable(name)}: {dict(source.about())['recorded']}"]
    lines += [f"{what}: {value}" for what, value in source.about() if what != "recorded"]
    lines += totals.lines()
    out.write("".join(f"{line[:width].rstrip() if width else line.rstrip()}\n" for line in lines))


class _Totals:
    """What the report says, gathered tick by tick in bounded memory."""

    def __init__(self, source: Source, categories: Categories, rules: RuleSource, weights: Weights | None) -> None:
        self._source = source
        self._idle_categories = categories.idle
        self._cause_finder = CauseFinder(source.names, rules)
        self._watch = SuspectWatch(source, weights, rules) if weights else None
        self._history = history_for(categories, self._cause_finder, self._watch, max_bytes=_HISTORY_BYTES)
        self._windows: list[Window] = []
        self._longest: list[_Longest] = []
        self._wakers = _Wakers(source.names)
        self._suspects: dict[tuple[str, ...], _Suspected] = {}
        self._busiest: dict[bool, tuple[float, int]] = {}
        """Whether standing waits were known by then → most waiting threads in a tick, and when it was taken."""
        self._ticks = 0
        self._files_ns = self._disks_ns = 0
        """Spans in which file operations, and requests to disks, were counted."""
        self._last: HistoryTick | None = None
        self._end: Snapshot | None = None

    def add(self, snapshot: Snapshot) -> None:
        self._end = snapshot
        tick = self._history.add(snapshot)
        if tick is None:
            return
        self._ticks, self._last = self._ticks + 1, tick
        self._files_ns += tick.span_ns if tick.window.files else 0
        self._disks_ns += tick.span_ns if tick.window.disks else 0
        self._windows.append(tick.window)
        if len(self._windows) == _MERGED_AT_ONCE:
            self._windows = [_without_exited(merge(self._windows), snapshot)]
        has_settled = self._watch is None or self._watch.has_settled
        busiest = self._busiest.get(has_settled, (0.0, 0))
        self._busiest[has_settled] = max(busiest, (_waiting_threads(tick), tick.taken_ns))
        self._longest = _with_longest(self._longest, tick, self._source)
        self._wakers.add(tick)
        if self._watch:
            texts = SuspectTexts(snapshot.catalog, self._source.names, self._cause_finder)
            _add_suspects(self._suspects, self._watch.tick(self._history), tick, texts)

    @property
    def _most_waiting(self) -> str:
        before, after = self._busiest.get(False), self._busiest.get(True)
        texts = [f"{threads(most)} at {_clock(taken_ns)}" for most, taken_ns in filter(None, (after, before))]
        return f"{texts[0]}; {texts[1]}{_WITH_STANDING}" if before and after and before > after else texts[0]

    def lines(self) -> list[str]:
        """Return all lines of the report but its head."""
        lines: list[str] = []
        last, end, names = self._last, self._end, self._source.names
        idle = last.idle if last else Idle(self._idle_categories, NO_SITES)
        stuck = in_progress(end, idle, LEAST_AGE_NS) if end else NOTHING_STUCK
        if last is None:
            lines.append("The recording has only one reading; a tick needs two.")
        else:
            window = merge(self._windows)
            lines += [
                f"ticks: {self._ticks:,}, measured {duration(window.span_ns)}",
                f"most waiting: {self._most_waiting}",
                "",
                *([*_suspect_lines(self._suspects), ""] if self._suspects else []),
                *_program_lines(window, last.idle, self._source, stuck, self._cause_finder),
                *_file_lines(window, self._files_ns),
                *_disk_lines(window, self._disks_ns),
            ]
        if self._longest:
            longest = sorted(self._longest, reverse=True)
            lines += ["LONGEST FINISHED WAITS, one per stack", *map(_longest_line, longest), ""]
        if outliers := groups(self._source.outliers()):
            lines += [*_outlier_lines(outliers, names), ""]
        if woken := self._wakers.lines:
            lines += [*woken, ""]
        if end:
            lines += _stuck_lines(end, stuck, names, self._cause_finder)
        return lines


def _add_suspects(
    every: dict[tuple[str, ...], _Suspected], found: Found, tick: HistoryTick, texts: SuspectTexts
) -> None:
    now_ns = tick.taken_ns
    for one in found.suspects:
        was = every.get(one.key, _Suspected(0.0, 0.0, "", now_ns, now_ns, now_ns))
        now = was._replace(harm_ns=was.harm_ns + one.harm * tick.span_ns, last_ns=now_ns)
        if one.harm >= _AS_MUCH * was.most:
            sentence = printable(texts.sentence(one).in_batch)
            now = now._replace(most=max(one.harm, was.most), sentence=sentence, said_ns=now_ns)
        every[one.key] = now


def _suspect_lines(every: Mapping[tuple[str, ...], _Suspected]) -> list[str]:
    most = nlargest(_SUSPECTS, every.values())
    rows = (f"{_clock(one.first_ns)}-{_clock(one.last_ns)}  at {_clock(one.said_ns)}: {one.sentence}" for one in most)
    elided = [f"{len(every) - len(most)} more"] if len(every) > len(most) else []
    return ["SUSPECTS: what others waited for, most total harm first; each as of its worst moment", *rows, *elided]


def _program_lines(window: Window, idle: Idle, source: Source, stuck: Stuck, cause_finder: CauseFinder) -> list[str]:
    """Return the categories and the programs that waited most, as batch mode prints them."""
    wanted = Wanted(programs=True, most_rows=_ROWS)
    tick = passing(HistoryTick.of(window, idle), wanted.filter, cause_finder, stuck)
    problems = Problems(source.names, source.why_nameless)
    text = tick_text.tick_text(tick, waiters(tick, wanted), source.names, 0, wanted, cause_finder, problems)
    return text.splitlines()


def _file_lines(window: Window, counted_ns: int) -> list[str]:
    """Return the file operations with the most time. `counted_ns`: the span in which they were counted."""
    if window.files is None:
        return []
    listed = file_rows(window.files, counted_ns, window.catalog, ())
    head = f"FILE OPERATIONS, counted for {duration(counted_ns)}, most time first; all with: replay --mode file"
    return [head, *file_table.table(listed, counted_ns, _ROWS), ""]


def _disk_lines(window: Window, counted_ns: int) -> list[str]:
    """Return the disks, and the requests with the most time. `counted_ns`: the span in which they were counted."""
    if window.disks is None:
        return []
    listed = disk_rows(window.disks, counted_ns, window.catalog, ())
    head = f"REQUESTS TO DISKS, counted for {duration(counted_ns)}, most time first; all with: replay --mode disk"
    return [head, *disk_table.table(listed, counted_ns, _ROWS), ""]


def _longest_line(one: _Longest) -> str:
    return f"{_clock(one.taken_ns)}  {duration(one.max_ns):>6}  {one.category:<13} {one.text}"


def _outlier_lines(outliers: Sequence[Group], names: Names) -> list[str]:
    """Return lines for the newest outliers."""
    shown = outliers[-_OUTLIERS:]
    last = f", the last {len(shown)}" if len(shown) < len(outliers) else ""
    head = f"OUTLIERS: {len(outliers):,}{last}; replay --at outlier goes there"
    rows = (f"{_clock(one.first.taken_ns)}  {f'x{one.many:,}' if one.many > 1 else '':>6}  " for one in shown)
    return [head, *(f"{row}{printable(one_line(one.worst, names))}" for row, one in zip(rows, shown, strict=True))]


def _stuck_lines(end: Snapshot, blocked: Stuck, names: Names, cause_finder: CauseFinder) -> list[str]:
    """Return lines for the waits in progress at the end: the oldest per process and stack, with its thread count."""
    shown = blocked.in_scope(Scope(ALL, idle=False))
    by_stack: dict[tuple[int | str, ...], list[int]] = {}
    for row, one in enumerate(shown.waits):
        key = one.site.pid, one.site.kernel, one.user, one.call, one.letter
        by_stack.setdefault(key, []).append(row)
    listed = list(by_stack.values())
    rows = [
        f"{len(those):>7} {tick_text.stuck_line(shown, those[0], end.catalog, names, cause_finder)}"
        for those in listed[:_STUCK]
    ]
    if elided := sum(map(len, listed[_STUCK:])):
        rows.append(f"{elided:>7} {'':>8} more, in {len(listed) - _STUCK} stacks")
    head = [f"{'THREADS':>7} {tick_text.STUCK_HEAD}"] if rows else []
    return [f"STUCK AT THE END, {_clock(end.taken_ns)}: {tick_text.stuck_threads(blocked, shown)}", *head, *rows]


def _without_exited(window: Window, snapshot: Snapshot) -> Window:
    """Merge the threads that have exited into one, and their sites by kernel stack."""
    alive = {*snapshot.threads, *snapshot.waiting}
    sites, threads = table_of(SITES, window.sites), table_of(THREADS, window.threads)
    return replace(window, sites=_merged_exited(SITES, sites, alive), threads=_merged_exited(THREADS, threads, alive))


def _merged_exited(kind: Kind[K, V], table: Table[K, V], alive: Collection[ThreadKey]) -> Table[K, V]:
    ids = table.ids.copy()
    is_exited = np.array([ThreadKey(*key) not in alive for key in ids[:, :2].tolist()], np.bool_)
    ids[is_exited, :2], ids[is_exited, 3:] = EXITED, NO_STACK
    return summed(kind, ids, table.numbers, table.counts)


def _waiting_threads(tick: HistoryTick) -> float:
    """Return the average number of waiting threads, without idle and filtered waits."""
    leaves = tick.breakdown.categories
    ns = sum(part.total_ns for leaf, part in leaves.items() if not leaf.idle and leaf.category != FILTERED)
    return average(ns, tick.span_ns)


def _with_longest(longest: list[_Longest], tick: HistoryTick, source: Source) -> list[_Longest]:
    """Add the longest wait of a tick if it is among the longest of all; keep one per process and stack."""
    shares = tick.shares
    is_idle = np.array([leaf.idle for leaf in shares.leaves], np.bool_)
    max_ns = np.where(is_idle[shares.leaf], 0, shares.max_ns) if len(shares.leaf) else shares.max_ns
    if not len(max_ns) or not max_ns.any():
        return longest
    row = int(max_ns.argmax())
    if len(longest) == _LONGEST and max_ns[row] <= min(longest).max_ns:
        return longest
    site, catalog = SITES.key(shares.ids[row].tolist()), tick.header.catalog
    here = location.in_short(catalog, site.kernel, site.user, source.names)
    text = (
        f"{printable(catalog.process(site.pid))}({site.pid}) {printable(catalog.comm(site.thread))}({site.tid})  {here}"
    )
    category = shares.leaves[int(shares.leaf[row])].category
    one = _Longest(int(max_ns[row]), tick.taken_ns, site, category, printable(text))
    same = [other for other in longest if _process_and_stacks(other.site) == _process_and_stacks(site)]
    rest = [other for other in longest if _process_and_stacks(other.site) != _process_and_stacks(site)]
    return nlargest(_LONGEST, [*rest, max([one, *same])])


def _process_and_stacks(site: SiteKey) -> tuple[int, int, int]:
    return site.pid, site.kernel, site.user


def _clock(taken_ns: int) -> str:
    return datetime.fromtimestamp(taken_ns // NS_PER_S).strftime("%H:%M:%S")
