"""The object that is one line of `--json`."""

from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from offtop.model.values.disks import LIST_MODES
from offtop.model.values.wake import MODES, STORM
from offtop.reports.objects.json_baseline import Baseline
from offtop.reports.objects.json_breakdowns import Category, Cause, Program, Site, Thread
from offtop.reports.objects.json_header import (
    Calls,
    Cost,
    Detail,
    Filters,
    KernelStackMemos,
    Machine,
    Sampling,
    StackMemos,
)
from offtop.reports.objects.json_io import DiskRequests, FileOperations
from offtop.reports.objects.json_stacks import StackProblem, UserStacks
from offtop.reports.objects.json_suspects import Suspect
from offtop.reports.objects.json_waits import Blocked, Outlier
from offtop.reports.objects.json_wakers import Storm
from offtop.reports.objects.shared_fields import Count, about, one_of


class Tick(Struct, frozen=True, kw_only=True):
    """One tick.

    sum(categories.total_ns) = sum(threads.offcpu_ns). For each thread, offcpu_ns = blocked_ns + runqueue_ns, and its
    sites' total_ns + short_ns + filtered_ns = offcpu_ns. Waits in progress count while they go on; waits, histograms
    and max_ns are of finished waits only. With --filter or -u, categories hold what matches, and
    sum(categories.total_ns) + left_out_ns is the off-CPU time of all threads; threads and sites are those with matching
    time, each with all of its time.
    """

    version: str
    """offtop's version."""
    taken_ns: int
    """CLOCK_REALTIME of the end of the tick."""
    span_ns: int
    """Measured length of the tick."""
    mode: Annotated[str, one_of(*MODES, *LIST_MODES)]
    """What was requested (--mode); of a recording without it, what was recorded. Wakers in all modes but offcpu, file
    and disk, and in chain the wakers of wakers."""
    probe: str
    """Switch-in probe, which reports that a thread is back on a CPU; proc: /proc was sampled."""
    door: str
    """Older name of probe."""
    notices: list[str]
    """What offtop lacks on this machine, a sentence or two each, with the fix."""
    filters: Filters
    sampling: Sampling | None
    """null: every wait was seen."""
    within: Calls | None
    """Calls of the function given with --within; null: none is given."""
    filter: str | None
    """--filter and -u as one expression; null: none."""
    left_out_ns: int
    """ns of waits that do not match the filter; 0: no filter."""
    lost: dict[str, Count]
    """What was not recorded, by kind; a kind without losses is absent. threads: their time is in the thread [ended, not
    named], except for waits with stacks, which keep their own ids. unread: user stacks that were not read in time ([not
    read])."""
    cost: Cost
    detail: Detail
    stack_memos: StackMemos
    kernel_stack_memos: KernelStackMemos | None
    """null: each kernel stack was unwound."""
    categories: list[Category]
    """Only what matches the filter."""
    programs: list[Program]
    """Only what matches the filter, most time first; sum(programs.total_ns) = sum(categories.total_ns)."""
    threads: list[Thread]
    """Each thread with a matching wait, with all of its waits."""
    sites: list[Site]
    """Each site (a thread and its stacks) with matching time, with all of its time; also sites whose time of earlier
    ticks has moved elsewhere."""
    diagnoses: list[Cause]
    """Causes of the sites above, most time first; their run-queue time counts separately."""
    still_blocked: list[Blocked]
    """Waits in progress at the end of the tick that have reached the minimum, oldest first; only those that match the
    filter."""
    storms: Annotated[list[Storm], about(f"At least {STORM} threads woke up in each.")]
    """Wakers that woke many threads at once, through one code path, from waits that had reached the minimum, most woken
    first; not filtered."""
    outliers: list[Outlier]
    """Outliers of this tick: waits and ticks that a trigger matched, or that were far longer than usual; not filtered.
    """
    suspects: list[Suspect]
    """What others wait for, most harm first; empty: nothing stands out. Not filtered."""
    standing: Count
    """Number of standing waits; they do no harm."""
    user_stacks: UserStacks
    user_stack_problems: list[StackProblem]
    """What the user stacks of matching waits lack, most time first. A stack counts under each problem that it has."""
    machine: Machine
    files: FileOperations | UnsetType = UNSET
    """File operations; only in mode file, or if an outlier rule judges them."""
    disks: DiskRequests | UnsetType = UNSET
    """Requests to disks; only in mode disk, or if an outlier rule judges them."""
    baseline: Baseline | UnsetType = UNSET
