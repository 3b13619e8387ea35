"""Recording everything that is measured to a file."""

from functools import partial
from threading import Thread

from offtop.errors import OfftopError
from offtop.feed.pace import Pace
from offtop.feed.source import Source
from offtop.printable import printable
from offtop.ui.actions.display import Display
from offtop.ui.actions.files import Files, Recorder


class Recording:
    def __init__(self, display: Display, source: Source, pace: Pace, files: Files, recorder: Recorder | None) -> None:
        self._display, self._source, self._pace, self._files = display, source, pace, files
        self._closing: Thread | None = None
        self.recorder: Recorder | None = None
        """None if nothing is recorded now."""
        self._record_with(recorder)

    @property
    def bytes_written(self) -> int | None:
        """None if nothing is recorded now."""
        return self.recorder.bytes_written if self.recorder else None

    def start_or_stop(self) -> None:
        if self._source.recorded:
            self._display.show_alert("this is a recording already")
        elif self.recorder is not None:
            self._closing = Thread(target=self._close, args=(self.recorder,), daemon=True)
            self._record_with(None)
            self._display.show_alert("ending the recording")
            self._closing.start()
        else:
            try:
                recorder = self._files.recorder(self._source)
            except OfftopError as refused:
                self._display.show_alert(str(refused))
                return
            self._record_with(recorder)
            self._display.show_alert(f"recording to {printable(str(recorder.path))}; a ends it")

    def _record_with(self, recorder: Recorder | None) -> None:
        self.recorder = self._pace.recorder = recorder

    def _close(self, recorder: Recorder) -> None:
        """Close the recording, in a separate thread.

        The last names and the disk may take seconds.
        """
        self._display.run_later(partial(self._display.show_alert, recorder.close()))

    def stop_if_failed(self) -> None:
        if self.recorder and self.recorder.failure:
            self._display.show_alert(self.recorder.failure)
            self._record_with(None)

    def finish(self) -> str:
        """Finish the recording; return a message about the result, or an empty string if there is none."""
        if self._closing is not None:
            self._closing.join()
        return self.recorder.close() if self.recorder else ""
