"""Writes a stream of ticks to a pipe: ticks are encoded in the polling thread and written by a thread of their own.

A slow connection therefore does not delay ticks. When it cannot take a tick, the tick is skipped and counted, and the
next one holds the sums of both; only two wait, so that what arrives is new.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns

from offtop import __version__
from offtop.feed.source import Source
from offtop.model.values.snapshot import Filters, Snapshot
from offtop.recording import stream
from offtop.recording.tick_encoder import Rows, TickEncoder
from offtop.units import NS_PER_S
from offtop.worker import Worker

_MOST_QUEUED = 2
_NAMES_S = 0.1
"""How often new names are looked for between ticks."""
_REASONS_NS = NS_PER_S
"""How often the reasons why files have no names are looked up."""
_CLOSE_S = 5.0
_HANG_UP = select.POLLERR | select.POLLHUP | select.POLLNVAL


class StreamWriter:
    """Writes snapshots until it is closed, or the reader has gone. Thread-safe. Implements pace.Recorder."""

    def __init__(self, source: Source, out: int, filters: Filters, boot: str) -> None:
        """Write what comes before the first tick. `out`: a file descriptor, which close() closes.

        Raises OSError, for example BrokenPipeError.
        """
        self._source, self._out = source, out
        self._encoder = TickEncoder(source, cmdlines=True)
        self._lock = threading.Lock()
        """Guards the encoder, and what it has sent."""
        self._sent_frames: set[int] = set()
        self._sent_stacks: set[int] = set()
        self._sent_reasons: Mapping[bytes, str] = {}
        self._ticks: deque[bytes] = deque()
        self._answers: deque[bytes] = deque()
        self._names_version: int = -1
        self._reasons_ns = 0
        """CLOCK_MONOTONIC when the reasons why files have no names were last looked up."""
        self.has_reader = True
        """Whether the stream still has a reader."""
        about = tuple(source.about())
        hello = stream.Hello(__version__, source.host, boot, filters, about, tuple(source.notices))
        self._write(stream.first_line() + stream.encode_hello(hello))
        self._worker = Worker("offtop-stream", self._run)
        self._worker.wake()

    def add(self, snapshot: Snapshot) -> None:
        with self._lock:
            if len(self._ticks) >= _MOST_QUEUED:
                self._encoder.skip(snapshot)
                return
            rows = self._encoder.encoded(snapshot)
            dropped: list[set[int]] = [set(), set()]
            if rows.used:
                dropped = [self._sent_frames.difference(rows.used[1]), self._sent_stacks.difference(rows.used[0])]
                self._sent_frames -= dropped[0]
                self._sent_stacks -= dropped[1]
            self._sent_frames.update(row[0] for row in rows.frames)
            self._sent_stacks.update(row[0] for row in rows.stacks)
            self._ticks.append(stream.encode_tick(rows, *dropped))
        self._worker.wake()

    def answer(self, fields: Mapping[str, object]) -> None:
        """Send the answer to a request."""
        self._answers.append(stream.encode_object(stream.ANSWER, fields))
        self._worker.wake()

    def watch_reader(self, gone: Callable[[], None]) -> None:
        """Call `gone` in another thread as soon as the stream has no reader."""

        def watch() -> None:
            poll = select.poll()
            poll.register(self._out, 0)  # errors are always reported
            while self.has_reader and not self._worker.is_closing:
                if any(events & _HANG_UP for _, events in poll.poll(1000)):
                    self.has_reader = False
            gone()

        threading.Thread(target=watch, name="offtop-reader", daemon=True).start()

    def close(self) -> None:
        """Write what is queued, and that the stream ends here. Then close the descriptor."""
        self._worker.close(_CLOSE_S)
        if not self._worker.is_running and self.has_reader:
            try:
                while message := self._next():
                    self._write(message)
                self._write(stream.encode(stream.END, b""))
            except OSError:
                self.has_reader = False
        os.close(self._out)

    def _run(self, worker: Worker) -> None:
        try:
            while not worker.is_closing:
                message = self._next()
                if message:
                    self._write(message)
                else:
                    with worker.changed:
                        worker.changed.wait_for(lambda: worker.is_closing or self._ticks or self._answers, _NAMES_S)
        except OSError:
            self.has_reader = False

    def _next(self) -> bytes:
        """Return the next message; empty if there is none."""
        for queue in (self._answers, self._ticks):
            if queue:
                return queue.popleft()
        return self._new_names()

    def _new_names(self) -> bytes:
        """Return a message with names that were found since the last one; empty if there are none."""
        version, now_ns = self._source.names.version, monotonic_ns()
        is_due = bool(self._encoder.unnamed) and now_ns - self._reasons_ns > _REASONS_NS
        if version == self._names_version and not is_due:
            return b""
        with self._lock:
            self._names_version, self._reasons_ns = version, now_ns
            names = self._encoder.names(every=False)
            reasons: Rows = [one for one in self._encoder.reasons() if self._sent_reasons.get(one[0]) != one[1]]
            self._sent_reasons = {**self._sent_reasons, **dict[bytes, str](reasons)}
        return stream.encode_names(names, reasons) if names or reasons else b""

    def _write(self, raw: bytes) -> None:
        view: Sequence[int] | memoryview = memoryview(raw)
        while view:
            view = view[os.write(self._out, view) :]
