"""The waits of a tick by category, program, thread, site and cause."""

from msgspec import UNSET, Struct

from offtop.reports.objects.json_baseline import ChangeIfCompared
from offtop.reports.objects.json_waited_on import ObjectOrNull
from offtop.reports.objects.json_wakers import Chain, ChainEnd, ChainWakers, WakerOrNull
from offtop.reports.objects.shared_fields import (
    CauseId,
    Count,
    Frames,
    Histogram,
    IsUnsure,
    NamedTid,
    Ns,
    StackEnd,
    Tid,
)


class Category(Struct, frozen=True, kw_only=True):
    """A category's waits."""

    name: str
    idle: bool
    """All of it is idle."""
    idle_ns: int
    """The part of total_ns that is idle."""
    standing_ns: int
    """Another part of total_ns, of standing waits; they are hidden with the idle ones."""
    waits: Count
    total_ns: Ns
    max_ns: Count
    histogram: Histogram
    diagnosis: CauseId
    baseline: ChangeIfCompared = UNSET


class Place(Struct, frozen=True, kw_only=True):
    """What threads wait for."""

    name: str
    """Name of the cause, or else kernel function and innermost function of the program; short waits have none."""
    total_ns: Ns


class Program(Struct, frozen=True, kw_only=True):
    """The waits of all processes of one name; kernel threads of a kind, such as kworker/*, are one."""

    name: str
    processes: Count
    """Its processes with a matching wait; 0: threads that exited."""
    threads: Count
    """Its threads with a matching wait."""
    waits: Count
    total_ns: Ns
    idle_ns: int
    """The part of total_ns that is idle."""
    standing_ns: int
    """Another part of total_ns, of standing waits."""
    max_ns: Count
    histogram: Histogram
    places: list[Place]
    """What it waits for, most time first; their sum is total_ns."""


class Thread(NamedTid, frozen=True, kw_only=True):
    """A thread's waits."""

    waits: Count
    offcpu_ns: Ns
    blocked_ns: Ns
    runqueue_ns: Ns
    preempted_ns: Ns
    running_ns: int | None
    """ns, from the kernel's accounting of the thread; null: unknown."""
    residue_ns: int | None
    """ns: span_ns - running_ns - offcpu_ns, which the hypervisor and interrupts may explain; slightly below 0 if the
    kernel's accounting lags; null: unknown, or the thread began or exited in this tick."""
    voluntary: Count
    """Waits that the thread began by itself, and a new thread's first, for a CPU."""
    involuntary: Count
    """Waits that began when the thread was preempted."""
    max_ns: Count
    short_waits: Count
    short_ns: Ns
    filtered_ns: Ns
    histogram: Histogram
    diagnosis: CauseId
    baseline: ChangeIfCompared = UNSET


class Site(Tid, frozen=True, kw_only=True):
    """The waits of a thread at its stacks."""

    category: str
    idle: bool
    standing: bool
    """It is one standing wait in progress: it is hidden with the idle ones."""
    waits: Count
    total_ns: Ns
    blocked_ns: Ns
    runqueue_ns: Ns
    max_ns: Count
    kernel: Frames
    user: Frames
    user_end: StackEnd
    """How the user stack ends."""
    user_unsure: IsUnsure
    histogram: Histogram
    earlier_ns: int
    """ns: add this to what earlier ticks reported of this site. A wait in progress counts at a site without a waker; if
    it ends at another site, its time moves there, and this is negative here."""
    diagnosis: CauseId
    baseline: ChangeIfCompared = UNSET
    waker: WakerOrNull
    object: ObjectOrNull
    chain: Chain
    chain_wakers: ChainWakers
    chain_end: ChainEnd
    """Why the chain goes no further."""


class Cause(Struct, frozen=True, kw_only=True):
    """A cause of waits."""

    id: str
    """Id of a cause rule in rules.toml."""
    name: str
    """What the threads wait for, in a few words."""
    says: str
    """What that means."""
    next: str | None
    """What to look at next; null: nothing in particular."""
    idle: bool | None
    """Whether it is waiting for work; null: as for its category."""
    total_ns: Ns
    estimated_ns: Ns
    """Time in short waits that has it by estimate, because the CPU budget left these waits without a stack."""
