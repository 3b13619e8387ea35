"""What other threads wait for, directly or through others."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from offtop.model.classify.suspect import KINDS as SUSPECT_KINDS
from offtop.model.values.blockers import VIA
from offtop.reports.objects.json_baseline import SuspectChange
from offtop.reports.objects.shared_fields import CauseId, Count, Frames, about, meaning


class Hop(Struct, frozen=True, kw_only=True):
    """Threads in a chain of waits that do the same."""

    pid: Count
    tid: Count
    """The thread of them with the oldest wait; 0: some thread of the process."""
    comm: str
    process: str
    title: str | None
    """Title of that process, as set by setproctitle(); null: it has none of its own."""
    threads: Count
    """How many they are."""
    unread: Count
    """How many other threads of the program wait for a lock with stacks that are not read yet: they may do the same."""
    processes: Count
    """Of how many processes."""
    others: Count
    """How many other programs have threads that wait for the same."""
    state: str
    """Category of their wait; runs: they are on a CPU; idle: they look idle; unmeasured: filters such as -p leave it
    out, or it has exited; away: on another machine, or behind an address that is translated: pid is 0, and process is
    the address; disk: pid is 0, and process is the name of the disk; short: a wait without a stack."""
    diagnosis: CauseId
    age_ns: Count
    """Age of the oldest wait; 0: unknown."""
    kernel: Frames
    user: Frames
    via: Annotated[str | None, meaning(VIA, null="the last of the chain, or the kernel's scheduler")]
    """How it is known that the next of the chain must act."""
    exact: bool
    """false: that is likely."""
    what: str | None
    """Name of what the next of the chain holds, the address of a connection that is not accepted, or the cgroup of the
    CPU quota for which they wait; null: none, or unknown."""
    quota_cpus: float | None
    """How many CPUs that quota allows; null: unknown, or they wait for something else."""
    frozen_by: str | None
    """File by which the cgroup of that thread is frozen; null: it is not frozen, or that is unknown."""
    limited_by: str | None
    """File of the memory limit that the cgroup of that thread has reached; null: none, or unknown."""
    limit_bytes: Count | None
    """That limit; null: none, or unknown."""


class Suspect(Struct, frozen=True, kw_only=True):
    """A thread or process that others wait for, directly or through others."""

    kind: Annotated[str, meaning(SUSPECT_KINDS)]
    text: str
    """Which threads wait for what, and what holds it, in one sentence; and what to look at next."""
    harm: Annotated[float, Meta(ge=0)]
    """Average threads that wait for it, each by its weight, over the last ticks."""
    waiting: Annotated[float, Meta(ge=0)]
    """Average threads that wait for it in this tick."""
    age_ns: Count
    """Age of the oldest wait; 0: there are only short ones."""
    likely: bool
    """Not every hop is exact."""
    hops: list[Hop]
    """First the threads that wait for all others, last what must act; of a deadlock, all its threads in order."""
    baseline: Annotated[SuspectChange | UnsetType, about("Only with --baseline.")] = UNSET
