"""A View is consistent whatever keys made it, and Escape leads from any to the top."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model import view as views
from offtop.model.book import ThreadKey
from offtop.model.cut import ALL
from offtop.model.filter import NOTHING, parse
from offtop.model.rows import NO_CGROUP, SORTS, Key
from offtop.model.snapshot import OUTSIDE, Filters
from offtop.model.tree import Path, Step
from offtop.model.view import CATEGORIES, FLAME, HEATMAP, LATENCY, LIST, OFF, SITE, STUCK, TREE, Cell, View
from offtop.units import NS_PER_S

T = TypeVar("T")
MAIN, SERVE, LEAF = Step("main", False), Step("serve", False), Step("futex", True)
WORKER = ThreadKey(7, 8)
paths = st.sampled_from([(MAIN,), (MAIN, SERVE), (MAIN, SERVE, LEAF)])


def entered(view: View, number: int) -> View:
    """As ENTER does it."""
    if view.focus == TREE:
        view = views.at_branch(view, (MAIN, SERVE), 0)
    return views.entered(view, row_key(view, number))


def row_key(view: View, number: int) -> Key:
    """As the list has it."""
    if view.lists_cgroups:
        return f"/docker/{number}"
    return ThreadKey(view.pid or 7, number) if view.lists_threads else number


def in_some_pane(view: View, pane: str) -> View:
    return view if pane == LATENCY and view.latency != HEATMAP else views.in_pane(view, pane)


def moved_in_the_list(view: View, number: int) -> View:
    return views.at_row(view, row_key(view, number))


def in_heat(view: View, row: int) -> View:
    return views.at_cell(view, Cell(row, row)) if view.focus == LATENCY else view


def next_pane(view: View, step: int) -> View:
    return views.next_pane(view, [CATEGORIES, LIST, TREE], step)


def zoomed_in(view: View, path: Path) -> View:
    return views.zoomed_in(view, path) if view.focus == FLAME else view


def moved_in_stuck(view: View, tid: int) -> View:
    return views.at_stuck(view, ThreadKey(7, tid)) if view.focus == STUCK else view


def opened_or_scrolled(view: View, line: int) -> View:
    return views.stuck_opened(view, line) if view.focus == STUCK and view.stuck.cursor else view


Press = Callable[[View], View]


def key_of(what: Callable[[View, T], View], those: st.SearchStrategy[T]) -> st.SearchStrategy[Press]:
    def with_one(one: T) -> Press:
        return lambda view: what(view, one)

    return those.map(with_one)


keys: st.SearchStrategy[Press] = st.one_of(
    st.sampled_from(
        [
            *(views.left, views.threads_or_processes, views.next_span, views.reversed_order, views.idle_or_not),
            *(views.narrowed_or_widened, views.next_names, views.tree_or_list, views.flame_or_not),
            *(views.zoomed_or_not, views.inverted, views.machinery_or_not, views.stuck_or_not, views.waiting),
            *(views.cgroups_or_not, views.account_or_not),
        ]
    ),
    key_of(entered, st.integers(1, 9)),
    key_of(moved_in_the_list, st.integers(1, 9)),
    key_of(in_some_pane, st.sampled_from([CATEGORIES, LIST, TREE, FLAME, LATENCY])),
    key_of(moved_in_stuck, st.integers(1, 9)),
    key_of(opened_or_scrolled, st.integers(0, 3)),
    key_of(views.at_category, st.sampled_from(["", "lock", "poll"])),
    key_of(views.with_latency, st.sampled_from(views.LATENCIES)),
    key_of(views.next_latency, st.sampled_from([views.HISTOGRAM, HEATMAP, OFF])),
    key_of(in_heat, st.integers(0, 9)),
    key_of(views.only_frames, st.sampled_from(["kernel", "user"])),
    key_of(views.pinned, st.sampled_from([7, 9, WORKER, "/docker/1"])),
    key_of(views.sorted_by, st.sampled_from(SORTS)),
    key_of(views.next_sort, st.integers(-3, 3)),
    key_of(views.filtered, st.sampled_from([parse(text) for text in ("", "mysql", "cat=lock max>1ms")])),
    key_of(views.of_user, st.sampled_from(["", "root"])),
    key_of(views.searched, st.sampled_from(["x", ""])),
    key_of(views.muted_or_not, st.sampled_from([parse("cat=lock"), parse("proc=a")])),
    key_of(views.shown_or_hidden, st.sampled_from(["tree", "MAX"])),
    key_of(views.paused_at, st.integers(1, 9)),
    key_of(next_pane, st.integers(-3, 3)),
    key_of(views.branch_opened, paths),
    key_of(views.branch_closed, paths),
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
def test_a_view_is_consistent_whatever_was_pressed(those: tuple[View, list[Press]]) -> None:
    view = pressed(those)
    assert bool(view.path) is (view.focus == SITE)
    assert view.thread is None or view.scope.pid == view.thread.pid
    assert view.thread is None or view.pid in (None, view.thread.pid)
    assert view.focus != LATENCY or view.latency == HEATMAP
    assert view.pin is not None or not view.narrowed
    assert len({one.text for one in view.muted}) == len(view.muted)
    assert view.asked == view.filters or view.narrowed
    assert not (view.lists_cgroups and view.lists_threads)
    assert view.group is None or view.filter.text.endswith(views.in_cgroup(view.group[0]).text)
    assert not view.tree.opened & view.tree.closed
    assert not view.stuck.opened or view.stuck.cursor
    assert view.came_from not in (STUCK, FLAME, SITE)
    assert not (view.zoomed and view.focus == STUCK)


@given(presses)
def test_what_is_stuck_is_a_list_when_one_comes_to_it_and_leads_back(those: tuple[View, list[Press]]) -> None:
    view = pressed(those)
    stuck = views.stuck_or_not(views.waiting(view))
    assert (stuck.focus, stuck.stuck.opened, stuck.path, stuck.stuck.cursor) == (STUCK, False, (), view.stuck.cursor)
    opened = views.stuck_opened(views.at_stuck(stuck, WORKER), 3)
    assert views.left(opened).stuck == views.StuckView(WORKER, scrolled=3) or view.search or view.zoomed
    for back in (views.waiting(opened), views.stuck_or_not(opened)):
        assert back.focus == stuck.came_from
        assert views.waiting(back) is back
    assert views.stuck_or_not(views.waiting(opened)).stuck == views.StuckView(WORKER)


def test_what_is_stuck_leads_past_the_icicle_and_the_site_to_where_those_came_from() -> None:
    flame = views.flame_or_not(View(focus=LIST))
    assert [views.waiting(views.stuck_or_not(view)).focus for view in (flame, STARTS[2])] == [LIST, TREE]
    assert views.flame_or_not(views.flame_or_not(views.stuck_or_not(View(focus=LIST)))).focus == LIST


@given(presses)
def test_escape_leads_to_the_top_from_everywhere_and_changes_nothing_there(those: tuple[View, list[Press]]) -> None:
    view = pressed(those)
    for _ in range(12):
        view = views.left(view)
    assert (view.focus, view.category, view.pid, view.thread, view.path) == (CATEGORIES, ALL, None, None, ())
    assert (view.filter, view.user, view.search, view.zoomed) == (NOTHING, "", "", False)
    assert views.left(view) == view


@given(presses)
def test_what_turns_something_over_turns_it_back(those: tuple[View, list[Press]]) -> None:
    view = pressed(those)
    for turn in (views.reversed_order, views.idle_or_not, views.zoomed_or_not):
        assert turn(turn(view)) == view
    for turn in (views.inverted, views.machinery_or_not):
        assert turn(turn(view)).tree.shape == view.tree.shape
    for title in ("tree", "MAX"):
        assert views.shown_or_hidden(views.shown_or_hidden(view, title), title) == view
    stepped = view
    for _ in range(4):
        stepped = views.next_span(stepped)
    assert stepped == view
    for _ in view.sorts:
        stepped = views.next_sort(stepped, 1)
    assert (stepped.sort, stepped.account_sort) == (view.sort, view.account_sort)
    muted = views.muted_or_not(view, parse("leaf=z"))
    assert views.muted_or_not(muted, parse("leaf=z")).muted == view.muted


def test_enter_goes_down_level_by_level_and_escape_up_by_the_same() -> None:
    top = View(category="lock")
    in_list = views.entered(top, None)
    process = views.entered(in_list, 7)
    thread = views.entered(process, WORKER)
    site = views.entered(views.at_branch(thread, (MAIN, SERVE), 3), None)
    assert [view.focus for view in (top, in_list, process, thread, site)] == [CATEGORIES, LIST, LIST, TREE, SITE]
    assert (process.pid, thread.thread, site.path) == (7, WORKER, (MAIN, SERVE))
    up = views.left(site)
    assert (up.focus, up.path, up.tree.cursor, up.tree.line) == (TREE, (), (MAIN, SERVE), 3)
    up = views.left(up)
    assert (up.thread, up.cursor, up.focus) == (None, WORKER, LIST)
    up = views.left(up)
    assert (up.pid, up.cursor, up.focus) == (None, 7, LIST)
    assert views.left(up).focus == CATEGORIES
    assert views.left(views.left(up)).category == ALL


def test_the_scope_of_a_thread_is_its_process_and_its_number() -> None:
    assert View().scope == ("", None, None, False)
    assert View(category="lock", pid=7, idle_shown=True).scope == ("lock", 7, None, True)
    assert View(thread=WORKER).scope == ("", 7, 8, False)


def test_a_narrowed_view_asks_the_kernel_for_the_pin_and_keeps_what_else_it_asks() -> None:
    view = View(filters=Filters(who="user"), pin=WORKER)
    assert view.asked == Filters(who="user")
    assert views.narrowed_or_widened(view).asked == Filters(tids=(8,), who="user")
    assert replace(view, pin=7, narrowed=True).asked == Filters(pids=(7,), who="user")
    assert views.narrowed_or_widened(View()).asked == Filters()
    beyond = replace(view, pin=ThreadKey(OUTSIDE, 8), narrowed=True)
    assert beyond.asked == Filters(pids=(OUTSIDE,), who="user")  # its tid may be another's in here
    assert not views.pinned(replace(view, narrowed=True), WORKER).narrowed


def test_a_cgroup_that_is_pinned_is_what_the_kernel_is_asked_for_among_those_that_it_counts_anyway() -> None:
    view = View(filters=Filters(pids=(7,), cgroup="/a"), pin="/a/b")
    assert view.asked == Filters(pids=(7,), cgroup="/a")
    assert views.narrowed_or_widened(view).asked == Filters(pids=(7,), cgroup="/a/b")


def test_enter_on_a_cgroup_goes_to_its_processes_and_escape_back_to_it_with_the_filter_of_before() -> None:
    before = parse("cat=lock max>1ms")
    listed = views.cgroups_or_not(View(focus=LIST, filter=before, threads=True))
    assert (listed.lists_cgroups, listed.lists_threads) == (True, False)
    inside = views.entered(listed, "/a b.slice/c")
    assert (inside.lists_cgroups, inside.lists_threads, inside.cursor) == (False, False, None)
    assert inside.filter.text == 'cat=lock max>1ms cgroup="/a b.slice/c"'
    assert (len(inside.filter.waits), inside.filter.rows) == (2, parse(inside.filter.text).rows)
    process = views.entered(inside, 7)
    assert (process.pid, process.filter) == (7, inside.filter)
    assert views.left(process) == replace(inside, cursor=7)
    for out in (views.left(inside), views.cgroups_or_not(inside)):
        assert (out.lists_cgroups, out.cursor, out.filter, out.group) == (True, "/a b.slice/c", before, None)
    assert views.entered(View(focus=LIST, cgroups=True), NO_CGROUP).filter.text == 'cgroup=""'
    long = views.entered(View(focus=LIST, cgroups=True), "/" + "x" * 4000)
    assert len(long.filter.text) > 4000


def test_h_leaves_cgroups_for_threads_and_another_filter_stays_among_processes() -> None:
    listed = View(focus=LIST, cgroups=True)
    threads = views.threads_or_processes(listed)
    assert (threads.lists_threads, threads.lists_cgroups) == (True, False)
    assert not views.threads_or_processes(threads).lists_threads
    inside = views.entered(listed, "/a")
    other = views.filtered(inside, parse("comm=x"))
    assert (other.group, other.lists_cgroups, views.left(other).focus) == (None, False, CATEGORIES)


@pytest.mark.parametrize("delay_ns", [0, NS_PER_S // 10 - 1, 60 * NS_PER_S + 1])
def test_a_delay_has_its_bounds(delay_ns: int) -> None:
    with pytest.raises(ValueError, match=str(delay_ns)):
        views.with_delay(View(), delay_ns)
    assert views.with_delay(View(), NS_PER_S // 10).delay_ns == NS_PER_S // 10


@given(st.lists(paths, max_size=5), st.lists(paths, max_size=5))
def test_what_was_closed_by_hand_does_not_grow_open(shut: list[Path], large: list[Path]) -> None:
    view = View()
    for path in shut:
        view = views.branch_closed(view, path)
    before = view.tree.opened
    view = views.grown(view, large)
    for path in view.tree.opened - before:
        assert not any(path[: len(one)] == one for one in shut)
    for path in large:
        assert path in view.tree.opened or any(path[: len(one)] == one for one in shut)


def test_another_category_forgets_what_was_open_but_not_the_shape() -> None:
    view = views.branch_opened(views.inverted(View()), (LEAF,))
    other = views.at_category(view, "lock")
    assert (other.tree.opened, other.tree.shape.inverted) == (frozenset(), True)
    assert views.at_category(other, "lock") is other


def test_tab_goes_round_the_panes_it_is_given() -> None:
    panes = [CATEGORIES, LIST, TREE]
    view = View()
    assert [(view := views.next_pane(view, panes, 1)).focus for _ in panes] == [LIST, TREE, CATEGORIES]
    assert views.next_pane(view, panes, -1).focus == TREE
    assert views.next_pane(view, [], 1) == view
    assert views.next_pane(replace(view, focus=FLAME), panes, 1).focus == CATEGORIES


def test_no_way_out_of_a_site_keeps_its_branch() -> None:
    site = STARTS[2]
    ways = [
        *(views.left(site), views.threads_or_processes(site), views.tree_or_list(site), views.flame_or_not(site)),
        *(views.inverted(site), views.machinery_or_not(site), views.only_frames(site, "kernel")),
        *(views.at_category(site, "lock"), views.filtered(site, parse("x")), views.of_user(site, "root")),
        *(views.muted_or_not(site, parse("x")), views.next_pane(site, [CATEGORIES, SITE], 1)),
        *(views.next_latency(site, views.HISTOGRAM), views.at_cell(site, Cell(1, 1)), views.in_pane(site, LIST)),
    ]
    assert [(view.path, view.focus == SITE) for view in ways] == [((), False)] * len(ways)
