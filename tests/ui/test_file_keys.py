"""File operations on the screen: counted while their list is open, sorted, filtered, searched."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import pytest
from textual.pilot import Pilot

from offtop.errors import KernelError
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Details
from offtop.model.values.files import FileActivity, FileId, FileKey, FileTotals
from offtop.model.values.io_stacks import IoStack, StackTotals
from offtop.model.values.stack import KERNEL, Frame, Stack
from offtop.model.viewmodel import io_heat
from offtop.model.viewmodel.view import CATEGORIES, FILES, LIST, View
from offtop.ui.app import OfftopApp
from tests.ui.scripted import ScriptedSource
from tests.ui.shown import QUICK_NS, asynchronous, catching, go_on, pane, screen, shown, until

MS = 1_000_000
LOG, TABLE, ODD = FileId(1, 1, 0), FileId(1, 2, 0), FileId(1, 3, 0)
COLUMNS = ["OP", "FILE", "CALLS/S", "MB/S", "TIME", "%OFF-CPU"]
ACTIVITY = FileActivity(
    {
        FileKey(42, "fsync", LOG): FileTotals(4, 0, 80 * MS, 76 * MS, 30 * MS, log2.of(*[20 * MS] * 4), 5 * MS),
        FileKey(42, "pread", TABLE): FileTotals(1000, 8_000_000, 9 * MS, 0, MS, log2.of(*[9_000] * 1000)),
        FileKey(7, "write", ODD): FileTotals(50, 1000, MS, 0, 100_000, log2.of(*[20_000] * 50)),
    },
    {LOG: "/var/lib/db/redo.log", TABLE: "/var/lib/db/a-long-name-of-a-table/t.ibd", ODD: "/tmp/\x1b[2Jodd"},
    {42: "db", 7: "sh\x1b"},
    lost=3,
)


def source(ticks: int = 3) -> ScriptedSource:
    made = ScriptedSource(ticks=ticks)
    made.files = ACTIVITY
    made.files_requested.append(True)
    return made


def rows(app: OfftopApp) -> list[str]:
    """Return the operations of the list, in order."""
    found = [line.lstrip("> ").split() for line in pane(app, FILES)[2:]]
    return [words[0] for words in found if words and words[0] in ("fsync", "pread", "write") and len(words) > 5]


VIEW = View(delay_ns=QUICK_NS, focus=FILES)


@asynchronous
async def test_first_screen_can_list_file_operations() -> None:
    async with shown(source(), (160, 50), view=VIEW) as (app, _):
        assert "|7 files|" in screen(app)[0]
        title, heads, first, *_ = pane(app, FILES)
        assert title.strip("─ ") == ("file operations: 1.1k calls/s, LOST 9: no room, 8.0MB/s, 270ms in calls in 3s")
        assert heads.split() == [
            "OP",
            "FILE",
            "CALLS/S",
            "MB/S",
            "TIME",
            "%OFF-CPU",
            "p50<=",
            "p99<=",
            "MAX",
            "NOW",
            "WHO",
        ]
        assert first.split() == [
            ">",
            "fsync",
            "/var/lib/db/redo.log",
            "4",
            "240ms",
            "95",
            "30ms",
            "30ms",
            "30ms",
            "5.0ms",
            "db(42)",
        ]
        assert rows(app) == ["fsync", "pread", "write"]


@asynchronous
async def test_selected_row_is_shown_in_full_with_its_histogram() -> None:
    async with shown(source(), (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("down")
        lines = [line.strip() for line in pane(app, FILES)]
        at = lines.index("pread /var/lib/db/a-long-name-of-a-table/t.ibd")
        assert lines[at + 2] == "inode 2 on device 0:1; 3,000 calls returned, 24,000,000 bytes"
        assert lines[at + 3] == "27ms in calls: 0 off CPU, 27ms on it"
        assert lines[at + 4].split()[:2] == ["<", "16us"]
        assert lines[at + 4].endswith(" 3,000")


@asynchronous
async def test_page_faults_say_that_only_those_that_waited_are_counted() -> None:
    made = source()
    faults = {FileKey(42, "mmap-read", TABLE): FileTotals(2, 0, 9 * MS, 8 * MS, 6 * MS, log2.of(3 * MS, 6 * MS))}
    made.files = FileActivity(faults, ACTIVITY.names, ACTIVITY.comms)
    async with shown(made, (160, 50), view=VIEW) as (app, _):
        lines = [line.strip() for line in pane(app, FILES)]
    assert "inode 2 on device 0:1; 6 page faults that waited (the others are not counted)" in lines


@asynchronous
async def test_requests_to_io_uring_have_no_time_off_cpu() -> None:
    made = source()
    reads = {FileKey(42, "uring-read", TABLE): FileTotals(2, 8192, 9 * MS, 0, 6 * MS, log2.of(3 * MS, 6 * MS))}
    made.files = FileActivity(reads, ACTIVITY.names, ACTIVITY.comms)
    async with shown(made, (160, 50), view=VIEW) as (app, _):
        lines = [line.strip() for line in pane(app, FILES)]
    assert lines[2].split()[1:] == [
        *("uring-read", "/var/lib/db/a-long-name-of-a-table/t.ibd", "2", "0.01"),
        *("27ms", "4.2ms", "6.0ms", "6.0ms", "db(42)"),
    ]
    assert "inode 2 on device 0:1; 6 requests completed, 24,576 bytes" in lines
    assert "27ms from submission to completion" in lines


@asynchronous
async def test_names_of_files_and_processes_are_escaped() -> None:
    async with shown(source(), (160, 50), view=VIEW) as (app, _):
        line = next(line for line in pane(app, FILES) if line.lstrip("> ").startswith("write"))
        assert "/tmp/\\x1b[2Jodd" in line
        assert "sh\\x1b(7)" in line


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("M", "fsync pread write"),
        ("E", "pread write fsync"),
        ("P", "fsync pread write"),
        ("R", "write pread fsync"),
        ("greater_than_sign", "pread write fsync"),
        ("less_than_sign", "fsync pread write"),
    ],
)
@asynchronous
async def test_keys_sort_the_list(key: str, order: str) -> None:
    async with shown(source(), view=VIEW) as (app, pilot):
        await pilot.press(key)
        assert rows(app) == order.split()


@asynchronous
async def test_click_on_a_title_sorts_and_a_second_one_reverses() -> None:
    async with shown(source(), (160, 50), view=VIEW, mouse=True) as (app, pilot):
        rect = app.layout.panels[FILES]
        at = pane(app, FILES)[1].index("CALLS/S") + 1, rect.y + 1
        await pilot.click(offset=at)
        assert rows(app) == ["pread", "write", "fsync"]
        assert any(line.endswith("sort CALLS/S") for line in screen(app))
        await pilot.click(offset=at)
        assert rows(app) == ["fsync", "write", "pread"]
        assert any(line.endswith("sort CALLS/S reversed") for line in screen(app))
        await pilot.click(offset=(4, rect.y + 4))
        assert pane(app, FILES)[4].startswith("> ")


@asynchronous
async def test_clicked_row_stays_on_its_line_also_while_it_is_open() -> None:
    made = source()
    keys = [FileKey(42, "pread", FileId(1, number, 0)) for number in range(40)]
    every = {key: FileTotals(1, 0, (99 - key.file.inode) * MS) for key in keys}
    made.files = FileActivity(every, {key.file: f"/f{key.file.inode}." for key in keys}, {42: "db"})
    async with shown(made, view=VIEW, mouse=True) as (app, pilot):
        await pilot.press(*["down"] * 20)
        y = app.layout.panels[FILES].y + 4
        name = screen(app)[y].split()[1]
        await pilot.click(offset=(12, y))
        assert screen(app)[y].split()[:3] == [">", "pread", name]
        await pilot.click(offset=(12, y))
        assert app.view.files.opened and app.view.files.cursor and f"/f{app.view.files.cursor.file.inode}." == name
        await pilot.press("escape")
        assert screen(app)[y].split()[:3] == [">", "pread", name]


@asynchronous
async def test_filter_and_search_work_in_the_list() -> None:
    async with shown(source(), view=VIEW) as (app, pilot):
        app.set_view(View(delay_ns=QUICK_NS, focus=FILES, filter=parse("op=fsync,pread bytes>1M cat=lock")))
        await pilot.pause()
        assert rows(app) == ["pread"]
        assert "ignored filter words: cat" in (await wide_title(app, pilot))
        app.set_view(View(delay_ns=QUICK_NS, focus=FILES, filter=parse("op=truncate")))
        await pilot.pause()
        assert "No file operation passes the filter" in "\n".join(pane(app, FILES))
        app.set_view(VIEW)
        await pilot.press("slash", *"t.ibd", "enter")
        assert rows(app) == ["pread"]


async def wide_title(app: OfftopApp, pilot: Pilot[int]) -> str:
    await pilot.resize_terminal(200, 50)
    await pilot.pause()
    return pane(app, FILES)[0]


@asynchronous
async def test_7_counts_while_the_list_is_open_and_only_then() -> None:
    made = ScriptedSource(ticks=3)
    made.files = ACTIVITY
    async with shown(made) as (app, pilot):
        assert made.files_requested == []
        await pilot.press("7")
        assert (app.view.focus, "Starting to count" in "\n".join(pane(app, FILES))) == (FILES, True)
        await until(lambda: made.files_requested == [True])
        await pilot.press("7")
        assert app.view.focus == CATEGORIES
        await until(lambda: made.files_requested == [True, False])
        for key in ("escape", "1", "tab", "5"):
            await pilot.press("7")
            await until(lambda: made.files_requested[-1])
            await pilot.press(key)
            assert app.view.focus != FILES
            await until(lambda: not made.files_requested[-1])


@asynchronous
async def test_a_trigger_counts_them_whichever_list_is_open_and_enter_goes_there() -> None:
    made = ScriptedSource(ticks=3)
    made.files = ACTIVITY
    view = View(delay_ns=QUICK_NS, triggers=("file.max > 25ms",))
    async with shown(made, (160, 50), view=view, outlier_actions=catching("file.max > 25ms")) as (app, pilot):
        await until(lambda: made.files_requested == [True])
        await until(lambda: "outlier: 30ms fsync, file.max > 25ms: db: fsync /var/lib/db/redo.log" in screen(app)[-2])
        await pilot.press("7", "7")
        assert made.files_requested == [True]
        await pilot.press("O")
        assert "fsync /var/lib/db/redo.log" in "\n".join(screen(app))
        await pilot.press("enter", "enter")
        assert app.view.paused_at_ns
        assert rows(app) == ["fsync", "pread", "write"]
        await pilot.press("exclamation_mark", *["backspace"] * 20, *"off", "enter")
        await pilot.press("1")
        await until(lambda: made.files_requested == [True, False])


@asynchronous
async def test_refusal_is_shown_and_leaves_the_list() -> None:
    made = ScriptedSource(ticks=3)
    made.refuses = KernelError("File operations cannot be shown: no")
    async with shown(made) as (app, pilot):
        await pilot.press("7")
        await until(lambda: app.view.focus == CATEGORIES)
        assert "File operations cannot be shown" in screen(app)[-2]


@asynchronous
async def test_refusal_is_shown_again_although_a_trigger_needs_them_too() -> None:
    made = ScriptedSource(ticks=3)
    made.refuses = KernelError("File operations cannot be shown: no")
    view = View(delay_ns=QUICK_NS, triggers=("file.max > 25ms",))
    async with shown(made, view=view, outlier_actions=catching("file.max > 25ms")) as (app, pilot):
        for requests in (2, 3):
            await pilot.press("7")
            await until(lambda: app.view.focus == CATEGORIES)
            assert "File operations cannot be shown" in screen(app)[-2]
            assert made.files_requested == [True] * requests
            await pilot.press("down")
    assert made.files_requested == [True] * 3


@asynchronous
async def test_enter_shows_where_the_process_waits() -> None:
    async with shown(source(), view=VIEW) as (app, pilot):
        await pilot.press("enter", "enter")
        assert (app.view.focus, app.view.pid) == (LIST, 42)


def with_stacks() -> ScriptedSource:
    made = source()
    catalog = made.after(0).catalog
    catalog.stacks[901] = Stack(
        (Frame(KERNEL, 0, "schedule"), Frame(KERNEL, 0, "jbd2_wait"), Frame(KERNEL, 0, "do_syscall_64")), 1, entry=1
    )
    for number, (name, caller) in enumerate((("commit", "run"), ("commit", "check\x1b"), ("load", "run")), 902):
        catalog.stacks[number] = Stack((Frame("/bin/db", 1, name), Frame("/bin/db", number, caller)))
    made.files = replace(
        ACTIVITY,
        stacks={
            IoStack(FileKey(42, "fsync", LOG), 901, 902): StackTotals(2, 0, 50 * MS, 30 * MS),
            IoStack(FileKey(42, "fsync", LOG), 0, 903): StackTotals(1, 0, 20 * MS, 20 * MS),
            IoStack(FileKey(42, "pread", TABLE), 0, 904): StackTotals(5, 40_000, 5 * MS, MS),
        },
    )
    return made


@asynchronous
async def test_stacks_of_a_recording_may_say_that_they_took_no_time() -> None:
    made, fsync = source(), FileKey(42, "fsync", LOG)
    made.files = replace(
        ACTIVITY,
        totals={fsync: FileTotals(1)},
        stacks={IoStack(fsync, 0, 0): StackTotals(1)},
    )
    async with shown(made, (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("enter")
        lines = [" ".join(line.split()) for line in pane(app, FILES)]
        assert "#1 3 calls 0 in all max 0" in lines
        await pilot.press("t")
        assert pane(app, FILES)[0].strip("─ ").startswith("stack tree: fsync")


@asynchronous
async def test_enter_shows_a_row_with_its_stacks_and_again_where_its_process_waits() -> None:
    async with shown(with_stacks(), (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("enter")
        title, *lines = [line.strip() for line in pane(app, FILES)]
        assert title.strip("─ ").startswith("a file operation (Enter: where this process waits")
        assert lines[0] == "fsync /var/lib/db/redo.log"
        at = lines.index("2 stacks, and 3 calls without a stack")
        assert [" ".join(line.split()) for line in lines[at + 1 : at + 11]] == [
            "",
            "#1 6 calls 150ms in all 62% max 30ms",
            "[k] jbd2_wait",
            "[k] do_syscall_64",
            "commit",
            "run",
            "",
            "#2 3 calls 60ms in all 25% max 20ms",
            "commit",
            "check\\x1b",
        ]
        await pilot.press("escape")
        assert rows(app) == ["fsync", "pread", "write"]
        await pilot.press("enter", "enter")
        assert (app.view.focus, app.view.pid) == (LIST, 42)


@asynchronous
async def test_row_in_full_scrolls_to_its_last_line() -> None:
    async with shown(with_stacks(), (80, 14), view=VIEW) as (app, pilot):
        await pilot.press("enter")
        assert pane(app, FILES)[1].strip() == "fsync /var/lib/db/redo.log"
        await pilot.press("end", "down")
        assert pane(app, FILES)[-1].strip() == "check\\x1b"
        await pilot.press("home")
        assert pane(app, FILES)[1].strip() == "fsync /var/lib/db/redo.log"


@asynchronous
async def test_t_shows_the_stack_tree_of_all_rows_or_of_the_one_that_is_shown() -> None:
    async with shown(with_stacks(), (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("t")
        assert tree(app) == [
            "TIME % MAX CALLS/S STACK ([k] kernel)",
            "> 165ms 73% 30ms 7 ▼ run",
            "150ms 67% 30ms 2 ▼ commit",
            "150ms 67% 30ms 2 ▼ fsync /var/lib/db/redo.log",
            "150ms 67% 30ms 2 [k]jbd2_wait",
            "15ms 7% 1.0ms 5 ▶ load",
            "60ms 27% 20ms 1 ▼ check\\x1b › commit",
            "60ms 27% 20ms 1 fsync /var/lib/db/redo.log",
        ]
        assert pane(app, FILES)[-1] == " 17% of the time has no stack and is not in this tree: 3,138 calls"
        await pilot.press("left")
        assert [line.split()[-1] for line in tree(app)[1:]] == ["run", "commit", "/var/lib/db/redo.log"]
        await pilot.press("v", "asterisk")
        assert [line.split()[-1] for line in tree(app)[1:4]] == ["[k]jbd2_wait", "/var/lib/db/redo.log", "run"]
        await pilot.press("v", "t", "down", "enter", "t")
        assert pane(app, FILES)[0].strip("─ ").startswith("stack tree: pread /var/lib/db/a-long-name")
        assert [line.split()[-1] for line in tree(app)[1:]] == ["load", "/var/lib/db/a-long-name-of-a-table/t.ibd"]
        await pilot.press("escape")
        assert pane(app, FILES)[1].strip().startswith("pread ")
        await pilot.press("escape")
        assert rows(app) == ["fsync", "pread", "write"]


def tree(app: OfftopApp) -> list[str]:
    """Return the column titles and the branches of the stack tree."""
    lines = [" ".join(line.split()) for line in pane(app, FILES)[1:]]
    return lines[: lines.index("")]


@asynchronous
async def test_l_shows_the_heat_map_of_all_rows_or_of_the_one_that_is_shown() -> None:
    async with shown(source(), (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("l")
        title, *lines = pane(app, FILES)
        assert title.strip("─ ") == "latency of: file operations, last 10m"
        assert cells(lines) == {"17ms-34ms": "▃", "16us-33us": "▆", "8.2us-16us": "█"}
        assert "8.2us-16us: 3,000 calls   most in a cell 3,000" in "\n".join(lines)
        await pilot.press("enter")
        assert app.view.paused_at_ns
        assert rows(app) == ["fsync", "pread", "write"]
        await pilot.press("enter", "l")
        title, *lines = pane(app, FILES)
        assert title.strip("─ ") == "latency of: fsync /var/lib/db/redo.log db(42), last 10m"
        assert cells(lines) == {"17ms-34ms": "█"}
        await pilot.press("left", "enter")
        assert "nothing was measured then" in "\n".join(screen(app))
        await pilot.press("t")
        assert pane(app, FILES)[0].strip("─ ").startswith("stack tree: fsync")
        await pilot.press("l", "escape", "escape")
        assert rows(app) == ["fsync", "pread", "write"]


def cell_text(app: OfftopApp) -> str:
    """Return what the line below the heat map says of the cell."""
    (line,) = (line for line in pane(app, FILES) if "most in a cell" in line)
    return line.partition(": ")[2]


@asynchronous
async def test_heat_map_says_what_is_still_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_heat, "_MOST_ROWS", 0)
    async with shown(source(), (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("l")
        assert pane(app, FILES)[1] == " Still being read from the history."
        monkeypatch.setattr(io_heat, "_MOST_ROWS", 1)  # one tick in each picture
        await pilot.press("l", "l")
        assert cell_text(app) == "1,000 calls so far, still being read   most in a cell 1,000"
        await pilot.press("l", "l", "l", "l")
        assert cell_text(app) == "3,000 calls   most in a cell 3,000"


@asynchronous
async def test_heat_map_has_what_passes_the_filter() -> None:
    view = replace(VIEW, filter=parse("op=pread"))
    async with shown(source(), (160, 50), view=view) as (app, pilot):
        await pilot.press("l")
        assert cells(pane(app, FILES)[1:]) == {"8.2us-16us": "█"}


@asynchronous
async def test_heat_map_has_earlier_calls_of_a_user_who_becomes_known_late() -> None:
    made = source()
    async with shown(made, (160, 50), view=replace(VIEW, user="alice")) as (app, pilot):
        await pilot.press("l")
        assert app.picture and app.picture.heat and app.picture.heat.most == 0
        catalog = app.picture.common.catalog
        catalog.details[42] = Details("alice", "db", "/db", 1000)
        catalog.details_version += 1
        await go_on(app, pilot, made, 4)
        assert cell_text(app) == "4,000 calls   most in a cell 4,000"


async def marked(app: OfftopApp, source: ScriptedSource, to: int) -> None:
    """Press B and continue to tick `to`, so that the window has nothing of before."""
    await app.run_action("perform('mark')")
    await until(lambda: app.view.baseline is not None)
    source.go_on(to)
    await until(lambda: app.picture is not None and app.picture.common.newest.number == to)
    await app.run_action("perform('diff')")


@asynchronous
async def test_rows_are_compared_with_the_baseline() -> None:
    made = source(ticks=60)
    async with shown(made, (160, 50), view=VIEW) as (app, _):
        fsync, write = FileKey(42, "fsync", LOG), FileKey(7, "write", ODD)
        slow = ACTIVITY.totals[fsync]._replace(total_ns=480 * MS, max_ns=120 * MS, histogram=log2.of(*[120 * MS] * 4))
        new = FileKey(9, "read", LOG)
        totals = {fsync: slow, write: ACTIVITY.totals[write], new: FileTotals(1, 0, 50 * MS)}
        made.files = replace(ACTIVITY, totals=totals)
        await marked(app, made, 70)
        title, heads, *lines = pane(app, FILES)
        assert "compared with the baseline, 1 row gone" in title
        assert heads.split()[2:4] == ["CHANGE", "p99"]
        numbers = {words[0]: words[2:4] for words in (line.lstrip("> ").split() for line in lines[:3])}
        assert numbers == {"fsync": ["+0.40!", "x4"], "read": ["+0.05!", "new"], "write": ["+0.00", "x1"]}
        await app.run_action("perform('diff')")
        assert "CHANGE" not in pane(app, FILES)[1]


@asynchronous
async def test_a_baseline_without_file_operations_is_named() -> None:
    made = ScriptedSource(ticks=60)
    made.files = ACTIVITY
    async with shown(made, (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("1")
        await marked(app, made, 70)
        made.files_requested.append(True)
        await pilot.press("7")
        made.go_on(75)
        await until(lambda: "the baseline has no file operations" in pane(app, FILES)[0])
        assert rows(app) == ["fsync", "pread", "write"]


def cells(lines: Sequence[str]) -> dict[str, str]:
    """Return range → cell of a heat map with one column, for cells that are not empty."""
    found = (line.split() for line in takewhile(lambda line: not line.lstrip().startswith("-"), lines))
    return {length: cell for length, cell in found if cell != "."}


@asynchronous
async def test_tree_without_stacks_says_why() -> None:
    async with shown(source(), (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("t")
        assert "No stack: only calls of 1ms (m) or longer have one, once they have ended." in "\n".join(
            pane(app, FILES)
        )


@pytest.mark.parametrize("size", [(80, 24), (60, 12), (40, 8), (120, 30), (200, 60), (20, 4)])
@asynchronous
async def test_no_line_is_wider_than_the_screen(size: tuple[int, int]) -> None:
    async with shown(source(), size, view=VIEW) as (app, _):
        assert all(len(line) <= size[0] for line in screen(app))
        if size[0] >= 60:
            assert "fsync" in "\n".join(screen(app))


@asynchronous
async def test_80_columns_have_file_and_who() -> None:
    async with shown(source(), view=VIEW) as (app, _):
        heads = pane(app, FILES)[1].split()
        assert heads == ["OP", "FILE", "CALLS/S", "MB/S", "TIME", "%OFF", "p99<=", "MAX", "WHO"]
        assert "t.ibd" in "\n".join(pane(app, FILES))
