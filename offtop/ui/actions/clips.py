"""Saving a clip: a recording of the last minutes, made from the history."""

from dataclasses import replace
from functools import partial
from threading import Thread

from offtop.errors import OfftopError
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import SINCE_START
from offtop.printable import printable
from offtop.reports.batch import look_up
from offtop.ui.actions.display import Display
from offtop.ui.actions.files import Files
from offtop.ui.actions.session import Session
from offtop.ui.panes.head import clock
from offtop.units import NS_PER_S, parse_duration, size, span

_ALL, _ALL_NS = "all", 1 << 62
"""The answer that stands for the whole history, and a time longer than any history."""
_MINUTE = "1m"


class Clips:
    def __init__(self, display: Display, session: Session, files: Files) -> None:
        self._display, self._session, self._files = display, session, files
        self._thread: Thread | None = None
        self._result = ""
        """Message about the last clip."""

    @property
    def is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def ask_for_length(self) -> None:
        """Ask for the length of a clip, and save it.

        The clip ends now, or at the tick that a paused screen shows.
        """
        picture, view = self._display.picture, self._display.view
        if picture is None:
            self._display.show_alert("there is nothing to save yet")
        elif self.is_writing:
            self._display.show_alert("a clip is being written already")
        elif view.paused_at_ns is None:
            self._display.ask("save a clip of the last (90s, 10m, all): ", self._start, _MINUTE)
        else:
            shown = _ALL if view.span_ns == SINCE_START else span(view.span_ns)
            self._display.ask(
                f"save a clip up to {clock(picture.common.newest, picture.common.newest.at_ns)}, of the last: ",
                self._start,
                shown,
            )

    def _start(self, text: str) -> str | None:
        picture, answer = self._display.picture, text.strip()
        if picture is None or not answer:
            return None
        try:
            span_ns = _ALL_NS if answer == _ALL else parse_duration(answer, NS_PER_S)
        except ValueError:
            return f"{text!r} is not a length of time: try 90s, 10m or all"
        end_ns = None if self._display.view.paused_at_ns is None else picture.common.newest.at_ns
        self._display.show_alert("writing the clip…")
        self._thread = Thread(target=self._save, args=(span_ns, end_ns, _subject(picture)), name="offtop-snapshot")
        self._thread.start()
        return None

    def _save(self, span_ns: int, end_ns: int | None, what: str) -> None:
        """Save the clip in a separate thread: ten minutes of a busy machine take seconds."""
        try:
            self._result = self._save_ticks(span_ns, end_ns, what)
        except OfftopError as refused:
            self._result = str(refused)
        self._display.run_later(partial(self._display.show_alert, self._result))

    def _save_ticks(self, span_ns: int, end_ns: int | None, what: str) -> str:
        ticks = self._session.history.last(span_ns, end_ns)
        if not ticks:
            return "there is nothing to save yet"
        last = ticks[-1]
        look_up(self._session.source, last, ())
        recorder = self._files.clip(self._session.source, what, last.taken_ns)
        begin_ns = ticks[0].at_ns - ticks[0].span_ns
        outliers = [one for one in self._session.outliers.every if one.at_ns > begin_ns]
        for one in self._session.history.snapshots_of_last(span_ns, last.at_ns):
            recorder.add(replace(one, outliers=[outlier for outlier in outliers if outlier.at_ns == one.at_ns]))
        result = recorder.close()
        if not recorder.is_complete:
            return result
        return f"saved {size(recorder.bytes_written)}; view: offtop replay {printable(str(recorder.path))}"

    def wait(self) -> str:
        """Wait for a clip that is being written; return a message about it.

        The message is empty if no clip is being written.
        """
        if self._thread is None or not self._thread.is_alive():
            return ""
        self._thread.join()
        return self._result


def _subject(picture: Picture) -> str:
    """Return what the user drilled into, for a file name: `lock-mysqld`."""
    pid = picture.common.view.subject_ids[0]
    process = picture.common.catalog.process(pid) if pid is not None else ""
    return "-".join(filter(None, (picture.common.view.category, process)))
