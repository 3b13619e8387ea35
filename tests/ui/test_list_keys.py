"""What the list shows: threads, idle waits, command lines and cgroups, in the order of a column."""

from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.viewmodel.view import LIST
from tests.ui.scripted import SHOP, WHO, ScriptedSource, Waits
from tests.ui.shown import asynchronous, crumb_line, pane, screen, shown, waiting_line

CONNECTION, WRITER = ThreadKey(4242, 4268), ThreadKey(4242, 4251)


@asynchronous
async def test_h_lists_threads_of_all_processes() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("H")
        assert app.picture is not None
        assert [row.key for row in app.picture.listed.ranking.rows] == [CONNECTION, (3100, 3107), WRITER, (977, 977)]
        await pilot.press("H")
        assert [row.key for row in app.picture.listed.ranking.rows] == [4242, 3100, 977]


@asynchronous
async def test_i_shows_idle_waits() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        assert "+2.00 idle (i)" in waiting_line(app)
        await pilot.press("i")
        assert "idle shown (i)" in waiting_line(app)
        assert any("~poll" in line for line in screen(app))


@asynchronous
async def test_sort_keys_step_through_columns_and_r_reverses() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        seen: list[str] = []
        for key in ("M", "T", "E", "P", ">", "<", "<", "<", "<"):
            await pilot.press(key)
            seen.append(app.view.sort)
        assert seen == ["MAX", "TOTAL", "EV/S", "WAITING", "MAX", "WAITING", "P99", "P50", "PID"]
        assert app.picture is not None
        assert [row.key for row in app.picture.listed.ranking.rows] == [977, 3100, 4242]
        await pilot.press("R")
        assert [row.key for row in app.picture.listed.ranking.rows] == [4242, 3100, 977]
        assert "sort PID reversed" in crumb_line(app)


@asynchronous
async def test_c_shows_command_lines_and_cgroups_and_looks_up_only_visible_rows() -> None:
    source = ScriptedSource(SHOP, ticks=12, who=WHO)
    async with shown(source) as (app, pilot):
        assert source.asked == []
        await pilot.press("c")
        assert any("COMMAND LINE" in line for line in screen(app))
        assert any("/opt/shop --open 8080" in line for line in screen(app))
        assert {pid for pids in source.asked for pid in pids} == {100, 200}
        await pilot.press("i")
        assert {pid for pids in source.asked for pid in pids} == {100, 200, 300}
        await pilot.press("c")
        assert any("CGROUP" in line for line in screen(app))
        assert any("/bank.slice" in line for line in screen(app))
        await pilot.press("c", "H")
        assert any("THREAD" in line for line in screen(app))
        await pilot.press("c", "tab")
        assert any(" 101 /opt/shop --open 8080" in line for line in screen(app))


@asynchronous
async def test_only_visible_processes_are_looked_up() -> None:
    table = [replace_pid(SHOP[8], pid) for pid in range(1000, 1100)]
    source = ScriptedSource(table, ticks=3)
    async with shown(source) as (app, pilot):
        await pilot.press("tab", "plus", "c")
        assert len(source.asked[-1]) <= len(pane(app, LIST))
        assert max(source.asked[-1]) == 1099
        await pilot.press("end")
        assert min(source.asked[-1]) == 1000
        assert max(source.asked[-1]) < 1000 + len(pane(app, LIST))


def replace_pid(row: Waits, pid: int) -> Waits:
    return row._replace(pid=pid, tid=pid)


@asynchronous
async def test_hostile_command_line_is_shown_escaped() -> None:
    who = {100: Details("\x1b[31m", "sh\x1b[2J\u202e\n --x", "/\x9b31m", 0)}
    async with shown(ScriptedSource(SHOP, ticks=3, who=who), (160, 50)) as (app, pilot):
        for words in ("sh\\x1b[2J\\u202e\\x0a --x", "/\\x9b31m"):
            await pilot.press("c")
            assert any(words in line for line in screen(app))
            assert not [
                c for line in screen(app) for c in line if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e"
            ]
