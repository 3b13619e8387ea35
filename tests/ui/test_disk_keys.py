"""Requests to disks on the screen: counted while their list is open, by disk, process or thread."""

from dataclasses import replace
from itertools import takewhile

import pytest

from offtop.errors import KernelError
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.values import histogram as log2
from offtop.model.values.disks import DeviceTotals, DiskActivity, DiskKey, DiskTotals
from offtop.model.values.io_stacks import IoStack, StackTotals
from offtop.model.values.stack import KERNEL, Frame, Stack
from offtop.model.viewmodel.view import CATEGORIES, DISKS, FILES, LIST, TREE, DisksView, View
from offtop.ui.app import OfftopApp
from tests.ui.scripted import ScriptedSource
from tests.ui.shown import QUICK_NS, asynchronous, pane, screen, shown, until
from tests.ui.test_export_keys import Written
from tests.ui.test_file_keys import cells, marked

MS = 1_000_000
SDA, ODD = 8 << 20, 8 << 20 | 16


def requests(count: int, size: int, queue_ns: int, device_ns: int) -> DiskTotals:
    """Return totals of `count` completed requests, each of this size and with these times."""
    each = queue_ns + device_ns
    return DiskTotals(
        count,
        count * size,
        count * queue_ns,
        count * device_ns,
        count * each,
        max_ns=each,
        histogram=log2.of(*[each] * count),
        queue_histogram=log2.of(*[queue_ns] * count),
        device_histogram=log2.of(*[device_ns] * count),
    )


WRITES = requests(20, 65_536, 3 * MS, 9 * MS)._replace(now_ns=50 * MS, in_queue=2, in_device=1, merged=7, errors=1)
READS, BACK = requests(500, 4096, 10_000, 90_000), requests(4, 1 << 20, MS, MS)
ACTIVITY = DiskActivity(
    {
        DiskKey(SDA, "sync-write", 42, 43): WRITES,
        DiskKey(SDA, "read", 42, 43): READS,
        DiskKey(SDA, "read", 42, 44): READS,
        DiskKey(ODD, "write", 0, 0, "flush-8:\x1b16"): BACK,
    },
    {
        SDA: DeviceTotals(READS.beside(READS), WRITES, busy_ns=500 * MS),
        ODD: DeviceTotals(writes=BACK, busy_ns=10 * MS),
    },
    {SDA: "sda", ODD: "odd\x1b[2J"},
    {43: "db", 44: "reader\x1b"},
    lost=3,
)
VIEW = View(delay_ns=QUICK_NS, focus=DISKS)


def source(ticks: int = 3) -> ScriptedSource:
    made = ScriptedSource(ticks=ticks)
    made.disks = ACTIVITY
    made.disks_requested.append(True)
    return made


def rows(app: OfftopApp) -> list[str]:
    """Return operation and disk of the rows, in order."""
    lines = [line.lstrip("> ").split() for line in pane(app, DISKS)]
    heads = next(number for number, words in enumerate(lines) if words[:1] == ["OP"])
    return [" ".join(words[:2]) for words in takewhile(bool, lines[heads + 1 :])]


@asynchronous
async def test_first_screen_can_list_requests_to_disks() -> None:
    async with shown(source(), (160, 50), view=VIEW) as (app, _):
        assert "|8 disks|" in screen(app)[0]
        title, devices, sda, odd, heads, first, *_ = pane(app, DISKS)
        assert title.strip("─ ") == "requests to disks: 1.0k/s, LOST 9, 9.6MB/s, 1.04s in queue and disk in 3s"
        assert devices.split()[:8] == ["DISK", "r/s", "w/s", "rMB/s", "wMB/s", "QUEUED", "IN-DISK", "%UTIL"]
        assert sda.split() == [
            *("sda", "1.0k", "20", "4.10", "1.31", "2", "1", "50"),
            *("4.2ms", "12ms", "12ms"),
        ]
        assert odd.split()[:5] == ["odd\\x1b[2J", "0", "4", "4.19", "0"]
        assert heads.split()[:5] == ["OP", "DISK", "REQ/S", "MB/S", "TIME"]
        assert first.split()[-3:] == ["12ms", "50ms", "db(42)"]
        assert rows(app) == ["sync-write sda", "read sda", "write odd\\x1b[2J"]


@asynchronous
async def test_selected_row_is_shown_in_full_with_both_histograms() -> None:
    async with shown(source(), (160, 50), view=VIEW) as (app, pilot):
        lines = [line.strip() for line in pane(app, DISKS)]
        at = lines.index("sync-write sda db(42)")
        assert lines[at + 2] == "60 requests completed, 3,932,160 bytes, 21 merged into others, 3 failed"
        assert lines[at + 3] == "180ms in the queue, 540ms in the disk"
        assert lines[at + 4] == "in progress: 2 in the queue, 1 in the disk, the oldest for 50ms"
        assert lines[at + 5].split() == ["in", "the", "queue", "in", "the", "disk"]
        assert [(line.split()[1], line.split()[-1]) for line in lines[at + 6 : at + 8]] == [
            ("4.2ms", "60"),
            ("17ms", "60"),
        ]
        await pilot.press("end")
        assert "for a kernel worker" in "\n".join(pane(app, DISKS))


@asynchronous
async def test_names_are_escaped() -> None:
    async with shown(source(), (160, 50), view=replace(VIEW, disks=DisksView(by_thread=True))) as (app, _):
        text = "\n".join(pane(app, DISKS))
        assert "odd\\x1b[2J" in text
        assert "[flush-8:\\x1b16]" in text
        assert "reader\\x1b(44)" in text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("key", "order"),
    [("M", "sync-write write read"), ("E", "read sync-write write"), ("R", "write read sync-write")],
)
@asynchronous
async def test_keys_sort_the_list(key: str, order: str) -> None:
    async with shown(source(), view=VIEW) as (app, pilot):
        await pilot.press(key)
        assert [row.split()[0] for row in rows(app)] == order.split()


@asynchronous
async def test_h_lists_threads_and_enter_shows_where_one_waits() -> None:
    async with shown(source(), view=VIEW) as (app, pilot):
        await pilot.press("H")
        assert rows(app) == ["sync-write sda", "read sda", "read sda", "write odd\\x1b…"]
        await pilot.press("enter", "enter")
        assert (app.view.focus, app.view.thread) == (TREE, (42, 43))


@asynchronous
async def test_enter_shows_where_the_process_waits_if_there_is_one() -> None:
    async with shown(source(), view=VIEW) as (app, pilot):
        await pilot.press("end", "enter", "enter")
        assert (app.view.focus, "for no process" in screen(app)[-2]) == (DISKS, True)
        await pilot.press("escape", "home", "enter", "enter")
        assert (app.view.focus, app.view.pid) == (LIST, 42)


@asynchronous
async def test_filter_and_search_work_in_the_list() -> None:
    async with shown(source(), view=VIEW) as (app, pilot):
        app.set_view(replace(VIEW, filter=parse("dev=sd* op=read bytes>1M proc=db pid=42 cat=lock")))
        await pilot.pause()
        assert rows(app) == ["read sda"]
        await pilot.resize_terminal(200, 50)
        await pilot.pause()
        assert "ignored filter words: cat" in pane(app, DISKS)[0]
        app.set_view(replace(VIEW, filter=parse("op=write")))
        await pilot.pause()
        assert "requests to disks: 4/s of 1.0k/s," in pane(app, DISKS)[0]
        assert "odd\\x1b[2J" in "\n".join(pane(app, DISKS)), "disks count all requests"
        app.set_view(replace(VIEW, filter=parse("op=flush")))
        await pilot.pause()
        assert "No request passes the filter" in "\n".join(pane(app, DISKS))
        app.set_view(VIEW)
        await pilot.press("slash", *"flush-8", "enter")
        assert rows(app) == ["write odd\\x1b[2J"]


@asynchronous
async def test_8_counts_while_the_list_is_open_and_only_then() -> None:
    made = ScriptedSource(ticks=3)
    async with shown(made, view=View(delay_ns=QUICK_NS, focus=LIST)) as (app, pilot):
        assert made.disks_requested == []
        await pilot.press("8")
        assert (app.view.focus, "Starting to count" in "\n".join(pane(app, DISKS))) == (DISKS, True)
        await until(lambda: made.disks_requested == [True])
        await pilot.press("7")
        assert app.view.focus == FILES
        await until(lambda: (made.disks_requested, made.files_requested) == ([True, False], [True]))
        await pilot.press("8")
        await until(lambda: (made.disks_requested[-1], made.files_requested[-1]) == (True, False))
        await pilot.press("8")
        assert app.view.focus == LIST
        await until(lambda: not made.disks_requested[-1])


@asynchronous
async def test_8_starts_at_the_process_under_the_cursor() -> None:
    made = source()
    made.disks = replace(ACTIVITY, totals={**ACTIVITY.totals, DiskKey(SDA, "read", 4242, 4242): BACK})
    async with shown(made, view=View(delay_ns=QUICK_NS, focus=LIST)) as (app, pilot):
        assert app.controllers.panes.focused.process() == 4242
        await pilot.press("8")
        assert next(line for line in pane(app, DISKS) if line.startswith(">")).split()[-1] == "mysqld(4242)"
        await pilot.press("up")
        assert "> write" in "\n".join(pane(app, DISKS))


@asynchronous
async def test_refusal_is_shown_and_leaves_the_list() -> None:
    made = ScriptedSource(ticks=3)
    made.refuses = KernelError("Requests to disks cannot be shown: no")
    async with shown(made) as (app, pilot):
        await pilot.press("8")
        await until(lambda: app.view.focus == CATEGORIES)
        assert "Requests to disks cannot be shown" in screen(app)[-2]


@asynchronous
async def test_click_selects_a_row_below_the_disks_and_a_title_sorts() -> None:
    async with shown(source(), (160, 50), view=VIEW, mouse=True) as (app, pilot):
        top = app.layout.panels[DISKS].y
        await pilot.click(offset=(4, top + 6))
        assert pane(app, DISKS)[6].startswith("> read")
        await pilot.click(offset=(pane(app, DISKS)[4].index("REQ/S") + 1, top + 4))
        assert rows(app)[0] == "read sda"
        await pilot.click(offset=(4, top + 2))
        assert pane(app, DISKS)[5].startswith("> read")


@pytest.mark.parametrize("size", [(80, 24), (60, 12), (40, 8), (120, 30), (20, 4)])
@asynchronous
async def test_no_line_is_wider_than_the_screen(size: tuple[int, int]) -> None:
    async with shown(source(), size, view=VIEW) as (app, _):
        assert all(len(line) <= size[0] for line in screen(app))
        if size[0] >= 80:
            assert "db(42)" in "\n".join(screen(app))


def with_stacks() -> ScriptedSource:
    made = source()
    catalog = made.after(0).catalog
    catalog.stacks[901] = Stack((Frame(KERNEL, 0, "submit_bio"), Frame(KERNEL, 0, "vfs_read")))
    for number, name in enumerate(("commit", "load"), 902):
        catalog.stacks[number] = Stack((Frame("/bin/db", number, name), Frame("/bin/db", 1, "main\x1b")))
    made.disks = replace(
        ACTIVITY,
        stacks={
            IoStack(DiskKey(SDA, "sync-write", 42, 43), 901, 902): StackTotals(15, 983_040, 200 * MS, 12 * MS),
            IoStack(DiskKey(SDA, "read", 42, 43), 901, 903): StackTotals(2, 8192, 3 * MS, 2 * MS),
            IoStack(DiskKey(SDA, "read", 42, 44), 901, 903): StackTotals(1, 4096, MS, MS),
            IoStack(DiskKey(ODD, "write", 0, 0, "flush-8:\x1b16"), 901, 0): StackTotals(1, 1 << 20, MS, MS),
        },
    )
    return made


@asynchronous
async def test_enter_shows_a_row_with_its_stacks_those_of_all_threads_as_one() -> None:
    async with shown(with_stacks(), (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("down", "enter")
        title, *lines = [" ".join(line.split()) for line in pane(app, DISKS)]
        assert title.strip("─ ").startswith("requests to a disk (Enter: where this process waits")
        at = lines.index("1 stack, and 2,991 requests without a stack")
        assert lines[at + 2 : at + 7] == [
            "#1 9 requests 12ms in all 4% max 2.0ms",
            "[k] submit_bio",
            "[k] vfs_read",
            "load",
            "main\\x1b",
        ]
        await pilot.press("escape")
        assert rows(app)[0] == "sync-write sda"


@asynchronous
async def test_t_shows_the_stack_tree_and_e_writes_it() -> None:
    files = Written()
    async with shown(with_stacks(), (160, 50), view=VIEW, files=files) as (app, pilot):
        await pilot.press("t")
        tree = [" ".join(line.split()) for line in pane(app, DISKS)]
        assert tree[0].strip("─ ") == "stack tree: requests to disks"
        assert tree[1:4] == [
            "TIME % MAX REQ/S STACK ([k] kernel)",
            "> 612ms 100% 12ms 18 ▼ main\\x1b",
            "600ms 98% 12ms 15 ▼ commit",
        ]
        assert tree[-1] == "41% of the time has no stack and is not in this tree: 3,015 requests"
        await pilot.press("e", "enter")
        await until(lambda: bool(files.files))
        ((_, content),) = files.files.items()
        assert isinstance(content, str)
        assert content.splitlines()[0] == "db;main\\x1b;commit;sync-write sda;vfs_read;submit_bio 600000"
        await pilot.press("t")
        assert rows(app)[0] == "sync-write sda"


@asynchronous
async def test_l_shows_the_heat_map_of_queue_and_disk_together() -> None:
    async with shown(source(), (160, 50), view=VIEW) as (app, pilot):
        await pilot.press("l")
        title, *lines = pane(app, DISKS)
        assert title.strip("─ ") == "latency of: requests to disks, last 10m"
        assert cells(lines) == {"8.4ms-17ms": "▅", "1.0ms-2.1ms": "▃", "66us-131us": "█"}
        assert "66us-131us: 3,000 requests   most in a cell 3,000" in "\n".join(lines)
        await pilot.press("l", "H", "enter", "l")
        title, *lines = pane(app, DISKS)
        assert title.strip("─ ").startswith("latency of: sync-write sda db(43)")


@asynchronous
async def test_heat_map_of_a_time_without_counting_says_so() -> None:
    async with shown(ScriptedSource(ticks=3), (80, 24), view=replace(VIEW, focus=CATEGORIES)) as (app, pilot):
        await pilot.press("space", "8", "l")
        assert pane(app, DISKS)[1].strip() == "No requests were counted at this time."


@asynchronous
async def test_requests_are_compared_with_the_baseline() -> None:
    made = source(ticks=60)
    async with shown(made, (80, 24), view=VIEW) as (app, _):
        slow = replace(
            ACTIVITY, totals={**ACTIVITY.totals, DiskKey(SDA, "sync-write", 42, 43): requests(20, 1, MS, 30 * MS)}
        )
        made.disks = slow
        await marked(app, made, 70)
        every = [line.lstrip("> ").split() for line in pane(app, DISKS)]
        numbers = {words[0]: words[2:4] for words in every if len(words) > 6 and words[2].endswith("!")}
        assert numbers == {"sync-write": ["+0.38!", "x2.6"]}
        assert all(len(line) <= 80 for line in screen(app))
