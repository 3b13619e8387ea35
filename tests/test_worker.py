"""The worker thread: requests, rests, closing, and exceptions."""

import threading
import time
from collections import deque
from collections.abc import Callable

import pytest

from offtop.worker import Worker

SECONDS = 10.0


class Squares:
    """Computes squares in a worker, one request at a time."""

    def __init__(self, square: Callable[[int], int] = lambda number: number**2) -> None:
        self.queue, self.found, self._square = deque[int](), list[int](), square
        self.worker = Worker("squares", self._run)

    def ask(self, *numbers: int) -> None:
        with self.worker.changed:
            self.queue += numbers
            self.worker.wake()

    def wait(self) -> None:
        with self.worker.changed:
            assert self.worker.changed.wait_for(lambda: not (self.queue or self.worker.is_busy), SECONDS)

    def _run(self, worker: Worker) -> None:
        for number in worker.queued(self.queue):
            self.found.append(self._square(number))


def threads() -> int:
    return sum(thread.name == "squares" for thread in threading.enumerate())


def test_requests_are_served_in_order_by_one_thread() -> None:
    squares = Squares()
    assert threads() == 0, "it starts with the first request"
    for _ in range(2):
        squares.ask(2, 3)
        squares.wait()
    assert (squares.found, threads()) == ([4, 9, 4, 9], 1)
    squares.worker.close(SECONDS)
    assert threads() == 0


def test_a_closed_worker_serves_no_further_request_and_does_not_start() -> None:
    squares = Squares()
    squares.ask(2)
    squares.wait()
    squares.worker.close(SECONDS)
    squares.worker.close()
    squares.ask(3)
    assert (squares.found, threads()) == ([4], 0)


def test_close_waits_for_a_hanging_request_no_longer_than_asked() -> None:
    let_go = threading.Event()
    squares = Squares(lambda number: number * let_go.wait(SECONDS))
    squares.ask(7, 8)
    while not squares.worker.is_busy:
        time.sleep(0.001)
    began_s = time.monotonic()
    squares.worker.close()
    squares.worker.close(0.05)
    assert time.monotonic() - began_s < SECONDS / 2
    assert (threads(), squares.worker.is_running) == (1, True)
    let_go.set()
    squares.worker.close(SECONDS)
    assert (squares.found, threads(), squares.worker.is_running) == ([7], 0, False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_ends_the_thread_and_releases_those_who_wait() -> None:
    squares = Squares(lambda number: number // 0)
    squares.ask(5)
    squares.wait()
    squares.worker.close(SECONDS)
    squares.ask(6)
    assert (squares.found, threads(), squares.worker.is_closing) == ([], 0, True)


def test_a_rest_ends_after_its_time_or_with_close() -> None:
    open_after = list[bool]()

    def run(worker: Worker) -> None:
        open_after.extend(worker.rest(seconds) for seconds in (0.001, SECONDS))

    worker = Worker("squares", run)
    worker.wake()
    while not open_after:
        time.sleep(0.001)
    worker.close(SECONDS)
    assert open_after == [True, False]
