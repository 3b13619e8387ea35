"""What is shown beside a baseline: in every list, mode and pane, and with reused pids."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from offtop.model.aggregate.filter_syntax import parse
from offtop.model.aggregate.rows import Row
from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.values.files import FileActivity, FileId, FileKey, FileTotals
from offtop.model.values.snapshot import Filters, Sampling
from offtop.model.values.wake import CHAIN, MODES, OFFCPU, OFFWAKE, WAKEUP
from offtop.model.viewmodel import drilling
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import LIST, TREE, View
from offtop.model.windows.baseline import Baseline, baseline_of, parts_of
from offtop.model.windows.breakdown import Idle
from offtop.model.windows.history import HistoryTick
from offtop.units import NS_PER_S
from tests.model.viewmodel.test_listing import ROOM, RULES, Machine
from tests.ui.scripted import CLERK, MUTEX, PIPE, TELLER, WAKERS, Waits, Woken

TICKS = 12
LISTS: tuple[dict[str, bool], ...] = (
    {},
    {"threads": True},
    {"threads": True, "unfolded": True},
    {"cgroups": True},
    {"objects": True},
    {"reasons": True},
)
POOL = tuple(
    Waits("web", 500, f"worker-{n}", 500 + n, "lock", "futex_do_wait", ("handle", "main"), (10 * n,))
    for n in range(1, 6)
)
THEN = (*WAKERS, *POOL)
NOW = (
    *(one._replace(waits_ms=tuple(2 * ms for ms in one.waits_ms)) for one in WAKERS if one.pid != 200),
    *POOL[:2],
    Waits("thief", 900, "thief", 900, "pipe", "pipe_write", ("steal", "main"), (300,), woken=Woken(CLERK, PIPE)),
    Waits("bank", 210, "teller", 211, "disk-read", "io_schedule", ("read_book", "main"), (80,)),
    Waits("bank", 210, "vault", 212, "lock", "futex_do_wait", ("count", "main"), (70,), woken=Woken(TELLER, MUTEX)),
)
"""The bank was started anew, a thief came, three workers of the pool have gone, and all others wait twice as long."""
ALL_OF_IT = View(focus=LIST, idle_shown=True, span_ns=10 * NS_PER_S, diff=True)


def machine(table: Sequence[Waits], ticks: int = TICKS, mode: str = CHAIN) -> Machine:
    made = Machine(tuple(table), mode, RULES)
    made.go_on(ticks)
    return made


def normal(of: Machine, file: str = "") -> Baseline:
    ticks = of.history.last(10 * NS_PER_S)
    return baseline_of(parts_of(ticks), ticks[-1].idle, of.source.names, file)


def changed_there() -> tuple[Machine, Baseline]:
    """A machine, and its baseline."""
    return machine(NOW), normal(machine(THEN))


def test_baseline_keeps_process_names_when_their_pids_are_reused() -> None:
    of = machine(THEN)
    catalog = of.history.last(NS_PER_S)[-1].header.catalog
    catalog.details[200] = Details("root", "bank --then")
    before = normal(of)
    catalog.details[200] = Details("www", "thief")
    catalog.details[201] = Details("www", "another")
    assert before.catalog.detail(200).cmdline == "bank --then"
    assert 201 not in before.catalog.details


def every_change(rows: Sequence[Row]) -> float:
    return sum(row.change.by for row in rows if row.change)


def shown(made: Machine, view: View, mode: str = OFFCPU) -> Picture:
    return made.shown(view, mode, replace(ROOM, site=50))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("view", LISTS)
@pytest.mark.parametrize("file", ["", "good.offtop"])
def test_no_change_beside_itself(mode: str, view: dict[str, bool], file: str) -> None:
    made = machine(THEN)
    picture = shown(made, replace(ALL_OF_IT, baseline=normal(made, file), **view), mode)
    rows = [row for row in (*picture.listed.ranking.rows, *picture.categories.ranking.rows) if not row.storm.storms]
    assert len(rows) > 6 and all(row.change for row in rows)
    for row in rows:
        assert row.change and row.before
        assert abs(row.change.by) < 1e-6, row
        assert not (row.change.is_new or row.change.is_gone or row.change.is_sure or row.change.is_p99_sure)
    assert picture.tree and picture.tree.before
    assert {round(before.waiting, 6) for before in picture.tree.before.values()} == {
        round(branch.part.total_ns / picture.common.span_ns, 6) for branch in picture.tree.branches
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("view", LISTS)
@pytest.mark.parametrize("limit", [100, 3])
def test_changes_of_a_list_add_up_to_the_change_of_the_whole(mode: str, view: dict[str, bool], limit: int) -> None:
    made, baseline = changed_there()
    picture = made.shown(replace(ALL_OF_IT, baseline=baseline, **view), mode, replace(ROOM, categories=limit))
    for ranking in (picture.listed.ranking, picture.categories.ranking):
        assert ranking.before
        change = ranking.whole.total_ns / picture.common.span_ns - ranking.before.waiting
        assert every_change([*ranking.rows, *([ranking.elided] if ranking.elided else [])]) == pytest.approx(
            change, abs=0.02
        )
    ranking, seen = picture.categories.ranking, picture.categories.seen
    on_screen = [*ranking.rows[seen.first : seen.end], *([seen.below] if seen.below else [])]
    assert len(on_screen) <= limit
    assert every_change(on_screen) == pytest.approx(every_change(ranking.rows), abs=0.02)


def changes_of(rows: Sequence[Row]) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for row in rows:
        assert row.change
        mark = "new" if row.change.is_new else "gone" if row.change.is_gone else ""
        found[row.name] = round(row.change.by, 2), mark
    return found


def test_restarted_process_is_matched_by_name_and_new_and_gone_ones_are_marked() -> None:
    made, baseline = changed_there()
    of_processes = changes_of(shown(made, replace(ALL_OF_IT, baseline=baseline)).listed.ranking.rows)
    assert of_processes["bank"] == (round(0.15 - 0.16, 2), "")
    assert of_processes["thief"] == (0.3, "new")
    assert of_processes["web"] == (-0.12, "")
    assert of_processes["brief"] == (0.0, "")
    of_threads = changes_of(
        shown(made, replace(ALL_OF_IT, baseline=baseline, threads=True, unfolded=True)).listed.ranking.rows
    )
    assert of_threads["teller"] == (0.02, "")
    assert of_threads["worker-5"] == (-0.05, "gone")
    of_categories = changes_of(shown(made, replace(ALL_OF_IT, baseline=baseline)).categories.ranking.rows)
    assert of_categories["sleep"] == (-0.05, "gone")
    assert of_categories["disk-read"] == (0.02, "")


def test_recording_of_another_boot_is_compared_by_names_only() -> None:
    then = [one._replace(pid=one.pid + 7_000, tid=one.tid + 7_000) for one in THEN]
    baseline, made = normal(machine(then), "good.offtop"), machine(THEN)
    for view in LISTS[:4]:
        rows = shown(made, replace(ALL_OF_IT, baseline=baseline, **view)).listed.ranking.rows
        assert {mark for _, mark in changes_of(rows).values()} == {""}
        assert every_change(rows) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("file", ["", "good.offtop"])
def test_selection_is_compared_with_its_own_past(file: str) -> None:
    made, baseline = changed_there()
    baseline = replace(baseline, file=file)
    bank = View(focus=LIST, idle_shown=True, pid=210, baseline=baseline, diff=True)
    assert changes_of(shown(made, bank).categories.ranking.rows)["disk-read"] == (0.02, "")
    teller = replace(bank, thread=ThreadKey(210, 211), focus=TREE)
    assert changes_of(shown(made, teller).categories.ranking.rows) == {"disk-read": (0.02, "")}
    shop = shown(made, replace(bank, pid=100, wakers=()))
    assert changes_of(shop.listed.ranking.rows)["worker-1"][0] == 0.4


def test_each_row_leads_to_panes_with_its_own_change() -> None:
    made, baseline = changed_there()
    for mode in (OFFCPU, WAKEUP):
        for lists in LISTS:
            top = shown(made, replace(ALL_OF_IT, baseline=baseline, **lists), mode)
            for row in top.listed.ranking.rows:
                inside = drilling.entered(replace(top.common.view, focus=LIST), row.key)
                if row.storm.storms or inside == top.common.view or not row.change:
                    continue
                picture = made.pictures.of(inside, ROOM)
                assert picture
                about = picture.categories.ranking if isinstance(row.key, ThreadKey) else picture.listed.ranking
                assert about.before
                change = about.whole.total_ns / picture.common.span_ns - about.before.waiting
                assert change == pytest.approx(row.change.by, abs=1e-6), (mode, lists, row)


def test_filters_mutes_and_idle_apply_to_both() -> None:
    made, baseline = changed_there()
    for view in (
        replace(ALL_OF_IT, filter=parse("cat=lock")),
        replace(ALL_OF_IT, muted=(parse("cat!=lock"),)),
        replace(ALL_OF_IT, category="lock", filter=parse("stack=futex*")),
    ):
        picture = shown(made, replace(view, baseline=baseline))
        assert picture.listed.ranking.before
        assert picture.listed.ranking.before.waiting == pytest.approx(0.30 + 0.20 + 0.05 + 0.15)
    nobody = shown(made, replace(ALL_OF_IT, filter=parse("comm=nobody"), baseline=baseline))
    assert (nobody.listed.ranking.rows, nobody.listed.ranking.before and nobody.listed.ranking.before.waiting) == (
        (),
        0.0,
    )


def test_sort_by_change_puts_the_largest_first_in_either_direction() -> None:
    made, baseline = changed_there()
    for reverse in (False, True):
        view = replace(ALL_OF_IT, baseline=baseline, sort="CHANGE", reverse=reverse, threads=True)
        for ranking in (shown(made, view).listed.ranking, shown(made, replace(view, reverse=False)).categories.ranking):
            sizes = [abs(row.change.by) for row in ranking.rows if row.change]
            backward = reverse and ranking.rows[0].key != ranking.rows[0].name
            assert sizes == sorted(sizes, reverse=not backward)


def test_tree_and_site_mark_new_branches_and_list_gone_ones_at_the_end() -> None:
    made, baseline = changed_there()
    view = replace(ALL_OF_IT, focus=TREE, baseline=baseline)
    picture = shown(made, view)
    assert picture.tree
    lines = {
        branch.path[-1].name: Row(
            "", "", picture.common.span_ns, branch.part, before=picture.tree.before.get(branch.path)
        )
        for branch in picture.tree.branches
        if not branch.more
    }
    changes = {name: row.change.p99_text for name, row in lines.items() if row.change}
    assert (changes["pipe_write"], changes["do_nanosleep"]) == ("new", "gone")
    steal = next(branch.path for branch in picture.tree.branches if branch.path[-1].name == "pipe_write")
    site = shown(made, replace(view, path=steal))
    assert [row.change.p99_text for row in site.places.rows if row.change] == ["new"]


def test_missing_wakers_of_the_baseline_are_reported() -> None:
    made = machine(THEN, mode=OFFCPU)
    baseline = normal(made)
    made.go_on(TICKS, CHAIN)
    assert made.shown(replace(ALL_OF_IT, baseline=baseline), OFFCPU).common.uncompared == ""
    for mode in (WAKEUP, OFFWAKE, CHAIN):
        picture = made.shown(replace(ALL_OF_IT, baseline=baseline), mode)
        assert "has no wakers" in picture.common.uncompared
        assert not any(row.change for row in picture.listed.ranking.rows)
        assert all(row.change for row in picture.categories.ranking.rows)


def test_other_filters_and_losses_of_the_baseline_are_reported() -> None:
    made = machine(THEN)
    baseline = normal(made)

    def doubt(baseline: Baseline) -> str:
        return shown(made, replace(ALL_OF_IT, baseline=baseline)).listed.caveat

    assert doubt(baseline) == ""
    assert "other threads" in doubt(replace(baseline, filters=Filters(pids=(100,))))
    assert doubt(replace(baseline, filters=Filters(min_ns=200_000))) == "the minimum of the baseline was 200us"
    own = Sampling(20, own_only=True)
    assert doubt(replace(baseline, sampling=own)) == "the baseline was sampled; the baseline has own processes only"
    inside = Sampling(20, container_only=True)
    assert doubt(replace(baseline, sampling=inside)).endswith("; the baseline has this container only")
    assert doubt(replace(baseline, lost={"sites": 2_000, "stacks": 3})) == "the baseline lost 2.0k sites, 3 stacks"


def test_baseline_outlives_what_its_source_drops() -> None:
    made = machine(THEN)
    baseline = normal(made)
    made.source.name("take_order", "give_order")
    catalog = made.history.latest.catalog if made.history.latest else None
    assert catalog
    for kept in (catalog.stacks, catalog.comms, catalog.processes, catalog.wakes):
        kept.clear()
    assert {*baseline.catalog.comms.values()} >= {"worker-1", "clerk", "teller"}
    assert "take_order" in {frame.name for stack in baseline.catalog.stacks.values() for frame in stack.frames}


def test_parts_are_at_most_six_and_cover_everything() -> None:
    ticks = machine(THEN).history.last(60 * NS_PER_S)
    for count in (1, 2, 5, 6, 7, 12):
        parts = parts_of(ticks[:count])
        assert (len(parts), sum(part.span_ns for part in parts)) == (min(6, count), count * NS_PER_S)
        assert [part.at_ns for part in parts] == sorted({part.at_ns for part in parts})


def test_file_operations_counted_in_some_ticks_of_a_part_are_left_out_of_it() -> None:
    key = FileKey(500, "fsync", FileId(1, 2, 3))
    counted = FileActivity({key: FileTotals(1, 0, NS_PER_S // 2)})
    windows = [tick.window for tick in machine(THEN).history.last(12 * NS_PER_S)]
    ticks = [
        HistoryTick.of(replace(window, files=counted if number >= 7 else None), Idle())
        for number, window in enumerate(windows)
    ]
    parts = parts_of(ticks)
    assert [part.files is not None for part in parts] == [False] * 4 + [True] * 2
    assert [part.span_ns for part in parts] == [2 * NS_PER_S] * 6
