"""The latency pane: a histogram, or a heat map with a cell under the cursor."""

from dataclasses import replace

from offtop.model.viewmodel import view as views
from offtop.model.viewmodel import view_changes
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import HEATMAP, LATENCY
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
        self._display.set_view(view_changes.at_cell(self._display.view, self._moved(picture, 0, -step)))

    def move_sideways(self, picture: Picture, step: int) -> bool:
        self._display.set_view(view_changes.at_cell(self._display.view, self._moved(picture, step, 0)))
        return True

    @staticmethod
    def _moved(picture: Picture, columns: int, rows: int) -> views.Cell | None:
        return latency.moved(picture.heat, picture.common.view.cell, columns, rows)

    def enter(self, picture: Picture) -> None:
        """Show all panes as they were at the time of the cell."""
        cell = self._moved(picture, 0, 0)
        if cell and latency.is_measured(picture.heat, picture.common.view.cell):
            self._display.set_view(replace(view_changes.paused_at(self._display.view, cell.end_ns), zoomed=False))
        else:
            self._display.show_alert("nothing was measured then")

    def click(self, picture: Picture, x: int, y: int) -> None:
        heat = picture.heat
        if heat is None:
            return
        column, row = x - HEAT_SCALE + 1, len(heat.rows) - y
        if 0 <= column < len(heat.columns) and 0 <= row < len(heat.rows):
            self._display.set_view(view_changes.at_cell(self._focused_view, views.Cell(heat.ends_ns[column], row)))
