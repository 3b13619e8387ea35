"""Data source interface: the BPF programs, /proc, recordings and other machines are all read through it."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from offtop.model.values.outlier import Outlier, Thresholds
from offtop.model.values.snapshot import Filters, Snapshot
from offtop.model.values.stack import Frame, Names
from offtop.model.values.wake import Object


class Recorded(NamedTuple):
    """Where and when a recording was made."""

    host: str
    began_ns: int
    """CLOCK_REALTIME of the first tick."""
    ended_ns: int
    """CLOCK_REALTIME of the last tick; may be earlier if the clock was set back."""
    measured_ns: int
    """Time from the first to the last tick (CLOCK_MONOTONIC)."""
    lists: Collection[str] = ()
    """Those of disks.LIST_MODES whose list is in it."""


class Source(Protocol):
    """Returns snapshots.

    Only one thread may read it; `set_filters` may be called from another.
    """

    @property
    def recorded(self) -> Recorded | None:
        """Where and when it was recorded; None: live."""
        ...

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a recording or another machine.

        Ticks come at their own pace then, and users and processes need not exist on this machine.
        """
        ...

    @property
    def interruption(self) -> str:
        """Why there are no new ticks at present, for people; empty: they come. Thread-safe."""
        ...

    @property
    def since_ns(self) -> int:
        """When it began to measure (CLOCK_MONOTONIC): for a clip, before its first tick. 0: with its first tick."""
        ...

    @property
    def host(self) -> str: ...

    @property
    def notices(self) -> Sequence[str]:
        """What the source lacks on this machine, a sentence or two each; empty: nothing.

        Each says what is missing, then the fix, then the effect, because a narrow screen shows only the beginning.
        """
        ...

    @property
    def names(self) -> Names:
        """Names of frames. Returns at once; a worker looks up missing names in the background."""
        ...

    def read(self) -> Snapshot | None:
        """Return running totals up to now; None at the end.

        The caller decides when to read a live source. What is elsewhere keeps its own pace: this call blocks until the
        next tick is due, or has arrived. Raises OfftopError.
        """
        ...

    def drain(self) -> None:
        """Drain the kernel's buffers, if that is needed. The reading thread must call it at least once a second.

        Raises OfftopError.
        """
        ...

    def go_to(self, taken_ns: int, after: bool = False) -> int:
        """Continue a recording at a time (CLOCK_REALTIME), or at the first tick `after` it.

        Returns when that tick was taken. The next reads first return what was recorded before it, without delay. The
        time may be in another epoch of the recording. A live source returns `taken_ns` and does nothing. Raises
        OfftopError if it cannot go there.
        """
        ...

    def hold(self, held: bool) -> None:
        """Hold a recording while the screen is paused. A live source goes on."""
        ...

    def set_delay(self, delay_ns: int) -> None:
        """Have another machine measure with this delay between ticks. Others ignore it. Thread-safe."""
        ...

    def set_filters(self, filters: Filters) -> None:
        """Count only what passes, from the next read on.

        Thread-safe. Raises OfftopError if that is not possible.
        """
        ...

    def set_mode(self, mode: str, depth: int) -> None:
        """Record what a mode shows, with `depth` wakers in a chain, from the next read on.

        `mode`: one of wake.MODES. A recording ignores it. It may take a second, so the screen's thread must not call
        it. Raises OfftopError if that is not possible.
        """
        ...

    def set_counted(self, mode: str, wanted: bool) -> None:
        """Count what `mode`, one of disks.LIST_MODES, lists, or stop counting it, from the next read on.

        It may take a second, so the screen's thread must not call it. Raises OfftopError if that is not possible.
        """
        ...

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        """Report waits that reach these thresholds in snapshots, from the next read on; None: report none.

        Only the reading thread may call it. A recording reports the outliers that it holds.
        """
        ...

    def outliers(self) -> Sequence[Outlier]:
        """Return all outliers of a recording, in order of time; none for a live source."""
        ...

    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        """Wait at most `seconds` until each of `frames` has its final name. Return whether it has."""
        ...

    def why_nameless(self, frame: Frame) -> str:
        """Return why a frame has no name, one of stack_problems.REASONS. Does not block.

        Empty: it has a name, or it was not looked up yet.
        """
        ...

    def describe(self, pids: Collection[int]) -> None:
        """Request details of these processes, which will be in `Catalog.details`.

        Does not block. Thread-safe. Call it again while they are shown, because details change when a process calls
        exec.
        """
        ...

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        """Request the peers of objects, which will be in `Catalog.peers` a few ticks later.

        `waited_on`: object → a process that waits on it. Does not block. Thread-safe. Call it again while they are
        shown.
        """
        ...

    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        """Return (label, raw value) pairs about a process.

        It may take seconds, so the screen's thread must not call it.
        """
        ...

    def about(self) -> list[tuple[str, str]]:
        """Return (label, value) pairs for "About this session": kernel, probe, maps, features."""
        ...

    def close(self) -> None:
        """Detach everything. May be called twice."""
        ...


class LiveFeed:
    """Common defaults of live sources."""

    @property
    def recorded(self) -> Recorded | None:
        return None

    @property
    def is_elsewhere(self) -> bool:
        return False

    @property
    def interruption(self) -> str:
        return ""

    @property
    def since_ns(self) -> int:
        return 0

    @property
    def notices(self) -> Sequence[str]:
        return ()

    def set_delay(self, delay_ns: int) -> None:
        """The caller decides when to read."""

    def drain(self) -> None:
        """Nothing to drain."""

    def go_to(self, taken_ns: int, after: bool = False) -> int:
        """A live source cannot seek."""
        return taken_ns

    def hold(self, held: bool) -> None:
        """A live source goes on."""

    def outliers(self) -> Sequence[Outlier]:
        return ()
