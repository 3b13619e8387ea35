"""Writing the selection, or the screen, to a file."""

import re
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread

from offtop.errors import OfftopError
from offtop.export import folded
from offtop.export.profile import profile_of
from offtop.model.viewmodel.picture import Picture, Pictures
from offtop.reports.exports import ENDINGS, FORMATS, in_form
from offtop.ui.actions.display import Display
from offtop.ui.actions.files import Files
from offtop.ui.actions.session import Session
from offtop.ui.panes.chooser import Choice, Chooser
from offtop.ui.panes.head import selection

_FOLDED_PER = {"threads": ("thread",), "categories": ("category",)}
"""Exports that are folded stacks with this first frame."""
_FORMS = {
    "folded": FORMATS["folded"],
    "threads": "the same, per thread",
    "categories": "the same, under their categories",
    **FORMATS,
}
"""Export formats. JSON ticks are not among them, because the selection covers a span, not ticks."""


class Exports:
    def __init__(self, display: Display, session: Session, files: Files) -> None:
        self._display, self._session, self._files = display, session, files

    def choose_format(self) -> None:
        """Ask for a format, and export the selection over the displayed span."""
        display = self._display
        if display.picture is None or not display.picture.common.gathered:
            display.show_alert("there is nothing to write yet")
            return
        choices = [Choice(name, f"{name:<10} {what}") for name, what in _FORMS.items()]
        display.open_overlay(
            Chooser("write the selection as", lambda: choices, self._start, display.glyphs, closes=True)
        )

    def _start(self, form: str) -> None:
        if self._display.picture is not None:
            self._display.show_alert("writing…")
            picture = self._display.picture
            Thread(target=self._compute, args=(form, picture), name="offtop-export", daemon=True).start()

    def _compute(self, form: str, picture: Picture) -> None:
        """Compute the export in a separate thread: a minute of thousands of stacks takes seconds."""
        source, mode, idle = self._session.source, picture.common.view.mode, picture.common.view.idle_shown
        own_pictures = Pictures(self._session.history, source.names, self._session.rules)
        profile = profile_of(*own_pictures.selected(picture), source.names, source.host, mode, idle)
        style = folded.Style(per=frozenset(_FOLDED_PER.get(form, ())))
        form = "folded" if form in _FOLDED_PER else form
        content = in_form(form, profile, selection(picture.common, self._display.glyphs), style=style)
        machine = re.sub(r"[^A-Za-z0-9.-]", "_", source.host)
        self._display.run_later(partial(self._write, f"offtop-{machine}", ENDINGS[form], content))

    def save_screen(self) -> None:
        self._write("offtop", "svg", self._display.export_screenshot())

    def _write(self, name: str, ending: str, content: str | bytes) -> None:
        path = Path(f"{name}-{datetime.now():%Y%m%dT%H%M%S}.{ending}")
        try:
            self._display.show_alert(self._files.write(path, content))
        except OfftopError as refused:
            self._display.show_alert(str(refused))
