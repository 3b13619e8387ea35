"""What filters, mutes and the selection leave of a tick; the parts add up to the tick."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.aggregate.selection import FilterCache, FilterCaches, Parts, Selection
from offtop.model.aggregate.steps import Shape, places
from offtop.model.aggregate.tree import tree_of
from offtop.model.aggregate.waker_rows import by_wake
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import Frame
from offtop.model.values.table import Ints, Mask
from offtop.model.values.wake import CHAIN
from offtop.model.windows.breakdown import FILTERED, Leaf, Part, Scope, Shares, by_place, total
from offtop.model.windows.history import History, HistoryTick, Packed, moved_in
from offtop.model.windows.window import merge
from tests.model.world import BOOK, IDLE, PIDS, Step, snapshots, stretches
from tests.ui.busy import BusySource
from tests.ui.scripted import SHOP, ScriptedSource


class Plain:
    """Names that are known from the start."""

    version = 0

    def of(self, frame: Frame) -> str:
        return frame.name


NAMES = Plain()
JUDGE = CauseFinder(NAMES, WITHOUT_RULES)


def never(_: Ints, rows: int) -> Mask:
    return np.zeros(rows, np.bool_)


def ticks(happened: Sequence[Sequence[Step]], max_bytes: int = 40 * 2**20) -> list[HistoryTick]:
    history = History(IDLE, never, max_bytes=max_bytes)
    for snapshot in snapshots(happened):
        history.add(snapshot)
    return history.last(10**12)


def sums(every: Iterable[Parts]) -> dict[Leaf, tuple[int, int, int]]:
    """Leaf → waits, ns, histogram of all of them together, without empty and filtered ones."""
    found: dict[Leaf, Part] = {}
    for parts in every:
        for leaf, part in parts.items():
            found[leaf] = found.get(leaf, Part()).plus(part)
    return {
        leaf: (p.waits, p.total_ns, p.histogram)
        for leaf, p in found.items()
        if leaf.category != FILTERED and (p.waits or p.total_ns)
    }


@given(stretches, st.sampled_from(["", "waker=one", "waker!=one", "object=*", "cat=lock"]), st.booleans())
@example([[("wait", 1, 3, 1, 0, 0)], [("wait", 1, 3, 1, 100, 0)]], "cat=lock", False)
def test_ticks_and_their_moves_are_what_they_merge_into(happened: list[list[Step]], text: str, wakers: bool) -> None:
    every = ticks(happened)
    since_ns = every[0].at_ns - every[0].span_ns
    moved = moved_in(every, since_ns)
    assert moved is None or (moved.number < 0 and moved.span_ns == 0)
    whole = HistoryTick.of(merge([tick.window for tick in every]), every[-1].idle)
    sieve = FilterCache(Selection((parse(text),) if text else ()), JUDGE)

    def added_up(those: Iterable[HistoryTick]) -> dict[tuple[int, ...], tuple[int, ...]]:
        sums: dict[tuple[int, ...], tuple[int, ...]] = {}
        for tick in those:
            every = sieve.shares(tick)
            table = by_wake(every, Scope()) if wakers else by_place(every, Scope(), partial(places, mode=CHAIN))
            for key, (waits, total_ns, _, histogram) in table.items():
                was = sums.get(key, (0, 0, 0))
                sums[key] = was[0] + waits, was[1] + total_ns, was[2] + histogram
        return {key: some for key, some in sums.items() if any(some)}

    # A wait that was only ever ready counts in run-queue in its tick, but not beside others in a longer window. So by
    # category only the time is the same, not the number of waits.
    parts, merged = added_up([*every, *([moved] if moved else [])]), added_up([whole])
    if text != "cat=lock":
        assert parts == merged
    assert {key: ns for key, (_, ns, _) in parts.items() if ns} == {key: ns for key, (_, ns, _) in merged.items() if ns}
    together = sums(sieve.chosen(tick) for tick in [*every, *([moved] if moved else [])])
    assert ns_of(together) == ns_of(sums([sieve.chosen(whole)]))


def ns_of(found: Mapping[Leaf, tuple[int, int, int]]) -> dict[Leaf, int]:
    return {leaf: ns for leaf, (_, ns, _) in found.items() if ns}


def of_shop(text: str) -> tuple[HistoryTick, FilterCache]:
    """The second of SHOP, and what passes a filter."""
    history = History(("poll",), never)
    source = ScriptedSource(SHOP, ticks=1)
    for _ in range(2):
        snapshot = source.read()
        assert snapshot is not None
        history.add(snapshot)
    assert history.newest is not None
    return history.newest, FilterCache(Selection((parse(text),)), JUDGE)


@pytest.mark.parametrize(
    ("text", "total_ms"),
    [
        ("cat=lock", 700),
        ("proc=bank", 200),
        ("thread=worker-*", 700),
        ("stack=serve", 700),
        ("leaf=io_*", 100),
        ("tid=103", 100),
        ("nobody", 0),
        ("cat=poll", 1_000),
    ],
)
def test_filter_leaves_its_part_of_a_second(text: str, total_ms: int) -> None:
    tick, sieve = of_shop(text)
    taken = sieve.taken(tick)
    assert sum(part.total_ns for part in taken.breakdown.categories.values()) == total_ms * 10**6
    assert sum(part.total_ns for part in taken.unmuted.values()) == 2_000 * 10**6
    assert taken.muted_ns == 0


KINDS = st.sampled_from(
    ["cat=lock", "cat=poll", "cat=short,run-queue", "pid=10,11", "tid=3", "stack=sleep", "cat=filtered"]
)


@given(stretches, KINDS)
def test_filter_and_its_opposite_leave_everything(happened: list[list[Step]], text: str) -> None:
    passing = FilterCache(Selection((parse(text),)), JUDGE)
    others = FilterCache(Selection((parse(text.replace("=", "!=", 1)),)), JUDGE)
    for tick in ticks(happened):
        assert sums([passing.taken(tick).breakdown.categories, others.taken(tick).breakdown.categories]) == sums(
            [tick.leaves]
        )
        assert sums([passing.taken(tick).unmuted]) == sums([tick.leaves])


@given(stretches, KINDS, KINDS)
def test_muted_and_unmuted_time_is_everything(happened: list[list[Step]], a: str, b: str) -> None:
    sieve = FilterCache(Selection((), (parse(a), parse(b))), JUDGE)
    for tick in ticks(happened):
        taken = sieve.taken(tick)
        assert total(taken.unmuted.values()).total_ns + taken.muted_ns == total(tick.leaves.values()).total_ns
        assert sums([taken.breakdown.categories]) == sums([taken.unmuted])
        alone = [FilterCache(Selection((), (parse(text),)), JUDGE).taken(tick).muted_ns for text in (a, b)]
        if {a, b} == {"cat=lock", "cat=poll"}:
            assert taken.muted_ns == sum(alone)


@given(stretches, st.sampled_from(["", "cat=lock,poll"]))
def test_time_of_processes_and_threads_is_everything_that_passes(happened: list[list[Step]], text: str) -> None:
    filters = (parse(text),) if text else ()
    pids = {0, *PIDS.values()}
    tids = [(pid, tid) for tid, pid in PIDS.items()] + [(0, 0)]
    whole = FilterCache(Selection(filters), JUDGE)
    by_pid = [FilterCache(Selection(filters, pid=pid), JUDGE) for pid in pids]
    by_tid = [FilterCache(Selection(filters, pid=pid, tid=tid), JUDGE) for pid, tid in tids]
    for tick in ticks(happened):
        everything = sums([whole.chosen(tick)])
        assert sums(sieve.chosen(tick) for sieve in by_pid) == everything
        assert sums(sieve.chosen(tick) for sieve in by_tid) == everything


@given(stretches, st.booleans(), st.sampled_from(["both", "kernel", "user"]))
def test_time_of_a_branch_is_that_of_the_tree(happened: list[list[Step]], inverted: bool, frames: str) -> None:
    shape = Shape(inverted, frames)
    for tick in ticks(happened):
        root = tree_of(by_place(tick.shares, Scope(), partial(places, mode=shape.mode)), BOOK, NAMES, shape)
        for step, node in root.children.items():
            chosen = FilterCache(Selection(path=(step,), shape=shape), JUDGE).chosen(tick)
            part = total(chosen.values())
            assert (part.waits, part.total_ns, part.histogram) == (node.waits, node.total_ns, node.histogram)


SELECTIONS = (
    Selection(),
    Selection((parse("cat=lock,poll"),)),
    Selection((), (parse("pid=10"),)),
    Selection(pid=11),
    Selection((parse("cat!=poll"),), (), 11),
    Selection(pid=11, tid=4),
)


@given(st.lists(stretches, min_size=1, max_size=3), st.sampled_from(SELECTIONS))
def test_packed_ticks_have_the_same_results_as_before(parts: list[list[list[Step]]], selection: Selection) -> None:
    happened = [stretch for part in parts for stretch in part]
    plain, packed = ticks(happened), ticks(happened, max_bytes=200_000)
    by_number = {tick.number: tick for tick in plain}
    known = FilterCache(selection, JUDGE).parts_of(packed)
    direct = FilterCache(selection, JUDGE)
    assert {number: sums([parts]) for number, parts in known.items()} == {
        tick.number: sums([direct.chosen(by_number[tick.number])]) for tick in packed
    }


class Late(Plain):
    """One function gets another name later."""

    def of(self, frame: Frame) -> str:
        return "late" if self.version and frame.name == "serve" else frame.name


def test_filter_finds_a_late_name_in_ticks_that_were_filtered_before() -> None:
    names = Late()
    cause_finder, chosen = CauseFinder(names, WITHOUT_RULES), Selection((parse("stack=late"),))
    tick, by_serve = of_shop("stack=serve")
    assert not sums([FilterCache(chosen, cause_finder).chosen(tick)])
    names.version = 1
    found = sums([FilterCache(chosen, cause_finder).chosen(tick)])
    assert found == sums([by_serve.chosen(tick)]) != {}


class Ticking:
    """Requests the sieve of a filter at consecutive ticks."""

    def __init__(self) -> None:
        self.names = Late()
        self.sieves = FilterCaches(CauseFinder(self.names, WITHOUT_RULES))
        self.tick, _ = of_shop("stack=late")
        self.number = 0

    def at(self, number: int, text: str = "stack=late", *, held: bool = False) -> FilterCache:
        tick = replace(self.tick, number=number)
        return self.sieves.of(Selection((parse(text),)), tick, held=held)

    def next(self, *, knows_more: bool = True) -> FilterCache:
        self.number += 1
        self.names.version += knows_more
        return self.at(self.number)


def test_past_is_filtered_again_less_and_less_often_if_each_tick_adds_names() -> None:
    ticking = Ticking()
    seen = [ticking.next() for _ in range(40)]
    made = [number for number, (one, other) in enumerate(pairwise(seen), 2) if one is not other]
    assert made == [2, 4, 8, 16, 24, 32, 40]


def test_new_names_are_used_when_the_interval_is_over() -> None:
    ticking = Ticking()
    first = [ticking.next() for _ in range(17)][-1]
    assert {ticking.next(knows_more=False) for _ in range(6)} == {first}
    assert ticking.next(knows_more=False) is not first
    last = ticking.at(ticking.number)
    assert {ticking.next(knows_more=False) for _ in range(20)} == {last}
    assert ticking.next() is not last


def test_picture_that_stands_still_uses_new_names_at_once() -> None:
    ticking = Ticking()
    sieve = [ticking.next() for _ in range(17)][-1]
    ticking.names.version += 1
    again = ticking.at(17)
    assert again is not sieve
    ticking.names.version += 1
    held = ticking.at(18, held=True)
    assert held is not again
    assert ticking.at(18, held=True) is held
    ticking.names.version += 1
    assert ticking.at(12) is not held


def test_another_filter_applies_at_once() -> None:
    ticking = Ticking()
    sieve = [ticking.next() for _ in range(17)][-1]
    other = ticking.at(18, "stack=serve")
    assert other is not sieve
    assert other.selection != sieve.selection
    ticking.names.version += 1
    assert ticking.at(19, "stack=serve") is not other


def test_each_tick_is_filtered_once_for_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    mask = Filter.mask

    def counted(one: Filter, every: Shares, catalog: Catalog, cause_finder: CauseFinder) -> Mask:
        looked.append(len(every.leaf))
        return mask(one, every, catalog, cause_finder)

    monkeypatch.setattr(Filter, "mask", counted)
    first, sieve = of_shop("stack=serve")
    second = replace(first, number=first.number + 1)
    left = [sum(part.total_ns for part in sieve.taken(tick).unmuted.values()) for tick in (first, second)]
    passing = [int(sieve.shares(tick).total_ns.sum()) for tick in (first, second, first, second)]
    assert passing == [sum(part.total_ns for part in sieve.chosen(first).values())] * 4
    assert (left, len(looked)) == ([int(first.shares.total_ns.sum())] * 2, 2)


class _CountingCache(FilterCache):
    """Names the ticks that it filters."""

    def __init__(self, selection: Selection, cause_finder: CauseFinder, before: FilterCache) -> None:
        super().__init__(selection, cause_finder, before)
        self.looked: list[int] = []

    def chosen(self, tick: HistoryTick) -> Parts:
        self.looked.append(tick.number)
        return super().chosen(tick)


def test_newest_ticks_of_a_long_packed_past_are_known_first_and_all_in_the_end() -> None:
    history = History((), never, max_bytes=8 * 2**20)
    source = BusySource(200)
    for _ in range(100):
        snapshot = source.read()
        assert snapshot is not None
        history.add(snapshot)
    every = history.last(600 * 10**9)
    assert sum(isinstance(tick.held, Packed) for tick in every) > 20
    sieve = FilterCache(Selection((parse("pid!=1"),)), JUDGE)
    known: Mapping[int, Parts] = {}
    rounds = 0
    while len(known) < len(every):
        before = known
        known = sieve.parts_of(every)
        assert len(known) > len(before)
        assert [*known] == [tick.number for tick in reversed(every)][: len(known)]
        rounds += 1
    assert rounds > 1
    direct = FilterCache(sieve.selection, JUDGE)
    for tick in every[:: len(every) // 5]:
        assert sums([known[tick.number]]) == sums([direct.chosen(tick)])
    looked: list[set[int]] = []
    again: FilterCache = sieve
    while len(set[int]().union(*looked)) < len(every):
        again = _CountingCache(sieve.selection, JUDGE, again)
        assert {number: sums([parts]) for number, parts in again.parts_of(every).items()} == {
            number: sums([parts]) for number, parts in known.items()
        }
        looked.append({*again.looked})
        assert looked[-1]
    assert len(looked) > rounds
    sieve.forget(every[-1], every[-1])
    assert len(sieve.parts_of(every)) < len(every)
