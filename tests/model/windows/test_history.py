"""History keeps minutes within its memory and returns spans; a rolling sum over it is the sum over the span."""

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.moves import Moves
from offtop.model.values.snapshot import EXITED, Filters, Move, Snapshot
from offtop.model.values.stack import NO_STACK
from offtop.model.values.table import SITES, Ints, Mask, SiteKeys, integers
from offtop.model.viewmodel.picture import Pictures
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.series import series
from offtop.model.viewmodel.view import View
from offtop.model.windows.breakdown import ALL, Idle, Leaf, PartTuple, Scope, break_down, by_thread, merged, total
from offtop.model.windows.history import History, HistoryTick, Packed, pack
from offtop.model.windows.rolling import Rolling
from offtop.model.windows.window import Window, between, merge
from tests.model.world import IDLE, Step, snapshots, stretches
from tests.ui.busy import BusySource
from tests.ui.scripted import ScriptedSource, Waits

SECOND = 10**9


def never(_: Ints, rows: int) -> Mask:
    return np.zeros(rows, np.bool_)


def filled(ticks: int, max_ns: int = 600 * SECOND, max_bytes: int = 40 * 2**20, sites: int = 20) -> History:
    history = History(("poll", "kthread-idle"), never, max_ns, max_bytes)
    source = BusySource(sites, still=10)
    for _ in range(ticks + 1):
        snapshot = source.read()
        assert snapshot is not None
        history.add(snapshot)
    return history


def test_first_snapshot_is_no_tick() -> None:
    history = History((), never)
    assert history.add(Snapshot(0, 0)) is None
    assert history.newest is None
    assert (history.last(SECOND), history.reach_ns, history.since_start()) == ([], 0, None)


@given(stretches, st.integers(0, 3))
def test_everything_since_a_reset_is_the_merger_of_the_ticks_since_then(happened: list[list[Step]], after: int) -> None:
    taken = snapshots(happened)
    history = History(IDLE, never)
    kept: list[HistoryTick] = []
    for number, snapshot in enumerate(taken):
        made = history.add(snapshot)
        if number == min(after, len(taken) - 2):
            history.reset()
            kept.clear()
        elif made:
            kept.append(made)
    ever, ticks = history.since_start(), merge([tick.window for tick in kept])
    assert ever
    whole = ever.window
    alive = {*taken[-1].threads, *taken[-1].waiting}

    def of_sites(window: Window) -> dict[SiteKey, tuple[int, ...]]:
        sums: dict[SiteKey, tuple[int, ...]] = {}
        for site, totals in window.each_site():
            key = site if site.thread in alive else SiteKey(*EXITED, site.kernel, NO_STACK)
            was = sums.get(key, (0, 0, 0))
            sums[key] = was[0] + totals.waits, was[1] + totals.total_ns, was[2] + totals.runqueue_ns
        return {key: some for key, some in sums.items() if any(some)}

    assert of_sites(whole) == of_sites(ticks)
    assert all(site.thread in {*alive, EXITED} for site, _ in whole.each_site()), "who exited stands together"


def test_last_10_s_are_10_ticks_or_as_many_as_there_are() -> None:
    assert len(filled(4).last(10 * SECOND)) == 4
    history = filled(25)
    assert [tick.number for tick in history.last(10 * SECOND)] == list(range(16, 26))
    assert [tick.number for tick in history.last(SECOND)] == [25]
    assert history.reach_ns == 25 * SECOND


def test_span_may_end_in_the_past_and_is_not_empty_if_anything_was_kept() -> None:
    history = filled(25)
    twelfth = history.tick(12)
    assert twelfth is not None
    assert [tick.number for tick in history.last(3 * SECOND, twelfth.at_ns)] == [10, 11, 12]
    assert [tick.number for tick in history.last(1, twelfth.at_ns)] == [12]
    assert history.last(SECOND, 0) == []


def test_ticks_that_are_slightly_late_make_as_many_a_span() -> None:
    history = History((), never)
    at_ns = 0
    for number in range(40):
        history.add(Snapshot(0, at_ns))
        at_ns += SECOND + (3_000_000 if number % 3 else -5_000_000)
        if number > 10:
            assert len(history.last(10 * SECOND)) == 10


def test_ticks_that_are_too_old_are_dropped() -> None:
    history = filled(30, max_ns=12 * SECOND)
    assert history.tick(18) is None
    assert history.tick(19) is not None
    assert history.reach_ns == 12 * SECOND


def test_history_over_its_budget_packs_then_drops() -> None:
    history = filled(80, max_bytes=400_000, sites=100)
    assert history.bytes_held <= 400_000
    assert history.reach_ns < 80 * SECOND
    newest, oldest = history.last(SECOND)[0], history.last(600 * SECOND)[0]
    assert not isinstance(newest.held, Packed)
    assert isinstance(oldest.held, Packed)
    assert len(oldest.window.sites) == 100


class SometimesPeriodic:
    """Says that a third of the sites are periodic, every `ticks` other ones."""

    def __init__(self, ticks: int) -> None:
        self._ticks, self._calls = ticks, 0

    def __call__(self, _: Ints, rows: int) -> Mask:
        self._calls += 1
        return np.arange(rows) % 3 == self._calls // self._ticks % 3


@pytest.mark.parametrize("ticks", [1, 4])
def test_a_packed_tick_keeps_what_was_idle(ticks: int) -> None:
    history, whole = (History(IDLE, SometimesPeriodic(ticks), max_bytes=size) for size in (2**21, 2**26))
    first, second = BusySource(500), BusySource(500)
    for _ in range(12):
        one, other = first.read(), second.read()
        assert one and other
        history.add(one)
        whole.add(other)
    packed = [tick for tick in history.last(600 * SECOND) if isinstance(tick.held, Packed)]
    assert len(packed) > 5
    for tick in packed:
        same = whole.tick(tick.number)
        assert same and not isinstance(same.held, Packed)
        assert len(tick.idle.periodic) and tick.idle.periodic == same.idle.periodic
        assert tick.breakdown.categories == same.breakdown.categories
    distinct = {id(tick.held.columns_of_periodic) for tick in packed if isinstance(tick.held, Packed)}
    assert len(packed) // ticks <= len(distinct) <= len(packed) // ticks + 1


def test_periodic_sites_that_change_take_a_tenth_when_packed() -> None:
    history = History(IDLE, SometimesPeriodic(1), max_bytes=2**23)
    source = BusySource(10_000)
    for _ in range(4):
        snapshot = source.read()
        assert snapshot
        history.add(snapshot)
    *_, packed, newest = history.last(600 * SECOND)
    assert isinstance(packed.held, Packed)
    assert packed.periodic_bytes == len(packed.held.columns_of_periodic) < newest.periodic_bytes / 10
    assert newest.idle.periodic.bytes_held == newest.periodic_bytes


@pytest.mark.variant
def test_bytes_held_are_those_of_tracemalloc_within_a_factor_of_2() -> None:
    for max_bytes in (10 * 2**20, 2**19):
        source = BusySource(100, still=50)
        taken = [source.read() for _ in range(25)]
        tracemalloc.start()
        history = History(("poll",), never, max_bytes=max_bytes)
        for index, snapshot in enumerate(taken):
            assert snapshot is not None
            history.add(snapshot)
            taken[index] = None
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 0.5 < held / history.bytes_held < 2, f"{held=} {history.bytes_held=}"


@given(stretches)
def test_packed_window_is_the_window(given_stretches: list[list[Step]]) -> None:
    for a, b in pairwise(snapshots(given_stretches)):
        window = between(a, b)
        packed = pack(window, b"")
        again = packed.window()
        assert packed.moves == window.moves
        assert again == window
        assert all(isinstance(key, ThreadKey) for key in again.threads)
        assert all(isinstance(key, SiteKey) for key in [*again.sites, *again.still])


def test_moves_of_1000_waits_take_a_third_when_packed_and_are_not_kept_otherwise() -> None:
    sites = [(SiteKey(7, tid, 1, 0), SiteKey(7, tid, 1, 2)) for tid in range(1000)]
    moves = Moves.of([Move(*both, tid * SECOND // 900, 2 * SECOND) for tid, both in enumerate(sites)])
    kept = pack(Window(0, 2 * SECOND, SECOND, moves=moves), b"")
    assert kept.moves == moves == replace(HistoryTick.of(kept.window(), Idle()), held=kept).moves
    assert len(kept.columns_of_moves) < moves.rows.nbytes // 3
    assert not kept.rest.moves


@given(stretches)
def test_since_start_is_the_sum_of_all_ticks_including_dropped_ones(given_stretches: list[list[Step]]) -> None:
    history = History(IDLE, never, max_ns=1)
    taken = snapshots(given_stretches)
    for snapshot in taken:
        history.add(snapshot)
    since = history.since_start()
    assert since is not None
    whole = break_down(between(taken[0], taken[-1]), Idle(IDLE))
    assert since.window.span_ns == taken[-1].at_ns - taken[0].at_ns
    assert {leaf: part.total_ns for leaf, part in since.leaves.items()} == {
        leaf: part.total_ns for leaf, part in whole.categories.items()
    }
    every = merge([between(a, b) for a, b in pairwise(taken)])
    longest_ns = total(break_down(every, Idle(IDLE)).categories.values()).max_ns
    assert total(since.breakdown.categories.values()).max_ns == longest_ns


@given(stretches, stretches, st.integers(1, 4), st.sampled_from(("", "lock", "run-queue", "short", "sleep")))
def test_rolling_sum_is_the_sum_over_its_span(
    some: list[list[Step]], more: list[list[Step]], length: int, category: str
) -> None:
    history = History(IDLE, lambda counts, rows: np.isin(np.arange(rows), counts[:, 0]), max_bytes=20_000)
    scope = Scope(category, idle=False)
    rolling = Rolling(lambda tick: by_thread(tick.shares, scope))
    numbers: list[int] = []
    for snapshot in snapshots([*some, *more]):
        tick = history.add(snapshot)
        if tick is None:
            continue
        numbers.append(tick.number)
        ticks = [kept for number in numbers[-length:] if (kept := history.tick(number))]
        expected: dict[tuple[int, ...], list[int]] = {}
        for kept in ticks:
            for who, (waits, total_ns, max_ns, histogram) in by_thread(kept.shares, scope).items():
                row = expected.setdefault(who, [0, 0, 0, 0])
                row[0] += waits
                row[1] += total_ns
                row[2] = max(row[2], max_ns)
                row[3] += histogram
        got = {who: list(part) for who, part in rolling.follow(ticks, history.tick).items()}
        assert {who: row for who, row in got.items() if any(row)} == {
            who: row for who, row in expected.items() if any(row)
        }


def test_rolling_sum_takes_each_tick_once_even_if_none_before_its_span_is_kept() -> None:
    history, taken = filled(20), list[int]()

    def by_threads(tick: HistoryTick) -> Mapping[tuple[int, ...], PartTuple]:
        taken.append(tick.number)
        return {**by_thread(tick.shares, Scope()), **{(one,): (1, 1, 1, 1) for one in range(2000)}}  # a large table

    rolling = Rolling(by_threads)
    for end in range(5, 21):
        ticks = [tick for number in range(end - 4, end + 1) if (tick := history.tick(number))]
        expected = sum(totals.offcpu_ns for tick in ticks for _, totals in tick.window.each_thread())
        summed = rolling.follow(ticks, lambda _: None)
        assert sum(part[1] for who, part in summed.items() if len(who) > 1) == expected
    assert taken == [1, 2, 3, 4, 5, *(one for end in range(6, 21) for one in (end - 5, end))]


def test_rolling_sum_restarts_if_ticks_are_not_consecutive() -> None:
    history = filled(30)
    rolling = Rolling(lambda tick: by_thread(tick.shares, Scope()))
    for span_ns, end in ((10, 20), (10, 25), (5, 25), (20, 25), (3, 7), (10, 30)):
        ticks = [tick for number in range(end - span_ns + 1, end + 1) if (tick := history.tick(number))]
        everything = sum(totals.offcpu_ns for tick in ticks for _, totals in tick.window.each_thread())
        assert sum(part[1] for part in rolling.follow(ticks, history.tick).values()) == everything
    assert rolling.follow([], history.tick) == {}


SLEEPER = Waits("cron", 5, "cron", 5, "sleep", "do_nanosleep", waits_ms=(10,))


def test_sleep_is_idle_from_the_tick_on_in_which_it_proved_periodic() -> None:
    source = ScriptedSource([SLEEPER])
    lane = log2.lane_of(10_000_000)

    def is_periodic(counts: Ints, rows: int) -> Mask:
        return np.isin(np.arange(rows), counts[(counts[:, 1] == lane) & (counts[:, 2] >= 3), 0])

    history = History((), is_periodic)
    ticks = [history.add(source.after(seconds)) for seconds in range(6)]
    assert [set(tick.leaves) for tick in ticks if tick] == [{Leaf("sleep")}] * 2 + [{Leaf("sleep", True)}] * 3


def test_timeline_has_a_cell_for_each_interval_and_none_without_measurements() -> None:
    history = filled(10)
    ticks = history.last(60 * SECOND)
    end_ns = ticks[-1].at_ns
    values = series(ticks, 8, 2 * SECOND, end_ns, lambda tick: 3 * tick.span_ns)
    assert values == (None, None, 3, 3, 3, 3, 3, 3)
    assert series([], 4, SECOND, end_ns, lambda tick: 1) == (None,) * 4


def test_merged_breakdowns_of_all_ticks_are_that_since_the_start() -> None:
    history = filled(15)
    since = history.since_start()
    assert since is not None
    one = merged([tick.breakdown for tick in history.last(600 * SECOND)])
    assert {leaf: part.total_ns for leaf, part in one.categories.items()} == {
        leaf: part.total_ns for leaf, part in since.leaves.items()
    }
    assert Leaf("poll", True) in one.categories
    assert ALL not in {leaf.category for leaf in one.categories}


def test_picture_restarts_where_filters_changed() -> None:
    source, history = ScriptedSource(), History((), never)
    pictures = Pictures(history, source)
    spans: list[int] = []
    for seconds in range(6):
        source.filters = Filters(pids=(4242,)) if seconds > 3 else Filters(min_ns=seconds)
        history.add(source.after(seconds))
        picture = pictures.of(View(), Room())
        spans.append(picture.common.span_ns // SECOND if picture else 0)
    assert spans == [0, 1, 2, 3, 1, 2]


def test_site_without_finished_waits_has_no_maximum() -> None:
    waits_on = Waits("nginx", 7, "nginx", 7, "poll", "do_epoll_wait", waits_on=True)
    source, history = ScriptedSource([waits_on, SLEEPER]), History((), never)
    for seconds in range(3):
        history.add(source.after(seconds))
    since = history.since_start()
    assert since is not None
    longest_ns = {key.pid: totals.max_ns for key, totals in since.window.each_site()}
    assert longest_ns == {7: 0, 5: 10_000_000}


def test_sleeps_of_exited_threads_are_not_idle_because_one_of_them_was() -> None:
    periodic = SiteKeys(integers([SiteKey(0, 0, 3, NO_STACK), SiteKey(9, 90, 3, NO_STACK)], SITES.width))
    exited, thread = SiteKey(0, 0, 4, NO_STACK), SiteKey(9, 90, 4, NO_STACK)
    assert Idle((), periodic).is_periodic(integers([exited, thread, periodic[0]], SITES.width)).tolist() == [
        False,
        True,
        True,
    ]
