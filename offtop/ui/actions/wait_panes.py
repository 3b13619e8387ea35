"""The lists of single waits, with the selected one in full below: waits in progress, and outliers."""

from collections.abc import Iterable

from offtop.model.aggregate.rows import Key
from offtop.model.values.catalog import ThreadKey
from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel.outlier_list import which
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import OUTLIERS, STUCK
from offtop.ui.actions.display import Display
from offtop.ui.actions.outliers import OutlierTimes
from offtop.ui.actions.pane import Pane, within
from offtop.ui.kit.layout import STUCK_FRAME, Layout, stuck_lines
from offtop.ui.kit.lines import Line, Pen
from offtop.ui.panes import outliers, stuck

_UNCUT_WIDTH = 10_000
"""Width of copied lines, so that they are not cut to the screen."""


class StuckPane(Pane):
    name = STUCK

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        return stuck.stuck(picture.stuck, picture.common, pen)

    def move(self, picture: Picture, step: int) -> None:
        """Move in the list of waits, or scroll the wait that fills the pane."""
        view, waits = self._display.view, picture.stuck.shown.waits
        if not waits:
            return
        if view.stuck.opened:
            last = _last_scroll(stuck.in_full(picture.stuck, picture.common, self._pen), self._pen)
            self._display.set_view(panes.stuck_opened(view, max(0, min(last, view.stuck.scrolled + step))))
        else:
            row = within(picture.stuck.cursor + step, waits)
            self._display.set_view(panes.at_stuck(view, waits[row].site.thread))

    def enter(self, picture: Picture) -> None:
        view, row, waits = self._display.view, picture.stuck.cursor, picture.stuck.shown.waits
        if waits and not view.stuck.opened:
            view = panes.at_stuck(view, waits[row].site.thread, view.stuck.line)
            self._display.set_view(panes.stuck_entered(view, picture.stuck.alike(row)))

    def open(self) -> None:
        """List waits that look alike one by one."""
        self._display.set_view(drilling.programs_or_processes(self._display.view, False))

    def close(self) -> None:
        """List waits that look alike as one row."""
        self._display.set_view(drilling.programs_or_processes(self._display.view, True))

    def next_match(self, picture: Picture, word: str, step: int) -> bool:
        view, names = self._display.view, self._pen.names
        matches = {
            row: panes.at_stuck(view, wait.site.thread)
            for row, wait in enumerate(picture.stuck.shown.waits)
            if word in stuck.text_of(picture.stuck, picture.common.catalog, row, names).casefold()
        }
        return self._go_to_match(matches, picture.stuck.cursor, step)

    def process(self) -> int:
        thread = self._thread()
        return super().process() if thread is None else thread.pid

    def key_to_pin(self) -> Key | None:
        return self._thread() or super().key_to_pin()

    def _thread(self) -> ThreadKey | None:
        """Return the thread under the cursor."""
        picture, view = self._display.picture, self._display.view
        if picture is None:
            return None
        if view.stuck.opened:
            return view.stuck.cursor
        waits = picture.stuck.shown.waits
        return waits[picture.stuck.cursor].site.thread if waits else None

    def as_text(self, picture: Picture) -> str:
        if not picture.stuck.shown.waits:
            return super().as_text(picture)
        return _text(stuck.in_full(picture.stuck, picture.common, self._pen._replace(width=_UNCUT_WIDTH)))

    def click(self, picture: Picture, x: int, y: int) -> bool:
        view, waits, line = self._focused_view, picture.stuck.shown.waits, y - STUCK_FRAME
        row = picture.stuck.first + line
        if not view.stuck.opened and 0 <= line < stuck_lines(self._pen.height) and row < len(waits):
            is_selected = row == picture.stuck.cursor
            view = panes.at_stuck(view, waits[row].site.thread, line)
            self._display.set_view(panes.stuck_entered(view, picture.stuck.alike(row)) if is_selected else view)
            return is_selected
        return False


class OutliersPane(Pane):
    name = OUTLIERS

    def __init__(self, display: Display, times: OutlierTimes) -> None:
        super().__init__(display)
        self._times = times

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        return outliers.outliers(picture.outliers, picture.common, pen)

    def move(self, picture: Picture, step: int) -> None:
        """Move in the list of outliers, or scroll the one that fills the pane."""
        view, groups = self._display.view, picture.outliers.groups
        if not groups:
            return
        if view.outliers.opened:
            last = _last_scroll(outliers.in_full(picture.outliers, self._pen), self._pen)
            self._display.set_view(panes.outlier_opened(view, max(0, min(last, view.outliers.scrolled + step))))
        else:
            row = within(picture.outliers.cursor + step, groups)
            self._display.set_view(panes.at_outlier(view, which(groups[row])))

    def enter(self, picture: Picture) -> None:
        """Show the outlier under the cursor in full; if it is shown already, go to its time."""
        view, groups, row = self._display.view, picture.outliers.groups, picture.outliers.cursor
        if groups and view.outliers.opened:
            self._times.go_to(groups[row])
        elif groups:
            view = panes.at_outlier(view, which(groups[row]), view.outliers.line)
            self._display.set_view(panes.outlier_opened(view))

    def next_match(self, picture: Picture, word: str, step: int) -> bool:
        view, names = self._display.view, self._pen.names
        matches = {
            row: panes.at_outlier(view, which(group))
            for row, group in enumerate(picture.outliers.groups)
            if word in outliers.text_of(group, names).casefold()
        }
        return self._go_to_match(matches, picture.outliers.cursor, step)

    def as_text(self, picture: Picture) -> str:
        if not picture.outliers.groups:
            return super().as_text(picture)
        return _text(outliers.in_full(picture.outliers, self._pen._replace(width=_UNCUT_WIDTH)))

    def click(self, picture: Picture, x: int, y: int) -> bool:
        view, groups, line = self._focused_view, picture.outliers.groups, y - STUCK_FRAME
        row = picture.outliers.first + line
        if not view.outliers.opened and 0 <= line < stuck_lines(self._pen.height) and row < len(groups):
            is_selected = row == picture.outliers.cursor
            view = panes.at_outlier(view, which(groups[row]), line)
            self._display.set_view(panes.outlier_opened(view) if is_selected else view)
            return is_selected
        return False


def _last_scroll(lines: list[Line], pen: Pen) -> int:
    return max(0, len(lines) - pen.height + 1)


def _text(lines: Iterable[Line]) -> str:
    return "\n".join("".join(text for text, _ in line.spans).rstrip() for line in lines)
