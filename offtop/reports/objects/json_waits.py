"""Single waits: those in progress, and outliers."""

from typing import Annotated

from msgspec import Struct

from offtop.model.outliers.trigger import METRICS
from offtop.model.values.disks import LIST_MODES
from offtop.reports.objects.json_waited_on import Holder, ObjectOrNull, WaitedOn
from offtop.reports.objects.json_wakers import Chain, ChainEnd, ChainWakers, WakerOrNull
from offtop.reports.objects.shared_fields import CauseId, Count, Frames, IsUnsure, NamedTid, StackEnd, meaning, one_of


class Blocked(NamedTid, frozen=True, kw_only=True):
    """A wait in progress."""

    age_ns: Count
    age_is: Annotated[str, one_of("exact", "at_most", "at_least")]
    """at_most: its begin was not seen; the thread last had a CPU this long ago."""
    state: str
    """As in ps: R, S, D, T, t, P, I; K: killable."""
    category: str
    idle: bool
    standing: bool
    """It is idle only because it is old, normal while there is no work, and no other thread waits for its thread."""
    diagnosis: CauseId
    syscall: str | None
    """Name of the system call it is in; null: in none."""
    arguments: tuple[Count, ...]
    """Of the system call: six 64-bit words, or none if unknown."""
    kernel: Frames
    user: Frames
    """Leaf first, read while the thread waits; empty: not read (yet)."""
    user_end: StackEnd
    """How the user stack ends."""
    user_unsure: IsUnsure
    object: WaitedOn | None
    """What it waits on; null: unknown."""
    held_by: Holder | None
    """Thread that holds the mutex or rwsem it waits for; null: unknown, several readers, or it waits for something
    else."""


class LongWait(NamedTid, frozen=True, kw_only=True):
    """The wait of an outlier."""

    began_ns: Count
    """CLOCK_REALTIME."""
    length_ns: Count
    runqueue_ns: Count
    """Run-queue time at the end of the wait."""
    going_on: bool
    """In progress at the end of the tick."""
    exact: bool
    """false: its begin or end is known only to a tick or a sample."""
    began_earlier: bool
    """true: it began before began_ns, when it was first seen, and was longer than length_ns."""
    cpu: int | None
    """CPU on which the thread ran next; null: unknown."""
    state: str
    """At switch-out; letters as in still_blocked."""
    after: str | None
    """What the thread did at the end of the tick: running, ended, or state and category of its next wait; null: the
    wait goes on."""
    kernel: Frames
    user: Frames
    user_end: StackEnd
    """How the user stack ends."""
    user_unsure: IsUnsure
    diagnosis: CauseId
    waker: WakerOrNull
    object: ObjectOrNull
    chain: Chain
    chain_wakers: ChainWakers
    chain_end: ChainEnd
    """Why the chain goes no further."""


class Outlier(Struct, frozen=True, kw_only=True):
    """A wait or tick that a trigger matched."""

    rule: str
    """auto, or the trigger's text."""
    metric: Annotated[str, meaning(METRICS)]
    category: str
    """Empty: everything that is not idle. Of file operations and requests, the operation."""
    process: str
    """Process name; empty: all processes together."""
    value: float
    """Measured value: ns, threads, or a rate per second. Excludes a wait's run-queue time, which is judged separately.
    """
    mark: float
    """The threshold it crossed."""
    usual_ns: int | None
    """99.9th percentile of the waits of that process name and category in the last minutes, as an upper bound; null:
    unknown."""
    taken_ns: Count
    """taken_ns of the tick."""
    more: Count
    """Others of its kind in this tick, which are only counted."""
    was_told: bool
    """This wait was reported before, while it went on, and has ended now."""
    wait: LongWait | None
    """The wait; null: a tick, call or request crossed the threshold."""
    mode: Annotated[str, one_of(*LIST_MODES)] | None
    """The outlier is a file operation or a request to a disk; null: a wait, or a tick."""
    what: str | None
    """The slowest file operation or request, with its file or disk; the sentence of a new suspect; null: none."""
