"""What the app passes on to the actions that are still a part of it."""

from collections.abc import Callable

from textual.app import App
from textual.screen import ModalScreen

from offtop.feed.source import Source
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import View
from offtop.model.windows.history import History
from offtop.ui.actions.display import Answer
from offtop.ui.actions.filters import Filters
from offtop.ui.actions.outliers import OutlierTimes
from offtop.ui.actions.rewind import Rewind
from offtop.ui.actions.sorting import Sorting
from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.layout import Layout
from offtop.ui.kit.lines import Pen


class ActionsBase(App[int]):
    view: View
    picture: Picture | None
    glyphs: Glyphs
    rewind: Rewind
    sorting: Sorting
    filters: Filters
    outlier_times: OutlierTimes
    _history: History
    _source: Source

    @property
    def layout(self) -> Layout:
        raise NotImplementedError

    def layout_of(self, view: View) -> Layout:
        raise NotImplementedError

    def pen(self, panel: str) -> Pen:
        raise NotImplementedError

    def set_view(self, view: View) -> None:
        raise NotImplementedError

    def show_alert(self, text: str) -> None:
        raise NotImplementedError

    def ask(self, question: str, answered: Answer, now: str = "", typed: Callable[[str], None] | None = None) -> None:
        raise NotImplementedError

    def open_overlay(self, overlay: ModalScreen[None]) -> None:
        raise NotImplementedError

    def run_later(self, function: Callable[[], None]) -> None:
        raise NotImplementedError
