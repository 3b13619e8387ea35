"""The one door between the rooms: a live kernel, /proc or a recording, all read the same way."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from offtop.model.values.outlier import Marks, Outlier
from offtop.model.values.snapshot import Filters, Snapshot
from offtop.model.values.stack import Frame, Names
from offtop.model.values.wake import Object


class Recorded(NamedTuple):
    """Where and when was recorded what a source tells."""

    host: str
    began_ns: int
    """CLOCK_REALTIME of the first tick."""
    ended_ns: int
    """The same of the last; it may have been set back meanwhile."""
    measured_ns: int
    """From the first to the last, by CLOCK_MONOTONIC."""


class Source(Protocol):
    """Gives snapshots. Read from one thread only; `filters` may be set from another."""

    @property
    def recorded(self) -> Recorded | None:
        """None for what happens now."""
        ...

    @property
    def host(self) -> str: ...

    @property
    def notices(self) -> Sequence[str]:
        """What it does without, a sentence or two each: what, the remedy, and then the loss, because a narrow screen
        shows the beginning only. Empty if it has all that was asked for."""
        ...

    @property
    def names(self) -> Names:
        """What frames are called; answers at once, and better as its worker goes on."""
        ...

    def read(self) -> Snapshot | None:
        """Running totals up to now; None when there will be no more. The caller keeps the pace, but of what was
        recorded: that keeps its own, and waits here.

        Raises an OfftopError that a person can act on.
        """
        ...

    def drain(self) -> None:
        """Take out what would fill up until the next read: the thread that reads calls it at least once a second.

        Raises an OfftopError that a person can act on.
        """
        ...

    def go_to(self, taken_ns: int, after: bool = False) -> int:
        """Take up that moment (CLOCK_REALTIME), or the first tick `after` it, perhaps in another epoch: what was
        recorded before it comes first, and at once. Returns when the tick was taken that is seen then. What happens
        now has no other moment.

        Raises an OfftopError where it cannot be taken up.
        """
        ...

    def hold(self, held: bool) -> None:
        """Somebody looks at one moment: what was recorded waits for them, what happens now does not."""
        ...

    def set_filters(self, filters: Filters) -> None:
        """From the next read on, count only this. Raises an OfftopError where it cannot be done."""
        ...

    def set_mode(self, mode: str, depth: int) -> None:
        """From the next read on, gather what this mode shows (one of wake.MODES), with so many wakers of a chain; a
        recording has what was gathered. May take a second: not for the thread of a screen.

        Raises an OfftopError where it cannot be done.
        """
        ...

    def catch(self, marks: Marks | None) -> None:
        """From the next read on, have snapshots tell of waits that reach these marks; None: of none. For the thread
        that reads. What was recorded tells of those that were outliers then."""
        ...

    def outliers(self) -> Sequence[Outlier]:
        """All that were recorded, in the order of time; of what happens now, none are known."""
        ...

    def wait_for_names(self, frames: set[Frame], seconds: float) -> None:
        """Return when each of `frames` has the best name it will get, or after `seconds`."""
        ...

    def why_nameless(self, frame: Frame) -> str:
        """Why a frame has no name, one of stackproblems.REASONS; empty: it has one, or nobody has looked. Returns at
        once."""
        ...

    def describe(self, pids: Collection[int]) -> None:
        """Have `Book.details` tell of these processes, soon; returns at once. For any thread.

        Ask again as long as they are shown: what is told of a process that begins another program changes.
        """
        ...

    def find_ends(self, waited_on: Mapping[Object, int]) -> None:
        """Have `Book.ends` tell who is at the other end of these, a tick or a few later; returns at once. For any
        thread. Of each, a process that waits on it.

        Ask again as long as they are shown.
        """
        ...

    def facts(self, pid: int) -> Sequence[tuple[str, str]]:
        """(what, value) of a process, for a person who asks; raw. May take seconds: not for the thread of a screen."""
        ...

    def about(self) -> list[tuple[str, str]]:
        """(what, value) for the help screen's "About this session": kernel, door, maps, features."""
        ...

    def close(self) -> None:
        """Leave nothing attached. May be called twice."""
        ...


class Happening:
    """What sources have in common that tell what happens now."""

    @property
    def recorded(self) -> Recorded | None:
        return None

    @property
    def notices(self) -> Sequence[str]:
        return ()

    def drain(self) -> None:
        """Nothing fills up."""

    def go_to(self, taken_ns: int, after: bool = False) -> int:
        """There is no other time than now."""
        return taken_ns

    def hold(self, held: bool) -> None:
        """It goes on."""

    def outliers(self) -> Sequence[Outlier]:
        return ()
