"""Snapshots rebuilt from a History have the same windows between them, whatever was kept of their waits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from offtop.model.classify.categories import is_periodic
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.moves import Moves
from offtop.model.values.snapshot import Cost, Filters, Machine, SiteTotals, Snapshot
from offtop.model.values.wake import FIRST_WAKE, Storm
from offtop.model.values.within import Calls
from offtop.model.windows import rebuilt, stuck
from offtop.model.windows.breakdown import by_category
from offtop.model.windows.history import History, HistoryTick
from offtop.model.windows.window import Window, between, merge
from tests.model.windows.test_history import never
from tests.model.world import IDLE, Step, snapshots, stretches
from tests.ui.scripted import AT_NS, SHOP, STUCK, WAKERS, ScriptedSource, Waits

SECOND = 10**9


class WindowContents(NamedTuple):
    """All that a window says, however it is held."""

    rest: Window
    threads: Mapping[ThreadKey, tuple[int, ...]]
    sites: Mapping[SiteKey, tuple[int, ...]]
    moves: frozenset[tuple[object, ...]]


def contents(window: Window, begin_ns: int = 0) -> WindowContents:
    threads, sites = dict(window.each_thread()), dict(window.each_site())
    empty = replace(window, threads={}, sites={}, still=type(window.still)(window.still.ids[:0]), moves=Moves.of(()))
    return WindowContents(empty, threads, sites, frozenset(window.moves.after(begin_ns)))


def of(history: History, span_ns: int = 1 << 60, end_ns: int | None = None) -> list[Snapshot]:
    return [*history.snapshots_of_last(span_ns, end_ns)]


def same(ticks: Sequence[HistoryTick], made: Sequence[Snapshot]) -> None:
    begin_ns = made[0].at_ns
    assert [one.at_ns for one in made] == [begin_ns, *(tick.at_ns for tick in ticks)]
    remade = [between(a, b) for a, b in pairwise(made)]
    for tick, window in zip(ticks, remade, strict=True):
        assert contents(window) == contents(tick.window, begin_ns)
    whole, was = merge(remade), merge([tick.window for tick in ticks])
    assert (dict(whole.each_site()), dict(whole.each_thread())) == (dict(was.each_site()), dict(was.each_thread()))


@given(stretches, st.sampled_from((0, 3_000_000, 1 << 60)), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_windows_between_rebuilt_snapshots_are_the_original_windows(
    happened: list[list[Step]], least_ns: int, first: int, last: int, packs: bool
) -> None:
    """Whatever was kept of the waits in progress: all, the older ones, or those at the end alone."""
    with patch.object(stuck, "LEAST_AGE_NS", least_ns):
        history = History(IDLE, never, max_bytes=1 << 30 if not packs else 40_000)
        ticks = [kept for one in snapshots(happened) if (kept := history.add(one))]
    first, last = min(first, last, len(ticks) - 1), min(max(first, last), len(ticks) - 1)
    some = [kept for tick in ticks[first : last + 1] if (kept := history.tick(tick.number))]
    assume(some)  # if a tick takes many bytes, only later ones are kept
    span_ns = some[-1].at_ns - some[0].at_ns + some[0].span_ns // 2 + 1
    some = history.last(span_ns, some[-1].at_ns)
    same(some, of(history, span_ns, some[-1].at_ns))


@given(stretches)
def test_totals_of_finished_waits_never_fall(happened: list[list[Step]]) -> None:
    with patch.object(stuck, "LEAST_AGE_NS", 0):
        history = History(IDLE, never)
        for one in snapshots(happened):
            history.add(one)
    made = of(history)
    moved = {site for one in made for move in one.moves for site in (move.was, move.now)}
    for earlier, later in pairwise(made):
        for key, was in earlier.sites.items():
            assert later.sites[key].waits >= was.waits
            assert later.sites[key].total_ns >= was.total_ns or key in moved
        for key, was in earlier.threads.items():
            assert later.threads[key].offcpu_ns >= was.offcpu_ns


def played(table: tuple[Waits, ...], ticks: int, mode: str = "offcpu") -> History:
    source = ScriptedSource(table, ticks=ticks, ends=True, lost={"stacks": 2}, machine=Machine(4, 30, 7))
    source.set_mode(mode, 2)
    history = History(("poll", "kthread-idle"), is_periodic)
    for snapshot in iter(source.read, None):
        history.add(snapshot)
    return history


@pytest.mark.parametrize(("table", "mode"), [(SHOP, "offcpu"), (STUCK, "offcpu"), (WAKERS, "chain")])
@pytest.mark.parametrize("end", [3, 7, 9, 12])
def test_everything_else_is_the_same_for_a_part_of_the_history(table: tuple[Waits, ...], mode: str, end: int) -> None:
    history = played(table, 12, mode)
    ticks = history.last(3 * SECOND, AT_NS + end * SECOND)
    made = of(history, 3 * SECOND, ticks[-1].at_ns)
    same(ticks, made)
    assert (len(made), ticks[-1].number) == (4, end)
    assert made[-1].lost == {"stacks": 6}
    assert (made[-1].machine, made[-1].mode, made[-1].cost.bpf_pct) == (Machine(4, 90, 21), mode, 0.6)
    assert made[0].taken_ns == ticks[0].taken_ns - SECOND
    other = History(("poll", "kthread-idle"), is_periodic)
    for one, tick in zip(made, [None, *ticks], strict=True):
        kept = other.add(one)
        assert (kept is None) == (tick is None)
        if kept and tick:
            assert by_category(kept.breakdown) == by_category(tick.breakdown)
            some = history.stuck(tick), young(history, tick)
            same_there = other.stuck(kept), young(other, kept)
            for waits, those in zip(some, same_there, strict=True):
                assert [ages(one, kept) for one in those.waits] == [ages(one, tick) for one in waits.waits]


def young(history: History, tick: HistoryTick) -> stuck.Stuck:
    pids = {100, 700, 800, 900, 4242}
    return stuck.young(history.waits(tick), pids, tick.at_ns, tick.header.catalog, tick.idle)


def ages(one: object, tick: HistoryTick) -> tuple[object, ...]:
    assert isinstance(one, stuck.Waiting)
    return one.site, one.age_ns(tick.at_ns), one.bound, one.letter, one.call, one.arguments, one.user


def test_wait_that_goes_on_costs_nothing_more_in_each_snapshot() -> None:
    made = of(played(STUCK, 12))
    (cp,) = (key for key in made[0].waiting if key.pid == 900)
    assert len({id(one.waiting[cp]) for one in made}) == 1
    assert all(cp not in one.threads or one.threads[cp].offcpu_ns == 0 for one in made)


def test_losses_and_filters_are_kept() -> None:
    history = History((), never)
    filters = Filters(pids=(7,), min_ns=5)
    for second in range(4):
        lost = {"stacks": second} if second else {}
        storms = {FIRST_WAKE: Storm(second, 9 * second, second, 9 - second)}
        one = Snapshot(second, second * SECOND, lost=lost, cost=Cost(switches=second), storms=storms)
        calls = Calls(second, 0, 9 * second, 5 * second, second, 9 - second, second * log2.of(9), second + 2, 7)
        history.add(replace(one, filters=filters, probe="exit", calls=calls))
    made = of(history)
    assert [one.lost for one in made] == [{}, {"stacks": 1}, {"stacks": 2}, {"stacks": 3}]
    assert [one.cost.switches for one in made] == [1, 1, 2, 3]
    assert [one.storms.get(FIRST_WAKE) for one in made] == [None, *(Storm(n, 9 * n, n, 9 - n) for n in (1, 2, 3))]
    assert [one.calls.returned for one in made] == [0, 1, 2, 3]
    same(history.last(1 << 62), made)
    assert {(one.filters, one.probe) for one in made} == {(filters, "exit")}


def test_sleep_that_was_periodic_before_the_first_snapshot_still_is() -> None:
    table = (Waits("cron", 5, "cron", 5, "sleep", "do_nanosleep", ("rest",), (900,)),)
    history = played(table, 9)
    made = of(history, SECOND)
    assert len(made) == 2
    ((key, totals),) = made[0].sites.items()
    assert (key.pid, totals) == (5, SiteTotals(waits=8, histogram=8 * log2.of(900_000_000)))
    other = History((), is_periodic)
    kept = [other.add(one) for one in made][-1]
    assert kept and [leaf.idle for leaf in kept.leaves] == [True]


def test_no_windows_have_no_snapshots() -> None:
    assert of(History((), never)) == []
    history = History((), never)
    history.add(Snapshot(0, 0))
    assert of(history) == []
    assert [*rebuilt.snapshots((), (), {})] == []
