"""Layout of the panels. Every terminal size has one, down to a single line."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from offtop.model.viewmodel.room import Room
from offtop.model.viewmodel.view import (
    AUTO,
    CATEGORIES,
    DISKS,
    FILES,
    FLAME,
    HEATMAP,
    HISTOGRAM,
    LATENCY,
    LIST,
    OFF,
    OUTLIERS,
    SITE,
    STUCK,
    TREE,
    WHOLE_SCREEN,
    View,
)
from offtop.units import NS_PER_S


class Rect(NamedTuple):
    """A rectangle of the screen, in cells."""

    x: int
    y: int
    width: int
    height: int


class Layout(NamedTuple):
    """Rectangles of the visible panels; they do not overlap."""

    width: int
    height: int
    panels: Mapping[str, Rect]
    """By panel id: `head`, `suspects`, `alert`, `keys`, `border`, `border-low`, and the pane names of
    model.viewmodel.view."""
    latency: str = OFF
    """What the latency pane shows."""
    most_categories: int = 1
    """Most rows that the table of categories could have; its panel has fewer if it needs fewer."""
    cost: bool = True
    """Whether the head has a line about what is not exact."""
    timeline: bool = True
    crumb: bool = True
    calls: bool = False
    """Whether the head has the line about the function of --within."""

    @property
    def panes(self) -> list[str]:
        """Panes that can have the focus, in the order of TAB. A histogram has nothing to select."""
        every = (CATEGORIES, LATENCY, LIST, TREE, SITE, *WHOLE_SCREEN)
        return [pane for pane in every if pane in self.panels and (pane != LATENCY or self.latency == HEATMAP)]

    @property
    def spark_cells(self) -> int:
        width = self.panels[CATEGORIES].width if CATEGORIES in self.panels else self.width
        return 30 if width >= 100 else 20 if width >= 90 else 12 if width >= 80 else 10

    @property
    def timeline_cells(self) -> int:
        """Cells of the timeline, 5 s each: 5 minutes, or 10 if there is room."""
        return 120 if self.width >= 140 else min(60, max(0, self.width - 18))

    @property
    def heat(self) -> tuple[int, int, int]:
        """Heat map: columns (whole minutes), seconds per column, and rows."""
        pane = next((self.panels[one] for one in (LATENCY, FILES, DISKS) if one in self.panels), None)
        if pane is None or self.latency != HEATMAP:
            return 0, 5, 0
        cells = max(1, pane.width - HEAT_SCALE)
        cell_s = 5 if cells >= 60 else 10
        minutes = min(10, cells * cell_s // 60)
        return minutes * 60 // cell_s or cells, cell_s, max(1, pane.height - HEAT_FRAME)

    @property
    def room(self) -> Room:
        lines = {
            pane: self.panels[pane].height - TREE_FRAME for pane in (CATEGORIES, LIST, TREE) if pane in self.panels
        }
        flame = self.panels.get(FLAME)
        columns, cell_s, rows = self.heat
        return Room(
            rows=max(1, lines.get(LIST, 1)),
            tree=max(1, lines[TREE]) if TREE in lines else 0,
            site=MOST_PLACES if SITE in self.panels else 0,
            stuck=next((stuck_lines(self.panels[one].height) for one in (STUCK, OUTLIERS) if one in self.panels), 0),
            files=stuck_lines(self.panels[FILES].height) if FILES in self.panels else 0,
            io_tree=next(
                (max(1, self.panels[one].height - TREE_FRAME) for one in (FILES, DISKS) if one in self.panels), 0
            ),
            disks=stuck_lines(self.panels[DISKS].height) if DISKS in self.panels else 0,
            flame=(flame.width, max(1, flame.height - FLAME_FRAME)) if flame else (0, 0),
            latency=LATENCY in self.panels,
            heat=(columns, rows),
            heat_cell_ns=cell_s * NS_PER_S,
            categories=self.most_categories,
            spark_cells=self.spark_cells,
            spark_cell_ns=60 * NS_PER_S // self.spark_cells,
            timeline_cells=self.timeline_cells if self.timeline else 1,
        )


TINY_WIDTH, TINY_HEIGHT = 40, 8
"""A smaller terminal gets only one line."""
LEAST_WITH_SUSPECTS = 14
"""Least lines of a screen with suspects on it."""
LEAST_LIST = 4
"""Least lines of a useful list: its title, column titles and two rows."""
LATENCY_BESIDE, TREE_BESIDE, TREE_LINES = 120, 200, 35
"""Least screen columns to place the latency pane and the tree beside other panes; least lines for the tree.

Beside a tree on a narrower screen, the list would have no room for its WHERE.
"""
CATEGORY_FRAME = 2
"""Column titles and the row of the sum."""
LEAST_LATENCY = 9
"""Least lines of the categories and a histogram beside them; with --within there are two, one below the other.

A heat map beside them has as many lines as there can be: with fewer, its rows would be coarser.
"""
HEAT_SCALE, HEAT_FRAME = 16, 3
"""Cells to the left of a heat map, and lines above and below it."""
FLAME_FRAME = 3
TREE_FRAME = 2
STUCK_FRAME = 2
"""Title and column titles."""
MOST_PLACES = 50
_LIST_SHARE = 0.6


def stuck_lines(height: int) -> int:
    """Rows of the list of waits in progress or outliers, in a pane of `height`.

    Below the list the pane shows the selected row in full.
    """
    details = 0 if height < 10 else max(6, height * 2 // 5)
    return max(1, height - STUCK_FRAME - details)


def most_suspect_lines(width: int, height: int) -> int:
    """Return how many lines of suspects there is room for."""
    if width < TINY_WIDTH or height < LEAST_WITH_SUSPECTS:
        return 0
    return 1 if height < 24 else 3 if width < 160 or height < 50 else 5


def arrange(
    width: int,
    height: int,
    view: View | None = None,
    within: bool = False,
    suspects: int = 0,
    categories: int | None = None,
    cost: bool = True,
) -> Layout:
    """Return the layout of a terminal for `view`.

    `within` says whether the view is limited to the calls of one function (--within). `suspects`: lines for these.
    `categories`: how many there are; None: as many as there is room for. `cost`: whether the head needs a line about
    what is not exact.
    """
    view = view or View()
    if width < TINY_WIDTH or height < TINY_HEIGHT:
        head = {"head": Rect(0, 0, width, min(1, height))}
        return Layout(width, height, MappingProxyType(head), cost=False, timeline=False, crumb=False)
    timeline, cost = height >= 24 and "timeline" not in view.hidden, cost and height >= 20
    crumb, keys = height >= 14, int(height >= 12)
    head = 2 + within + cost + timeline + crumb
    body = Rect(0, head + suspects, width, height - head - suspects - keys - 1)
    latency = _latency(view, width)
    most = _most_category_lines(body.height, height)
    upper = most if categories is None else min(most, CATEGORY_FRAME + _even(categories))
    if latency != OFF and width >= LATENCY_BESIDE:
        upper = most if latency == HEATMAP else min(most, max(upper, LEAST_LATENCY * (1 + within)))
    if body.height - upper < LEAST_LIST:
        upper = body.height
    panels = {"head": Rect(0, 0, width, head), **_panes(view, body, latency, height, upper)}
    if suspects:
        panels["suspects"] = Rect(0, head, width, suspects)
    panels["alert"] = Rect(0, height - keys - 1, width, 1)
    if keys:
        panels["keys"] = Rect(0, height - 1, width, 1)
    if panels.get(CATEGORIES) == body:
        most = body.height
    shown = latency if LATENCY in panels else HEATMAP if view.has_io_heat else OFF
    rows = max(1, most - CATEGORY_FRAME)
    return Layout(width, height, MappingProxyType(panels), shown, rows, cost, timeline, crumb, within)


def _even(categories: int) -> int:
    """Return a number of rows that does not change with each category that comes or goes."""
    return categories + categories % 2


def _most_category_lines(room: int, height: int) -> int:
    """Return the most lines of the categories if the list is below them in `room` lines."""
    most = min(6, max(3, (room + 1) // 2)) if height < 24 else min(18, max(9, height // 3))
    return room if room - most < LEAST_LIST else most


def _latency(view: View, width: int) -> str:
    if view.latency != AUTO:
        return view.latency
    return HISTOGRAM if width >= LATENCY_BESIDE else OFF


def _panes(view: View, body: Rect, latency: str, height: int, upper: int) -> dict[str, Rect]:
    """Return the panes in `body`; the categories have `upper` lines."""
    focus = view.focus if view.focus != LATENCY or latency != OFF else CATEGORIES
    if focus in WHOLE_SCREEN or view.zoomed:
        return {focus: body}
    tree_beside = body.width >= TREE_BESIDE and height >= TREE_LINES and "tree" not in view.hidden
    in_tree = focus in (TREE, SITE)
    tree_below = not tree_beside and height >= TREE_LINES and "tree" not in view.hidden
    if in_tree and not tree_beside and not tree_below:
        return {focus: body}
    top, bottom = body._replace(height=upper), body._replace(y=body.y + upper, height=body.height - upper)
    panels: dict[str, Rect] = {}
    if latency != OFF and body.width >= LATENCY_BESIDE:
        left, right = _split(
            top,
            CATEGORIES_WIDTH if body.width >= CATEGORIES_WIDTH + LEAST_HISTOGRAM else round(body.width * _LIST_SHARE),
        )
        panels |= {CATEGORIES: left, "border": Rect(left.width, top.y, 1, top.height), LATENCY: right}
    else:
        panels[CATEGORIES] = top
    if not bottom.height:
        return {LIST: body} if focus == LIST else panels
    if tree_beside:
        left, right = _split(bottom, round(bottom.width * _LIST_SHARE))
        border = Rect(left.width, bottom.y, 1, bottom.height)
        return panels | {LIST: left, "border-low": border, SITE if focus == SITE else TREE: right}
    if LATENCY not in panels and latency != OFF and focus in (CATEGORIES, LATENCY):
        return panels | {LATENCY: bottom}
    if tree_below:
        listed = max(LEAST_LIST, bottom.height * 3 // 5)
        return panels | {
            LIST: bottom._replace(height=listed),
            SITE if focus == SITE else TREE: bottom._replace(y=bottom.y + listed, height=bottom.height - listed),
        }
    return panels | {LIST: bottom}


CATEGORIES_WIDTH, LEAST_HISTOGRAM = 96, 44
"""Columns of a whole table of categories, and least columns of the histogram beside it."""


def _split(whole: Rect, left: int) -> tuple[Rect, Rect]:
    """Split into left and right, with a border of one column between them."""
    return whole._replace(width=left), whole._replace(x=whole.x + left + 1, width=whole.width - left - 1)
