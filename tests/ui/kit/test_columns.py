"""In panes of every width, a column of a table is shown completely or not at all."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest

from offtop.model.aggregate.rows import ACCOUNT_SORTS, SORTS
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import CATEGORIES, NAMES, View
from offtop.ui.kit.columns import Column, that_fit, width_of
from offtop.ui.kit.glyphs import UNICODE
from offtop.ui.kit.lines import Pen
from offtop.ui.panes.tables import CATEGORY_MARK, CHOOSABLE, LIST_MARK, category_columns, list_columns
from tests.ui.scripted import MS, ScriptedSource, Waits
from tests.ui.shown import asynchronous, screen, shown

WIDTHS = (*range(40, 101), *range(103, 240, 7))
HIDDEN = (frozenset[str](), frozenset(CHOOSABLE), *(frozenset({title}) for title in CHOOSABLE))
LONG = Waits("keeper", 500, "keeper", 500, "lock", "futex_do_wait", ("main",), (12_500,))


@pytest.fixture(scope="module")
def picture() -> Picture:
    """The picture of a screen that is wide enough for all sparklines."""

    async def taken() -> Picture:
        async with shown(ScriptedSource(), (240, 50)) as (app, _):
            assert app.picture is not None
            return app.picture

    return asyncio.run(taken())


def views(hidden: frozenset[str]) -> Iterator[View]:
    """Yield a view of each list, in each of its sorts."""
    for threads, cgroups, names in ((False, False, 0), (True, False, 0), (True, False, 1), (False, True, 0)):
        view = View(threads=threads, cgroups=cgroups, names=NAMES[names], hidden=hidden)
        yield from (replace(view, sort=sort) for sort in SORTS)
        yield from (replace(view, account=True, account_sort=sort) for sort in ACCOUNT_SORTS)


def test_tables_fit_their_panes(picture: Picture) -> None:
    pens = [Pen(width, 20, UNICODE, ScriptedSource()) for width in WIDTHS]
    for view in chain.from_iterable(map(views, HIDDEN)):
        some = replace(picture, view=view)
        for pen in pens:
            assert width_of(list_columns(some, pen), LIST_MARK) <= pen.width, (pen.width, view)
            if not view.threads and not view.cgroups:
                assert width_of(category_columns(some, pen), CATEGORY_MARK) <= pen.width, (pen.width, view)


def test_name_main_figure_and_sort_column_are_always_shown(picture: Picture) -> None:
    for width in WIDTHS:
        for view in views(frozenset()):
            some, pen = replace(picture, view=view), Pen(width, 20, UNICODE, ScriptedSource())
            listed = list_columns(some, pen)
            assert any(column.sort == "NAME" for column in listed)
            assert ("RUNNING" if view.account else "WAITING") in [column.title for column in listed]
            if view.list_sort != "PID" or not view.cgroups:
                assert view.list_sort in [column.sort for column in listed], (width, view)


def test_columns_for_wide_panes_are_dropped_first_then_the_rightmost() -> None:
    def column(title: str, least_width: int = 0, stays: bool = False) -> Column:
        return Column(title, 3, lambda row: "", sort=title, least_width=least_width, stays=stays)

    every = [column("a", stays=True), column("b"), column("c", 10), column("d"), column("e", 8)]

    def titles(width: int, sort: str = "", view: View | None = None) -> str:
        return "".join(one.title for one in that_fit(every, width, view or View(), sort, 1))

    assert [titles(width) for width in (21, 20, 17, 16, 13, 12, 9, 8, 5, 4, 0)] == [
        *("abcde", "abde", "abde", "abd", "abd", "ab", "ab", "a", "a", "", ""),
    ]
    assert titles(8, "e") == "a"
    assert titles(9, "e") == "ae"
    assert titles(21, "c", View(hidden=frozenset({"c"}))) == "abde"


@pytest.mark.parametrize("size", [(80, 24), (60, 14), (160, 50)])
@asynchronous
async def test_totals_are_not_cut_when_sorted_by_total(size: tuple[int, int]) -> None:
    table = [LONG, LONG._replace(pid=501, tid=501, waits_ms=(), waits_on=True, older_ms=12_000)]
    async with shown(ScriptedSource(table, ticks=1), size) as (app, pilot):
        await pilot.press("T")
        lines = screen(app)
        for title in ("CATEGORY", "COMMAND"):
            heads = next(line for line in lines if title in line).split("│")[0]
            row = next(line for line in lines[lines.index(next(x for x in lines if title in x)) :] if "12.5s" in line)
            assert row[: len(heads)].rfind("12.5s") > 0 and "TOTAL" in heads
            assert heads.rstrip().endswith(("NOW", "WHERE", "MAX"))
        assert app.picture is not None and app.picture.rows.rows[0].part.max_ns == 12_500 * MS
        assert app.view.focus == CATEGORIES
