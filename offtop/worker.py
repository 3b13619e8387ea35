"""A thread that serves requests in the background, and the lock that it shares with its callers."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

_Request = TypeVar("_Request")


class Rest(NamedTuple):
    """There is no request at present."""

    seconds: float | None = None
    """When to look for one again at the latest; None: at the next wake()."""


class Worker:
    """A daemon thread and its lock. The first wake() starts the thread. Thread-safe.

    An exception ends the thread, releases those who wait for it, and goes to threading.excepthook, which reports it
    (faults.of_threads).
    """

    def __init__(self, name: str, run: Callable[["Worker"], None], changed: threading.Condition | None = None) -> None:
        """`run` is the thread's function; it should loop over `requests`, or until `rest` returns False.

        `changed`: the lock, if it is shared with another worker.
        """
        self.changed = changed or threading.Condition()
        """Guards what the thread shares with its callers. Notified at each request, and when one has been served."""
        self.is_busy = self.is_closing = False
        """Whether it serves a request, and whether it has been closed or has failed."""
        self._name, self._run = name, run
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether its thread runs: it has been started, and has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """Have the thread look for a request."""
        with self.changed:
            if self._thread is None and not self.is_closing:
                self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
                self._thread.start()
            self.changed.notify_all()

    def requests(self, take: Callable[[], _Request | Rest]) -> Iterator[_Request]:
        """Iterate over what `take` returns, until close(). For the thread; it holds the lock while it calls `take`."""
        while True:
            with self.changed:
                self.is_busy = False
                self.changed.notify_all()
                if self.is_closing:
                    return
                found = take()
                if isinstance(found, Rest):
                    self.changed.wait(found.seconds)
                    continue
                self.is_busy = True
            yield found

    def queued(self, queue: deque[_Request]) -> Iterator[_Request]:
        """Iterate over the requests in `queue`, which the lock guards, until close(). For the thread."""
        return self.requests(lambda: queue.popleft() if queue else Rest())

    def rest(self, seconds: float) -> bool:
        """Sleep, but only until close(); return whether it is still open. For the thread."""
        with self.changed:
            return not self.changed.wait_for(lambda: self.is_closing, seconds)

    def close(self, wait_s: float = 0.0) -> None:
        """End the thread after its current request. May be called twice.

        `wait_s`: how long to wait for that. A thread that hangs in a file system is left behind.
        """
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()
        if self._thread and wait_s:
            self._thread.join(wait_s)

    def _main(self) -> None:
        try:
            self._run(self)
        finally:
            with self.changed:
                self.is_closing, self.is_busy = True, False
                self.changed.notify_all()
