"""The thread that asks for what the screen shows, so that the screen never waits for an answer.

It asks for the hosts first; then for the programs of the host that the person looks at, and for what is nice to have.
An answer that fails leaves the last picture as it is.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from offtop.errors import OfftopError
from offtop.fleet.hosts import Fleet, HostId
from offtop.fleet.survey import Programs, Question, Survey
from offtop.units import NS_PER_S
from offtop.worker import Rest, Worker

_DELAY_NS = 10 * NS_PER_S
_MOST_BEGINNINGS = 5
"""Suspects whose beginning is looked for: more do not fit on the screen."""

Trend = tuple[float | None, ...]


class TrendQuestion(NamedTuple):
    """Which trends the screen has room for."""

    hosts: frozenset[HostId] = frozenset()
    category: str = ""
    """Empty: all of them."""
    cells: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The newest of everything."""

    question: Question
    """What was asked when `fleet` was the answer."""
    fleet: Fleet | None = None
    """None: there was no answer yet."""
    programs: Programs | None = None
    trends: Mapping[HostId, Trend] = field(default_factory=dict[HostId, Trend])
    trend_category: str = ""
    """What the trends are of; empty: all categories."""
    failure: str = ""
    """Why the newest question has no answer; empty: it has one."""
    count: int = 0
    """How many times the hosts were asked for."""


class Reader:
    """Its methods are thread-safe."""

    def __init__(self, survey: Survey, question: Question, every_ns: int | None = None) -> None:
        """`every_ns`: time between refreshes; None: DELAY_NS, or longer if the hosts are read more seldom."""
        self._survey, self._every_ns = survey, every_ns
        self._worker = Worker("offtop-fleet", self._run)
        self._question, self._host, self._trends = question, HostId("", ""), TrendQuestion()
        self._answer = Answer(question)
        self._due_ns = 0
        """CLOCK_MONOTONIC of the next refresh."""
        self._asked: set[object] = set()
        """What has been asked for since the last refresh."""
        self._changed: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._worker.wake()

    def close(self) -> None:
        self._worker.close()

    def notify(self, changed: Callable[[], None]) -> None:
        """Have `changed` called in the thread after each answer."""
        with self._worker.changed:
            self._changed = changed

    @property
    def question(self) -> Question:
        with self._worker.changed:
            return self._question

    @property
    def answer(self) -> Answer:
        with self._worker.changed:
            return self._answer

    def ask(self, question: Question) -> None:
        """Ask for other hosts or times; the answer comes later."""
        with self._worker.changed:
            self._question, self._due_ns = question, 0
        self._worker.wake()

    def refresh(self) -> None:
        self.ask(self.question)

    def show(self, host: HostId | None, trends: TrendQuestion) -> None:
        """Say what is on the screen: the programs of a host, and which trends."""
        with self._worker.changed:
            wanted = host or HostId("", ""), trends
            if (self._host, self._trends) == wanted:
                return
            self._host, self._trends = wanted
        self._worker.wake()

    def _run(self, worker: Worker) -> None:
        for ask in worker.requests(self._next):
            try:
                ask()
            except OfftopError as error:
                with worker.changed:
                    self._answer = replace(self._answer, failure=str(error))
            with worker.changed:
                changed = self._changed
            changed()

    def _next(self) -> Callable[[], None] | Rest:
        """Return what to ask for now."""
        now_ns, answer = time.monotonic_ns(), self._answer
        is_past = self._question.at_ns is not None and self._question == answer.question and not answer.failure
        if self._due_ns == 0 or (now_ns >= self._due_ns and not is_past):
            self._due_ns = now_ns + delay_ns(self._every_ns, answer.fleet)
            self._asked.clear()
            return self._ask_hosts
        if (fleet := answer.fleet) is not None and not answer.failure:
            wanted: list[tuple[object, Callable[[], None]]] = []
            if self._host.instance:
                host = self._host
                wanted.append((host, lambda: self._ask_programs(fleet, host)))
            trends = self._trends
            wanted.append((trends, lambda: self._ask_trends(fleet, trends)))
            wanted.append(("beginnings", lambda: self._ask_beginnings(fleet)))
            for key, ask in wanted:
                if key not in self._asked:
                    self._asked.add(key)
                    return ask
        return Rest(None if is_past else (self._due_ns - now_ns) / NS_PER_S)

    def _ask_hosts(self) -> None:
        question = self.question
        fleet = self._survey.fleet(question)
        with self._worker.changed:
            old = self._answer
            if old.fleet is not None and old.question == question:
                known = {(one.what, one.who): one for one in old.fleet.suspects}
                fleet = replace(
                    fleet,
                    suspects=tuple(
                        one._replace(since_ns=was.since_ns, is_older=was.is_older)
                        if (was := known.get((one.what, one.who)))
                        else one
                        for one in fleet.suspects
                    ),
                )
            self._answer = replace(old, question=question, fleet=fleet, failure="", count=old.count + 1)

    def _ask_programs(self, fleet: Fleet, host: HostId) -> None:
        programs = self._survey.programs(host, fleet)
        with self._worker.changed:
            self._answer = replace(self._answer, programs=programs)

    def _ask_trends(self, fleet: Fleet, wanted: TrendQuestion) -> None:
        found = self._survey.trends(fleet, sorted(wanted.hosts), wanted.category, wanted.cells)
        with self._worker.changed:
            self._answer = replace(self._answer, trends=found, trend_category=wanted.category)

    def _ask_beginnings(self, fleet: Fleet) -> None:
        found = self._survey.with_beginnings(fleet, self._answer.question.filter, _MOST_BEGINNINGS)
        with self._worker.changed:
            if self._answer.fleet is fleet:
                self._answer = replace(self._answer, fleet=found)


def delay_ns(every_ns: int | None, fleet: Fleet | None) -> int:
    """Return the time between two refreshes. Without a choice it is not shorter than that of the numbers."""
    return every_ns or max(_DELAY_NS, fleet.scrape_ns if fleet else 0)
