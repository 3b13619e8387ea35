"""Batch mode: print each tick as text tables, like `top -b`, or as one JSON object.

The output is a pure function of a tick. Before printing, batch mode waits for symbol names, and for process details if
a filter needs them, because printed output cannot be updated later.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TextIO

from offtop.errors import warn
from offtop.export import folded
from offtop.export.folded import AS_BCC, Style
from offtop.export.profile import io_stacks, profile_of_rows
from offtop.feed.outlier_actions import OutlierActions
from offtop.feed.pace import Pace, Recorder
from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch, history_for
from offtop.model.aggregate import location
from offtop.model.aggregate.account import accounts
from offtop.model.aggregate.budget import Rate, budget
from offtop.model.aggregate.filter import NOTHING, Filter
from offtop.model.aggregate.folding import UNFOLDED, Folding
from offtop.model.aggregate.place_shares import SEPARATORS, PlaceNames, in_words, sites_of_rows
from offtop.model.aggregate.program import Program, program_folding
from offtop.model.aggregate.rows import (
    CHANGE,
    NOWHERE,
    WAITING,
    Key,
    Order,
    Ranking,
    Row,
    category_rows,
    kept_rows,
    process_rows,
    storm_rows,
    storms_of_rows,
    thread_rows,
    wake_rows,
)
from offtop.model.aggregate.scope_text import LOST_UNKNOWN, how_sampled, how_sure, inexact_words
from offtop.model.aggregate.stack_problems import Problems
from offtop.model.aggregate.steps import Shape
from offtop.model.aggregate.suspect_text import SuspectTexts, change_text, gone_texts
from offtop.model.aggregate.waker_rows import (
    WakerKey,
    by_wake,
    grouped,
    oldest_of,
    placeholder_keys,
    ready_by_wake,
    top_of_wakes,
    waker_of,
)
from offtop.model.classify.categories import Categories
from offtop.model.classify.cause_finder import CauseFinder, most
from offtop.model.classify.causes import WITHOUT_RULES, RuleSource
from offtop.model.classify.left_out import left_out_in
from offtop.model.classify.suspect_weights import Weights
from offtop.model.classify.suspects import NOTHING_FOUND, Found
from offtop.model.outliers.text import one_line
from offtop.model.values import calls
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.files import FILE
from offtop.model.values.outlier import Outlier, groups
from offtop.model.values.peers import waited_on
from offtop.model.values.snapshot import EXITED, Snapshot
from offtop.model.values.stack import Frame, Names
from offtop.model.values.table import thread_codes
from offtop.model.values.waits import WAKE, Waits
from offtop.model.values.wake import NO_STORM, OFFCPU, WAKEUP, gathers
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.viewmodel.view import TreeView, View
from offtop.model.windows import stuck
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import (
    ALL,
    FILTERED,
    NO_PART,
    RUN_QUEUE,
    Scope,
    by_category,
    by_process,
    by_site,
    by_thread,
    top_of_groups,
    top_of_threads,
    total,
)
from offtop.model.windows.history import HistoryTick, moved_in
from offtop.model.windows.stuck import Stuck
from offtop.model.windows.window import Window
from offtop.printable import printable
from offtop.reports import disk_table, file_table
from offtop.reports.list_rows import rows_of
from offtop.reports.tick import Tick, in_progress, now_of, passing, stacks_of
from offtop.units import NS_PER_S, count, duration, percent, threads

_NAMES_SECONDS = 10.0
"""How long to wait for names in the first tick: enough to read a large binary without separate symbols."""
_LATER_SECONDS = 2.0
"""How long to wait for names in later ticks. A frame shown as `file+0x1234` gets its name in the next tick."""
_DETAILS_SECONDS = 2.0
"""How long to wait for process details in all. Processes that have exited never get any."""
_NO_MORE_DETAILS_SECONDS = 0.5
"""Give up when no further process got its details for this long."""
_HISTORY_BYTES = 1 << 20
_ALL_ROWS = 1_000_000
_MOST_OUTLIERS = 10
_LEAST_PROBLEM = 0.1
"""Share of the time with a user stack from which on a stack problem is printed."""
_COMM_WIDTH, _WAKER_WIDTH = 16, 26
"""A waker that is not a thread has a short sentence as its name."""


NOT_GATHERED = "wakers were not recorded; --mode offcpu shows where these threads waited"
_UNGATHERED = "{count} ticks have no wakers, so they are left out. Omit --mode"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to print of each tick."""

    filter: Filter = NOTHING
    """Its row terms apply to the list of processes or threads."""
    idle_shown: bool = False
    """For tables. JSON always holds idle waits, and marks them."""
    threads: bool = False
    """List threads instead of processes."""
    programs: bool = False
    """List the processes of a program as one row."""
    sort: str = "WAITING"
    """One of rows.SORTS; for tables."""
    reverse: bool = False
    most_rows: int = _ALL_ROWS
    stuck: bool = False
    """Add a table of the waits in progress."""
    rate: Rate | None = None
    """Request rate of the processes given with -p; adds their budgets."""
    mode: str = OFFCPU
    """One of wake.MODES: what the tables show."""
    folded: bool = False
    """Print folded stacks of the whole run at the end, and no tables."""
    listed: str = ""
    """One of disks.LIST_MODES, to list that instead of what waits."""
    baseline: Baseline | None = None
    """What to compare each tick with."""
    style: Style = AS_BCC
    """Style of folded stacks."""

    @property
    def order(self) -> Order:
        return Order(self.sort if self.baseline or self.sort != CHANGE else WAITING, self.reverse, self.most_rows)

    @property
    def scope(self) -> Scope:
        return Scope(ALL, idle=self.idle_shown, blocked=self.mode != OFFCPU)


def run(
    source: Source,
    categories: Categories,
    delay_ns: int,
    iterations: int | None,
    wanted: Wanted,
    *,
    as_json: bool,
    width: int,
    out: TextIO,
    recorder: Recorder | None = None,
    rules: RuleSource = WITHOUT_RULES,
    outlier_actions: OutlierActions | None = None,
    end_ns: int = 0,
    weights: Weights | None = None,
) -> bool:
    """Print `iterations` ticks (None: until the source ends).

    Return whether the source ended before that. `end_ns` (CLOCK_REALTIME, 0: none): stop at the first tick taken after
    it. `weights`: of suspects; None: do not look for any. Errors of the source and of `out` are passed on.
    """
    cause_finder, problems = CauseFinder(source.names, rules), Problems(source.names, source.why_nameless)
    suspects = SuspectWatch(source, weights, rules, wanted.baseline) if weights and not wanted.folded else None
    history = history_for(categories, cause_finder, suspects, max_bytes=_HISTORY_BYTES)
    pace = Pace(
        source,
        history,
        delay_ns,
        first_tick_ns=delay_ns,
        detector=outlier_actions.detector if outlier_actions else None,
        suspects=suspects,
    )
    pace.alarm = outlier_actions.alarm if outlier_actions else None
    pace.recorder = _EndsFinder(source, recorder) if as_json or wanted.stuck else recorder
    looked_up, patience_s = set[int](), _NAMES_SECONDS
    comparison = Comparison(wanted.baseline, rules) if wanted.baseline else None
    sums: dict[str, int] = {}
    printed = ungathered = since_ns = 0
    try:
        for unfiltered in itertools.islice(pace.ticks(), iterations):
            if end_ns and unfiltered.taken_ns > end_ns:
                return False
            printed += 1
            if wanted.filter.needs_details:
                looked_up = look_up(source, unfiltered, looked_up)
            unnamed = _unnamed(unfiltered.window, _user_stacks(unfiltered.window))
            source.wait_for_names(unnamed, patience_s if as_json or wanted.folded else _LATER_SECONDS)
            unfiltered = history.refresh_newest() or unfiltered
            latest = history.latest
            blocked = in_progress(latest, unfiltered.idle, 0) if as_json and latest else history.stuck(unfiltered)
            if as_json or wanted.filter.needs_peers:
                source.find_peers(waited_on(unfiltered.pids_and_wakes, unfiltered.window.catalog.wakes))
            tick = passing(unfiltered, wanted.filter, cause_finder, blocked, accounted=as_json)
            since_ns = since_ns or unfiltered.at_ns - unfiltered.span_ns
            shifted = moved_in([unfiltered], since_ns) if as_json or wanted.folded else None
            moved = passing(shifted, wanted.filter, cause_finder) if shifted else None
            gathered = gathers(unfiltered.header.mode, wanted.mode)
            found = suspects.at(unfiltered.number) if suspects else NOTHING_FOUND
            if wanted.folded and not gathered:
                ungathered += 1
            elif wanted.folded:
                source.wait_for_names(
                    _unnamed(unfiltered.window, stacks_of(tick) | io_stacks(unfiltered.window)), patience_s
                )
                for one in (tick, moved) if moved and not wanted.listed else (tick,):
                    (_add_up_rows if wanted.listed else _add_up)(sums, one, source.names, wanted)
            elif as_json:
                from offtop.reports import objects, tick_json  # here, so that tables start sooner

                some = stacks_of(tick) | stacks_of_suspects(found) | io_stacks(unfiltered.window)
                source.wait_for_names(_unnamed(unfiltered.window, some), patience_s)
                made = tick_json.tick_object(
                    *(tick, source.names, cause_finder, moved, problems, pace.outliers, comparison, source.notices),
                    *(found, None if source.recorded else wanted.listed),
                )
                out.write(f"{objects.encode(made)}\n")  # one write, so that ctrl-C does not leave half a line
            else:
                ever = history.since_start() if wanted.sort == "TOTAL" else None
                lifetime = passing(ever, wanted.filter, cause_finder) if ever else None
                if comparison:
                    comparison.select(_view(wanted), NOTHING, now_of(tick))
                listed = waiters(tick, wanted, lifetime, comparison)
                stacks = {stack for row in listed.rows for stack in _stacks_at(row.top, unfiltered.window.catalog)}
                stacks |= stacks_of_suspects(found)
                if wanted.stuck:
                    stacks.update(one.user for one in tick.stuck.waits)
                source.wait_for_names(_unnamed(unfiltered.window, stacks), patience_s)
                tops = [(row.top.pid, row.top.wake) for row in listed.rows]
                source.find_peers({**cause_finder.unanswered, **waited_on(tops, unfiltered.window.catalog.wakes)})
                text = tick_text(
                    tick,
                    listed,
                    source.names,
                    width,
                    wanted,
                    cause_finder,
                    problems,
                    lifetime,
                    pace.outliers,
                    comparison,
                    found,
                )
                out.write(text)
            out.flush()
            patience_s = _LATER_SECONDS
    finally:
        out.writelines(f"{line}\n" for line in folded.lines(sums))
    if ungathered:
        warn(f"offtop: {_UNGATHERED.format(count=ungathered)}")
    return printed != iterations


class _EndsFinder(NamedTuple):
    """Passes snapshots on to `recorder`, and requests the other ends from the source.

    It requests them when a tick begins, so that the answer is there when the tick ends.
    """

    source: Source
    recorder: Recorder | None

    def add(self, snapshot: Snapshot) -> None:
        sites = Waits.of(snapshot.waiting).list.sites
        self.source.find_peers(waited_on(sites[:, [0, WAKE]].tolist(), snapshot.catalog.wakes))
        if self.recorder:
            self.recorder.add(snapshot)


def _add_up(sums: dict[str, int], tick: Tick, names: Names, wanted: Wanted) -> None:
    some = tick.shares.in_scope(Scope(ALL, idle=wanted.idle_shown))
    for line, ns in folded.folded(some, tick.unfiltered.window.catalog, names, wanted.mode, wanted.style).items():
        sums[line] = sums.get(line, 0) + ns


def _add_up_rows(sums: dict[str, int], tick: Tick, names: Names, wanted: Wanted) -> None:
    window = tick.unfiltered.window
    rows = [row.io for row in rows_of(window, wanted.listed, window.span_ns, wanted.filter).rows]
    one = profile_of_rows(rows, wanted.listed, window.catalog, names, "", window.taken_ns, window.span_ns, {})
    for line, ns in folded.of_profile(one, wanted.style).items():
        sums[line] = sums.get(line, 0) + ns


def _stacks_at(site: SiteKey, catalog: Catalog) -> set[int]:
    """Return the stacks of a site and of its wakers."""
    return {site.kernel, site.user} | (catalog.wake(site.wake).stacks if site.wake else set[int]())


def _unnamed(window: Window, stacks: Iterable[int]) -> set[Frame]:
    return {frame for stack in stacks for frame in window.catalog.stack(stack).frames if not frame.name}


def _user_stacks(window: Window) -> set[int]:
    return {key.user for key, _ in window.each_site()}


def look_up(source: Source, tick: HistoryTick, looked_up: Collection[int]) -> set[int]:
    """Request details of a tick's processes, and wait for those not in `looked_up`.

    Returns the PIDs of all processes of the tick.
    """
    pids, known = _pids(tick), tick.window.catalog.details
    source.describe(pids)
    unknown = {pid for pid in pids.difference(looked_up) if pid not in known}
    now_s = time.monotonic()
    end_s, idle_s = now_s + _DETAILS_SECONDS, now_s + _NO_MORE_DETAILS_SECONDS
    while unknown and now_s < min(end_s, idle_s):
        time.sleep(0.01)
        now_s = time.monotonic()
        left = {pid for pid in unknown if pid not in known}
        if len(left) < len(unknown):
            idle_s = now_s + _NO_MORE_DETAILS_SECONDS
        unknown = left
    return pids


def _pids(tick: HistoryTick) -> set[int]:
    """Return the PIDs with anything counted in a tick, except EXITED, which stands for evicted threads."""
    files, disks = tick.header.files, tick.header.disks
    pids = {pid for by_pid in tick.breakdown.processes.values() for pid in by_pid if pid != EXITED.pid}
    pids.update(key.pid for key in (files.totals if files else ()))
    pids.update(key.pid for key in (disks.totals if disks else ()) if key.pid)
    return pids


def _view(wanted: Wanted) -> View:
    """Return the screen view that shows the same."""
    mode, shape = wanted.mode, Shape(mode=wanted.mode)
    return View(
        mode=mode, tree=TreeView(shape), idle_shown=wanted.idle_shown, threads=wanted.threads, filter=wanted.filter
    )


def waiters(tick: Tick, wanted: Wanted, lifetime: Tick | None = None, comparison: Comparison | None = None) -> Ranking:
    """Rank the processes or threads of a tick, each with its top site.

    `lifetime`: everything since the start, for sorting by TOTAL.
    """
    unfiltered, catalog = tick.unfiltered, tick.unfiltered.window.catalog
    scope, programs = wanted.scope, _programs(tick, wanted)
    compare = comparison.listed(programs=programs.groups) if comparison else None
    order = wanted.order._replace(compare=compare)
    if wanted.mode == WAKEUP:
        return _wakers(tick, wanted, order, lifetime) if gathers(unfiltered.header.mode, WAKEUP) else Ranking()
    some = tick.stuck.in_scope(scope)
    if wanted.threads:
        ever = by_thread(lifetime.shares, scope) if lifetime else None
        table, now = by_thread(tick.shares, scope), stuck.by_thread(some)
        every = thread_rows(table, unfiltered.span_ns, catalog, order, lifetime=ever, now=now)
    else:
        breakdown_ever, ages = lifetime.breakdown if lifetime else None, stuck.by_process(some)
        every = process_rows(tick.breakdown, scope, catalog, order, lifetime=breakdown_ever, now=ages, folding=programs)
    keeps_all = not wanted.filter.chooses_rows or not every.rows
    listed = every if keeps_all else kept_rows(every, wanted.filter.keeps, _ALL_ROWS)
    if wanted.threads:
        whom = {row.key for row in listed.rows if isinstance(row.key, ThreadKey)}
        tops: Mapping[Key, SiteKey] = {**top_of_threads(tick.shares, scope, whom)}
    else:
        group_of: dict[int, Key] = {row.pid: row.pid for row in listed.rows}
        group_of |= {pid: program for program, pids in programs.members.items() for pid in pids}
        tops = top_of_groups(tick.breakdown, scope, group_of)
    return listed._replace(rows=tuple(row._replace(top=tops.get(row.key, NOWHERE)) for row in listed.rows))


def _places(tick: Tick, listed: Ranking, wanted: Wanted, cause_finder: CauseFinder) -> dict[Key, str]:
    """Return what the rows wait for that wait in several places."""
    some, catalog = tick.shares.in_scope(wanted.scope), tick.unfiltered.window.catalog
    keys = [row.key for row in listed.rows]
    if wanted.threads:
        codes = thread_codes(some.ids)
        row_of = {key.pid << 32 | key.tid: n for n, key in enumerate(keys) if isinstance(key, ThreadKey)}
    else:
        codes, members = some.ids[:, 0], _programs(tick, wanted).members
        row_of = {key: n for n, key in enumerate(keys) if isinstance(key, int)}
        row_of |= {pid: n for n, key in enumerate(keys) if isinstance(key, Program) for pid in members[key]}
    names = PlaceNames(cause_finder)
    found = {
        keys[number]: in_words(names.shares(sites, catalog), tick.unfiltered.span_ns, SEPARATORS[True])
        for number, sites in sites_of_rows(some, codes, row_of).items()
    }
    return {key: words for key, words in found.items() if words}


def _programs(tick: Tick, wanted: Wanted) -> Folding[int, Program]:
    if not wanted.programs or wanted.threads:
        return UNFOLDED
    return program_folding(by_process(tick.breakdown, wanted.scope), tick.unfiltered.window.catalog)


def _wakers(tick: Tick, wanted: Wanted, order: Order, lifetime: Tick | None) -> Ranking:
    """Rank the wakers of a tick. Storms come first."""
    unfiltered, catalog, scope = tick.unfiltered, tick.unfiltered.window.catalog, wanted.scope
    key_of = waker_of(catalog, wanted.threads)
    ranking = wake_rows(
        grouped(by_wake(tick.shares, scope), key_of),
        unfiltered.span_ns,
        order,
        ready=grouped(ready_by_wake(tick.shares, scope), key_of),
        lifetime=grouped(by_wake(lifetime.shares, scope), key_of) if lifetime else None,
        now=oldest_of(stuck.by_wake(tick.stuck.in_scope(scope)), key_of),
        last=placeholder_keys(key_of),
    )
    listed = kept_rows(ranking, wanted.filter.keeps, _ALL_ROWS) if wanted.filter.chooses_rows else ranking
    whom = {row.key for row in listed.rows if isinstance(row.key, WakerKey)}
    tops: Mapping[Key, SiteKey] = {**top_of_wakes(tick.shares, scope, whom, key_of)}
    rows = [row._replace(top=tops.get(row.key, NOWHERE)) for row in listed.rows]
    storms = storms_of_rows(unfiltered.window.storms, listed, key_of)
    return listed._replace(rows=(*storm_rows(storms, unfiltered.span_ns), *rows))


def tick_text(
    tick: Tick,
    listed: Ranking,
    names: Names,
    width: int,
    wanted: Wanted,
    cause_finder: CauseFinder,
    problems: Problems,
    lifetime: Tick | None = None,
    outliers: Sequence[Outlier] = (),
    comparison: Comparison | None = None,
    suspects: Found = NOTHING_FOUND,
) -> str:
    """Return a tick as tables and a blank line. `width`: longest line (0: no limit)."""
    catalog = tick.unfiltered.window.catalog
    if wanted.listed:
        head = f"{_head(tick.unfiltered, wanted.idle_shown)}{_filtered(tick, wanted)}"
        of_list = (
            file_table.lines(tick, wanted.sort, wanted.reverse)
            if wanted.listed == FILE
            else disk_table.lines(tick, wanted.sort, wanted.reverse, wanted.threads)
        )
        return _cut([head, *of_list, ""], width)
    shown = tick.stuck.in_scope(wanted.scope)
    in_full = _stuck_table(tick, shown, names, cause_finder) if wanted.stuck else ()
    categories = category_rows(
        tick.breakdown,
        wanted.order._replace(compare=comparison.categories() if comparison else None),
        idle_shown=wanted.idle_shown,
        lifetime=lifetime.breakdown if lifetime else None,
        now=stuck.by_category(shown),
    )

    places = {} if wanted.mode == WAKEUP else _places(tick, listed, wanted, cause_finder)

    def where_of(row: Row) -> str:
        if row.key in places:
            return printable(places[row.key])
        if row.storm != NO_STORM:
            return location.of_storm(row.storm, row.span_ns)
        of = location.of_waker if wanted.mode == WAKEUP else location.of_sleeper
        rule = cause_finder.rule_of(row.top, catalog) if wanted.mode != WAKEUP and row.top != NOWHERE else None
        return (
            ""
            if row.top == NOWHERE
            else printable(location.with_rule(catalog, row.top, rule, of(catalog, row.top, names)))
        )

    who, width_of = ("WAKER", _WAKER_WIDTH) if wanted.mode == WAKEUP else ("COMMAND", _COMM_WIDTH)

    def name_of(row: Row) -> str:
        tid = str(row.key.tid) if isinstance(row.key, ThreadKey | WakerKey) and row.key.tid else ""
        pid = str(row.pid) if row.pid else f"x{row.processes}" if row.processes else ""
        return f"{pid:>7} {tid:>7} {printable(row.name)[:width_of]:<{width_of}}"

    lines = [
        f"{_head(tick.unfiltered, wanted.idle_shown)}{_filtered(tick, wanted)}",
        *([_calls(tick.unfiltered.window)] if tick.unfiltered.window.filters.within else []),
        *([_compared(comparison)] if comparison else []),
        *suspect_lines(suspects, catalog, names, cause_finder, wanted.baseline),
        *_diagnosis(tick, wanted, cause_finder),
        *_stack_problem(tick, wanted, problems),
        *_outlier_lines(outliers, names),
        *_table(categories, f"{'WAIT CATEGORY':<15}", _category_name),
        "",
        *_table(listed, f"{'PID':>7} {'TID' if wanted.threads else '':>7} {who:<{width_of}}", name_of, where_of),
        *([] if gathers(tick.unfiltered.header.mode, wanted.mode) else [NOT_GATHERED]),
        "",
        *in_full,
        *(_budgets(tick, wanted.rate) if wanted.rate else ()),
    ]
    return _cut(lines, width)


def _cut(lines: Iterable[str], width: int) -> str:
    return "".join(f"{line[:width].rstrip() if width else line.rstrip()}\n" for line in lines)


def _calls(window: Window) -> str:
    """Return the line about the function given with --within."""
    calls = window.calls
    parts = ["none has returned"]
    if calls.returned:
        parts = [f"{count(calls.returned * NS_PER_S / window.span_ns)}/s"]
        p50, p99, longest = (duration(ns) for ns in (calls.percentile_ns(50), calls.percentile_ns(99), calls.max_ns))
        times = (("blocked", calls.blocked_ns), ("run queue", calls.runqueue_ns), ("running", calls.running_ns))
        parts.append(f"p50<={p50} p99<={p99} max {longest}")
        parts.append(" + ".join(f"{percent(ns, calls.total_ns):.0f}% {what}" for what, ns in times))
    if calls.now:
        parts.append(f"{calls.now} now, oldest {duration(calls.oldest_ns) or '0'}")
    if calls.left:
        parts.append(f"{calls.left} did not return")
    return f"within {printable(window.filters.within)}: calls {'  '.join(parts)}"


def _compared(comparison: Comparison) -> str:
    baseline = comparison.baseline
    waiting = threads(comparison.waiting)
    text = f"baseline {waiting} waiting in {duration(baseline.span_ns)} of {printable(baseline.file)}"
    return "; ".join(filter(None, (text, comparison.why_uncompared, comparison.caveat)))


def suspect_lines(
    found: Found, catalog: Catalog, names: Names, cause_finder: CauseFinder, baseline: Baseline | None
) -> Iterable[str]:
    """Yield a sentence for each suspect, and for each that only the baseline has."""
    texts = SuspectTexts(catalog, names, cause_finder)
    for one in found.suspects:
        change = change_text(one, baseline)
        yield f"suspect{f' {change}' if change else ''}: {printable(texts.sentence(one).in_full)}"
    for text in gone_texts(found, baseline):
        yield f"suspect {printable(text)}"


def stacks_of_suspects(found: Found) -> set[int]:
    """Return the ids of the stacks that their chains show."""
    sites = (hop.site for one in found.suspects for hop in one.hops if hop.site)
    return {stack for site in sites for stack in (site.kernel, site.user)}


def _diagnosis(tick: Tick, wanted: Wanted, cause_finder: CauseFinder) -> Iterable[str]:
    catalog = tick.unfiltered.window.catalog
    left_out = left_out_in([tick.unfiltered])
    with_idle = by_site(tick.shares, wanted.scope._replace(idle=True)) if left_out else None
    diagnosis = most(cause_finder.rules_of(by_site(tick.shares, wanted.scope), catalog, with_idle, left_out))
    if diagnosis:
        yield diagnosis.in_full(catalog, with_process=True, with_keys=False)


def _outlier_lines(outliers: Sequence[Outlier], names: Names) -> Iterable[str]:
    """Yield a line per kind of outlier: new ones, then those reported earlier that ended."""
    for word, ended in (("outlier", False), ("outlier ended", True)):
        for group in groups([one for one in outliers if one.was_reported is ended])[:_MOST_OUTLIERS]:
            many = f" x{group.many}" if group.many > 1 else ""
            yield f"{word}{many}: {printable(one_line(group.worst, names))}"


def _stack_problem(tick: Tick, wanted: Wanted, problems: Problems) -> Iterable[str]:
    """Yield why callers are missing, if that affects much of the time."""
    stacks = problems.of(by_site(tick.shares, wanted.scope), tick.unfiltered.window.catalog)
    worst = next((one for one in stacks.problems if one.is_of_callers and one.share >= _LEAST_PROBLEM), None)
    if worst:
        yield worst.in_full


def _stuck_table(tick: Tick, shown: Stuck, names: Names, cause_finder: CauseFinder) -> Iterable[str]:
    """Yield a table of the waits in progress, oldest first, with syscalls and stacks."""
    every = tick.stuck.of_age(tick.filter.keeps_age)
    shown = shown.of_age(tick.filter.keeps_age)
    yield f"stuck now: {stuck_threads(every, shown)}{' (-i)' if len(shown.waits) < len(every.waits) else ''}"
    yield STUCK_HEAD
    for row in range(len(shown.waits)):
        yield stuck_line(shown, row, tick.unfiltered.window.catalog, names, cause_finder)
    yield ""


def stuck_threads(every: Stuck, shown: Stuck) -> str:
    hidden = len(every.waits) - len(shown.waits)
    standing = every.standing - shown.standing
    idle = f"; {hidden} idle hidden{f', {standing} of them standing' if standing else ''}" if hidden else ""
    return f"{len(shown.waits)} {'threads' if len(shown.waits) != 1 else 'thread'}{idle}"


STUCK_HEAD = f"{'AGE':>8} {'PID':>7} {'TID':>7} {'COMMAND':<16} S {'CATEGORY':<15} {'SYSCALL':<24}  STACK"


def stuck_line(shown: Stuck, row: int, catalog: Catalog, names: Names, cause_finder: CauseFinder) -> str:
    """Format one wait in progress; STUCK_HEAD is the heading."""
    one, leaf, age = shown.waits[row], shown.leaf(row), shown.age(row).text
    who = printable(catalog.comm(one.site.thread))[:16]
    category = f"{'~' if leaf.idle else ''}{leaf.category}"
    call = printable(calls.call_text(catalog.call(one.call), one.arguments)) if one.call >= 0 else ""
    place = location.in_short(catalog, one.site.kernel, one.user, names, one.site.wake)
    place = printable(location.with_rule(catalog, one.place, cause_finder.rule_of(one.place, catalog), place))
    return f"{age:>8} {one.site.pid:>7} {one.site.tid:>7} {who:<16} {one.letter} {category:<15} {call:<24}  {place}"


def _budgets(tick: Tick, rate: Rate) -> Iterable[str]:
    window = tick.unfiltered.window
    every = accounts([window])
    for pid in window.filters.pids:
        idle_ns = sum(
            by.get(pid, NO_PART).total_ns for leaf, by in tick.unfiltered.breakdown.processes.items() if leaf.idle
        )
        checked = budget(every.of(pid), idle_ns, window.span_ns, rate)
        text = "; ".join(checked.lines) if checked else "it has ended"
        yield f"budget of {printable(window.catalog.process(pid))}({pid}): {text}"
    yield ""


def _filtered(tick: Tick, wanted: Wanted) -> str:
    """Return the end of the head line: the filter, and how much waiting passes it."""
    chosen, unfiltered = tick.filter, tick.unfiltered
    if not chosen.text:
        return ""
    shown_ns = total(by_category(tick.breakdown, wanted.idle_shown, filtered_shown=False).values()).total_ns
    unknown = len(_pids(unfiltered).difference(unfiltered.window.catalog.details)) if chosen.needs_details else 0
    doubt = f" ({unknown} processes unknown)" if unknown else ""
    return f'  filter "{printable(chosen.text)}" passes {threads(shown_ns / unfiltered.span_ns)}{doubt}'


def _head(tick: HistoryTick, idle_shown: bool) -> str:
    window = tick.window
    span_ns = window.span_ns
    filtered_ns = sum(part.total_ns for leaf, part in tick.breakdown.categories.items() if leaf.category == FILTERED)
    every = total(tick.breakdown.categories.values()).total_ns - filtered_ns
    idle_ns = sum(part.total_ns for leaf, part in tick.breakdown.categories.items() if leaf.idle)
    standing_ns = sum(part.total_ns for leaf, part in tick.breakdown.categories.items() if leaf.standing)
    standing = f" ({threads(standing_ns / span_ns)} standing)" if standing_ns else ""
    shown_ns = every if idle_shown else every - idle_ns
    ready_ns = sum(part.total_ns for leaf, part in tick.breakdown.categories.items() if leaf.category == RUN_QUEUE)
    clock = time.strftime("%H:%M:%S", time.localtime(window.taken_ns // 1_000_000_000))
    lost = ", ".join(f"{n} {kind}" for kind, n in window.lost.items())
    is_lost_known = window.sampling is None or window.sampling.lost_known
    lost = f"lost {lost or 0}" if lost or is_lost_known else LOST_UNKNOWN
    left_out = f"filtered {threads(filtered_ns / span_ns)}  " if filtered_ns else ""
    cost = window.cost
    some = window.sampling
    sampled = f"SAMPLED {how_sampled(some, span_ns)}  " if some else ""
    sure = f"  {', '.join(how_sure(some, span_ns))}" if some else ""
    fewer = "".join(f"  {word}" for word in inexact_words(cost, window.machine, cost.thinned.waits_ns, every))
    own = f"  cost {cost.bpf_ns_per_switch:.0f}ns/switch" if cost.bpf_ns_per_switch >= 0 else ""
    return (
        f"offtop - {clock} span {duration(span_ns)}  {sampled}"
        f"WAITING {threads(shown_ns / span_ns)} = "
        f"blocked {threads((shown_ns - ready_ns) / span_ns)} + run queue {threads(ready_ns / span_ns)}  "
        f"{'of it ' if idle_shown else ''}idle {threads(idle_ns / span_ns)}{standing}  {left_out}{lost}  "
        f"min {duration(window.filters.min_ns) or '0'}{fewer}{own}{sure}"
    )


def _table(
    ranking: Ranking, head: str, name: Callable[[Row], str], where_of: Callable[[Row], str] | None = None
) -> Iterable[str]:
    last = "  WHERE" if where_of else ""
    changes = f" {'CHANGE':>8} {'p99 x':>5}" if ranking.before else ""
    yield f"{head} {'WAITING':>8}{changes} {'%':>4} {'EV/S':>6} {'p50<=':>6} {'p99<=':>6} {'MAX':>6} {'NOW':>7}{last}"
    for row in (*ranking.rows, *([ranking.elided] if ranking.elided else [])):
        yield f"{name(row)} {_numbers(row)}{f'  {where_of(row)}' if where_of else ''}"


def _numbers(row: Row) -> str:
    p50, p99 = duration(row.percentile_ns(50)), duration(row.percentile_ns(99))
    events = count(row.waits_per_s) if row.part.waits else ""
    longest = duration(row.part.max_ns)
    now = row.now.text
    change = f" {row.change.text:>8} {row.change.p99_text:>5}" if row.change else ""
    return (
        f"{threads(row.waiting):>8}{change} {row.share_pct:>3.0f}% {events:>6} {p50:>6} {p99:>6} {longest:>6} {now:>7}"
    )


def _category_name(row: Row) -> str:
    return f"{('~' if row.idle else '') + row.name:<15}"
