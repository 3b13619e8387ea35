"""A simulated kernel in which every wait is known, and a ledger that is given its records, sites and scans."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import strategies as st

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import OffCpuTask, SiteDeltas
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.kernel.bpf.scan_rows import histogram_of
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import SiteTotals, Snapshot
from offtop.model.values.stack import FIRST_STACK
from offtop.model.windows.window import Window, between

MIN_NS = 1_000
TICK_NS = 10_000
NOTHING = SiteDeltas.of(())


@dataclass(frozen=True)
class Wait:
    """One wait, as a kernel would see it."""

    switched_out_ns: int
    switched_in_ns: int
    ready_ns: int
    """When the thread was made runnable; equal to switched_out_ns if it was preempted."""
    preempted: bool
    kernel: int
    user: int

    @property
    def off_ns(self) -> int:
        return self.switched_in_ns - self.switched_out_ns

    @property
    def wake(self) -> int:
        """ID of the wake that ended the wait; waits at the first stack have none."""
        return 0 if self.kernel == FIRST_STACK or self.preempted else self.kernel + 20

    @property
    def on(self) -> int:
        """Wake ID that the task scan reports: that of the wait's end, another one, or none."""
        return {FIRST_STACK + 1: self.wake, FIRST_STACK + 2: 99}.get(self.kernel, 0)

    @property
    def runqueue_ns(self) -> int:
        return self.switched_in_ns - self.ready_ns

    @property
    def kind(self) -> int:
        return layout.KIND_SITE if self.off_ns >= MIN_NS else layout.KIND_SHORT


Step = tuple[int, int, int, bool, int]
"""Running ns, waiting ns, percentage of the wait spent ready, preempted, stack number."""

threads_of_steps = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 3 * TICK_NS),
            st.one_of(st.integers(1, 2 * MIN_NS), st.integers(MIN_NS, 4 * TICK_NS)),
            st.integers(0, 100),
            st.booleans(),
            st.integers(FIRST_STACK, FIRST_STACK + 2),
        ),
        max_size=12,
    ),
    max_size=4,
)


def waits_of(steps: list[Step]) -> list[Wait]:
    waits: list[Wait] = []
    now_ns = 1  # 0 means "no time"
    for running_ns, waiting_ns, ready_pct, preempted, stack in steps:
        switched_out_ns = now_ns + running_ns
        now_ns = switched_out_ns + waiting_ns
        ready_ns = switched_out_ns if preempted else now_ns - waiting_ns * ready_pct // 100
        waits.append(Wait(switched_out_ns, now_ns, ready_ns, preempted, stack, stack + 10))
        now_ns += 1
    return waits


def record_of(waits: list[Wait], from_ns: int, to_ns: int) -> ThreadRecord | None:
    """Return the `struct thread` contents for the events after from_ns, up to to_ns."""
    ended = [w for w in waits if from_ns < w.switched_in_ns <= to_ns]
    left = [w for w in waits if from_ns < w.switched_out_ns <= to_ns or (from_ns == 0 == w.switched_out_ns)]
    if not ended and not left:
        return None
    current = next((w for w in waits if w.switched_out_ns <= to_ns < w.switched_in_ns), None)
    short = [w for w in ended if w.kind == layout.KIND_SHORT]
    first = ended[0] if ended else None
    state_of = (left or ended)[-1]
    return ThreadRecord(
        switched_out_ns=(current.switched_out_ns or 1) if current else 0,
        waits=len(ended),
        offcpu_ns=sum(w.off_ns for w in ended),
        runqueue_ns=sum(w.runqueue_ns for w in ended),
        max_ns=max((w.off_ns for w in ended), default=0),
        preempted_ns=sum(w.off_ns for w in ended if w.preempted),
        involuntary=sum(w.preempted for w in ended),
        short_waits=len(short),
        short_ns=sum(w.off_ns for w in short),
        short_runqueue_ns=sum(w.runqueue_ns for w in short),
        filtered_waits=0,
        filtered_ns=0,
        filtered_runqueue_ns=0,
        lost_waits=0,
        lost_ns=0,
        lost_runqueue_ns=0,
        first_switched_out_ns=(first.switched_out_ns or 1) if first else 0,
        first_off_ns=first.off_ns if first else 0,
        first_runqueue_ns=first.runqueue_ns if first else 0,
        first_kernel=first.kernel if first and first.kind == layout.KIND_SITE else 0,
        first_user=first.user if first and first.kind == layout.KIND_SITE else 0,
        first_wake=first.wake if first and first.kind == layout.KIND_SITE else 0,
        exec_ns=0,
        exec_at_ns=0,
        exec_off_ns=0,
        tid_acquired_ns=0,
        first_kind=first.kind | (layout.KIND_PREEMPTED if first.preempted else 0) if first else 0,
        state=layout.RUNNING if state_of.preempted else 1,
        objects=0,
        is_previous=0,
        histogram=histogram_of(log2.to_lanes([log2.of(*(w.off_ns for w in ended))])[0]),
    )


def site_records(key: ThreadKey, waits: list[Wait], from_ns: int, to_ns: int) -> list[tuple[SiteKey, SiteTotals]]:
    return [
        (SiteKey(*key, w.kernel, w.user, w.wake), SiteTotals(1, w.off_ns, w.runqueue_ns, w.off_ns, log2.of(w.off_ns)))
        for w in waits
        if from_ns < w.switched_in_ns <= to_ns and w.kind == layout.KIND_SITE
    ]


def off_cpu_tasks_of(key: ThreadKey, waits: list[Wait], at_ns: int) -> list[OffCpuTask]:
    """Return every thread that is off CPU, with its stack if it has waited long enough."""
    return [
        OffCpuTask(
            key,
            w.switched_out_ns or 1,
            ready := w.ready_ns <= at_ns,
            w.ready_ns if ready else 0,
            stack,
            layout.RUNNING if w.preempted else 1,
            wake=w.on,
        )
        for w in waits
        if w.switched_out_ns <= at_ns < w.switched_in_ns
        for stack in [w.kernel if at_ns - w.switched_out_ns >= MIN_NS else None]
    ]


def snapshot(ledger: Ledger) -> Snapshot:
    kept = ledger.threads.frozen(), ledger.sites.frozen(), ledger.waiting
    return Snapshot(0, ledger.at_ns, *kept, ledger.catalog, moves=ledger.moves)


def run(
    all_waits: dict[ThreadKey, list[Wait]], scan_every: int = 1, lag_ns: int = 0, snapshot_every: int = 1
) -> list[Window]:
    """Return windows of `snapshot_every` ticks of TICK_NS, until every wait has ended.

    The task scan is passed in at each `scan_every`-th tick only, and only if a snapshot follows. The map buffers flip
    `lag_ns` after the time of the snapshot.
    """
    end_ns = max((w.switched_in_ns for waits in all_waits.values() for w in waits), default=0)
    ledger = Ledger(0)
    taken = [snapshot(ledger)]
    for number, at_ns in enumerate(range(TICK_NS, max(end_ns, 1) + TICK_NS * snapshot_every, TICK_NS)):
        has_snapshot = (number + 1) % snapshot_every == 0
        from_ns, to_ns = at_ns - TICK_NS + (lag_ns if number else 0), at_ns + lag_ns
        records = {key: record_of(waits, from_ns, to_ns) for key, waits in all_waits.items()}
        ledger.tick(
            at_ns,
            MIN_NS,
            [(key, record) for key, record in records.items() if record],
            SiteDeltas.of(
                site for key, waits in all_waits.items() for site in site_records(key, waits, from_ns, to_ns)
            ),
            [one for key, w in all_waits.items() for one in off_cpu_tasks_of(key, w, at_ns)]
            if number % scan_every == 0 and has_snapshot
            else [],
            has_snapshot=has_snapshot,
        )
        if has_snapshot:
            taken.append(snapshot(ledger))
    return [between(a, b) for a, b in pairwise(taken)]


def passed(waits: list[Wait], from_ns: int, to_ns: int) -> int:
    return sum(max(0, min(w.switched_in_ns, to_ns) - max(w.switched_out_ns, from_ns)) for w in waits)


def keyed(threads: list[list[Step]]) -> dict[ThreadKey, list[Wait]]:
    return {ThreadKey(7, tid): waits_of(steps) for tid, steps in enumerate(threads, 100)}


def primed(kernel: int | None = 3) -> Ledger:
    """Return a ledger with one wait in progress, which began before it and was found by a scan."""
    ledger = Ledger(1_000)
    ledger.tick(2_000, MIN_NS, [], NOTHING, [OffCpuTask(ThreadKey(7, 100), 1_500, False, 0, kernel)], primed_ns=1_400)
    return ledger
