"""Writing the selection, or the screen, to a file."""

import re
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread

from offtop.errors import OfftopError
from offtop.export import folded
from offtop.export.profile import Profile, profile_of, profile_of_rows
from offtop.model.values.disks import LIST_UNITS
from offtop.model.viewmodel.picture import Picture, Pictures
from offtop.model.viewmodel.view import FILES, MODE_OF_LIST
from offtop.printable import printable
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
        picture = display.picture
        is_there = picture and picture.common.gathered
        if picture and display.view.io_list:
            is_there = picture.files.span_ns or picture.disks.span_ns
        if not is_there:
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
        source = self._session.source
        style = folded.Style(per=frozenset(_FOLDED_PER.get(form, ())))
        form = "folded" if form in _FOLDED_PER else form
        content = in_form(form, *self._profile_and_title(picture), style=style)
        machine = re.sub(r"[^A-Za-z0-9.-]", "_", source.host)
        self._display.run_later(partial(self._write, f"offtop-{machine}", ENDINGS[form], content))

    def _profile_and_title(self, picture: Picture) -> tuple[Profile, str]:
        common, source, view = picture.common, self._session.source, picture.common.view
        if view.io_list:
            shown, mode = picture.files if view.focus == FILES else picture.disks, MODE_OF_LIST[view.focus]
            title = printable(shown.chosen.what) if shown.opened and shown.chosen else ""
            what = mode, common.catalog, source.names, source.host, common.newest.taken_ns, shown.span_ns
            lost = {LIST_UNITS[mode]: shown.listed.lost}
            return profile_of_rows([row.io for row in shown.shown_rows], *what, lost), title
        own_pictures = Pictures(self._session.history, source.names, self._session.rules)
        selected = own_pictures.selected(picture)
        profile = profile_of(*selected, source.names, source.host, view.mode, view.idle_shown)
        return profile, selection(common, self._display.glyphs)

    def save_screen(self) -> None:
        self._write("offtop", "svg", self._display.export_screenshot())

    def _write(self, name: str, ending: str, content: str | bytes) -> None:
        path = Path(f"{name}-{datetime.now():%Y%m%dT%H%M%S}.{ending}")
        try:
            self._display.show_alert(self._files.write(path, content))
        except OfftopError as refused:
            self._display.show_alert(str(refused))
