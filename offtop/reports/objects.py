"""The JSON objects that `--json` prints, one Tick a line; `offtop schema` is made from them and their docstrings.

They are a contract: keys are only ever added. A key that is UNSET is left out.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from offtop.model.aggregate.stack_problems import REASONS
from offtop.model.classify.suspect import KINDS as SUSPECT_KINDS
from offtop.model.outliers.trigger import METRICS
from offtop.model.values.blockers import VIA
from offtop.model.values.disks import LIST_MODES
from offtop.model.values.disks import OPERATIONS as DISK_OPERATIONS
from offtop.model.values.files import OPERATIONS
from offtop.model.values.peers import NAMED, ROLES
from offtop.model.values.stack import ANONYMOUS, CLOSED, DROPPED, ENDS, GONE, UNREAD
from offtop.model.values.wake import CHAIN_ENDS, KINDS, MODES, SOFTIRQ, STORM

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def encode(made: object) -> str:
    """Return one line of JSON in ASCII, which every terminal and locale can take."""
    text = msgspec.json.encode(made).decode()
    return text if text.isascii() else _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _one_of(*values: str | None) -> Meta:
    return Meta(extra_json_schema={"enum": [*values]})


def _meaning(values: Mapping[str, str], null: str = "") -> Meta:
    """Describe each value; `null`: what null means, if it is allowed."""
    meanings = [f"{value}: {meaning.removeprefix('whole: ')}" for value, meaning in values.items()]
    described = "; ".join([*meanings, f"null: {null}"] if null else meanings)
    return Meta(description=described, extra_json_schema={"enum": [*values, None] if null else [*values]})


def _about(description: str) -> Meta:
    return Meta(description=description)


Count = Annotated[int, Meta(ge=0)]
Ns = Annotated[int, _about("ns")]
Frames = Annotated[list[str], _about("Leaf first.")]
Histogram = Annotated[
    list[tuple[Count, Count]], _about("[low_ns, count] for each power of two that has waits, shortest first.")
]
StackEnd = Annotated[str | None, _meaning(ENDS, null="there is no user stack")]
IsUnsure = Annotated[
    bool, _about("Callers may be wrong: they were found by frame pointers, or guessed from values on the stack.")
]
CauseId = Annotated[str | None, _about("Cause of most of it: the id of one of `diagnoses`; null: no rule matches.")]


class Filters(Struct, frozen=True, kw_only=True):
    """What was measured."""

    pids: tuple[Count, ...]
    tids: tuple[Count, ...]
    who: Annotated[str, _one_of("all", "user", "kernel")]
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


class Change(Struct, frozen=True, kw_only=True):
    """The same category, thread or site in the baseline, whatever its pid was, and how it differs."""

    waiting: float
    """Average waiting threads in the baseline; 0: it is new."""
    change: float
    """Average waiting threads in this tick, minus the baseline."""
    spread: float | None
    """Difference between the smallest and the largest average of a tick of this length in the baseline; null: the
    baseline is too short to tell."""
    p99_ns: Count
    """Upper bound of the 99th percentile in the baseline; 0: no wait ended."""
    new: bool
    """It is not in the baseline."""
    sure: bool
    """The change is larger than the spread."""


IoChangeIfCompared = Annotated[
    Change | UnsetType,
    _about("Only with --baseline, if it has such rows. waiting, change, spread: how many are in progress, on average."),
]
ChangeIfCompared = Annotated[
    Change | UnsetType | None, _about("Only with --baseline; null: there is nothing to compare.")
]


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


class Tid(Struct, frozen=True):
    """A thread's ids and name."""

    pid: Count
    tid: Count
    comm: str


class NamedTid(Tid, frozen=True):
    """A thread's ids and name, and its process's name."""

    process: str
    """The process's name."""


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


class Waker(Struct, frozen=True, kw_only=True):
    """What ended a wait."""

    kind: Annotated[str, _meaning(KINDS)]
    """What ended the wait."""
    name: str
    """Handler of an interrupt, function of a softirq or timer, or why the waker is unknown; otherwise empty."""
    pid: Count
    """0: the waker is not a thread."""
    tid: Count
    """0: the waker is not a thread."""
    comm: str
    """The thread's name at that time; empty: the waker is not a thread."""
    via: Annotated[str, _one_of("", SOFTIRQ)]
    """softirq: a softirq that ran within the thread's system call did the wakeup."""
    kernel: Frames
    """Kernel stack of the wakeup, leaf first; for an interrupt only the interrupt's own frames."""
    user: Frames


class Peer(Struct, frozen=True, kw_only=True):
    """A process at the other end of what is waited on."""

    role: Annotated[str, _meaning(ROLES)]
    pid: Count
    comm: str
    """The process's name."""


class WaitedOn(Struct, frozen=True, kw_only=True):
    """The object that a thread waits on."""

    kind: str
    """futex, pipe, tcp, udp, unix, socket (of another family), eventfd, epoll, file, child, poll (any of several),
    mutex, rwsem, semaphore (kernel locks) and others."""
    name: str
    """The same for all threads that wait on it: an address, an inode or a path."""
    pid: Count
    """Process in which the name is valid; 0: everywhere."""
    local: str
    """Local address of tcp and udp: 10.0.0.1:40312, *:80, [::1]:53; otherwise empty."""
    peer: str
    """The other end, if connected; for unix the process that created it: postgres(4242); otherwise empty."""
    state: str
    """Of tcp: established, listen, close-wait and so on; otherwise empty."""
    ends: Annotated[list[Peer] | None, _about(f"At most {NAMED} of each role; null: unknown.")]
    """The processes of this machine at the other end of a pipe, of a file lock, or of a tcp, udp or unix connection in
    the waiting process's network namespace; known from the second tick on."""
    ends_more: Count
    """How many more processes there are."""
    members: dict[str, Count] | None
    """How many descriptors of each kind an epoll watches: socket, pipe, eventfd, timerfd, file and so on; null:
    unknown."""


_NO_WAKER = "wakers are not recorded, or the wait goes on, or it was for a CPU only"
WakerOrNull = Annotated[Waker | None, _about(f"What ended these waits; null: {_NO_WAKER}.")]
ObjectOrNull = Annotated[WaitedOn | None, _about("What was waited on; null: unknown.")]
Chain = Annotated[
    list[Frames] | None,
    _about(
        "In mode chain: the waker's most recent wait, that of the thread which ended it, and so on; kernel and "
        f"program functions, leaf first; null: another mode, or {_NO_WAKER}."
    ),
]
ChainWakers = Annotated[list[Waker] | None, _about("What ended each of these waits; null: as for chain.")]
ChainEnd = Annotated[str | None, _meaning(CHAIN_ENDS, null="as for chain")]


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


class Holder(Struct, frozen=True, kw_only=True):
    """A thread that holds a lock."""

    pid: Count
    tid: Count
    comm: str
    """Empty: unknown."""


class Blocked(NamedTid, frozen=True, kw_only=True):
    """A wait in progress."""

    age_ns: Count
    age_is: Annotated[str, _one_of("exact", "at_most", "at_least")]
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


class Storm(Struct, frozen=True, kw_only=True):
    """A waker that woke many threads at once."""

    waker: Waker
    storms: Count
    """Storms that began in this tick."""
    woken: Count
    """Threads woken in all storms."""
    again: Count
    """Woken threads that switched out again within a millisecond."""
    largest: Count
    """Threads woken in the largest storm."""
    wasted_switches: Count
    """2 * again."""


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
    metric: Annotated[str, _meaning(METRICS)]
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
    mode: Annotated[str, _one_of(*LIST_MODES)] | None
    """The outlier is a file operation or a request to a disk; null: a wait, or a tick."""
    what: str | None
    """The slowest file operation or request, with its file or disk; null: none."""


class StackEndTime(Struct, frozen=True, kw_only=True):
    """The time of user stacks that end alike."""

    end: Annotated[str, _one_of(*ENDS)]
    """As user_end of a site."""
    unsure: IsUnsure
    file: str
    """File of the outermost known frame."""
    total_ns: Ns


class UserStacks(Struct, frozen=True, kw_only=True):
    """How much time has whole user stacks."""

    total_ns: int
    """Off-CPU time with a user stack."""
    whole_ns: int
    """Off-CPU time with a user stack that is whole and not guessed."""
    others: list[StackEndTime]
    """The rest, most first."""


class StackProblem(Struct, frozen=True, kw_only=True):
    """What user stacks lack."""

    binary: Annotated[
        str | None,
        _about(
            f"In brackets if there is no file: {ANONYMOUS} generated at run time, {GONE} no longer known, {CLOSED} in "
            f"a process that offtop may not read, {UNREAD} in a process that was not read in time, {DROPPED} used too "
            "long ago; "
            "null: unknown, or any file."
        ),
    ]
    """If callers are missing: file of the outermost known frame. If callers were guessed, or a guess failed: file of
    the innermost frame whose caller was guessed. If names are missing: file of the frame."""
    process: str | None
    """Name of the process if binary is in brackets; null: binary is a file."""
    reason: Annotated[str, _meaning(REASONS)]
    total_ns: Ns
    share: Annotated[float, Meta(ge=0, le=1)]
    """Part of the matching time with a user stack."""
    remedy: str | None
    """How to fix it; null: there is no known fix."""


class Machine(Struct, frozen=True, kw_only=True):
    """The machine's CPUs."""

    cpus: int | None
    """CPUs that are online; null: unknown."""
    steal_ns: int | None
    """CPU time that the hypervisor took; null: unknown."""
    interrupt_ns: int | None
    """CPU time of hard and soft interrupts; null: unknown."""


class GoneCategory(Struct, frozen=True, kw_only=True):
    """A category that only the baseline has."""

    name: str
    waiting: float
    """Average waiting threads in the baseline."""


class GoneThread(Struct, frozen=True, kw_only=True):
    """Threads of one name that only the baseline has."""

    process: str
    comm: str
    waiting: float
    """Average waiting threads in the baseline."""


class GoneIo(Struct, frozen=True, kw_only=True):
    """A file operation or a request to a disk that only the baseline has, by names."""

    process: str
    """In mode disk, the name of the thread, or in brackets what a kernel worker did."""
    what: str
    """The operation, and the file or disk."""
    waiting: float
    """How many were in progress in the baseline, on average."""


class GoneSuspect(Struct, frozen=True, kw_only=True):
    """A suspect that only the baseline has, by names."""

    kind: Annotated[str, _meaning(SUSPECT_KINDS)]
    waiters: str
    """Program of those who waited."""
    category: str
    """Of their wait."""
    end: str
    """Program that had to act."""
    what: str | None
    """Name of what that held; null: none, or unknown."""
    waiting: float
    """Average threads that waited for it in the baseline."""


class SuspectChange(Struct, frozen=True, kw_only=True):
    """The same suspect in the baseline, by names, whatever its PIDs were."""

    waiting: float
    """Average threads that waited for it; 0: it is new."""
    change: float
    """Threads that wait for it in this tick, minus that."""
    new: bool
    since_ns: int
    """CLOCK_REALTIME of the first tick since which it has been a suspect."""


class Baseline(Struct, frozen=True, kw_only=True):
    """The baseline, and what is no longer there."""

    file: str
    """Only with --baseline: the file's name."""
    taken_ns: int
    """CLOCK_REALTIME of the baseline's end."""
    span_ns: Ns
    sampling: Sampling | None
    """null: every wait was seen."""
    gone_categories: list[GoneCategory]
    """Categories of the baseline without time in this tick, most waiting first."""
    gone_threads: list[GoneThread]
    """The same for threads; threads of one name count as one."""
    gone_suspects: list[GoneSuspect]
    """Suspects of the baseline that no thread waits for in this tick."""


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
    the address; disk: pid is 0, and process is the name of the disk."""
    diagnosis: CauseId
    age_ns: Count
    """Age of the oldest wait; 0: unknown."""
    kernel: Frames
    user: Frames
    via: Annotated[str | None, _meaning(VIA, null="the last of the chain, or the kernel's scheduler")]
    """How it is known that the next of the chain must act."""
    exact: bool
    """false: that is likely."""
    what: str | None
    """Name of what the next of the chain holds, or the address of a connection that is not accepted; null: none, or
    unknown."""


class Suspect(Struct, frozen=True, kw_only=True):
    """A thread or process that others wait for, directly or through others."""

    kind: Annotated[str, _meaning(SUSPECT_KINDS)]
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
    baseline: Annotated[SuspectChange | UnsetType, _about("Only with --baseline.")] = UNSET


class ElidedFileOperations(Struct, frozen=True, kw_only=True):
    """Sum of rows that were too many to keep: those with the least time."""

    rows: Count
    calls: Count
    bytes: Count
    total_ns: Count
    offcpu_ns: Count


class IoStack(Struct, frozen=True, kw_only=True):
    """Calls or requests of one row that reached the minimum and ended in this tick, by the code that they came from."""

    kernel: Frames
    user: Frames
    user_end: StackEnd
    """How the user stack ends."""
    user_unsure: IsUnsure
    bytes: Count
    total_ns: Count
    """Their time, however long before the tick they began."""
    max_ns: Count


class FileStack(IoStack, frozen=True, kw_only=True):
    """Calls of one row that came from one place.

    kernel is where such a call last waited for at least the minimum; empty: it did not.
    """

    calls: Count


class RequestStack(IoStack, frozen=True, kw_only=True):
    """Requests of one row that came from one place.

    kernel is how they were made. Their time is that in queue and disk.
    """

    requests: Count


class FileOperation(Struct, frozen=True, kw_only=True):
    """What one process did with one file, by one system call."""

    pid: int
    process: str
    op: Annotated[str, _one_of(*OPERATIONS)]
    """System call, without the 64 that some have at their end; mmap-read: page faults on a mapped file that waited;
    uring-…: requests to io_uring, from submission to completion."""
    file: str
    """Path as the process has it; [inode N on MAJOR:MINOR] if it is unknown."""
    device: str
    """Device of its file system, MAJOR:MINOR."""
    inode: Count
    calls: Count
    """Calls that returned in this tick, like bytes, max_ns and histogram."""
    bytes: Count
    """Bytes that the calls returned, if they return a number of bytes."""
    total_ns: Count
    """ns in calls; calls in progress count as they go."""
    offcpu_ns: Count
    """The part of total_ns that was off CPU; 0 for requests to io_uring, for which no thread need wait."""
    max_ns: Count
    now_ns: Count
    """Age of the longest call in progress at the end of the tick; 0: none."""
    histogram: Histogram
    stacks: list[FileStack]
    """Most time first."""
    baseline: IoChangeIfCompared = UNSET


class FileOperations(Struct, frozen=True, kw_only=True):
    """File operations, on regular files, directories and block devices."""

    lost: Count
    """Calls that were not counted, because there was no room for them."""
    elided: ElidedFileOperations
    rows: list[FileOperation]
    """Only what matches the filter, most time first."""
    gone: list[GoneIo] | UnsetType = UNSET
    """With a baseline in which they were counted: what only that has, most time first."""


class RequestSums(Struct, frozen=True, kw_only=True):
    """Sums of requests to disks."""

    requests: Count
    """Requests that were completed in this tick, like bytes, queue_ns, device_ns, requeues and errors."""
    bytes: Count
    """What these transferred; of a discard, what it covers."""
    queue_ns: Count
    """Time of these from when the kernel made the request until the disk got it; after a requeue, got it last."""
    device_ns: Count
    """Time of these in the disk."""
    outstanding_ns: Count
    """Time of all requests in this tick, in queue or disk; those in progress count as they go."""
    merged: Count
    """I/O that became part of another request."""
    requeues: Count
    """How often the disk returned one of the completed requests to the queue."""
    errors: Count
    in_queue: Count
    """Requests in the queue at the end of the tick."""
    in_device: Count
    """Requests in the disk at the end of the tick."""
    now_ns: Count
    """Age of the oldest request in progress at the end of the tick; 0: none."""


class Disk(Struct, frozen=True, kw_only=True):
    """One disk, with all requests to it, whatever the filters choose."""

    disk: str
    device: str
    """MAJOR:MINOR."""
    busy_ns: Count
    """Time with any request in progress, as the kernel counts it in /proc/diskstats."""
    reads: RequestSums
    writes: RequestSums
    others: RequestSums
    """Flushes, discards, and commands that are neither reads nor writes."""
    max_ns: Count
    """The longest completed request, in queue and disk together."""
    queue_histogram: Histogram
    device_histogram: Histogram


class DiskRequest(RequestSums, frozen=True, kw_only=True):
    """Requests of one operation that one thread had done on one disk."""

    disk: str
    device: str
    """MAJOR:MINOR."""
    op: Annotated[str, _one_of(*DISK_OPERATIONS)]
    pid: int
    """0: no process, see worker."""
    tid: int
    program: str
    """Name of the thread when it made a request; empty for kernel workers."""
    worker: str
    """What the kernel workers do that made these requests, such as flush-8:0, which writes back; empty: no worker."""
    max_ns: Count
    """The longest completed request, in queue and disk together."""
    queue_histogram: Histogram
    device_histogram: Histogram
    stacks: list[RequestStack]
    """Most time first."""
    baseline: IoChangeIfCompared = UNSET


class DiskRequests(Struct, frozen=True, kw_only=True):
    """Requests to block devices."""

    lost: Count
    """Requests that were not counted: there was no room for them, or their completion was missed."""
    elided_rows: Count
    """Rows that were too many to keep: those with the least time."""
    elided: RequestSums
    """Sum of these."""
    disks: list[Disk]
    """Most time first."""
    rows: list[DiskRequest]
    """Only what matches the filter, most time first."""
    gone: list[GoneIo] | UnsetType = UNSET
    """With a baseline in which they were counted: what only that has, most time first."""


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
    mode: Annotated[str, _one_of(*MODES, *LIST_MODES)]
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
    storms: Annotated[list[Storm], _about(f"At least {STORM} threads woke up in each.")]
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
