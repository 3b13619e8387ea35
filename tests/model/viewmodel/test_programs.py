"""Programs in the list: their sums, levels, cursor, pin, account and comparison."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate.filter_syntax import parse
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.rows import ACCOUNT_SORTS, SORTS, Key, Row
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Machine as Cpus
from offtop.model.values.wake import OFFCPU
from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import LIST, View
from offtop.model.windows.baseline import Baseline, baseline_of, parts_of
from offtop.model.windows.breakdown import ALL, total
from offtop.units import NS_PER_S
from tests.model.viewmodel.test_listing import MS, ROOM, Machine
from tests.ui.scripted import BANKS, SAID, Waits

POSTGRES, KWORKERS = Program("postgres"), Program("kworker/*")
LISTED = View(focus=LIST)


def after(ticks: int = 12, table: tuple[Waits, ...] = BANKS) -> Machine:
    machine = Machine(table)
    machine.source.titles = SAID
    machine.go_on(ticks)
    return machine


MACHINE = after()


def shown(view: View, machine: Machine = MACHINE) -> Picture:
    return machine.shown(view, OFFCPU)


def rows(view: View, machine: Machine = MACHINE) -> dict[Key, Row]:
    return {row.key: row for row in shown(view, machine).listed.ranking.rows}


def ms(view: View, machine: Machine = MACHINE) -> dict[Key, int]:
    """Key → ms in each second."""
    picture = shown(view, machine)
    rows, span_ns = picture.listed.ranking.rows, picture.common.span_ns
    return {row.key: row.part.total_ns // MS * NS_PER_S // span_ns for row in rows}


def under_cursor(picture: Picture) -> Key:
    return picture.listed.ranking.rows[picture.listed.cursor].key


def test_processes_of_a_program_are_one_row_with_their_sum() -> None:
    found = rows(LISTED)
    assert ms(LISTED) == {POSTGRES: 650, 500: 350, 200: 100, KWORKERS: 50}
    row = found[POSTGRES]
    assert (row.name, row.processes, row.threads, row.pid) == ("postgres", 3, 3, 0)
    assert (row.part.waits, row.part.max_ns) == (40 + 100, 300 * MS)
    one_by_one = rows(replace(LISTED, programs=False))
    assert row.part == total(one_by_one[pid].part for pid in (978, 979))
    assert row.percentile_ns(99) == 300 * MS


def test_oldest_wait_in_progress_of_a_program_is_that_of_its_processes() -> None:
    assert rows(replace(LISTED, idle_shown=True))[POSTGRES].now.ns == 12 * NS_PER_S
    assert rows(LISTED)[POSTGRES].now.ns == 0


VIEWS = st.builds(
    View,
    category=st.sampled_from([ALL, "lock", "short", "run-queue", "fsync", "disk-write"]),
    program=st.sampled_from([None, None, POSTGRES, KWORKERS]),
    threads=st.booleans(),
    cgroups=st.booleans(),
    account=st.booleans(),
    programs=st.booleans(),
    sort=st.sampled_from(SORTS),
    account_sort=st.sampled_from(ACCOUNT_SORTS),
    reverse=st.booleans(),
    idle_shown=st.booleans(),
    span_ns=st.sampled_from(views.SPANS_NS),
    filter=st.sampled_from([parse(text) for text in ("", "pid=979", "comm!=psql", "max>90ms", "threads>2")]),
    pin=st.sampled_from([None, POSTGRES, KWORKERS, 978, 500, ThreadKey(979, 979)]),
    cursor=st.sampled_from([None, POSTGRES, 978, 500]),
    focus=st.just(LIST),
)


@given(VIEWS)
def test_folding_moves_no_time_and_the_panes_of_a_program_have_its_numbers(view: View) -> None:
    picture = shown(view)
    ranking = picture.listed.ranking
    parts = [row.part for row in (*ranking.rows, *([ranking.elided] if ranking.elided else []))]
    assert (
        total(parts)
        == picture.listed.ranking.whole
        == shown(replace(view, programs=not view.programs)).listed.ranking.whole
    )
    assert len({row.key for row in picture.listed.ranking.rows}) == len(picture.listed.ranking.rows)
    for row in picture.listed.ranking.rows:
        if isinstance(row.key, Program) and not isinstance(view.pin, int | ThreadKey):  # such a row is not in it
            inside = shown(drilling.entered(picture.common.view, row.key))
            assert (inside.listed.ranking.whole, inside.common.selected) == (row.part, row.part)
            if view.account and not view.filter.text:  # a filter leaves out rows, but none of their account
                assert total_of_accounts(inside) == row.account
                assert inside.account and inside.account.account == row.account


def total_of_accounts(picture: Picture) -> object:
    rows = [*picture.listed.ranking.rows, *([picture.listed.ranking.elided] if picture.listed.ranking.elided else [])]
    some = [row.account for row in rows]
    whole = some[0]
    for one in some[1:]:
        whole = whole.plus(one)
    return whole


def test_enter_goes_to_program_process_and_thread_and_escape_back_to_the_same_rows() -> None:
    view = drilling.at_row(shown(LISTED).common.view, POSTGRES)
    path: list[View] = []
    for key, wanted in ((POSTGRES, [978, 979]), (979, [ThreadKey(979, 979)])):
        path.append(shown(view).common.view)
        view = drilling.entered(view, key)
        assert [*rows(view)] == wanted
        view = drilling.at_row(view, wanted[-1])
    view = drilling.entered(view, ThreadKey(979, 979))
    for key in (ThreadKey(979, 979), 979, POSTGRES):
        view = replace(view, focus=LIST) if view.thread is None else view
        view = drilling.left(view)
        assert under_cursor(shown(view)) == key
    assert (view.program, view.pid, view.thread) == (None, None, None)


def test_program_with_one_process_is_that_process() -> None:
    assert drilling.entered(LISTED, 500).pid == 500
    assert [*rows(drilling.entered(LISTED, 500))] == [ThreadKey(500, 500)]
    only = replace(LISTED, filter=parse("pid=979"))
    assert ms(only) == {979: 250}, "the others of its program are filtered out"


def test_cursor_on_a_process_that_is_folded_is_on_its_program_and_the_other_way_round() -> None:
    assert under_cursor(shown(replace(LISTED, cursor=979))) == POSTGRES
    assert under_cursor(shown(replace(LISTED, cursor=977))) == POSTGRES
    assert under_cursor(shown(replace(LISTED, cursor=POSTGRES, programs=False))) == 978
    assert under_cursor(shown(replace(LISTED, cursor=Program("gone")))) == POSTGRES, "the first row"


def test_pinned_program_is_on_top_and_a_pinned_process_is_a_row_of_its_own() -> None:
    by_name = replace(LISTED, pin=KWORKERS)
    assert [(row.key, row.pinned) for row in shown(by_name).listed.ranking.rows][:2] == [
        (KWORKERS, True),
        (POSTGRES, False),
    ]
    assert [*rows(replace(by_name, programs=False))][:2] == [51, 52]
    assert not any(row.pinned for row in rows(drilling.entered(by_name, KWORKERS)).values())
    assert ms(replace(LISTED, pin=979)) == {979: 250, POSTGRES: 400, 500: 350, 200: 100, KWORKERS: 50}
    assert rows(replace(LISTED, pin=979))[POSTGRES].processes == 2
    assert 979 not in rows(drilling.entered(replace(LISTED, pin=979), KWORKERS))


def test_programs_are_sorted_by_name_and_by_their_lowest_pid() -> None:
    assert [*rows(replace(LISTED, sort="NAME"))] == [200, KWORKERS, POSTGRES, 500]
    assert [*rows(replace(LISTED, sort="PID"))] == [KWORKERS, 200, 500, POSTGRES]


def test_processes_have_their_titles_and_are_sorted_by_them() -> None:
    inside = drilling.entered(replace(LISTED, idle_shown=True), POSTGRES)
    found = rows(replace(inside, sort="NAME"))
    assert [(row.name, row.title) for row in found.values()] == [
        ("postgres", ""),
        ("postgres", SAID[977]),
        ("postgres", SAID[978]),
    ]
    assert rows(LISTED)[POSTGRES].title == ""


def test_h_lists_the_threads_of_the_program_and_its_processes_again() -> None:
    inside = drilling.entered(LISTED, POSTGRES)
    threads = drilling.threads_or_processes(inside)
    assert [*rows(threads)] == [ThreadKey(978, 978), ThreadKey(979, 979)]
    assert [*rows(drilling.threads_or_processes(threads))] == [978, 979]
    assert [*rows(drilling.threads_or_processes(drilling.entered(inside, 978)))] == [978, 979]
    assert drilling.cgroups_or_not(inside).program is None


def test_thread_shown_from_elsewhere_is_not_looked_for_in_the_program() -> None:
    inside = drilling.entered(LISTED, POSTGRES)
    around = panes.around_hop(inside, ThreadKey(200, 201))
    assert (around.program, around.pid) == (None, 200)
    assert under_cursor(shown(drilling.left(drilling.left(around)))) == 200


def test_account_of_a_program_is_that_of_its_threads() -> None:
    machine = Machine(BANKS)
    machine.source._machine = Cpus(2)  # pyright: ignore[reportPrivateUsage]
    machine.go_on(12)
    account = rows(replace(LISTED, account=True), machine)[POSTGRES].account
    assert (account.threads, account.running_ns // MS, account.worst_ns // MS) == (3, 500, 10_000)
    inside = shown(drilling.entered(LISTED, POSTGRES), machine).account
    assert inside and inside.account == account and inside.budget is None
    assert inside.parts[0][1] == 10 * NS_PER_S, "with its idle process"


# ---- places


def places(view: View, machine: Machine = MACHINE) -> dict[Key, dict[str, int]]:
    """Key → place → ms in each second."""
    return {
        row.key: {one.name: one.total_ns // MS * NS_PER_S // row.places_ns for one in row.places}
        for row in shown(view, machine).listed.ranking.rows
    }


OF_979 = {"futex_do_wait < ProcSleep": 180, "jbd2_log_wait_commit < XLogFlush": 50, "a CPU": 20, "short waits": 0}


def test_places_of_a_program_are_those_of_its_processes_over_the_span() -> None:
    found = places(LISTED)
    assert found[POSTGRES] == {**OF_979, "futex_do_wait < ProcSleep": 580}
    assert found[500] == {"tcp_recvmsg < pqWait": 350}
    assert places(replace(LISTED, programs=False))[979] == OF_979
    assert places(replace(LISTED, category="fsync")) == {POSTGRES: {"jbd2_log_wait_commit < XLogFlush": 50}}
    assert places(replace(LISTED, idle_shown=True))[POSTGRES]["do_epoll_wait < main"] == 1_000


@given(VIEWS)
def test_places_of_processes_have_all_time_of_their_row(view: View) -> None:
    picture = shown(view)
    if picture.common.view.lists_threads or view.account:
        return
    for row in picture.listed.ranking.rows:
        assert sum(one.total_ns for one in row.places) == row.part.total_ns
        assert row.places_ns == picture.common.span_ns


def test_places_of_threads_and_pools_are_those_of_the_last_tick() -> None:
    workers = tuple(
        Waits("farm", 100, f"worker-{n}", 100 + n, "lock", "futex_do_wait", ("work", "main"), (100,))
        for n in range(1, 6)
    )
    others = tuple(one._replace(category="pipe", kernel="pipe_read", begins=10) for one in workers)
    threads = replace(LISTED, threads=True)
    found = places(threads, after(12, (*workers, *others, BANKS[2])))
    (pool,) = [key for key in found if not isinstance(key, ThreadKey)]
    assert found[pool] == {"futex_do_wait < work": 500, "pipe_read < work": 500}
    assert found[ThreadKey(979, 979)] == {"futex_do_wait < ProcSleep": 180, "a CPU": 20, "short waits": 0}
    assert {row.places_ns for row in shown(threads).listed.ranking.rows} == {NS_PER_S}


def test_cgroups_have_the_places_of_their_processes() -> None:
    assert places(replace(LISTED, cgroups=True)) == {
        "?": {
            "futex_do_wait < ProcSleep": 580,
            "tcp_recvmsg < pqWait": 350,
            "futex_do_wait < count_money": 100,
            "jbd2_log_wait_commit < XLogFlush": 50,
            "io_schedule": 50,
            "a CPU": 20,
            "short waits": 0,
        }
    }


def test_only_rows_on_the_screen_have_places() -> None:
    view = replace(LISTED, programs=False)
    few_rows = MACHINE.shown(view, OFFCPU, replace(ROOM, rows=3)).listed.ranking.rows  # the third sums up the rest
    assert [bool(row.places) for row in few_rows] == [True, True, False, False, False, False]
    assert not any(row.places for row in rows(replace(view, account=True)).values())


# ---- beside a baseline


THEN = (*BANKS, Waits("postgres", 990, "postgres", 990, "lock", "futex_do_wait", ("ProcSleep", "main"), (100,)))
"""Another postgres, which has exited since."""


def beside(file: str, now: tuple[Waits, ...] = BANKS) -> tuple[Machine, View]:
    before, machine = after(table=THEN), after(table=now)
    ticks = before.history.last(10 * NS_PER_S)
    baseline: Baseline = baseline_of(parts_of(ticks), ticks[-1].idle, before.source.names, file)
    return machine, replace(LISTED, baseline=baseline, diff=True, span_ns=10 * NS_PER_S)


@pytest.mark.parametrize("file", ["", "good.offtop"])
@pytest.mark.parametrize("pin", [None, 978, POSTGRES])
def test_program_is_compared_with_all_processes_of_its_name(file: str, pin: int | Program | None) -> None:
    machine, view = beside(file)
    changes = {key: round(row.change.by, 2) for key, row in rows(replace(view, pin=pin), machine).items() if row.change}
    assert round(sum(changes.values()), 2) == -0.1, "the postgres that has exited"
    if pin != 978:
        assert changes == {POSTGRES: -0.1, 500: 0, 200: 0, KWORKERS: 0}
    elif not file:
        assert changes == {978: 0, POSTGRES: -0.1, 500: 0, 200: 0, KWORKERS: 0}


def test_panes_of_a_program_are_compared_with_all_processes_of_its_name() -> None:
    machine, view = beside("")
    picture = shown(drilling.entered(view, POSTGRES), machine)
    assert picture.listed.ranking.before and round(picture.listed.ranking.before.waiting, 2) == 0.75
    assert {row.key: round(row.change.by, 2) for row in picture.categories.ranking.rows if row.change} == {
        "lock": -0.1,
        "fsync": 0.0,
        "run-queue": 0.0,
        "short": 0.0,
    }


def test_program_that_has_become_one_process_is_compared_as_that() -> None:
    machine, view = beside("", tuple(row for row in BANKS if row.pid not in (977, 979)))
    found = {row.name: round(row.change.by, 2) for row in rows(view, machine).values() if row.change}
    assert found["postgres"] in (0.0, -0.35)
    assert round(sum(found.values()), 2) == -0.35
