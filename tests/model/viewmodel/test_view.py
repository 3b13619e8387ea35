"""A View is consistent whatever keys made it, and Escape leads from any to the top."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate.filter import NOTHING
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.aggregate.row_names import NO_CGROUP
from offtop.model.aggregate.rows import SORTS, Key
from offtop.model.aggregate.steps import Path, Step
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import Reason
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import OUTSIDE, Filters
from offtop.model.values.wake import CHAIN, MODES, OFFCPU, OFFWAKE, WAKEUP, Object
from offtop.model.viewmodel import drilling, panes, view_changes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.view import CATEGORIES, FLAME, HEATMAP, LATENCY, LIST, OFF, SITE, STUCK, TREE, Cell, View
from offtop.model.windows.breakdown import ALL, Scope
from offtop.units import NS_PER_S

T = TypeVar("T")
MAIN, SERVE, LEAF = Step("main", False), Step("serve", False), Step("futex", True)
WORKER = ThreadKey(7, 8)
paths = st.sampled_from([(MAIN,), (MAIN, SERVE), (MAIN, SERVE, LEAF)])


def entered(view: View, number: int) -> View:
    """As ENTER does it."""
    if view.focus == TREE:
        view = panes.at_branch(view, (MAIN, SERVE), 0)
    return drilling.entered(view, row_key(view, number))


def row_key(view: View, number: int) -> Key:
    """As the list has it."""
    if view.lists_objects:
        return Object("pipe" if number < 8 else "", f"pipe:[{number}]")
    if view.lists_reasons:
        return Reason(f"lock {number}")
    if view.lists_wakers:
        waker = WakerKey("storm: cook" if number == 1 else "cook", 7, number if view.lists_waking_threads else 0)
        return waker if number < 8 else WakerKey("timeout")
    if view.lists_cgroups:
        return f"/docker/{number}"
    return ThreadKey(view.pid or 7, number) if view.lists_threads else number


def in_some_pane(view: View, pane: str) -> View:
    return view if pane == LATENCY and view.latency != HEATMAP else view_changes.in_pane(view, pane)


def moved_in_the_list(view: View, number: int) -> View:
    return drilling.at_row(view, row_key(view, number))


def in_heat(view: View, row: int) -> View:
    return view_changes.at_cell(view, Cell(row, row)) if view.focus == LATENCY else view


def next_pane(view: View, step: int) -> View:
    return view_changes.next_pane(view, [CATEGORIES, LIST, TREE], step)


def zoomed_in(view: View, path: Path) -> View:
    return panes.zoomed_in(view, path) if view.focus == FLAME else view


def moved_in_stuck(view: View, tid: int) -> View:
    return panes.at_stuck(view, ThreadKey(7, tid)) if view.focus == STUCK else view


def opened_or_scrolled(view: View, line: int) -> View:
    return panes.stuck_opened(view, line) if view.focus == STUCK and view.stuck.cursor else view


Press = Callable[[View], View]


def key_of(what: Callable[[View, T], View], those: st.SearchStrategy[T]) -> st.SearchStrategy[Press]:
    def with_one(one: T) -> Press:
        return lambda view: what(view, one)

    return those.map(with_one)


keys: st.SearchStrategy[Press] = st.one_of(
    st.sampled_from(
        [
            *(
                drilling.left,
                drilling.threads_or_processes,
                view_changes.next_span,
                view_changes.reversed_order,
                view_changes.idle_or_not,
            ),
            *(view_changes.narrowed_or_widened, view_changes.next_names, panes.tree_or_list, panes.flame_or_not),
            *(
                panes.zoomed_or_not,
                panes.inverted,
                panes.machinery_or_not,
                panes.stuck_or_not,
                panes.off_cpu_panes,
            ),
            *(drilling.cgroups_or_not, drilling.account_or_not, drilling.objects_or_not, drilling.reasons_or_not),
        ]
    ),
    key_of(drilling.in_mode, st.sampled_from(MODES)),
    key_of(entered, st.integers(1, 9)),
    key_of(moved_in_the_list, st.integers(1, 9)),
    key_of(in_some_pane, st.sampled_from([CATEGORIES, LIST, TREE, FLAME, LATENCY])),
    key_of(moved_in_stuck, st.integers(1, 9)),
    key_of(opened_or_scrolled, st.integers(0, 3)),
    key_of(drilling.at_category, st.sampled_from(["", "lock", "poll"])),
    key_of(view_changes.with_latency, st.sampled_from(views.LATENCIES)),
    key_of(view_changes.next_latency, st.sampled_from([views.HISTOGRAM, HEATMAP, OFF])),
    key_of(in_heat, st.integers(0, 9)),
    key_of(panes.only_frames, st.sampled_from(["kernel", "user"])),
    key_of(view_changes.pinned, st.sampled_from([7, 9, WORKER, "/docker/1"])),
    key_of(view_changes.sorted_by, st.sampled_from(SORTS)),
    key_of(view_changes.next_sort, st.integers(-3, 3)),
    key_of(view_changes.filtered, st.sampled_from([parse(text) for text in ("", "mysql", "cat=lock max>1ms")])),
    key_of(view_changes.of_user, st.sampled_from(["", "root"])),
    key_of(view_changes.searched, st.sampled_from(["x", ""])),
    key_of(view_changes.muted_or_not, st.sampled_from([parse("cat=lock"), parse("proc=a")])),
    key_of(view_changes.shown_or_hidden, st.sampled_from(["tree", "MAX"])),
    key_of(view_changes.paused_at, st.integers(1, 9)),
    key_of(next_pane, st.integers(-3, 3)),
    key_of(panes.branch_opened, paths),
    key_of(panes.branch_closed, paths),
    key_of(zoomed_in, paths),
)


STARTS = (
    View(),
    View(pid=7, thread=WORKER, cursor=WORKER, focus=TREE),
    View(pid=7, thread=WORKER, cursor=WORKER, focus=SITE, path=(MAIN, SERVE)),
    View(latency=HEATMAP, focus=LATENCY),
    View(pid=7, thread=WORKER, cursor=WORKER, focus=STUCK, came_from=TREE),
)
presses = st.tuples(st.sampled_from(STARTS), st.lists(keys, max_size=20))


def pressed(those: tuple[View, list[Press]]) -> View:
    view, pressed_keys = those
    for key in pressed_keys:
        view = key(view)
    return view


@given(presses)
def test_view_is_consistent_whatever_was_pressed(those: tuple[View, list[Press]]) -> None:
    view = pressed(those)
    assert bool(view.path) is (view.focus == SITE)
    assert view.thread is None or view.scope.pid == view.thread.pid
    assert view.thread is None or view.pid in (None, view.thread.pid)
    assert view.focus != LATENCY or view.latency == HEATMAP
    assert view.pin is not None or not view.narrowed
    assert len({one.text for one in view.muted}) == len(view.muted)
    assert view.measured_filters == view.filters or view.narrowed
    assert not (view.lists_cgroups and view.lists_threads)
    assert view.group is None or view.filter.text.endswith(view_changes.in_cgroup(view.group[0]).text)
    assert not view.tree.opened & view.tree.closed
    assert not view.stuck.opened or view.stuck.cursor
    assert view.came_from not in (STUCK, FLAME, SITE)
    assert not (view.zoomed and view.focus == STUCK)
    assert view.tree.shape.mode == view.mode
    assert view.mode != OFFCPU or not view.wakers
    lists = view.lists_wakers, view.lists_objects, view.lists_reasons, view.lists_threads, view.lists_cgroups
    assert lists.count(True) < 2
    assert all(one.tid == 0 and one.pid for one in view.wakers[:-1])
    assert not any(one.name.startswith("storm: ") for one in view.wakers)
    assert view.scope.blocked is (view.mode != OFFCPU)


def test_closed_branch_in_which_another_was_opened_and_closed_is_open() -> None:
    view = panes.branch_closed(View(), (MAIN, SERVE))
    view = panes.branch_closed(panes.branch_opened(view, (MAIN, SERVE, LEAF)), (MAIN, SERVE, LEAF))
    assert (view.tree.opened, view.tree.closed) == ({(MAIN, SERVE)}, {(MAIN, SERVE, LEAF)})


@given(presses)
def test_waits_in_progress_open_as_a_list_and_lead_back(those: tuple[View, list[Press]]) -> None:
    view = pressed(those)
    stuck = panes.stuck_or_not(panes.off_cpu_panes(view))
    assert (stuck.focus, stuck.stuck.opened, stuck.path, stuck.stuck.cursor) == (STUCK, False, (), view.stuck.cursor)
    opened = panes.stuck_opened(panes.at_stuck(stuck, WORKER), 3)
    assert drilling.left(opened).stuck == views.StuckView(WORKER, scrolled=3) or view.search or view.zoomed
    for back in (panes.off_cpu_panes(opened), panes.stuck_or_not(opened)):
        assert back.focus == stuck.came_from
        assert panes.off_cpu_panes(back) is back
    assert panes.stuck_or_not(panes.off_cpu_panes(opened)).stuck == views.StuckView(WORKER)


def test_waits_in_progress_lead_back_to_the_pane_before_icicle_or_site() -> None:
    flame = panes.flame_or_not(View(focus=LIST))
    assert [panes.off_cpu_panes(panes.stuck_or_not(view)).focus for view in (flame, STARTS[2])] == [LIST, TREE]
    assert panes.flame_or_not(panes.flame_or_not(panes.stuck_or_not(View(focus=LIST)))).focus == LIST


@given(presses)
def test_escape_leads_to_the_top_from_everywhere_and_changes_nothing_there(those: tuple[View, list[Press]]) -> None:
    view = pressed(those)
    for _ in range(16):
        view = drilling.left(view)
    assert (view.wakers, view.object, view.pool, view.group, view.drilled) == ((), None, None, None, "")
    assert (view.focus, view.category, view.pid, view.thread, view.path) == (CATEGORIES, ALL, None, None, ())
    assert (view.filter, view.user, view.search, view.zoomed) == (NOTHING, "", "", False)
    assert drilling.left(view) == view


@given(presses)
def test_toggles_pressed_twice_change_nothing(those: tuple[View, list[Press]]) -> None:
    view = pressed(those)
    for turn in (view_changes.reversed_order, view_changes.idle_or_not, panes.zoomed_or_not):
        assert turn(turn(view)) == view
    for turn in (panes.inverted, panes.machinery_or_not):
        assert turn(turn(view)).tree.shape == view.tree.shape
    for title in ("tree", "MAX"):
        assert view_changes.shown_or_hidden(view_changes.shown_or_hidden(view, title), title) == view
    stepped = view
    for _ in range(4):
        stepped = view_changes.next_span(stepped)
    assert stepped == view
    for _ in view.sorts:
        stepped = view_changes.next_sort(stepped, 1)
    assert (stepped.sort, stepped.account_sort) == (view.sort, view.account_sort)
    muted = view_changes.muted_or_not(view, parse("leaf=z"))
    assert view_changes.muted_or_not(muted, parse("leaf=z")).muted == view.muted


def test_enter_goes_down_level_by_level_and_escape_back_up() -> None:
    top = View(category="lock")
    in_list = drilling.entered(top, None)
    process = drilling.entered(in_list, 7)
    thread = drilling.entered(process, WORKER)
    site = drilling.entered(panes.at_branch(thread, (MAIN, SERVE), 3), None)
    assert [view.focus for view in (top, in_list, process, thread, site)] == [CATEGORIES, LIST, LIST, TREE, SITE]
    assert (process.pid, thread.thread, site.path) == (7, WORKER, (MAIN, SERVE))
    up = drilling.left(site)
    assert (up.focus, up.path, up.tree.cursor, up.tree.line) == (TREE, (), (MAIN, SERVE), 3)
    up = drilling.left(up)
    assert (up.thread, up.cursor, up.focus) == (None, WORKER, LIST)
    up = drilling.left(up)
    assert (up.pid, up.cursor, up.focus) == (None, 7, LIST)
    assert drilling.left(up).focus == CATEGORIES
    assert drilling.left(drilling.left(up)).category == ALL


def test_scope_of_a_thread_is_its_pid_and_tid() -> None:
    assert View().scope == Scope(idle=False)
    assert View(category="lock", pid=7, idle_shown=True).scope == Scope("lock", 7)
    assert View(thread=WORKER).scope == Scope("", 7, 8, idle=False)


def test_narrowed_view_adds_the_pin_to_the_kernel_s_filters() -> None:
    view = View(filters=Filters(who="user"), pin=WORKER)
    assert view.measured_filters == Filters(who="user")
    assert view_changes.narrowed_or_widened(view).measured_filters == Filters(tids=(8,), who="user")
    assert replace(view, pin=7, narrowed=True).measured_filters == Filters(pids=(7,), who="user")
    assert view_changes.narrowed_or_widened(View()).measured_filters == Filters()
    beyond = replace(view, pin=ThreadKey(OUTSIDE, 8), narrowed=True)
    assert beyond.measured_filters == Filters(
        pids=(OUTSIDE,), who="user"
    )  # its tid may belong to another thread in here
    assert not view_changes.pinned(replace(view, narrowed=True), WORKER).narrowed


def test_pinned_cgroup_is_added_to_the_kernel_s_filters() -> None:
    view = View(filters=Filters(pids=(7,), cgroup="/a"), pin="/a/b")
    assert view.measured_filters == Filters(pids=(7,), cgroup="/a")
    assert view_changes.narrowed_or_widened(view).measured_filters == Filters(pids=(7,), cgroup="/a/b")


def test_enter_on_a_cgroup_goes_to_its_processes_and_escape_back_with_the_earlier_filter() -> None:
    before = parse("cat=lock max>1ms")
    listed = drilling.cgroups_or_not(View(focus=LIST, filter=before, threads=True))
    assert (listed.lists_cgroups, listed.lists_threads) == (True, False)
    inside = drilling.entered(listed, "/a b.slice/c")
    assert (inside.lists_cgroups, inside.lists_threads, inside.cursor) == (False, False, None)
    assert inside.filter.text == 'cat=lock max>1ms cgroup="/a b.slice/c"'
    assert (len(inside.filter.waits), inside.filter.rows) == (2, parse(inside.filter.text).rows)
    process = drilling.entered(inside, 7)
    assert (process.pid, process.filter) == (7, inside.filter)
    assert drilling.left(process) == replace(inside, cursor=7)
    for out in (drilling.left(inside), drilling.cgroups_or_not(inside)):
        assert (out.lists_cgroups, out.cursor, out.filter, out.group) == (True, "/a b.slice/c", before, None)
    assert drilling.entered(View(focus=LIST, cgroups=True), NO_CGROUP).filter.text == 'cgroup=""'
    long = drilling.entered(View(focus=LIST, cgroups=True), "/" + "x" * 4000)
    assert len(long.filter.text) > 4000


def test_h_leaves_cgroups_for_threads_and_another_filter_keeps_processes() -> None:
    listed = View(focus=LIST, cgroups=True)
    threads = drilling.threads_or_processes(listed)
    assert (threads.lists_threads, threads.lists_cgroups) == (True, False)
    assert not drilling.threads_or_processes(threads).lists_threads
    inside = drilling.entered(listed, "/a")
    other = view_changes.filtered(inside, parse("comm=x"))
    assert (other.group, other.lists_cgroups, drilling.left(other).focus) == (None, False, CATEGORIES)


@pytest.mark.parametrize("delay_ns", [0, NS_PER_S // 10 - 1, 60 * NS_PER_S + 1])
def test_delay_has_bounds(delay_ns: int) -> None:
    with pytest.raises(ValueError, match=str(delay_ns)):
        view_changes.with_delay(View(), delay_ns)
    assert view_changes.with_delay(View(), NS_PER_S // 10).delay_ns == NS_PER_S // 10


@given(st.lists(paths, max_size=5), st.lists(paths, max_size=5))
def test_branch_closed_by_the_user_does_not_open_by_itself(shut: list[Path], large: list[Path]) -> None:
    view = View()
    for path in shut:
        view = panes.branch_closed(view, path)
    before = view.tree.opened
    view = panes.grown(view, large)
    for path in view.tree.opened - before:
        assert not any(path[: len(one)] == one for one in shut)
    for path in large:
        assert path in view.tree.opened or any(path[: len(one)] == one for one in shut)


def test_another_category_drops_what_was_open_but_keeps_the_shape() -> None:
    view = panes.branch_opened(panes.inverted(View()), (LEAF,))
    other = drilling.at_category(view, "lock")
    assert (other.tree.opened, other.tree.shape.inverted) == (frozenset(), True)
    assert drilling.at_category(other, "lock") is other


def test_tab_goes_round_the_given_panes() -> None:
    panes = [CATEGORIES, LIST, TREE]
    view = View()
    assert [(view := view_changes.next_pane(view, panes, 1)).focus for _ in panes] == [LIST, TREE, CATEGORIES]
    assert view_changes.next_pane(view, panes, -1).focus == TREE
    assert view_changes.next_pane(view, [], 1) == view
    assert view_changes.next_pane(replace(view, focus=FLAME), panes, 1).focus == CATEGORIES


def test_every_way_out_of_a_site_leaves_its_branch() -> None:
    site = STARTS[2]
    ways = [
        *(
            drilling.left(site),
            drilling.threads_or_processes(site),
            panes.tree_or_list(site),
            panes.flame_or_not(site),
        ),
        *(panes.inverted(site), panes.machinery_or_not(site), panes.only_frames(site, "kernel")),
        *(
            drilling.at_category(site, "lock"),
            view_changes.filtered(site, parse("x")),
            view_changes.of_user(site, "root"),
        ),
        *(view_changes.muted_or_not(site, parse("x")), view_changes.next_pane(site, [CATEGORIES, SITE], 1)),
        *(
            view_changes.next_latency(site, views.HISTOGRAM),
            view_changes.at_cell(site, Cell(1, 1)),
            view_changes.in_pane(site, LIST),
        ),
    ]
    assert [(view.path, view.focus == SITE) for view in ways] == [((), False)] * len(ways)


# Modes


SHOP, COOK, TIMEOUT = WakerKey("shop", 7), WakerKey("cook", 7, 72), WakerKey("timeout")
PIPE = Object("pipe", "pipe:[77]")
GIL = Reason("Python's GIL")
TOP = drilling.in_mode(View(focus=LIST), WAKEUP)


def test_enter_leads_from_a_waking_process_to_its_threads_to_a_tree_and_escape_back() -> None:
    process = drilling.entered(TOP, SHOP)
    thread = drilling.entered(process, COOK)
    assert (process.wakers, process.focus, process.lists_waking_threads) == ((SHOP,), LIST, True)
    assert (thread.wakers, thread.focus, thread.cursor, thread.is_at_waker) == ((SHOP, COOK), TREE, COOK, True)
    up = drilling.left(thread)
    assert (up.wakers, up.focus, up.cursor) == ((SHOP,), LIST, COOK)
    up = drilling.left(up)
    assert (up.wakers, up.focus, up.cursor, up.way) == ((), LIST, SHOP, ())
    assert drilling.left(up).focus == CATEGORIES


def test_wakers_without_a_list_of_threads_lead_to_their_tree() -> None:
    by_threads = drilling.threads_or_processes(TOP)
    for view, key in ((TOP, TIMEOUT), (by_threads, COOK)):
        inside = drilling.entered(view, key)
        assert (inside.wakers, inside.focus, inside.is_at_waker) == ((key,), TREE, True)
        for up in (drilling.left(inside), panes.tree_or_list(inside)):
            assert (up.wakers, up.focus, up.cursor) == ((), LIST, key)
    # the tree of a process's wakers is left for the list of its threads
    tree = panes.tree_or_list(drilling.entered(TOP, SHOP))
    for up in (drilling.left(tree), panes.tree_or_list(tree)):
        assert (up.wakers, up.focus) == ((SHOP,), LIST)


def test_storm_leads_to_its_waker() -> None:
    assert drilling.entered(TOP, WakerKey("storm: shop", 7)).wakers == (SHOP,)
    assert drilling.entered(drilling.entered(TOP, SHOP), WakerKey("storm: cook", 7, 72)).wakers == (SHOP, COOK)


def test_h_switches_between_waking_threads_and_processes_and_keeps_the_sleepers() -> None:
    of_worker = replace(TOP, pid=7, thread=WORKER)
    by_threads = drilling.threads_or_processes(of_worker)
    assert (by_threads.lists_waking_threads, by_threads.thread, by_threads.pid) == (True, WORKER, 7)
    again = drilling.threads_or_processes(by_threads)
    assert (again.lists_waking_threads, again.lists_wakers) == (False, True)
    up = drilling.threads_or_processes(drilling.entered(TOP, SHOP))  # of one process they are listed already
    assert (up.wakers, up.lists_waking_threads) == ((), False)


def test_list_of_objects_leads_to_the_threads_that_waited_or_woke_there() -> None:
    sleepers = "lists_sleepers"
    for mode, what in ((OFFCPU, sleepers), (WAKEUP, "lists_wakers"), (OFFWAKE, sleepers), (CHAIN, sleepers)):
        listed = drilling.objects_or_not(drilling.in_mode(View(focus=LIST), mode))
        assert (listed.lists_objects, listed.lists_wakers, listed.lists_sleepers) == (True, False, False)
        inside = drilling.entered(listed, PIPE)
        assert (inside.object, inside.lists_objects, getattr(inside, what), inside.cursor) == (PIPE, False, True, None)
        for out in (drilling.left(inside), drilling.objects_or_not(inside)):
            assert (out.object, out.lists_objects, out.cursor, out.focus) == (None, True, PIPE, LIST)
        assert drilling.entered(listed, Object(name="(exited)")) == listed  # it is unknown what that was
        assert not drilling.objects_or_not(listed).lists_objects


def test_list_of_causes_leads_to_the_threads_that_waited_for_them() -> None:
    for mode, what in ((OFFCPU, "lists_sleepers"), (WAKEUP, "lists_wakers")):
        listed = drilling.reasons_or_not(drilling.in_mode(View(focus=LIST), mode))
        assert (listed.lists_reasons, getattr(listed, what)) == (True, False)
        inside = drilling.entered(listed, GIL)
        assert (inside.reason, inside.lists_reasons, getattr(inside, what), inside.cursor) == (GIL, False, True, None)
        for out in (drilling.left(inside), drilling.reasons_or_not(inside)):
            assert (out.reason, out.lists_reasons, out.cursor, out.focus) == (None, True, GIL, LIST)
        assert not drilling.reasons_or_not(listed).lists_reasons
        things = drilling.objects_or_not(listed)  # one list takes the other's place
        assert (things.lists_objects, things.lists_reasons) == (True, False)
        again = drilling.reasons_or_not(things)
        assert (again.lists_objects, again.lists_reasons) == (False, True)
        assert drilling.threads_or_processes(listed).lists_reasons is False
    of_pipe = drilling.objects_or_not(drilling.entered(inside, 7))  # of one reason and process, the things
    assert (of_pipe.reason, of_pipe.pid, of_pipe.lists_objects) == (GIL, 7, True)


def test_h_and_c_leave_objects_for_their_own_lists() -> None:
    listed = drilling.objects_or_not(drilling.in_mode(View(focus=LIST), OFFWAKE))
    assert drilling.threads_or_processes(listed).lists_threads
    assert drilling.cgroups_or_not(listed).lists_cgroups
    waking = drilling.threads_or_processes(drilling.in_mode(listed, WAKEUP))
    assert (waking.lists_wakers, waking.lists_waking_threads) == (True, True)
    inside = drilling.threads_or_processes(drilling.entered(listed, PIPE))
    assert (inside.lists_threads, inside.object, drilling.left(inside).lists_objects) == (True, PIPE, True)


def test_escape_leaves_what_was_entered_last() -> None:
    things = drilling.objects_or_not(drilling.in_mode(View(focus=LIST), OFFWAKE))
    on_pipe = drilling.entered(things, PIPE)
    process = drilling.entered(on_pipe, 7)
    thread = drilling.entered(process, WORKER)
    assert [(view.object, view.pid, view.thread) for view in (on_pipe, process, thread)] == [
        *((PIPE, None, None), (PIPE, 7, None), (PIPE, 7, WORKER))
    ]
    up = drilling.left(thread)
    assert (up.object, up.pid, up.thread, up.cursor) == (PIPE, 7, None, WORKER)
    up = drilling.left(up)
    assert (up.object, up.pid, up.cursor) == (PIPE, None, 7)
    assert drilling.left(up).object is None

    process = drilling.objects_or_not(drilling.entered(drilling.in_mode(View(focus=LIST), OFFWAKE), 7))
    on_pipe = drilling.entered(process, PIPE)
    up = drilling.left(on_pipe)
    assert (up.object, up.pid, up.lists_objects) == (None, 7, True)
    assert drilling.left(up).pid is None

    woken = drilling.entered(drilling.in_mode(process, WAKEUP), PIPE)
    waker = drilling.entered(drilling.entered(woken, SHOP), COOK)
    up = drilling.left(drilling.left(waker))
    assert (up.wakers, up.object, up.pid) == ((), PIPE, 7)
    up = drilling.left(up)
    assert (up.object, up.pid) == (None, 7)


def test_waker_stays_selected_in_modes_with_wakers_and_is_left_in_one_step() -> None:
    thread = drilling.entered(drilling.entered(TOP, SHOP), COOK)
    for mode in (OFFWAKE, CHAIN):
        view = drilling.in_mode(thread, mode)
        assert (view.wakers, view.focus, view.lists_sleepers, view.cursor) == ((SHOP, COOK), TREE, True, None)
        in_list = drilling.left(view)
        assert (in_list.wakers, in_list.focus) == ((SHOP, COOK), LIST)
        process = drilling.entered(in_list, 9)
        assert (drilling.left(process).wakers, drilling.left(process).pid) == ((SHOP, COOK), None)
        assert (drilling.left(in_list).wakers, drilling.left(in_list).focus) == ((), LIST)
        back = drilling.in_mode(process, WAKEUP)
        assert (back.wakers, drilling.left(back).pid, back.scope.pid) == ((SHOP, COOK), None, 9)


def test_off_cpu_mode_keeps_nothing_that_it_cannot_show() -> None:
    things = drilling.objects_or_not(TOP)
    inside = drilling.entered(things, PIPE)
    for view in (drilling.entered(drilling.entered(TOP, SHOP), COOK), inside, things):
        plain = drilling.in_mode(replace(view, pid=7, category="lock"), OFFCPU)
        assert (plain.wakers, plain.object, plain.cursor) == ((), PIPE if view is inside else None, None)
        assert (plain.lists_sleepers, plain.lists_objects) == (view is not things, view is things)
        assert (plain.pid, plain.category, plain.tree.shape.mode) == (7, "lock", OFFCPU)
        assert drilling.in_mode(plain, OFFCPU) is plain


@given(presses, st.sampled_from(MODES))
def test_another_mode_keeps_the_selection(those: tuple[View, list[Press]], mode: str) -> None:
    view = pressed(those)
    other = drilling.in_mode(view, mode)
    for name in ("category", "pid", "pool", "thread", "filter", "user", "muted", "group", "pin", "span_ns", "sort"):
        assert getattr(other, name) == getattr(view, name)
    assert (other.tree.shape._replace(mode=""), other.mode) == (view.tree.shape._replace(mode=""), mode)
    turned = TREE if view.focus == SITE and mode != view.mode else view.focus
    assert other.focus == (view.came_from if view.focus == STUCK else turned)
    assert mode == OFFCPU or (other.wakers, other.object, other.objects) == (view.wakers, view.object, view.objects)
    if mode != view.mode:
        assert (other.tree.opened, other.flame.zoom, other.path, other.cell) == (frozenset(), (), (), None)


def test_list_of_wakers_covers_the_selected_thread() -> None:
    view = drilling.in_mode(View(pid=7, thread=WORKER, focus=TREE), WAKEUP)
    assert view.scope == Scope("", 7, 8, idle=False, blocked=True)
    assert drilling.at_row(replace(view, focus=LIST), COOK).cursor == COOK


@pytest.mark.parametrize("toggle", [drilling.objects_or_not, drilling.reasons_or_not])
def test_going_up_leaves_the_list_of_objects_or_causes(toggle: Callable[[View], View]) -> None:
    listed = toggle(View())
    assert listed.objects or listed.reasons
    assert not (drilling.left(listed).objects or drilling.left(listed).reasons)
