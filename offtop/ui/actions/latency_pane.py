"""The latency pane: a histogram, or a heat map with a cell under the cursor."""

from dataclasses import replace

from offtop.model.viewmodel import panes, view_changes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import HEATMAP, LATENCY, View
from offtop.ui.actions.pane import Pane
from offtop.ui.kit.layout import HEAT_SCALE, Layout
from offtop.ui.kit.lines import Line, Pen
from offtop.ui.panes import latency


class LatencyPane(Pane):
    name = LATENCY
    highlights_matches = False

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        if layout.latency == HEATMAP:
            return latency.heat_map(picture.heat, picture.common, pen)
        return latency.histogram(picture.common, pen)

    def move(self, picture: Picture, step: int) -> None:
        self._select(self._moved(picture, 0, -step))

    def move_sideways(self, picture: Picture, step: int) -> bool:
        self._select(self._moved(picture, step, 0))
        return True

    def _select(self, cell: views.Cell | None) -> None:
        self._display.set_view(view_changes.at_cell(self._display.view, cell))

    def _left_at(self, view: View) -> View:
        """Return the view with which the panes show the time of a cell."""
        return replace(view, zoomed=False)

    @staticmethod
    def _moved(picture: Picture, columns: int, rows: int) -> views.Cell | None:
        return latency.moved(picture.heat, picture.common.view.cell, columns, rows)

    def enter(self, picture: Picture) -> None:
        """Show all panes as they were at the time of the cell."""
        cell = self._moved(picture, 0, 0)
        if cell and latency.is_measured(picture.heat, picture.common.view.cell):
            at_ns = min(cell.end_ns, picture.common.newest.at_ns)  # the newest column goes on
            self._display.set_view(self._left_at(view_changes.paused_at(self._display.view, at_ns)))
        else:
            self._display.show_alert("nothing was measured then")

    def click(self, picture: Picture, x: int, y: int) -> bool:
        heat = picture.heat
        if heat is None:
            return False
        column, row = x - HEAT_SCALE + 1, len(heat.rows) - y
        if 0 <= column < len(heat.columns) and 0 <= row < len(heat.rows):
            self._select(views.Cell(heat.ends_ns[column], row))
        return False


class IoHeatPane(LatencyPane):
    """The heat map of file operations or of requests to disks, in the place of their list."""

    def _select(self, cell: views.Cell | None) -> None:
        self._display.set_view(replace(self._display.view, cell=cell))

    def _left_at(self, view: View) -> View:
        return panes.heat_map_or_rows(view)
