"""How a tick was measured: filters, sampling, cost, and what was left out."""

from typing import Annotated

from msgspec import Struct

from offtop.reports.objects.shared_fields import Count, Histogram, one_of


class Filters(Struct, frozen=True, kw_only=True):
    """What was measured."""

    pids: tuple[Count, ...]
    tids: tuple[Count, ...]
    who: Annotated[str, one_of("all", "user", "kernel")]
    states: int
    """Mask; 0: every state."""
    min_ns: Count
    max_ns: int | None
    """Longer waits are left out; null: no maximum."""
    cgroup: str | None
    """Path; only threads of this cgroup and those below it are counted; null: all."""
    within: str | None
    """Only waits inside this function are counted; null: all."""


class Sampling(Struct, frozen=True, kw_only=True):
    """How the threads were sampled, and how sure the numbers are.

    Sites, lengths of waits and preempted_ns are estimates. runqueue_ns, running_ns and waits of threads are the
    kernel's own, from the first sample to the last, except for run-queue time that counted as blocked until the kernel
    reported it, which guessed_ns includes. offcpu_ns is the rest of a thread's time, and includes what the hypervisor
    stole or interrupts took.
    """

    rate_hz: float
    """How often all threads were sampled, per second."""
    apart_ns: Count
    """Longest time between two samples: a wait may be shorter by this much at each end."""
    guessed_ns: Count
    """Off-CPU time of all threads that may belong to another site than reported."""
    own_only: bool
    """Only the user's own processes are visible."""
    lost_known: bool
    """false: lost does not count threads that began and exited between two samples."""
    container_only: bool
    """Only this container's processes are visible."""


class Calls(Struct, frozen=True, kw_only=True):
    """Calls of the function given with --within."""

    function: str
    """As given with --within."""
    calls: Count
    """Calls that returned in the tick."""
    left: Count
    """Calls that ended by longjmp, an exception or the thread's exit; their length is unknown."""
    total_ns: Count
    """Full length of the calls that returned, whenever they began (as for the next keys); running_ns + offcpu_ns."""
    running_ns: Count
    """Includes what interrupts and the hypervisor took."""
    offcpu_ns: Count
    """blocked_ns + runqueue_ns."""
    blocked_ns: Count
    runqueue_ns: Count
    max_ns: Count
    histogram: Histogram
    now: Count
    """Calls in progress at the end of the tick; those that began before offtop are unknown."""
    oldest_ns: Count
    """Age of the oldest call in progress."""


class Cost(Struct, frozen=True, kw_only=True):
    """What offtop costs."""

    bpf_ns_per_switch: float | None
    """All BPF programs on the switch path, by the kernel's count; null: unknown."""
    switches: int | None
    """Context switches of the machine; null: unknown."""
    cpu_pct: float | None
    """offtop's process, percent of one CPU; null: unknown."""
    bpf_pct: float | None
    """Its BPF programs, percent of one CPU; null: unknown."""
    rss_bytes: int | None
    """offtop's process; null: unknown."""
    walk_ns: int | None
    """CPU time of a scan of all threads, on average; null: unknown."""
    walk_every: Count
    """There is one scan per this many ticks."""


class Detail(Struct, frozen=True, kw_only=True):
    """What offtop leaves out to keep to its CPU budget. Totals are not affected: waits without a stack are short."""

    level: Count
    """0: all; up to 4 while offtop exceeds its CPU budget, with a higher minimum and fewer scans at each."""
    stacks_from_ns: Count
    """Waits of this length get a stack on every CPU; the minimum of the filters if nothing is left out."""
    cpus: Count
    """CPUs with a raised minimum."""
    thinned_waits: Count
    """Waits in this tick that reached the minimum and have no stack all the same."""
    thinned_ns: Count
    """Their off-CPU time."""
    over_budget: bool
    """offtop exceeds its CPU budget at the highest level, too, or its BPF programs alone exceed it."""


class StackMemos(Struct, frozen=True, kw_only=True):
    """How the user stacks of this tick's long waits were found. See docs/stacks.md."""

    walked: Count
    """Unwound frame by frame, including those that were checked."""
    verified: Count
    """The same as the thread's last stack, after everything that its unwind depends on was compared."""
    checked: Count
    """Of these: unwound all the same."""
    disagreements: Count
    """Of these: unwinding found another stack. It should be 0."""


class KernelStackMemos(StackMemos, frozen=True, kw_only=True):
    """How the kernel stacks of this tick's long waits were found. See docs/stacks.md."""

    check_every: Count
    """One in so many verified stacks was unwound all the same."""


class Machine(Struct, frozen=True, kw_only=True):
    """The machine's CPUs."""

    cpus: int | None
    """CPUs that are online; null: unknown."""
    steal_ns: int | None
    """CPU time that the hypervisor took; null: unknown."""
    interrupt_ns: int | None
    """CPU time of hard and soft interrupts; null: unknown."""
