"""In panes of every width, a column of a table is shown completely or not at all."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest

from offtop import units
from offtop.model.aggregate.rows import ACCOUNT_SORTS, NOWHERE, SORTS
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import CATEGORIES, NAMES, View
from offtop.ui.kit.columns import Column, line_of, that_fit, width_of
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


def columns_of_list(picture: Picture, view: View, pen: Pen) -> list[Column]:
    return list_columns(picture.listed, replace(picture.common, view=view), pen)


def views(hidden: frozenset[str]) -> Iterator[View]:
    """Yield a view of each list, in each of its sorts."""
    for threads, cgroups, names in ((False, False, 0), (True, False, 0), (True, False, 1), (False, True, 0)):
        view = View(threads=threads, cgroups=cgroups, names=NAMES[names], hidden=hidden)
        yield from (replace(view, sort=sort) for sort in SORTS)
        yield from (replace(view, account=True, account_sort=sort) for sort in ACCOUNT_SORTS)


def test_tables_fit_their_panes(picture: Picture) -> None:
    pens = [Pen(width, 20, UNICODE, ScriptedSource()) for width in WIDTHS]
    for view in chain.from_iterable(map(views, HIDDEN)):
        common = replace(picture.common, view=view)
        for pen in pens:
            assert width_of(list_columns(picture.listed, common, pen), LIST_MARK) <= pen.width, (pen.width, view)
            if not view.threads and not view.cgroups:
                columns = category_columns(picture.categories, common, pen)
                assert width_of(columns, CATEGORY_MARK) <= pen.width, (pen.width, view)


def test_name_main_figure_and_sort_column_are_always_shown(picture: Picture) -> None:
    for width in WIDTHS:
        for view in views(frozenset()):
            pen = Pen(width, 20, UNICODE, ScriptedSource())
            listed = columns_of_list(picture, view, pen)
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
        assert app.picture is not None and app.picture.listed.ranking.rows[0].part.max_ns == 12_500 * MS
        assert app.view.focus == CATEGORIES


DROPPED = ("p50<=", "EV/S", "p99<=", "%", "THR", "CGROUP", "USER")


@pytest.mark.parametrize(
    ("width", "sort", "dropped"),
    [
        (199, "WAITING", ()),
        (140, "WAITING", ("CGROUP",)),
        (130, "WAITING", ("p50<=", "CGROUP")),
        (119, "WAITING", ("p50<=", "CGROUP", "USER")),
        (110, "WAITING", ("p50<=", "EV/S", "CGROUP", "USER")),
        (100, "WAITING", ("p50<=", "EV/S", "p99<=", "CGROUP", "USER")),
        (80, "WAITING", DROPPED),
        (80, "P50", DROPPED[1:]),
        (80, "EV/S", ("p50<=", *DROPPED[2:])),
        (80, "P99", ("p50<=", "EV/S", *DROPPED[3:])),
    ],
)
def test_columns_are_dropped_for_where_but_not_the_sort_column(
    picture: Picture, width: int, sort: str, dropped: tuple[str, ...]
) -> None:
    """CGROUP and USER are also dropped because the list is narrower than they are worth: 160 and 130 columns."""
    pen = Pen(width, 20, UNICODE, ScriptedSource())
    titles = [column.title for column in columns_of_list(picture, View(sort=sort), pen)]
    assert tuple(title for title in DROPPED if title not in titles) == dropped
    assert {"COMMAND", "WAITING", " WHERE"} <= {*titles}


def test_where_has_room_or_nothing_is_left_to_drop(picture: Picture) -> None:
    for width in WIDTHS:
        for view in views(frozenset()):
            pen = Pen(width, 20, UNICODE, ScriptedSource())
            listed = columns_of_list(picture, view, pen)
            droppable = [one for one in listed if one.title in DROPPED and not one.stays and one.sort != view.list_sort]
            if not view.account and droppable:
                assert listed[-1].title == " WHERE", (width, view)
                assert listed[-1].width - 1 >= min(40, round(width / 3)), (width, view)


def test_hidden_where_needs_no_room(picture: Picture) -> None:
    view, pen = View(hidden=frozenset({"WHERE"})), Pen(100, 20, UNICODE, ScriptedSource())
    assert {"p50<=", "EV/S", "p99<=", "%", "THR"} <= {column.title for column in columns_of_list(picture, view, pen)}


def test_cells_of_waiting_have_a_bar_as_long_as_their_share(picture: Picture) -> None:
    pen = Pen(160, 20, UNICODE, ScriptedSource())
    columns = list_columns(picture.listed, picture.common, pen)
    width = next(column.width for column in columns if column.title == "WAITING")
    bars: list[int] = []
    for row in picture.listed.ranking.rows:
        spans = line_of(columns, row, "  ", "text", pen).spans
        (filled,) = [text for text, token in spans if token == "waiting-bar"]
        rest = next((text for text, token in spans if token == "waiting" and text.strip()), "")
        assert f"{filled}{rest}" == f"{units.threads(row.waiting):>{width}}"
        bars.append(len(filled))
        assert len(filled) == max(1, round(row.share_pct / 100 * width))
    assert bars == sorted(bars, reverse=True) and len({*bars}) > 1


@pytest.mark.parametrize(("part", "cells"), [(0.0, 0), (0.001, 1), (0.5, 4), (0.99, 8), (1.0, 8), (1.2, 8)])
def test_bar_fills_at_least_one_cell_and_at_most_all(picture: Picture, part: float, cells: int) -> None:
    column = Column("N", 8, lambda _: "1.00", "value", filled=lambda _: part)
    line = line_of([column], picture.listed.ranking.rows[0], "", "text", Pen(20, 20, UNICODE, ScriptedSource()))
    assert sum(len(text) for text, token in line.spans if token == "waiting-bar") == cells
    assert "".join(text for text, _ in line.spans) == "     1.00"


def test_where_is_in_the_colour_of_its_category(picture: Picture) -> None:
    where = list_columns(picture.listed, picture.common, Pen(160, 20, UNICODE, ScriptedSource()))[-1]
    assert where.token_of
    assert [where.token_of(row) for row in picture.listed.ranking.rows] == ["cat-lock", "cat-lock", "cat-disk-read"]
    assert where.token_of(picture.listed.ranking.rows[0]._replace(top=NOWHERE)) == "where"
