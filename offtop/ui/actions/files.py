"""Actions of the keys that write a file: a clip, an export, or a screenshot."""

import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import Protocol

from textual.message import Message

from offtop.errors import OfftopError
from offtop.export import folded
from offtop.export.profile import profile_of
from offtop.feed import pace
from offtop.model.values.outlier import Outliers
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import SINCE_START
from offtop.model.windows.breakdown import Shares
from offtop.model.windows.window import Window
from offtop.printable import printable
from offtop.reports.batch import look_up
from offtop.reports.exports import ENDINGS, FORMATS, in_form
from offtop.ui.actions.base import ActionsBase
from offtop.ui.panes.chooser import Choice, Chooser
from offtop.ui.panes.head import clock, selection
from offtop.units import NS_PER_S, parse_duration, size, span

_ALL, _ALL_NS = "all", 1 << 62
"""The answer that stands for the whole history, and a time longer than any history."""
_MINUTE = "1m"
_FOLDED_PER = {"threads": ("thread",), "categories": ("category",)}
"""Exports that are folded stacks with this first frame."""
_FORMS = {
    "folded": FORMATS["folded"],
    "threads": "the same, per thread",
    "categories": "the same, under their categories",
    **FORMATS,
}
"""Export formats. JSON ticks are not among them, because the selection covers a span, not ticks."""


class Exported(Message):
    """An export is ready to be written."""

    def __init__(self, form: str, content: str | bytes) -> None:
        super().__init__()
        self.form, self.content = form, content


class AlertPosted(Message):
    """Another thread has finished something, with a message for the alert line."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Recorder(pace.Recorder, Protocol):
    """Writes what is measured to a file."""

    @property
    def path(self) -> Path: ...

    @property
    def failure(self) -> str:
        """Why it stopped writing; empty if it did not."""
        ...

    @property
    def bytes_written(self) -> int: ...

    @property
    def is_whole(self) -> bool:
        """Whether the closed file contains everything that was added."""
        ...

    def close(self) -> str:
        """Finish the file, which may take seconds; return a message about the result."""
        ...


class FileActions(ActionsBase):
    """Actions of the keys that write a file, for the app to inherit."""

    _outliers: Outliers

    _saving: Thread | None = None
    _saved = ""
    """Message about the last clip."""

    def action_snapshot(self) -> None:
        """Ask for the length of a clip, and save it.

        The clip ends now, or at the tick that a paused screen shows.
        """
        picture, view = self.picture, self.view
        if picture is None:
            self.show_alert("there is nothing to save yet")
        elif self._saving is not None and self._saving.is_alive():
            self.show_alert("a clip is being written already")
        elif view.paused_at_ns is None:
            self.ask("save a clip of the last (90s, 10m, all): ", self._snapshot, _MINUTE)
        else:
            shown = _ALL if view.span_ns == SINCE_START else span(view.span_ns)
            self.ask(f"save a clip up to {clock(picture, picture.newest.at_ns)}, of the last: ", self._snapshot, shown)

    def _snapshot(self, text: str) -> str | None:
        picture, answer = self.picture, text.strip()
        if picture is None or not answer:
            return None
        try:
            span_ns = _ALL_NS if answer == _ALL else parse_duration(answer, NS_PER_S)
        except ValueError:
            return f"{text!r} is not a length of time: try 90s, 10m or all"
        end_ns = None if self.view.paused_at_ns is None else picture.newest.at_ns
        self.show_alert("writing the clip…")
        self._saving = Thread(target=self._save, args=(span_ns, end_ns, _about(picture)), name="offtop-snapshot")
        self._saving.start()
        return None

    def _save(self, span_ns: int, end_ns: int | None, what: str) -> None:
        """Save the clip in a separate thread: ten minutes of a busy machine take seconds."""
        try:
            self._saved = self._save_ticks(span_ns, end_ns, what)
        except OfftopError as refused:
            self._saved = str(refused)
        if self.is_running:
            self.post_message(AlertPosted(self._saved))

    def _save_ticks(self, span_ns: int, end_ns: int | None, what: str) -> str:
        ticks = self._history.last(span_ns, end_ns)
        if not ticks:
            return "there is nothing to save yet"
        last = ticks[-1]
        look_up(self._source, last, ())
        recorder = self._snapshot_file(what, last.taken_ns)
        begin_ns = ticks[0].at_ns - ticks[0].span_ns
        outliers = [one for one in self._outliers.every if one.at_ns > begin_ns]
        for one in self._history.snapshots_of_last(span_ns, last.at_ns):
            recorder.add(replace(one, outliers=[outlier for outlier in outliers if outlier.at_ns == one.at_ns]))
        result = recorder.close()
        if not recorder.is_whole:
            return result
        return f"saved {size(recorder.bytes_written)}; view: offtop replay {printable(str(recorder.path))}"

    def wait_for_clip(self) -> str:
        """Wait for a clip that is being written; return a message about it.

        The message is empty if no clip is being written.
        """
        if self._saving is None or not self._saving.is_alive():
            return ""
        self._saving.join()
        return self._saved

    def _snapshot_file(self, what: str, taken_ns: int) -> Recorder:
        raise NotImplementedError

    def action_export(self) -> None:
        """Ask for a format, and export the selection over the displayed span."""
        if self.picture is None or not self.picture.gathered:
            self.show_alert("there is nothing to write yet")
            return
        choices = [Choice(name, f"{name:<10} {what}") for name, what in _FORMS.items()]
        self.push_screen(Chooser("write the selection as", lambda: choices, self._export, self.glyphs, closes=True))

    def _export(self, form: str) -> None:
        if self.picture is not None:
            self.show_alert("writing…")
            Thread(target=self._exported, args=(form, self.picture), name="offtop-export", daemon=True).start()

    def _exported(self, form: str, picture: Picture) -> None:
        """Compute the export in a separate thread: a minute of thousands of stacks takes seconds."""
        window, shares = self._selected(picture)
        mode, idle, host = picture.view.mode, picture.view.idle_shown, self._source.host
        made = profile_of(window, shares, self._source.names, host, mode, idle)
        style = folded.Style(per=frozenset(_FOLDED_PER.get(form, ())))
        form = "folded" if form in _FOLDED_PER else form
        self.post_message(Exported(form, in_form(form, made, selection(picture, self.glyphs), style=style)))

    def on_exported(self, message: Exported) -> None:
        machine = re.sub(r"[^A-Za-z0-9.-]", "_", self._source.host)
        self._write(Path(f"offtop-{machine}-{_now()}.{ENDINGS[message.form]}"), message.content)

    def action_save_screen(self) -> None:
        self._write(Path(f"offtop-{_now()}.svg"), self.export_screenshot())

    def _write(self, file: Path, content: str | bytes) -> None:
        try:
            self.show_alert(self._write_file(file, content))
        except OfftopError as refused:
            self.show_alert(str(refused))

    def _selected(self, picture: Picture) -> tuple[Window, Shares]:
        raise NotImplementedError

    def _write_file(self, path: Path, content: str | bytes) -> str:
        raise NotImplementedError


def _about(picture: Picture) -> str:
    """Return what the user drilled into, for a file name: `lock-mysqld`."""
    pid = picture.view.subject_ids[0]
    process = picture.catalog.process(pid) if pid is not None else ""
    return "-".join(filter(None, (picture.view.category, process)))


def _now() -> str:
    return datetime.now().strftime("%Y%m%dT%H%M%S")
