"""Programs on the screen: drilling, titles, +, -, pin, mute, copy, search, mouse and hostile names."""

from offtop.model.aggregate.program import Program
from offtop.model.viewmodel.view import LIST, View
from offtop.ui.app import OfftopApp
from tests.ui.scripted import BANKS, SAID, ScriptedSource, Waits, slower_flush
from tests.ui.shown import QUICK_NS, asynchronous, crumb_line, pane, screen, shown

POSTGRES = Program("postgres")
AT_LIST = View(delay_ns=QUICK_NS, focus=LIST)


def source(table: tuple[Waits, ...] = BANKS) -> ScriptedSource:
    made = ScriptedSource(table, ticks=12)
    made.titles = SAID
    return made


def line(app: OfftopApp, words: str) -> str:
    return next((line for line in screen(app) if words in line), "")


def keys(app: OfftopApp) -> list[object]:
    assert app.picture is not None
    return [row.key for row in app.picture.listed.ranking.rows]


def cursor(app: OfftopApp) -> list[str]:
    """Return the first two words of the list's row under the cursor."""
    return next(line for line in reversed(screen(app)) if line.startswith(">")).split()[1:3]


@asynchronous
async def test_program_is_a_row_with_its_number_of_processes_and_enter_lists_them_with_titles() -> None:
    async with shown(source(), (150, 30), AT_LIST) as (app, pilot):
        assert line(app, "postgres").split()[:5] == [">", "x3", "postgres", "3", "0.65"]
        assert line(app, "kworker").split()[:3] == ["x2", "kworker/*", "2"]
        await pilot.press("enter")
        assert crumb_line(app).startswith("All > postgres ")
        assert "processes of postgres: all categories" in pane(app, LIST)[0]
        assert line(app, " 978 ").split()[2:6] == ["postgres:", "bench", "[local]", "UPDATE"]
        assert line(app, " 979 ").split()[1:4] == ["postgres", "1", "0.25"]
        await pilot.press("enter")
        assert crumb_line(app).startswith("All > postgres > postgres(978) ")
        await pilot.press("escape", "escape")
        assert crumb_line(app).startswith("All  ")
        assert cursor(app) == ["x3", "postgres"]


@asynchronous
async def test_where_says_the_largest_places_and_is_cut_from_the_end() -> None:
    table = slower_flush(BANKS)
    async with shown(source(table), (188, 30), AT_LIST) as (app, pilot):
        await pilot.press("x")
        whole = "0.58 futex_do_wait < ProcSleep · 0.10 jbd2_log_wait_commit < XLogFlush"
        assert line(app, " x3 ").endswith(f" {whole}")
        assert line(app, " psql ").endswith(" tcp_recvmsg < pqWait < main"), "a single place, in full"
        await pilot.resize_terminal(100, 30)
        where = line(app, " x3 ").split("0.58 ")[1]
        assert whole.startswith(f"0.58 {where.removesuffix('…')}") and where.endswith("…")
    async with shown(source(table), (188, 30), AT_LIST, ascii_only=True) as (app, pilot):
        await pilot.press("x")
        assert line(app, " x3 ").endswith(" 0.58 futex_do_wait < ProcSleep, 0.10 jbd2_log_wait_commit < XLogFlush")


@asynchronous
async def test_plus_lists_processes_one_by_one_and_minus_their_programs() -> None:
    async with shown(source(), view=AT_LIST) as (app, pilot):
        assert keys(app) == [POSTGRES, 500, 200, Program("kworker/*")]
        await pilot.press("plus")
        assert keys(app) == [978, 500, 979, 200, 51, 52]
        assert cursor(app) == ["978", "postgres:"], "the cursor stays with the program"
        await pilot.press("minus")
        assert keys(app)[0] == POSTGRES
        await pilot.press("enter", "plus")
        assert line(app, "+ and - unfold and fold programs, and pools of threads: H lists those")
        await pilot.press("escape", "2", "plus")
        assert line(app, "+ and - unfold and fold programs and pools of threads that wait: 1 lists them")


@asynchronous
async def test_program_is_pinned_muted_copied_and_cannot_be_the_only_one_measured() -> None:
    scripted = source()
    async with shown(scripted, view=AT_LIST) as (app, pilot):
        await pilot.press("y")
        assert app.clipboard.startswith("x3 postgres ")
        await pilot.press("Y")
        assert line(app, "ENTER lists those of this prog")
        await pilot.press("end", "p")
        assert (app.view.pin, keys(app)[0]) == (Program("kworker/*"), Program("kworker/*"))
        assert line(app, ">*").split()[:3] == [">*", "x2", "kworker/*"]
        assert "pin kworker/*" in crumb_line(app)
        await pilot.press("F")
        assert line(app, "F measures only a process, thread or cgroup")
        assert not app.view.narrowed
        await pilot.press("p")
        assert app.view.pin is None
        await pilot.press("X")
        assert [one.text for one in app.view.muted] == ["proc=kworker/*"]
        assert keys(app) == [POSTGRES, 500, 200]


@asynchronous
async def test_p_inside_of_a_program_without_a_list_pins_it() -> None:
    async with shown(source(), view=AT_LIST) as (app, pilot):
        await pilot.press("enter", "t", "p")
        assert app.view.pin == POSTGRES


@asynchronous
async def test_click_on_the_selected_program_opens_it() -> None:
    async with shown(source(), view=AT_LIST, mouse=True) as (app, pilot):
        y = next(y for y, text in enumerate(screen(app)) if " x2 " in text)
        await pilot.click(offset=(20, y))
        assert (app.view.cursor, app.view.program) == (Program("kworker/*"), None)
        await pilot.click(offset=(20, y))
        assert app.view.program == Program("kworker/*")
        assert keys(app) == [51, 52]


@asynchronous
async def test_search_finds_titles_and_the_filter_of_a_word_keeps_the_program() -> None:
    async with shown(source(), view=AT_LIST) as (app, pilot):
        await pilot.press("enter", "slash", *"UPDATE", "n")
        await pilot.press("escape", "slash", *"postgres", "enter")
        assert (app.view.program, keys(app)) == (POSTGRES, [978, 979])
        await pilot.press("\\", "ctrl+u", *"cat=fsync", "enter")
        assert keys(app) == [979]
        await pilot.press("\\", "ctrl+u", *"cat=sleep", "enter")
        assert line(app, 'no thread matches "cat=sleep" here. Esc goes up')


@asynchronous
async def test_rewound_screen_lists_programs_of_that_time() -> None:
    late = (*BANKS, BANKS[2]._replace(pid=990, tid=990, begins=8))
    async with shown(source(late), view=AT_LIST) as (app, pilot):
        assert app.picture and app.picture.listed.ranking.rows[0].processes == 4
        await pilot.press(*["left_square_bracket"] * 6)
        assert app.picture.listed.ranking.rows[0].processes == 3


@asynchronous
async def test_hostile_titles_and_program_names_are_shown_escaped() -> None:
    evil = "\x1b[31m\u202e\n*"
    table = tuple(Waits(evil, pid, evil, pid, "lock", "futex_do_wait", ("f",), (100,)) for pid in (700, 701))
    made = source(table)
    made.titles = {700: f"x: {evil}", 701: f"x: {evil}"}
    async with shown(made, (160, 30), AT_LIST) as (app, pilot):
        for pressed in (("p",), ("enter",), ("X", "y")):
            await pilot.press(*pressed)
            assert line(app, "\\x1b[31m\\u202e\\x0a")
            assert not [c for text in screen(app) for c in text if ord(c) < 32 or c == "\u202e"]
