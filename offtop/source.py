"""The one door between the rooms: a live kernel, /proc or a recording, all read the same way."""

from collections.abc import Collection
from typing import Protocol

from offtop.model.snapshot import Filters, Snapshot
from offtop.model.stack import Frame, Names


class Source(Protocol):
    """Gives snapshots. Read from one thread only; `filters` may be set from another."""

    @property
    def host(self) -> str: ...

    @property
    def names(self) -> Names:
        """What frames are called; answers at once, and better as its worker goes on."""
        ...

    def read(self) -> Snapshot | None:
        """Running totals up to now; None when there will be no more. The caller keeps the pace.

        Raises an OfftopError that a person can act on.
        """
        ...

    def set_filters(self, filters: Filters) -> None:
        """From the next read on, count only this. Raises an OfftopError where it cannot be done."""
        ...

    def wait_for_names(self, frames: set[Frame], seconds: float) -> None:
        """Return when each of `frames` has the best name it will get, or after `seconds`."""
        ...

    def describe(self, pids: Collection[int]) -> None:
        """Have `Book.details` tell of these processes, soon; returns at once. For any thread.

        Ask again as long as they are shown: what is told of a process that begins another program changes.
        """
        ...

    def about(self) -> list[tuple[str, str]]:
        """(what, value) for the help screen's "About this session": kernel, door, maps, features."""
        ...

    def close(self) -> None:
        """Leave nothing attached. May be called twice."""
        ...
