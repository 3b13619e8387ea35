"""The stack tree, the flame graph and one site in each mode."""

import pytest

from offtop.model.aggregate.tree import MORE
from tests.ui.scripted import MUTEX
from tests.ui.shown import asynchronous, screen, shown
from tests.ui.wakers import alert, gathering, line_with, stacks

OF_LATE = "  (still waiting) › [k]jbd2_log_wait_commit"
TREES = {
    "1": [OF_LATE, "▼ main", "    take_order › [k]futex_do_wait"],
    "2": ["▼ (still waiting)", "    -> late", "▼ clerk › main › serve › unlock › [k]futex_wake"],
    "3": [OF_LATE, "▼ main", "  ▼ take_order › [k]futex_do_wait"],
    "4": [OF_LATE, "▼ main", "  ▼ take_order › [k]futex_do_wait"],
}


@pytest.mark.parametrize("key", "1234")
@asynchronous
async def test_tree_in_each_mode(key: str) -> None:
    async with shown(gathering(), (120, 30)) as (app, pilot):
        await pilot.press(key, "t")
        assert stacks(app)[:3] == TREES[key]


@asynchronous
async def test_y_copies_the_folded_stack_of_the_mode() -> None:
    clerk = "futex_wake;unlock;serve;main;clerk"
    asked = "main;ask;pipe_read"
    copies = {
        "1": "main;take_order;futex_do_wait 6000000",  # with the run queue
        "3": f"main;take_order;futex_do_wait;--;{clerk} 5000000",
        "4": f"main;take_order;futex_do_wait;--;{clerk} 5000000",
    }
    async with shown(gathering(), (120, 30)) as (app, pilot):
        for key, copied in copies.items():
            await pilot.press(key, "t", "home", "asterisk", "down", "down")
            if key != "1":
                await pilot.press("down")
            await pilot.press("y")
            assert app.clipboard == copied
            await pilot.press("t")
        await pilot.press("4", "t", "asterisk", "home", *["down"] * 4, "y")
        assert app.clipboard == f"main;take_order;futex_do_wait;--;{clerk};--;{asked} 5000000"


@asynchronous
async def test_mute_in_the_tree_applies_to_the_waker_at_the_end_of_the_line() -> None:
    async with shown(gathering(), (120, 30)) as (app, pilot):
        await pilot.press("3", "t", "asterisk", "home", "down", "down", "down", "X")
        assert "muted waker=clerk" in alert(app)
        await pilot.press("2", "home", "down", "X")
        assert "muted proc=late" in alert(app)


@asynchronous
async def test_site_shows_the_waker_above_the_waiter() -> None:
    async with shown(gathering(), (120, 60)) as (app, pilot):
        await pilot.press("4", "t", "asterisk", "home", "down", "down", "enter", "x")
        lines = [line.strip() for line in screen(app)]
        first = next(number for number, line in enumerate(lines) if line.startswith("#1"))
        assert lines[first + 2 : first + 25] == [
            "mostly on futex 0x7f4040 of 100",
            *("irq (nvme_irq)", "[k] nvme_irq", "[k] blk_mq_end_request", "-- woken by --", "[k] io_wait", "main"),
            *("-- its last wait --", "teller", "main", "pay", "[k] pipe_write", "-- woken by --"),
            *("[k] pipe_read", "ask", "main", "-- its last wait --", "clerk", "main", "serve", "unlock"),
            *("[k] futex_wake", "-- woken by --"),
        ]


@pytest.mark.parametrize("key", "234")
@asynchronous
async def test_icicle_in_each_mode(key: str) -> None:
    async with shown(gathering(), (160, 50)) as (app, pilot):
        await pilot.press(key, "g")
        text = "\n".join(screen(app))
        assert ("-- woken by --" in text) is (key != "2")
        assert ("-- its last wait --" in text) is (key == "4")
        assert ("-> shop" in text) is (key == "2")
        await pilot.press("down", "right", "enter", "y", "escape")
        assert app.clipboard


@pytest.mark.parametrize("mode", "1234")
@asynchronous
async def test_tree_by_object_has_all_the_time(mode: str) -> None:
    async with shown(gathering()) as (app, pilot):
        await pilot.press(mode, "G")
        assert app.picture
        waited_ns = {row.key: row.part.total_ns for row in app.picture.listed.ranking.rows}
        await pilot.press("G", "t")
        assert app.picture and app.picture.tree
        together = sum(branch.part.total_ns for branch in app.picture.tree.branches if not branch.depth)
        await pilot.press("J")
        assert app.picture and app.picture.tree
        tops = [branch for branch in app.picture.tree.branches if not branch.depth]
        assert sum(branch.part.total_ns for branch in tops) == together
        assert {branch.path[0].is_object for branch in tops if branch.path[0] != MORE} == {True}
        mutex = next(branch for branch in tops if branch.path[0].name == MUTEX.label)
        assert mutex.part.total_ns == waited_ns[MUTEX] > 0
        line = app.picture.tree.branches.index(mutex)
        await pilot.press("v")
        assert "by object (J)" in line_with(app, "stack tree")
        assert app.picture and app.picture.tree and app.picture.tree.branches[0].path[0].is_object
        await pilot.press("v", "home", *["down"] * line, "X")
        assert "muted object=" in alert(app)
