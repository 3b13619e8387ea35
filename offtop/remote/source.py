"""Another machine as a Source: its ticks come over ssh, at its pace.

A thread reads what arrives. When the connection is lost, it connects again, after longer and longer pauses; what is
shown stays, and the time in between is counted as not measured.
"""

import contextlib
import json
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Condition
from time import monotonic_ns
from typing import NamedTuple

from offtop import __version__
from offtop.errors import OfftopError
from offtop.feed.source import LiveFeed
from offtop.model.values.files import FILE
from offtop.model.values.outlier import Outlier, Thresholds
from offtop.model.values.snapshot import Filters, Snapshot
from offtop.model.values.stack import Frame
from offtop.model.values.wake import Object
from offtop.printable import printable
from offtop.recording import checked, stream, tick_rows
from offtop.recording.replay import recorded_details
from offtop.recording.stream import Hello, Message, StreamReader, StreamTick
from offtop.recording.streamed import StreamedNames, StreamedTicks
from offtop.remote.connection import Connection, DisconnectedError
from offtop.remote.ssh import Target
from offtop.units import NS_PER_S, span
from offtop.worker import Worker

_MOST_QUEUED, _MOST_QUEUED_BYTES = 120, 64 << 20
"""Most ticks that wait to be read, and their size; beyond that the host has to wait. Names and answers come after
ticks, so they would wait, too.
"""
_LEAST_APART_NS = NS_PER_S // 20
"""Ticks are not read faster than this: a host might send any number."""
_PAUSES_S = (1, 2, 4, 8, 15, 30)
"""How long to wait before each attempt to connect again; the last one repeats."""
_STABLE_NS = 60 * NS_PER_S
"""How long a connection must last before the pauses are short again: each attempt costs the host a start of offtop."""
_HELLO_NS = 60 * NS_PER_S
"""How long a later connection may take until the stream begins: the host may have to compile its BPF programs."""
_ALIVE_NS = 10 * NS_PER_S
"""How often an empty request is sent, so that the host goes on measuring."""
_LATE_NS, _SILENT_NS = 3 * NS_PER_S, 30 * NS_PER_S
"""How long after a tick is due its absence is reported, and the connection closed as dead."""
_POLL_S = 0.5
_ANSWER_S, _SCREEN_ANSWER_S = 60.0, 2.0
"""How long to wait for the answer to a request; the second if the screen waits, too."""
_DECISIVE = frozenset(("filters", "mode"))
"""Requests that decide what ticks count."""
_CLOSE_S = 4.0
_CTRL_C_S = 0.3
"""How long it may take from the end of ssh to close()."""
_LONGEST_TEXT = 300


class _Queued(NamedTuple):
    """A tick as it arrived."""

    number: int
    """Number of its stream."""
    boot: str
    """Differs after each boot of the host."""
    tick: StreamTick


class RemoteSource(LiveFeed):
    """Implements source.Source. `read` belongs to one thread; the rest is thread-safe."""

    def __init__(
        self,
        target: Target,
        delay_ns: int,
        categories: Collection[str] = (),
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Connect, and wait until the host measures; ssh may ask for a password on the terminal meanwhile.

        `delay_ns`: time between ticks. `categories`: the known ones. `report` is called when the connection is
        lost, and when it is back. Raises OfftopError.
        """
        self._target, self._delay_ns, self._report = target, delay_ns, report
        self._streamed_names = StreamedNames()
        self._streamed = StreamedTicks(self._streamed_names, categories)
        self._changed = Condition()
        self._closed = False
        self._ticks: deque[_Queued] = deque()
        self._failed = 0
        """Number of the last stream that had an invalid tick."""
        self._failure = ""
        self._stream = 0
        """Number of the stream, from 1 on."""
        self._read_stream, self._read_boot = 0, ""
        self._read_ns = 0
        """CLOCK_MONOTONIC when the last tick was read."""
        self._epoch, self._since_ns = -1, 0
        """Epoch of the last snapshot, and when its first one was taken (CLOCK_MONOTONIC)."""
        self._has_ended = False
        """Whether the host has sent its last tick."""
        self._lost_ns = 0
        """CLOCK_MONOTONIC when the connection was lost; 0: it was not."""
        self._why_lost = ""
        self._attempts = 0
        """Attempts to connect again since a connection was stable."""
        self._next_try_ns = 0
        self._wanted: dict[str, Mapping[str, object]] = {}
        """The last request of each kind: another connection begins with them."""
        self._repeated: set[int] = set()
        """Numbers of the requests with which the connection began, if they decide what is counted."""
        self._request = 0
        self._answers: dict[int, Mapping[str, object] | None] = {}
        """Number of a request that a thread waits for → its answer."""
        self._reader = StreamReader()
        self._early: Sequence[Message] = ()
        connection = Connection(target, may_ask=True)
        try:
            self._hello = self._begin(connection, None)
        except BaseException:
            connection.close()
            raise
        self._connection: Connection | None = connection
        self._next_connection: Connection | None = None
        """The one that is being connected."""
        self._worker = Worker("offtop-host", self._run)
        self._worker.wake()

    @property
    def is_elsewhere(self) -> bool:
        return True

    @property
    def interruption(self) -> str:
        with self._changed:
            now_ns = monotonic_ns()
            if self._lost_ns:
                left_ns = self._next_try_ns - now_ns
                then = f"trying again in {span(max(NS_PER_S, round(left_ns, -9)))}" if left_ns > 0 else "trying again"
                since = span(round(now_ns - self._lost_ns, -9))
                return f"no connection to {self._target.name} for {since}: {then} ({self._why_lost})"
            connection = self._connection
            if (
                not self._has_ended
                and connection
                and not self._ticks
                and connection.silent_ns > self._delay_ns + _LATE_NS
            ):
                return f"nothing has arrived from {self._target.name} for {span(round(connection.silent_ns, -9))}"
        return ""

    @property
    def filters(self) -> Filters:
        """What the host counts, as it was when the connection was made."""
        return self._hello.filters

    @property
    def host(self) -> str:
        return self._hello.host

    @property
    def notices(self) -> Sequence[str]:
        return self._hello.notices

    @property
    def names(self) -> StreamedNames:
        return self._streamed_names

    def read(self) -> Snapshot | None:
        """Return the next tick when it has arrived; None at the end, which is when the host ends by itself."""
        while (queued := self._next()) is not None:
            number, boot, tick = queued
            if number != self._read_stream:
                self._streamed.begin_stream(bool(boot) and boot == self._read_boot)
                self._read_stream, self._read_boot = number, boot
            try:
                snapshot = self._streamed.add(tick)
            except ValueError as error:
                with self._changed:
                    self._failed, self._failure = number, printable(str(error))[:_LONGEST_TEXT]
                    self._changed.notify_all()
                continue
            self._read_ns = monotonic_ns()
            if snapshot.epoch != self._epoch:
                self._epoch, self._since_ns = snapshot.epoch, snapshot.at_ns
            return snapshot
        return None

    @property
    def since_ns(self) -> int:
        return self._since_ns

    def _next(self) -> _Queued | None:
        with self._changed:
            while not self._closed:
                while self._ticks and self._ticks[0].number == self._failed:
                    self._ticks.popleft()
                    self._changed.notify_all()
                early_ns = self._read_ns + _LEAST_APART_NS - monotonic_ns()
                if self._ticks and early_ns <= 0:
                    self._changed.notify_all()
                    return self._ticks.popleft()
                if not self._ticks and self._has_ended:
                    return None
                self._changed.wait(early_ns / NS_PER_S if self._ticks else None)
        return None

    def set_delay(self, delay_ns: int) -> None:
        self._delay_ns = delay_ns
        self._ask({"do": "delay", "delay_ns": delay_ns}, 0)

    def set_filters(self, filters: Filters) -> None:
        self._ask({"do": "filters", **tick_rows.encode_filters(filters)}, _SCREEN_ANSWER_S)

    def set_mode(self, mode: str, depth: int) -> None:
        self._ask({"do": "mode", "mode": mode, "depth": depth}, _ANSWER_S)

    def set_counted(self, mode: str, wanted: bool) -> None:
        self._ask({"do": "files" if mode == FILE else "disks", "wanted": wanted}, _ANSWER_S)

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        """Do nothing: the host finds the outliers."""

    def set_triggers(self, triggers: Sequence[str]) -> None:
        """Have the host report other outliers."""
        self._ask({"do": "triggers", "triggers": triggers}, 0)

    def outliers(self) -> Sequence[Outlier]:
        return ()

    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        names = self._streamed_names
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._lost_ns or all(map(names.is_final, frames)), seconds)
            return all(map(names.is_final, frames))

    def why_nameless(self, frame: Frame) -> str:
        return self._streamed_names.why_nameless(frame)

    def describe(self, pids: Collection[int]) -> None:
        """Do nothing: the host describes all processes that wait."""

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        """Do nothing: the host looks up all that is waited on."""

    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        """Return what the host answers about a process, or what has arrived about it."""
        try:
            answer = self._ask({"do": "details", "pid": pid}, _ANSWER_S)
            pairs = checked.arrays(answer.get("details", []), 2)
            details = [(checked.name(what), checked.name(value)) for what, value in pairs]
        except (OfftopError, ValueError):
            details = []
        return details or recorded_details(self._streamed.catalog, pid)

    def about(self) -> list[tuple[str, str]]:
        return [
            *self._hello.about,
            ("measured by", f"offtop {self._hello.offtop} on {self._target.name}, over ssh"),
            *([("shown by", f"offtop {__version__}")] if self._hello.offtop != __version__ else []),
        ]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            connections = [one for one in (self._connection, self._next_connection) if one]
        for connection in connections:
            connection.end()
        self._worker.close(_CLOSE_S)

    # Requests

    def _ask(self, request: Mapping[str, object], wait_s: float) -> Mapping[str, object]:
        """Send a request, and wait so long for its answer, if `wait_s` is not 0.

        Without a connection, it is only remembered for the next one. Raises OfftopError if the host refuses it or
        does not answer.
        """
        kind = str(request["do"])
        with self._changed:
            before = self._wanted.get(kind)
            if kind != "details":
                self._wanted[kind] = request
            connection = self._connection
            if connection is None or self._lost_ns:
                return {}
            number = self._send(connection, request)
            if number is None or not wait_s:
                return {}
            self._answers[number] = None
            self._changed.wait_for(lambda: self._answers[number] is not None or self._lost_ns or self._closed, wait_s)
            answer, is_lost = self._answers.pop(number), self._lost_ns or self._closed
            if answer and answer.get("error") and self._wanted.get(kind) is request:
                del self._wanted[kind]
                self._wanted.update({kind: before} if before else {})
        if answer is None:
            if is_lost:
                return {}
            raise OfftopError(f"{self._target.name} has not answered yet. Try again when ticks arrive")
        error = answer.get("error")
        if error:
            raise OfftopError(printable(str(error))[:_LONGEST_TEXT])
        return answer

    def _send(self, connection: Connection, request: Mapping[str, object]) -> int | None:
        """Send a request and return its number; None: the connection is lost, which the reading thread will notice."""
        self._request += 1
        try:
            connection.send(json.dumps({"id": self._request, **request}, separators=(",", ":")).encode() + b"\n")
        except DisconnectedError:
            return None
        return self._request

    # The reading thread

    def _begin(self, connection: Connection, deadline_ns: int | None) -> Hello:
        hello, self._early = connection.hello(deadline_ns)
        self._stream += 1
        self._reader = StreamReader()
        return hello

    def _run(self, worker: Worker) -> None:
        try:
            self._follow_connections(worker)
        finally:
            for connection in (self._connection, self._next_connection):
                if connection:
                    connection.close()

    def _follow_connections(self, worker: Worker) -> None:
        while not worker.is_closing:
            connection = self._connection
            if connection is None:
                connection = self._connected(worker)
                if connection is None:
                    return
            try:
                self._follow(connection, worker)
            except DisconnectedError as broken:
                self._lose(str(broken))
            except ValueError as error:
                self._lose(f"it sent what offtop does not: {printable(str(error))[:_LONGEST_TEXT]}")
            if self._has_ended:
                return

    def _follow(self, connection: Connection, worker: Worker) -> None:
        """Take what arrives, until the stream or the connection ends."""
        alive_ns, began_ns = 0, monotonic_ns()
        messages, self._early = self._early, ()
        while not worker.is_closing:
            for message in messages:
                self._take(message, connection)
            if self._has_ended:
                return
            with self._changed:
                if self._failed == self._stream:
                    raise ValueError(self._failure)
            if monotonic_ns() - alive_ns > _ALIVE_NS:
                alive_ns = monotonic_ns()
                _keep_alive(connection)
                self._attempts = self._attempts if alive_ns - began_ns < _STABLE_NS else 0
            messages = connection.receive(_POLL_S)
            if not messages and connection.silent_ns > self._delay_ns + _SILENT_NS:
                raise DisconnectedError("nothing arrived")

    def _take(self, message: Message, connection: Connection) -> None:
        """Raises ValueError for an invalid message, and DisconnectedError."""
        kind, body = message
        if kind == stream.TICK:
            tick, names = self._reader.tick(body)
            self._streamed_names.add(names)
            with self._changed:
                while not self._changed.wait_for(lambda: self._has_room or self._closed, _ALIVE_NS / NS_PER_S):
                    _keep_alive(connection)
                self._ticks.append(_Queued(self._stream, self._hello.boot, tick))
                self._changed.notify_all()
        elif kind == stream.NAMES:
            self._streamed_names.add(self._reader.names(body))
            with self._changed:
                self._changed.notify_all()
        elif kind == stream.ANSWER:
            answer = stream.decode_object(body)
            with self._changed:
                number, error = checked.identity(answer.get("id")), answer.get("error")
                if number in self._answers:
                    self._answers[number] = answer
                    self._changed.notify_all()
                elif number in self._repeated and error:  # ticks would be of something else
                    raise DisconnectedError(printable(str(error))[:_LONGEST_TEXT])
        elif kind == stream.END:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    @property
    def _has_room(self) -> bool:
        return len(self._ticks) < _MOST_QUEUED and sum(one.tick.size for one in self._ticks) < _MOST_QUEUED_BYTES

    def _lose(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close()
        with self._changed:
            self._lost_ns, self._why_lost = monotonic_ns(), why
            self._changed.notify_all()
            # Ctrl-C ends ssh, too, which is no lost connection.
            is_closing = self._changed.wait_for(lambda: self._closed, _CTRL_C_S)
        if not is_closing:
            self._report(f"no connection to {self._target.name} ({why}); trying again")

    def _connected(self, worker: Worker) -> Connection | None:
        """Connect again, and return the connection when the stream has begun; None: close() was called."""
        while True:
            pause_s = _PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)]
            self._attempts += 1
            with self._changed:
                self._next_try_ns = monotonic_ns() + pause_s * NS_PER_S
            if not worker.rest(pause_s):
                return None
            connection: Connection | None = None
            try:
                connection = self._next_connection = Connection(self._target, may_ask=False)
                if self._closed:
                    connection.end()
                hello = self._begin(connection, monotonic_ns() + _HELLO_NS)
            except OfftopError as error:
                if connection:
                    connection.close()
                with self._changed:
                    self._why_lost = str(error)
                continue
            self._go_on(connection, hello)
            return connection

    def _go_on(self, connection: Connection, hello: Hello) -> None:
        with self._changed:
            self._hello, self._connection, self._next_connection, self._lost_ns = hello, connection, None, 0
            self._repeated.clear()
            for kind, request in self._wanted.items():
                number = self._send(connection, request)
                if number and kind in _DECISIVE:
                    self._repeated.add(number)
            self._changed.notify_all()
        self._report(f"the connection to {self._target.name} is back; the time without it was not measured")


def _keep_alive(connection: Connection) -> None:
    """Send an empty request. A host that takes none may have ended: receive() says so once it has read the rest."""
    with contextlib.suppress(DisconnectedError):
        connection.send(b"\n")
