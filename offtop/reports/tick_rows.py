"""The rows that batch mode prints of a tick: processes, programs, threads or wakers, and where they wait."""

from collections.abc import Mapping

from offtop.model.aggregate.breakdown_rows import process_rows, storm_rows, storms_of_rows, thread_rows, wake_rows
from offtop.model.aggregate.folding import UNFOLDED, Folding
from offtop.model.aggregate.place_shares import SEPARATORS, PlaceNames, in_words, sites_of_rows
from offtop.model.aggregate.program import Program, program_folding
from offtop.model.aggregate.rows import NOWHERE, Key, Order, Ranking, kept_rows
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
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values.catalog import SiteKey, ThreadKey, code_of
from offtop.model.values.table import thread_codes
from offtop.model.values.wake import WAKEUP, gathers
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.windows import stuck
from offtop.model.windows.breakdown import by_process, by_thread, top_of_groups, top_of_threads
from offtop.reports.tick import Tick
from offtop.reports.wanted import ALL_ROWS, Wanted


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
    listed = every if keeps_all else kept_rows(every, wanted.filter.keeps, ALL_ROWS)
    if wanted.threads:
        whom = {row.key for row in listed.rows if isinstance(row.key, ThreadKey)}
        tops: Mapping[Key, SiteKey] = {**top_of_threads(tick.shares, scope, whom)}
    else:
        group_of: dict[int, Key] = {row.pid: row.pid for row in listed.rows}
        group_of |= {pid: program for program, pids in programs.members.items() for pid in pids}
        tops = top_of_groups(tick.breakdown, scope, group_of)
    return listed._replace(rows=tuple(row._replace(top=tops.get(row.key, NOWHERE)) for row in listed.rows))


def places_of(tick: Tick, listed: Ranking, wanted: Wanted, cause_finder: CauseFinder) -> dict[Key, str]:
    """Return what the rows wait for that wait in several places."""
    some, catalog = tick.shares.in_scope(wanted.scope), tick.unfiltered.window.catalog
    keys = [row.key for row in listed.rows]
    if wanted.threads:
        codes = thread_codes(some.ids)
        row_of = {code_of(key): n for n, key in enumerate(keys) if isinstance(key, ThreadKey)}
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
    listed = kept_rows(ranking, wanted.filter.keeps, ALL_ROWS) if wanted.filter.chooses_rows else ranking
    whom = {row.key for row in listed.rows if isinstance(row.key, WakerKey)}
    tops: Mapping[Key, SiteKey] = {**top_of_wakes(tick.shares, scope, whom, key_of)}
    rows = [row._replace(top=tops.get(row.key, NOWHERE)) for row in listed.rows]
    storms = storms_of_rows(unfiltered.window.storms, listed, key_of)
    return listed._replace(rows=(*storm_rows(storms, unfiltered.span_ns), *rows))
