"""The numbers on the screen add up, whatever is chosen."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offtop.model.aggregate.filter_syntax import parse
from offtop.model.aggregate.steps import Shape
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.stack import Frame
from offtop.model.values.table import Ints, Mask
from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.picture import Picture, Pictures
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.view import SINCE_START, SPANS_NS, View
from offtop.model.windows import rolling
from offtop.model.windows.breakdown import ALL, FILTERED, RUN_QUEUE, total
from offtop.model.windows.history import History
from tests.model.world import IDLE, PIDS, Step, snapshots, stretches
from tests.ui.scripted import SHOP, WHO, ScriptedSource, Waits

SECOND, MS = 10**9, 10**6
ROOM = Room(rows=100, tree=50, flame=(80, 20), latency=True, heat=(60, 9), categories=50)


class Plain:
    """Names that are known from the start."""

    version = 0

    def of(self, frame: Frame) -> str:
        return frame.name


def never(_: Ints, rows: int) -> Mask:
    return np.zeros(rows, np.bool_)


def of_world(happened: Sequence[Sequence[Step]]) -> tuple[History, Pictures]:
    history = History(IDLE, never)
    for snapshot in snapshots(happened):
        history.add(snapshot)
    return history, Pictures(history, Plain())


def of_shop(ticks: int) -> tuple[History, Pictures]:
    source, history = ScriptedSource(SHOP, ticks=ticks), History(("poll",), never)
    for _ in range(ticks + 1):
        snapshot = source.read()
        assert snapshot is not None
        history.add(snapshot)
    return history, Pictures(history, source.names)


def drawn(pictures: Pictures, view: View, room: Room = ROOM) -> Picture:
    picture = pictures.of(view, room)
    assert picture is not None
    return picture


VIEWS = st.builds(
    View,
    span_ns=st.sampled_from(SPANS_NS),
    category=st.sampled_from([ALL, "lock", "poll", "short", RUN_QUEUE]),
    pid=st.sampled_from([None, None, 10, 11]),
    threads=st.booleans(),
    cgroups=st.booleans(),
    sort=st.sampled_from(["WAITING", "MAX", "TOTAL", "EV/S", "NAME", "PID"]),
    idle_shown=st.booleans(),
    filter=st.sampled_from([parse(text) for text in ("", "", "cat=lock,poll", "pid!=11", "tid=3 max>1us", "max>1ms")]),
    muted=st.sampled_from([(), (parse("cat=disk-read"),), (parse("pid=10"), parse("tid=3"))]),
    pin=st.sampled_from([None, None, 12, ThreadKey(10, 3), "/a"]),
    cursor=st.sampled_from([None, 11, ThreadKey(11, 1), "/a"]),
)


@given(stretches, VIEWS)
def test_shown_hidden_muted_and_filtered_time_is_all_waiting_time(happened: list[list[Step]], view: View) -> None:
    history, pictures = of_world(happened)
    picture = drawn(pictures, view)
    ever = history.since_start()
    assert ever is not None
    over = [ever] if view.span_ns == SINCE_START else history.last(view.span_ns)
    everything_ns = sum(total(tick.leaves.values()).total_ns for tick in over)
    totals = picture.common.totals
    parts_ns = totals.shown.total_ns, totals.hidden_ns, totals.muted_ns, totals.filtered_ns
    assert sum(parts_ns) == everything_ns
    assert picture.common.span_ns == sum(tick.span_ns for tick in over)


@given(stretches, VIEWS)
@example(
    [[("leave", 4, 3, 1, 0, 0)], [("wait", 1, 3, 1, 0, 0), ("move", 4, 5, 1, 0, 0), ("exit", 4, 3, 1, 0, 0)]],
    View(threads=True),
)
def test_categories_list_tree_and_latency_cover_the_same_waits(happened: list[list[Step]], view: View) -> None:
    picture = drawn(of_world(happened)[1], view)
    rows = {row.key: row.part for row in picture.categories.ranking.rows}
    assert total(rows.values()).total_ns + (
        picture.categories.ranking.elided.part.total_ns if picture.categories.ranking.elided else 0
    ) == (picture.categories.ranking.whole.total_ns)
    if view.category == ALL:
        assert picture.common.selected == picture.categories.ranking.whole
    elif view.category in rows:
        assert picture.common.selected == rows[view.category]
    assert picture.listed.ranking.whole.total_ns == picture.common.selected.total_ns
    assert picture.listed.ranking.whole.waits == picture.common.selected.waits
    listed = total(row.part for row in picture.listed.ranking.rows)
    elided = picture.listed.ranking.elided.part if picture.listed.ranking.elided else None
    assert listed.total_ns + (elided.total_ns if elided else 0) == picture.listed.ranking.whole.total_ns
    if view.pid is None and view.category == ALL and not view.filter.text:
        assert (
            picture.common.totals.passing_ns == picture.common.totals.shown.total_ns == picture.common.selected.total_ns
        )
    assert FILTERED not in rows


@pytest.mark.parametrize("pauses", [False, True])
def test_sums_stay_right_if_a_process_passes_the_filter_late(monkeypatch: pytest.MonkeyPatch, pauses: bool) -> None:
    """While knowledge grows at each tick, the ticks of the last minute are filtered again only now and then."""
    monkeypatch.setattr(rolling, "_SMALL", 0)
    brief = Waits("brief", 400, "brief", 400, "lock", "futex_do_wait", waits_ms=(300,), begins=1, ends=5)
    source, history = ScriptedSource([*SHOP, brief], ticks=75), History(("poll",), never)
    pictures, known = Pictures(history, source.names), 0
    view = View(span_ns=60 * SECOND, threads=True, filter=parse("user=alice"))
    for number in range(76):
        snapshot = source.read()
        assert snapshot is not None
        history.add(snapshot)
        late = {400: Details("alice", "", "", 1000)} if number >= 60 else {}
        snapshot.catalog.details.update({**WHO, **late})
        snapshot.catalog.details_version += 1
        if number:
            picture = drawn(pictures, replace(view, threads=not pauses or number % 3 > 0))
            known = picture.common.selected.total_ns
            assert sum(part[1] for part in picture.causes.sites.values()) == known
            assert picture.listed.ranking.whole.total_ns == known
    assert known == 60 * 800 * MS


@given(stretches, VIEWS)
def test_tree_has_what_the_histogram_counts(happened: list[list[Step]], view: View) -> None:
    picture = drawn(of_world(happened)[1], view)
    assert picture.tree is not None
    assert picture.tree.root.histogram == picture.common.selected.histogram or view.category == RUN_QUEUE
    assert log2.count(picture.common.selected.histogram) <= picture.common.selected.waits
    if picture.tree.branches:
        assert 0 <= picture.tree.first <= picture.tree.cursor < picture.tree.first + ROOM.tree


@given(stretches, VIEWS)
def test_selected_thread_has_the_numbers_of_its_row(happened: list[list[Step]], view: View) -> None:
    _, pictures = of_world(happened)
    view = replace(view, pid=None, threads=True, cgroups=False, cursor=None, pin=None, filter=parse(""))
    listed = drawn(pictures, view)
    for row in listed.listed.ranking.rows[:3]:
        assert isinstance(row.key, ThreadKey)
        picture = drawn(pictures, drilling.entered(replace(view, focus=views.LIST), row.key))
        assert picture.common.selected == row.part
        assert picture.listed.ranking.rows[picture.listed.cursor].key == row.key
        assert picture.common.view.thread == row.key


@given(stretches)
def test_last_column_of_timeline_and_sparks_is_the_last_interval(happened: list[list[Step]]) -> None:
    history, pictures = of_world(happened)
    picture = drawn(pictures, View(idle_shown=True, span_ns=SPANS_NS[1]))
    ticks = history.last(5 * SECOND)
    parts = [part for tick in ticks for leaf, part in tick.leaves.items() if leaf.category != FILTERED]
    expected = total(parts).total_ns / sum(tick.span_ns for tick in ticks)
    assert picture.head.timeline.cells[-1] is not None
    assert abs(picture.head.timeline.cells[-1] - expected) < 1e-9
    assert picture.heat is not None and picture.heat.columns[-1] is not None
    assert sum(picture.heat.columns[-1]) == log2.count(total(parts).histogram)


@given(st.lists(stretches, min_size=2, max_size=3), VIEWS)
def test_picture_made_tick_by_tick_is_the_same_as_one_made_at_once(parts: list[list[list[Step]]], view: View) -> None:
    taken: list[Snapshot] = snapshots([stretch for part in parts for stretch in part])
    history = History(IDLE, never)
    pictures = Pictures(history, Plain())
    grew = None
    for snapshot in taken:
        history.add(snapshot)
        grew = pictures.of(view, ROOM)
    at_once = Pictures(history, Plain()).of(view, ROOM)
    assert grew is not None and at_once is not None
    assert grew.listed.ranking == at_once.listed.ranking
    assert grew.categories.ranking == at_once.categories.ranking
    assert (grew.common.selected, grew.common.totals.muted_ns, grew.common.totals.passing_ns) == (
        at_once.common.selected,
        at_once.common.totals.muted_ns,
        at_once.common.totals.passing_ns,
    )
    assert grew.tree is not None and at_once.tree is not None
    assert grew.tree.root.part == at_once.tree.root.part
    assert (grew.heat, grew.head.timeline.cells) == (at_once.heat, at_once.head.timeline.cells)


def test_no_picture_before_the_first_tick() -> None:
    history = History((), never)
    assert Pictures(history, Plain()).of(View(), ROOM) is None
    history.add(Snapshot(0, 0))
    assert Pictures(history, Plain()).of(View(), ROOM) is None


def test_picture_without_waits_has_no_rows() -> None:
    history = History((), never)
    for at_s in range(3):
        history.add(Snapshot(0, at_s * SECOND))
    picture = drawn(Pictures(history, Plain()), View(filter=parse("max>1ms"), threads=True))
    assert (picture.listed.ranking.rows, picture.categories.ranking.rows) == ((), ())
    assert picture.common.totals.shown.total_ns == 0
    assert picture.tree is not None and not picture.tree.branches


def test_numbers_of_shop_by_process_category_and_branch() -> None:
    _, pictures = of_shop(12)
    picture = drawn(pictures, View())
    assert [(row.key, row.part.total_ns // MS, row.threads) for row in picture.listed.ranking.rows] == [
        (100, 8_000, 3),
        (200, 2_000, 2),
    ]
    totals = picture.common.totals
    assert (totals.shown.total_ns // MS, totals.hidden_ns // MS, sum(picture.listed.threads_of.values())) == (
        10_000,
        10_000,
        6,
    )
    assert picture.tree is not None
    (main,) = picture.tree.root.children
    site = drawn(pictures, View(path=(main,), focus=views.SITE), Room(site=50))
    assert site.common.selected.total_ns == 10_000 * MS
    assert [row.part.total_ns // MS for row in site.places.rows][:2] == [6_000, 1_000]
    assert len(site.places.rows) == 9


def test_branch_of_an_inverted_tree_is_the_leaf_of_any_caller() -> None:
    _, pictures = of_shop(12)
    view = panes.inverted(View())
    picture = drawn(pictures, view)
    assert picture.tree is not None
    of_leaf = {step.name: node.total_ns // MS for step, node in picture.tree.root.children.items()}
    assert of_leaf == {
        "futex_do_wait": 7_000,
        "io_schedule": 1_000,
        "tcp_recvmsg": 1_000,
        "jbd2_log_wait_commit": 1_000,
    }
    futex = next(step for step in picture.tree.root.children if step.name == "futex_do_wait")
    site = drawn(pictures, replace(view, path=(futex,), focus=views.SITE), Room(site=50))
    assert site.common.selected.total_ns == 7_000 * MS
    assert view.tree.shape == Shape(inverted=True)


def test_paused_picture_stays_while_history_goes_on_and_drops_ticks() -> None:
    source, history = ScriptedSource(SHOP, ticks=300), History(("poll",), never, max_ns=20 * SECOND)
    for _ in range(13):
        snapshot = source.read()
        assert snapshot is not None
        history.add(snapshot)
    pictures = Pictures(history, source.names)
    newest = history.newest
    assert newest is not None
    view = View(paused_at_ns=newest.at_ns)
    before = drawn(pictures, view)
    for _ in range(100):
        snapshot = source.read()
        assert snapshot is not None
        history.add(snapshot)
    after = drawn(pictures, view)
    assert after.common.newest.number == before.common.newest.number == 12
    assert after.head.behind_ns == 100 * SECOND
    assert (after.listed.ranking, after.categories, after.common.selected) == (
        before.listed.ranking,
        before.categories,
        before.common.selected,
    )
    assert after.categories.sparks == before.categories.sparks


def test_boxes_stay_for_two_seconds_and_say_what_they_cover() -> None:
    source, history = ScriptedSource(SHOP, ticks=12), History(("poll",), never)
    pictures = Pictures(history, source.names)
    seen: list[tuple[int, int]] = []
    for _ in range(9):
        snapshot = source.read()
        assert snapshot is not None
        history.add(snapshot)
        picture = pictures.of(View(), ROOM)
        if picture and picture.flame:
            seen.append((picture.flame.icicle.whole_ns // SECOND, picture.flame.span_ns // SECOND))
    assert all(whole == over for whole, over in seen)
    assert [over for _, over in seen] == [1, 2, 2, 4, 4, 6, 6, 8]
    assert all(a[1] <= b[1] for a, b in pairwise(seen))


def test_world_has_several_threads_in_a_process() -> None:
    assert len({*PIDS.values()}) < len(PIDS)
