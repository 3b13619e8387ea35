"""The lists of wakers, objects and causes: sums, order, storms, and missing wakers."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop import paths
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.aggregate.rows import SORTS
from offtop.model.aggregate.waker_rows import BELOW, WakerKey
from offtop.model.classify import categories, causes
from offtop.model.classify.causes import NO_RULES, Fixed, Reason, Rules
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Bound
from offtop.model.values.wake import CHAIN, MODES, NO_OBJECT, OFFCPU, OFFWAKE, WAKEUP, Storm
from offtop.model.viewmodel import drilling
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.picture import Picture, Pictures
from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.view import LIST, SINCE_START, SITE, TREE, View
from offtop.model.windows.breakdown import ALL, total
from offtop.model.windows.history import History, HistoryTick
from offtop.model.windows.stuck import NO_AGE, Age
from offtop.units import NS_PER_S
from tests.model.viewmodel.test_picture import never
from tests.ui.scripted import MUTEX, PIPE, TABLE, WAKERS, By, ScriptedSource, Waits, Woken

MS = 10**6
ROOM = Room(rows=100, tree=50, flame=(80, 20), latency=True, heat=(60, 9), categories=50)
SHOP, BANK, DISK, TIMEOUT = (
    WakerKey("shop", 100),
    WakerKey("bank", 200),
    WakerKey("irq (nvme_irq)"),
    WakerKey("timeout"),
)
CLERK, TELLER = WakerKey("clerk", 100, 103), WakerKey("teller", 200, 201)
GOES_ON, UNSEEN = WakerKey("(still waiting)"), WakerKey("(wakeup not recorded)")
BRIEF = WakerKey("(woken before the minimum)")
ALL_OF_IT = View(focus=LIST, idle_shown=True)


class Machine:
    """A source, and what is shown of it."""

    def __init__(self, table: tuple[Waits, ...] = WAKERS, mode: str = CHAIN, rules: Rules = NO_RULES) -> None:
        self.source = ScriptedSource(table, ticks=1_000)
        self.source.mode = mode
        self.history = History(("poll",), never)
        self.pictures = Pictures(self.history, self.source.names, Fixed(rules))
        self.go_on(1)

    def go_on(self, ticks: int, mode: str = "") -> None:
        self.source.mode = mode or self.source.mode
        for _ in range(ticks):
            snapshot = self.source.read()
            assert snapshot is not None
            self.history.add(snapshot)

    def shown(self, view: View, mode: str = WAKEUP, room: Room = ROOM) -> Picture:
        picture = self.pictures.of(drilling.in_mode(view, mode), room)
        assert picture is not None
        return picture


def after(ticks: int, table: tuple[Waits, ...] = WAKERS, rules: Rules = NO_RULES) -> Machine:
    machine = Machine(table, rules=rules)
    machine.go_on(ticks)
    return machine


def ms_a_second(picture: Picture) -> dict[object, int]:
    """Key → ms in each second, without storms."""
    seconds = picture.common.span_ns // NS_PER_S
    return {row.key: row.part.total_ns // MS // seconds for row in picture.listed.ranking.rows if not row.storm.storms}


def names(picture: Picture) -> list[str]:
    return [row.name for row in picture.listed.ranking.rows]


# ---- sums


def test_rows_of_wakers_are_all_blocked_time_with_the_run_queue_beside_it() -> None:
    picture = after(12).shown(ALL_OF_IT)
    assert ms_a_second(picture) == {
        SHOP: 500,
        BANK: 100,
        DISK: 60,
        TIMEOUT: 50,
        GOES_ON: 1000,
        UNSEEN: 30,
        BRIEF: 20,
        BELOW: 10,
    }
    assert [(row.key, row.ready_ns // MS) for row in picture.listed.ranking.rows if row.ready_ns] == [(SHOP, 1_000)]
    whole_ns = picture.common.totals.shown.total_ns - picture.common.totals.ready_ns
    assert picture.listed.ranking.whole.total_ns == whole_ns == 17_700 * MS
    assert sum(row.share_pct for row in picture.listed.ranking.rows) == pytest.approx(100)


def test_each_waking_thread_has_a_row() -> None:
    picture = after(12).shown(replace(ALL_OF_IT, threads=True))
    assert {key: ms for key, ms in ms_a_second(picture).items() if key in (CLERK, TELLER)} == {CLERK: 500, TELLER: 100}
    totals = picture.common.totals
    assert picture.listed.ranking.whole.total_ns == totals.shown.total_ns - totals.ready_ns


def test_objects_have_all_blocked_time_too() -> None:
    view = replace(ALL_OF_IT, objects=True)
    for mode in (WAKEUP, OFFWAKE, CHAIN):
        picture = after(12).shown(view, mode)
        assert {key: ms for key, ms in ms_a_second(picture).items() if key in (MUTEX, PIPE, NO_OBJECT)} == {
            MUTEX: 500,
            PIPE: 100,
            NO_OBJECT: 1160,
        }
        assert picture.listed.ranking.whole.total_ns == 17_700 * MS
        assert names(picture)[-2:] == ["(unknown)", "(waits below the minimum)"]


RULES = causes.parse(
    '[[rule]]\nid = "a"\nname = "a lock"\nsays = "x"\ncategory = ["lock"]\n'
    '[[rule]]\nid = "b"\nname = "a disk"\nsays = "x"\ncategory = ["fsync", "disk-read", "disk-write"]\n'
    '[[rule]]\nid = "c"\nname = "a disk"\nsays = "x"\nprogram = ["bank"]\ncategory = ["pipe"]\n'
    '[[rule]]\nid = "d"\nname = "a CPU"\nsays = "x"\ncategory = ["run-queue"]\n',
    "rules.toml",
    "Mend it",
    categories.parse(paths.categories().read_text()).ids,
)


def test_causes_have_all_time_with_the_run_queue_as_a_cpu() -> None:
    machine = after(12, rules=RULES)
    picture = machine.shown(replace(ALL_OF_IT, reasons=True), OFFCPU)
    found = ms_a_second(picture)
    totals = picture.common.totals
    assert sum(found.values()) == picture.listed.ranking.whole.total_ns // MS // 10 == totals.shown.total_ns // MS // 10
    assert found[Reason("a CPU")] == totals.ready_ns // MS // 10 > 0
    by_category = {row.key: row.part.total_ns // MS // 10 for row in picture.categories.ranking.rows}
    assert found[Reason("a lock")] == by_category["lock"]
    assert names(picture)[-2:] == ["(no cause rule matches)", "(waits below the minimum)"]
    blocked = machine.shown(replace(ALL_OF_IT, reasons=True), WAKEUP)
    assert ms_a_second(blocked) == {key: ms for key, ms in found.items() if key != Reason("a CPU")}
    chosen = machine.shown(replace(ALL_OF_IT, filter=parse("why='a lock',b")), OFFCPU)
    assert chosen.listed.ranking.whole.total_ns // MS // 10 == found[Reason("a lock")] + sum(
        by_category.get(one, 0) for one in ("fsync", "disk-read", "disk-write")
    )


def rest_of(picture: Picture) -> int:
    return picture.listed.ranking.elided.part.total_ns if picture.listed.ranking.elided else 0


VIEWS = st.builds(
    View,
    category=st.sampled_from([ALL, "lock", "pipe", "short", "run-queue", "fsync"]),
    pid=st.sampled_from([None, None, 100, 200]),
    threads=st.booleans(),
    objects=st.booleans(),
    reasons=st.booleans(),
    sort=st.sampled_from(SORTS),
    reverse=st.booleans(),
    idle_shown=st.booleans(),
    span_ns=st.sampled_from(views.SPANS_NS),
    filter=st.sampled_from([parse(text) for text in ("", "waker=clerk", "object=pipe", "max>70ms", "comm!=shop")]),
    pin=st.sampled_from([None, 100, ThreadKey(100, 103)]),
    focus=st.just(LIST),
)
MACHINE = after(12, rules=RULES)


@given(VIEWS, st.sampled_from(MODES))
def test_rows_and_elided_rows_are_the_blocked_time_of_the_scope(view: View, mode: str) -> None:
    picture = MACHINE.shown(view, mode)
    listed = total(row.part for row in picture.listed.ranking.rows)
    assert listed.total_ns + rest_of(picture) == picture.listed.ranking.whole.total_ns
    table = {row.key: row.part.total_ns for row in picture.categories.ranking.rows}
    by_category = {key: ns for key, ns in table.items() if mode == OFFCPU or key != "run-queue" or view.category == key}
    wanted = sum(by_category.values()) if view.category == ALL else by_category.get(view.category, 0)
    assert picture.listed.ranking.whole.total_ns == wanted
    assert 0 <= picture.listed.cursor <= max(0, len(picture.listed.ranking.rows) - 1)


@given(VIEWS, st.sampled_from([WAKEUP, OFFWAKE, CHAIN]))
def test_tree_icicle_and_list_cover_the_same_waits(view: View, mode: str) -> None:
    view = replace(view, objects=False, reasons=False, filter=parse(""))
    picture = MACHINE.shown(view, mode)
    assert picture.tree is not None
    placeless = sum(row.part.total_ns for row in MACHINE.shown(view, WAKEUP).listed.ranking.rows if row.key == BELOW)
    assert picture.tree.root.total_ns == picture.listed.ranking.whole.total_ns - placeless


def test_selected_thread_has_the_wakers_of_its_own_waits() -> None:
    machine = after(12)
    of_teller = View(focus=TREE, pid=200, thread=ThreadKey(200, 201))
    assert ms_a_second(machine.shown(of_teller)) == {DISK: 60}
    of_bank = View(focus=LIST, pid=200, idle_shown=True)
    assert ms_a_second(machine.shown(of_bank)) == {DISK: 60, TIMEOUT: 50, UNSEEN: 30, BRIEF: 20}


def test_panes_of_a_selected_row_have_the_numbers_of_the_row() -> None:
    machine = after(12, rules=RULES)
    lists = {"threads": True}, {"objects": True}, {"reasons": True}
    for view in (ALL_OF_IT, *(replace(ALL_OF_IT, **one) for one in lists)):
        top = machine.shown(view)
        for row in top.listed.ranking.rows:
            inside = drilling.entered(replace(top.common.view, focus=LIST), row.key)
            if row.storm.storms or inside == top.common.view:
                continue
            picture = machine.pictures.of(inside, ROOM)
            assert picture is not None
            assert picture.listed.ranking.whole.total_ns == row.part.total_ns
            assert picture.common.totals.shown.total_ns == top.common.totals.shown.total_ns  # the head is about all
            assert picture.common.selected.total_ns == row.part.total_ns


# ---- order


def test_unknown_keys_come_last_in_every_order() -> None:
    machine = after(12)
    wanted: Mapping[str, list[WakerKey]] = {
        "WAITING": [SHOP, BANK, DISK, TIMEOUT],
        "CHANGE": [SHOP, BANK, DISK, TIMEOUT],
        "MAX": [SHOP, BANK, DISK, TIMEOUT],
        "NOW": [SHOP, BANK, DISK, TIMEOUT],
        "TOTAL": [SHOP, BANK, DISK, TIMEOUT],
        "EV/S": [SHOP, BANK, DISK, TIMEOUT],
        "NAME": [BANK, DISK, SHOP, TIMEOUT],
        "PID": [SHOP, BANK, DISK, TIMEOUT],
        "P50": [SHOP, BANK, DISK, TIMEOUT],
        "P99": [SHOP, BANK, DISK, TIMEOUT],
    }
    assert [*wanted] == [*SORTS]
    for sort, order in wanted.items():
        for reverse in (False, True):
            rows = machine.shown(replace(ALL_OF_IT, sort=sort, reverse=reverse)).listed.ranking.rows
            known = [row.key for row in rows if not row.storm.storms][:4]
            assert known == (order[::-1] if reverse else order)
            assert {row.key for row in rows[-4:]} == {GOES_ON, UNSEEN, BRIEF, BELOW}


def test_pid_sorts_threads_by_pid_and_tid() -> None:
    table = tuple(
        Waits(
            *("p", 1, "w", tid, "lock", "futex_do_wait"),
            waits_ms=(1,),
            woken=Woken(By(process="x", pid=pid, comm=comm, tid=by)),
        )
        for tid, (comm, pid, by) in enumerate([("a", 20, 20), ("b", 3, 30), ("c", 3, 4)], 1)
    )
    picture = after(3, table).shown(replace(ALL_OF_IT, threads=True, sort="PID"))
    assert names(picture) == ["c", "b", "a"]


def test_oldest_wait_in_progress_is_shown_without_a_waker() -> None:
    rows = after(12).shown(ALL_OF_IT).listed.ranking.rows
    assert {row.key: row.now for row in rows if row.now != NO_AGE} == {GOES_ON: Age(12 * NS_PER_S, Bound.EXACT)}


def test_pin_comes_first_by_thread_and_by_process() -> None:
    machine = after(12)
    for pin, threads, key in ((200, False, BANK), (ThreadKey(200, 201), True, TELLER)):
        rows = machine.shown(replace(ALL_OF_IT, pin=pin, threads=threads)).listed.ranking.rows
        pinned = next(row for row in rows if not row.storm.storms)
        assert (pinned.key, pinned.pinned) == (key, True)
    assert not any(row.pinned for row in machine.shown(replace(ALL_OF_IT, pin=7)).listed.ranking.rows)


def test_total_begins_when_wakers_are_gathered() -> None:
    rows = after(12).shown(replace(ALL_OF_IT, sort="TOTAL")).listed.ranking.rows
    assert {row.key: row.lifetime_ns // MS for row in rows if row.key in (SHOP, DISK)} == {SHOP: 6_000, DISK: 720}


MANY = tuple(
    Waits(
        *("p", 1, "w", 1, "lock", "futex_do_wait"),
        waits_ms=(1,),
        woken=Woken(By(process="x", pid=tid, comm=f"w{tid}", tid=tid, kernel=(f"f{tid}",))),
    )
    for tid in range(1, 601)
)


def test_wakers_beyond_the_limit_are_summed_up_in_one_row() -> None:
    picture = after(3, (*MANY, WAKERS[5], WAKERS[0])).shown(replace(ALL_OF_IT, threads=True))
    assert (len(picture.listed.ranking.rows), picture.listed.ranking.rows[-1].key) == (500, UNSEEN)
    rest = picture.listed.ranking.elided
    assert rest is not None
    assert (rest.name, rest.rows, rest.part.total_ns // MS, rest.part.waits) == ("102 more", 102, 306, 306)
    assert (
        picture.listed.ranking.whole.total_ns
        == total(row.part for row in (*picture.listed.ranking.rows, rest)).total_ns
    )
    turned = after(3, (*MANY, WAKERS[0])).shown(replace(ALL_OF_IT, threads=True, reverse=True)).listed.ranking
    assert turned.elided is not None
    assert turned.elided.ready_ns == 300 * MS  # clerk's is among those without a row


def test_rows_that_do_not_pass_the_filter_are_summed_up_too() -> None:
    picture = after(12).shown(replace(ALL_OF_IT, filter=parse("max>80ms")))
    assert [*ms_a_second(picture)] == [SHOP, BANK]
    rest = picture.listed.ranking.elided
    assert rest is not None
    assert (rest.name, rest.part.total_ns // MS) == ("6 more", 11_700)
    assert names(picture)[0] == "storm: shop"  # its waker has a row
    assert names(after(12).shown(replace(ALL_OF_IT, filter=parse("max>9s")))) == []


def test_cursor_on_a_waker_that_disappeared_goes_to_the_first_row() -> None:
    machine = after(3)
    view = drilling.in_mode(ALL_OF_IT, WAKEUP)
    on_bank = machine.shown(replace(view, cursor=BANK))
    assert on_bank.listed.ranking.rows[on_bank.listed.cursor].key == BANK
    gone = machine.shown(replace(view, cursor=WakerKey("gone", 9)))
    assert gone.listed.cursor == 0


# ---- storms


def storms(picture: Picture) -> dict[str, Storm]:
    return {row.name: row.storm for row in picture.listed.ranking.rows if row.storm.storms}


def test_storm_has_a_row_above_without_time() -> None:
    picture = after(12).shown(ALL_OF_IT)
    assert storms(picture) == {"storm: shop": Storm(20, 200, 180, 12)}
    row = picture.listed.ranking.rows[0]
    assert (row.name, row.pid, row.part.total_ns, row.waits_per_s) == ("storm: shop", 100, 0, 20)
    assert storms(after(12).shown(replace(ALL_OF_IT, threads=True))) == {"storm: clerk": Storm(20, 200, 180, 12)}


def test_only_herds_of_listed_wakers_have_rows() -> None:
    machine = after(12)
    assert storms(machine.shown(View(focus=LIST, category="pipe"))) == {}
    assert storms(machine.shown(replace(ALL_OF_IT, objects=True))) == {}
    assert storms(machine.shown(ALL_OF_IT, OFFWAKE)) == {}
    useful = (WAKERS[1]._replace(storm=Storm(2, 20, 10, 12)),)
    assert storms(after(12, useful).shown(ALL_OF_IT)) == {}


def test_largest_storm_since_the_start_is_the_largest_of_all() -> None:
    early = WAKERS[1]._replace(storm=Storm(1, 99, 90, 99), ends=4)
    late = WAKERS[1]._replace(storm=Storm(1, 10, 9, 10), begins=4)
    machine = after(12, (early, late))
    since = machine.shown(replace(ALL_OF_IT, span_ns=SINCE_START))
    assert storms(since) == {"storm: shop": Storm(12, 4 * 99 + 80, 4 * 90 + 72, 99)}
    assert storms(machine.shown(replace(ALL_OF_IT, span_ns=NS_PER_S))) == {"storm: shop": Storm(1, 10, 9, 10)}


# ---- where wakers were not gathered


def test_span_goes_back_only_to_where_wakers_are_gathered() -> None:
    machine = Machine(mode=OFFCPU)
    machine.go_on(5)
    machine.go_on(3, WAKEUP)
    assert machine.shown(ALL_OF_IT).common.span_ns == 3 * NS_PER_S
    assert machine.shown(ALL_OF_IT, OFFWAKE).common.span_ns == 3 * NS_PER_S
    assert machine.shown(ALL_OF_IT, OFFCPU).common.span_ns == 8 * NS_PER_S
    assert machine.shown(replace(ALL_OF_IT, span_ns=SINCE_START)).common.span_ns == 3 * NS_PER_S
    assert machine.shown(replace(ALL_OF_IT, span_ns=SINCE_START), OFFCPU).common.span_ns == 8 * NS_PER_S
    assert ms_a_second(machine.shown(replace(ALL_OF_IT, span_ns=SINCE_START)))[GOES_ON] == 1000
    assert not machine.shown(ALL_OF_IT, CHAIN).common.gathered
    machine.go_on(2, CHAIN)
    assert machine.shown(ALL_OF_IT, CHAIN).common.span_ns == 2 * NS_PER_S
    assert machine.shown(ALL_OF_IT).common.span_ns == 5 * NS_PER_S
    machine.go_on(1, OFFCPU)
    machine.go_on(1, WAKEUP)
    for span_ns in (10 * NS_PER_S, SINCE_START):
        assert machine.shown(replace(ALL_OF_IT, span_ns=span_ns)).common.span_ns == NS_PER_S


@pytest.mark.parametrize("mode", [WAKEUP, OFFWAKE, CHAIN])
@pytest.mark.parametrize("span_ns", [10 * NS_PER_S, SINCE_START])
def test_tick_without_wakers_has_no_list_tree_or_icicle(mode: str, span_ns: int) -> None:
    machine = Machine(mode=OFFCPU)
    machine.go_on(5)
    machine.go_on(5, mode)
    live = machine.shown(replace(ALL_OF_IT, span_ns=span_ns), mode)
    assert (live.common.gathered, bool(live.listed.ranking.rows), live.common.span_ns) == (True, True, 5 * NS_PER_S)
    third, seventh = (tick.at_ns for tick in machine.history.last(10**12) if tick.number in (3, 7))
    held = machine.shown(replace(ALL_OF_IT, span_ns=span_ns, paused_at_ns=third), mode)
    assert not held.common.gathered
    assert (held.listed.ranking.rows, held.listed.ranking.elided, held.tree, held.flame) == ((), None, None, None)
    assert held.common.totals.shown.total_ns  # the head knows how much waited
    later = machine.shown(replace(ALL_OF_IT, span_ns=span_ns, paused_at_ns=seventh), mode)
    assert (later.common.gathered, later.common.span_ns, bool(later.listed.ranking.rows)) == (True, 2 * NS_PER_S, True)
    assert machine.shown(replace(ALL_OF_IT, paused_at_ns=third), OFFCPU).listed.ranking.rows


def test_site_of_wakers_has_no_places_if_they_were_not_gathered() -> None:
    machine = Machine(mode=OFFCPU)
    machine.go_on(5)
    view = drilling.in_mode(ALL_OF_IT, OFFWAKE)
    assert machine.pictures.of(replace(view, focus=SITE, path=()), Room(site=50)) is not None
    picture = machine.shown(replace(ALL_OF_IT, objects=True))
    assert (picture.common.gathered, picture.listed.ranking.rows, picture.places.rows) == (False, (), ())


def test_timeline_of_a_waker_has_a_gap_where_wakers_were_not_gathered() -> None:
    machine = Machine(mode=OFFCPU)
    machine.go_on(9)
    machine.go_on(9, WAKEUP)
    room = replace(ROOM, timeline_cells=18, timeline_cell_ns=NS_PER_S)
    woken = replace(machine.shown(ALL_OF_IT).common.view, wakers=(BANK,), focus=LIST)
    assert machine.shown(woken, room=room).head.timeline.cells == (None,) * 9 + (0.1,) * 9
    everything = machine.shown(ALL_OF_IT, room=room).head.timeline.cells
    assert [round(value or 0, 2) for value in everything] == [1.87] * 18
    for text, before in ((f"wakerpid={BANK.pid}", None), ("object=pipe", 0.0)):  # which needs no wakers
        typed = machine.shown(replace(ALL_OF_IT, filter=parse(text)), OFFCPU, room)
        assert typed.head.timeline.cells == (before,) * 9 + (0.1,) * 9


def test_idle_machine_has_nothing_to_list() -> None:
    for table in ((), TABLE[-2:-1]):
        for mode in MODES:
            picture = after(3, table).shown(View(focus=LIST), mode)
            ranking = picture.listed.ranking
            assert (ranking.rows, ranking.elided, picture.common.gathered) == ((), None, True)


def test_first_snapshot_makes_no_picture_in_any_mode() -> None:
    machine = Machine()
    for mode in MODES:
        assert machine.pictures.of(drilling.in_mode(View(), mode), ROOM) is None


# ---- the other panes


@pytest.mark.parametrize(
    ("mode", "path"),
    [
        (OFFCPU, ["(still waiting)"]),
        (WAKEUP, ["(still waiting)"]),
        (OFFWAKE, ["(still waiting)"]),
        (CHAIN, ["(still waiting)"]),
    ],
)
def test_branches_have_the_oldest_wait_in_each_mode(mode: str, path: list[str]) -> None:
    picture = after(12).shown(ALL_OF_IT, mode)
    assert picture.tree is not None
    outermost = {key[0].name: age.text for key, age in picture.tree.now.items() if len(key) == 1}
    assert outermost == dict.fromkeys(path, "12.0s")
    leaf = {WAKEUP: "-> late"}.get(mode, "jbd2_log_wait_commit")
    assert leaf in {key[-1].name for key in picture.tree.now}


@pytest.mark.parametrize("mode", MODES)
def test_icicle_has_a_box_for_each_function_in_each_mode(mode: str) -> None:
    picture = after(12).shown(ALL_OF_IT, mode)
    assert picture.flame is not None
    boxes = {box.name for box in picture.flame.icicle.boxes}
    first = {WAKEUP: {"clerk", "teller", "-> shop"}, OFFCPU: {"main", "take_order"}}
    assert first.get(mode, {"main", "take_order", "-- woken by --", "clerk"}) <= boxes
    assert ("-- its last wait --" in boxes) is (mode == CHAIN)
    assert picture.flame.icicle.whole_ns in (17_600 * MS, 12 * 1_760 * MS, 18_600 * MS, 12 * 1_860 * MS)


def test_branch_beyond_the_waker_separator_can_be_selected() -> None:
    machine = after(12)
    picture = machine.shown(ALL_OF_IT, CHAIN)
    assert picture.tree is not None
    clerk = next(path for path in picture.tree.root.children if path.name == "main")
    path = next(branch.path for branch in picture.tree.branches if branch.path[-1].name == "clerk")
    assert path[0] == clerk
    site = machine.pictures.of(replace(picture.common.view, focus=SITE, path=path), Room(site=50))
    assert site is not None
    assert (site.common.selected.total_ns // MS, site.places.of_ns // MS, len(site.places.rows)) == (5_000, 17_600, 2)
    assert [row.part.total_ns // MS for row in site.places.rows] == [3_000, 2_000]


def test_rows_show_the_waking_code_from_the_newest_tick_that_has_it() -> None:
    book_of = after(12).shown(ALL_OF_IT)
    tops = {row.key: row.top for row in book_of.listed.ranking.rows}
    assert book_of.common.catalog.wake(tops[SHOP].wake).waker.comm == "clerk"
    assert tops[BELOW].wake == 0


def ticks_of(machine: Machine) -> list[HistoryTick]:
    return machine.history.last(10**12)


def test_packed_ticks_have_their_wakers_too() -> None:
    machine = Machine()
    machine.history = History(("poll",), never, max_bytes=150_000)
    machine.pictures = Pictures(machine.history, machine.source.names)
    machine.go_on(60)
    every = ticks_of(machine)
    assert any(tick.window is not tick.held for tick in every[:5])
    held = machine.shown(replace(ALL_OF_IT, paused_at_ns=every[3].at_ns, span_ns=NS_PER_S))
    assert ms_a_second(held)[SHOP] == 500
    assert storms(held) == {"storm: shop": Storm(2, 20, 18, 12)}
