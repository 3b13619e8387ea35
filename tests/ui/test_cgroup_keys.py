"""C lists containers, units and other cgroups; they can be opened, pinned and filtered to, and have short names."""

from collections.abc import Mapping

from offtop.errors import UsageError
from offtop.model.aggregate.row_names import NO_CGROUP
from offtop.model.values.catalog import Details
from offtop.model.values.snapshot import Filters
from offtop.model.viewmodel.view import CATEGORIES, LIST
from offtop.ui.app import OfftopApp
from tests.ui.scripted import MS, SHOP, TABLE, ScriptedSource
from tests.ui.shown import asynchronous, crumb_line, screen, shown, until, waiting_line

ID = "1a2b3c4d5e6f" + 52 * "0"
DOCKER, MYSQL = f"/docker/{ID}", "/system.slice/mysql.service"
WHO: Mapping[int, Details] = {
    100: Details("alice", "/opt/shop", f"{DOCKER}/init.scope", 1000),
    200: Details("bob", "/opt/bank", MYSQL, 1001),
    300: Details("bob", "/opt/door", f"{MYSQL}/door", 1001),
}


def source(who: Mapping[int, Details] = WHO) -> ScriptedSource:
    return ScriptedSource(SHOP, ticks=12, who=who)


def listed(app: OfftopApp) -> list[tuple[object, int, int]]:
    """Return key, number of processes or threads, and waiting time in ms of each row."""
    assert app.picture is not None
    return [(row.key, row.processes or row.threads, row.part.total_ns // MS) for row in app.picture.listed.ranking.rows]


def line(app: OfftopApp, words: str) -> str:
    return next((line for line in screen(app) if words in line), "")


@asynchronous
async def test_c_lists_containers_and_units_with_their_totals() -> None:
    async with shown(source()) as (app, pilot):
        await pilot.press("i", "C")
        await pilot.press("r", "r")  # redraw with the details that have arrived
        assert listed(app) == [(MYSQL, 2, 12_000), (DOCKER, 1, 8_000)]
        assert "── cgroups: all categories" in line(app, "cgroups")
        assert line(app, "PROC").split()[:3] == ["CGROUP", "PROC", "WAITING"]
        assert line(app, "mysql.service").split()[:3] == ["mysql.service", "2", "1.20"]
        assert line(app, "docker").split()[:4] == ["docker", "1a2b3c4d5e6f", "1", "0.80"]
        assert line(app, "mysql.service").split()[-4:] == ["12.0s", "do_epoll_wait", "<", "main"]  # NOW and WHERE
        await pilot.press("C")
        assert [key for key, *_ in listed(app)] == [300, 100, 200]


@asynchronous
async def test_processes_of_unknown_cgroup_have_a_row() -> None:
    async with shown(source({})) as (app, pilot):
        await pilot.press("C")
        assert listed(app) == [(NO_CGROUP, 3, 10_000)]
        assert line(app, "(unknown)").split()[1:3] == ["3", "1.00"]
        await pilot.press("tab", "p")
        assert app.view.pin is None
        assert line(app, "p pins a program, process, thread or cgroup")
        await pilot.press("enter")
        assert app.view.filter.text == 'cgroup=""'
        assert [key for key, *_ in listed(app)] == [100, 200]


@asynchronous
async def test_cgroup_list_looks_up_all_processes_and_follows_the_answers() -> None:
    scripted = source()
    async with shown(scripted) as (app, pilot):
        await pilot.press("C")
        assert scripted.asked[-1] >= {100, 200, 300}
        scripted.go_on(to=13)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 13)
        await pilot.pause()
        assert [key for key, *_ in listed(app)] == [DOCKER, MYSQL]


@asynchronous
async def test_enter_lists_the_processes_of_a_cgroup_and_escape_goes_back() -> None:
    async with shown(source()) as (app, pilot):
        await pilot.press("\\", *"cat=lock", "enter", "C", "tab", "down", "enter")
        assert app.view.filter.text == f"cat=lock cgroup={MYSQL}"
        assert listed(app) == [(200, 2, 1_000)]
        assert "processes of mysql.service: all categories" in line(app, "──")
        assert crumb_line(app).startswith("All > mysql.service ")
        assert "filter cat=lock  0.10 pass" in crumb_line(app)
        await pilot.press("enter")
        assert [key for key, *_ in listed(app)] == [(200, 201)]
        assert crumb_line(app).startswith("All > mysql.service > bank(200) ")
        for key, path in (("7", "All > mysql.service "), ("O", "All ")):
            await pilot.press(key)
            assert crumb_line(app).partition("   ")[0] == path.rstrip()
            await pilot.press(key)
        await pilot.press("escape", "escape")
        assert (app.view.filter.text, app.view.cursor) == ("cat=lock", MYSQL)
        assert line(app, "mysql.service").startswith(">")
        await pilot.press("escape", "escape")
        assert (app.view.focus, app.view.filter.text, app.view.lists_cgroups) == (CATEGORIES, "", True)


@asynchronous
async def test_click_on_a_selected_cgroup_opens_it() -> None:
    async with shown(source(), mouse=True) as (app, pilot):
        await pilot.press("C", "tab")
        y = next(y for y, text in enumerate(screen(app)) if "docker 1a2b" in text)
        await pilot.click(offset=(5, y))
        assert (app.view.focus, app.view.filter.text) == (LIST, f"cgroup={DOCKER}")
        assert [key for key, *_ in listed(app)] == [100]


@asynchronous
async def test_pinned_cgroup_is_on_top_and_f_restricts_the_kernel_filter_to_it() -> None:
    scripted = source()
    async with shown(scripted) as (app, pilot):
        await pilot.press("C", "tab", "down", "p")
        assert app.view.pin == MYSQL
        assert [key for key, *_ in listed(app)] == [MYSQL, DOCKER]
        assert line(app, ">* mysql.service")
        assert "pin mysql.service" in crumb_line(app)
        await pilot.press("F")
        assert scripted.filters == Filters(cgroup=MYSQL)
        assert "pin mysql.service only" in crumb_line(app)
        scripted.go_on(to=13)
        await until(lambda: app.picture is not None and app.picture.common.newest.number == 13)
        await pilot.pause()
        assert "only cgroup mysql.service" in waiting_line(app)
        await pilot.press("F", "p")
        assert (scripted.filters, app.view.pin) == (Filters(), None)
        scripted.refuses = UsageError("--cgroup: there is no cgroup '/gone' here")
        await pilot.press("p", "F")
        assert (scripted.filters, app.view.narrowed) == (Filters(), False)
        assert line(app, "there is no cgroup '/gone' here")


@asynchronous
async def test_root_cgroup_cannot_be_filtered_to() -> None:
    scripted = source({100: Details(cgroup="/")})
    async with shown(scripted) as (app, pilot):
        await pilot.press("C", "tab", "p", "F")
        assert (app.view.pin, app.view.narrowed, scripted.filters) == ("/", False, Filters())
        assert line(app, "every process is in the cgroup / or below")
        assert line(app, ">* /").split()[:3] == [">*", "/", "1"]


@asynchronous
async def test_x_mutes_a_cgroup_and_y_copies_its_row() -> None:
    async with shown(source()) as (app, pilot):
        await pilot.press("C", "tab", "y")
        assert app.clipboard.startswith(f"{DOCKER} docker 1a2b3c4d5e6f ")
        await pilot.press("X")
        assert [one.text for one in app.view.muted] == [f"cgroup={DOCKER}"]
        assert [key for key, *_ in listed(app)] == [MYSQL]


@asynchronous
async def test_filter_container_matches_kind_and_names() -> None:
    async with shown(source()) as (app, pilot):
        for typed, pids in (("docker*", [100]), ("1a2b3c4d5e6f", [100]), ("unit", [200]), ("x", [])):
            await pilot.press("\\", "ctrl+u", *f"container={typed}", "enter")
            assert [key for key, *_ in listed(app)] == pids


@asynchronous
async def test_cgroups_have_short_names_in_lists_and_in_a_wide_column() -> None:
    who = {**WHO, 977: Details(cgroup="/user.slice"), 3100: Details(cgroup="/"), 4242: WHO[100]}
    async with shown(ScriptedSource(TABLE, ticks=12, who=who), (140, 50)) as (app, pilot):
        assert "CGROUP" not in "".join(screen(app))
        await pilot.press("tab", "x")
        await pilot.resize_terminal(160, 50)
        assert "CGROUP" in line(app, "COMMAND")
        for pid, name in ((4242, "docker 1a2b3c4d5e6f"), (977, "/user.slice"), (3100, "/")):
            assert f" {name}  " in line(app, f" {pid} ")
        await pilot.press("c", "c")
        assert line(app, "CGROUP").count("CGROUP") == 1
        assert line(app, " 4242 ").split()[:4] == [">", "4242", "docker", "1a2b3c4d5e6f"]
        assert line(app, " 3100 ").split()[:2] == ["3100", "/"]


@asynchronous
async def test_hostile_cgroup_name_is_shown_escaped() -> None:
    who = {100: Details(cgroup="/\x1b[31m\u202e\n*?\"'")}
    async with shown(source(who), (160, 30)) as (app, pilot):
        for keys in (("C",), ("tab", "p"), ("enter",), ("x",)):
            await pilot.press(*keys)
            await pilot.pause()
            assert line(app, "/\\x1b[31m\\u202e\\x0a")
            assert not [c for text in screen(app) for c in text if ord(c) < 32 or c == "\u202e"]
        assert [key for key, *_ in listed(app)] == [100]
