"""Outliers by triggers and by what is usual: reported when they cross the threshold, and again when they end."""

from collections.abc import Sequence

import numpy as np

from offtop.model.classify.suspect import HOLDER, NOTHING_FOUND, Found, Hop, Suspect
from offtop.model.outliers.detector import LEAST_AUTO_NS, TIMES_USUAL, OutlierDetector
from offtop.model.outliers.text import one_line, value_and_bound
from offtop.model.outliers.trigger import Trigger, parse
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.disks import DISK, DiskActivity, DiskKey, DiskTotals
from offtop.model.values.files import FILE, FileActivity, FileId, FileKey, FileTotals
from offtop.model.values.outlier import AUTO, NEVER_NS, LongWait, Outlier, SlowIo
from offtop.model.values.snapshot import Bound, SiteTotals, Snapshot, ThreadTotals, Waiting
from offtop.model.values.stack import KERNEL, NO_STACK, Frame, Stack
from offtop.model.values.table import Ints, Mask
from offtop.model.values.wake import FIRST_WAKE, THREAD, Wake, Waker
from offtop.model.windows.history import History
from offtop.units import NS_PER_S
from tests.model.machine import OwnNames

MS, S = 1_000_000, NS_PER_S
LOCK, FSYNC, POLL, SLEEP, USER = 20, 21, 22, 23, 30
IDS = ("lock", "fsync", "poll", "sleep", "run-queue")
ONE, TWO = ThreadKey(10, 11), ThreadKey(10, 12)
USUALLY = log2.high_ns(log2.lane_of(3 * MS))
THRESHOLD_NS = TIMES_USUAL * USUALLY
"""Of who usually waits 3 ms: 84 ms."""


def never(_: Ints, rows: int) -> Mask:
    return np.zeros(rows, np.bool_)


def rules(*texts: str) -> list[Trigger | None]:
    return [parse(text, IDS, {}) for text in texts]


class Machine:
    """A source with a snapshot to judge each second."""

    def __init__(self, *texts: str) -> None:
        self.detector = OutlierDetector(rules(*texts))
        self.catalog = Catalog()
        for number, name in ((LOCK, "lock"), (FSYNC, "fsync"), (POLL, "poll"), (SLEEP, "sleep"), (USER, "other")):
            self.catalog.stacks[number] = Stack((Frame(KERNEL, 0, name),), 0, name)
        self.catalog.processes[10], self.catalog.comms[ONE] = "shop", "worker"
        self.catalog.wakes[FIRST_WAKE] = Wake(Waker(THREAD, "", 10, 12, "clerk", kernel=LOCK))
        self._history = History({"poll"}, never)
        self._threads: dict[ThreadKey, ThreadTotals] = {}
        self._sites: dict[SiteKey, SiteTotals] = {}
        self.at_ns = 1_000 * S
        self.tick()

    def tick(
        self,
        waits_ms: Sequence[int] = (),
        kernel: int = LOCK,
        waiting: Sequence[Waiting] = (),
        long_waits: Sequence[LongWait] = (),
        short: int = 0,
        suspects: Found = NOTHING_FOUND,
        files: FileActivity | None = None,
        disks: DiskActivity | None = None,
    ) -> Sequence[Outlier]:
        """A second in which worker waited like that."""
        self.at_ns += S
        ns, histogram = sum(waits_ms) * MS, log2.of(*(ms * MS for ms in waits_ms))
        site = SiteKey(*ONE, kernel, USER)
        longest_ns = max(waits_ms, default=0) * MS
        of_thread = ThreadTotals(
            len(waits_ms) + short, ns + short * 1000, short_waits=short, short_ns=short * 1000, max_ns=longest_ns
        )
        self._threads[ONE] = self._threads.get(ONE, ThreadTotals()).plus(of_thread)
        totals = SiteTotals(len(waits_ms), ns, 0, longest_ns, histogram)
        self._sites[site] = self._sites.get(site, SiteTotals()).plus(totals)
        in_progress = {one.site.thread: one for one in waiting}
        snapshot = Snapshot(
            self.at_ns + 5 * S,
            self.at_ns,
            dict(self._threads),
            dict(self._sites),
            in_progress,
            self.catalog,
            long_waits=long_waits,
            files=files,
            disks=disks,
        )
        kept = self._history.add(snapshot)
        if kept is None:
            return ()
        return self.detector.tick(snapshot, kept, suspects, lambda one: f"{one.hops[0].program} waits for job.lock")

    def learn(self, *waits_ms: int, kernel: int = LOCK, short: int = 0) -> None:
        """11 s in which nothing else happens."""
        for _ in range(11):
            assert self.tick(waits_ms, kernel, short=short) == []

    def wait(self, length_ms: int, kernel: int = LOCK, key: ThreadKey = ONE, ready_ms: int = 0) -> LongWait:
        """A wait that ends in the next tick, as the BPF programs report it."""
        ended_ns = self.at_ns + S // 2
        site = SiteKey(*key, kernel, USER, FIRST_WAKE)
        return LongWait(site, ended_ns - length_ms * MS, ended_ns, ready_ms * MS, 1, 3, "shop")

    def going(self, since_ms: int, kernel: int = LOCK, key: ThreadKey = ONE) -> Waiting:
        """A wait in progress that began so long before the next tick."""
        switched_out_ns = self.at_ns + S - since_ms * MS
        return Waiting(SiteKey(*key, kernel, NO_STACK), switched_out_ns, switched_out_ns, state=1)


def test_no_triggers_report_nothing() -> None:
    machine = Machine()
    assert machine.detector.lowest_ns == NEVER_NS
    assert machine.tick(long_waits=[machine.wait(90_000)]) == []
    assert machine.detector.outliers.every == ()


def test_trigger_reports_only_what_is_longer() -> None:
    machine = Machine("lock.max > 500ms")
    assert machine.detector.lowest_ns == 500 * MS
    assert machine.detector.thresholds_ns("shop", LOCK, machine.catalog) == (500 * MS, NEVER_NS)
    assert machine.detector.thresholds_ns("shop", FSYNC, machine.catalog) == (NEVER_NS, NEVER_NS)
    long_waits = [machine.wait(500), machine.wait(501), machine.wait(900, FSYNC)]
    (one,) = machine.tick(long_waits=long_waits)
    assert (one.rule, one.metric, one.category, one.program) == ("lock.max > 500ms", "max", "lock", "shop")
    assert (one.value, one.threshold, one.usual_ns, one.length_ns) == (501 * MS, 500 * MS, 0, 501 * MS)
    assert (one.comm, one.is_going_on, one.was_reported, one.more) == ("worker", False, False, 0)
    assert one.catalog.stack(LOCK).category == "lock"
    assert one.catalog.wake(FIRST_WAKE).waker.comm == "clerk"
    assert one.catalog.processes == {10: "shop"}
    assert machine.detector.outliers.every == (one,)


def test_trigger_may_name_the_program_and_any_category_that_is_not_idle() -> None:
    machine = Machine("comm:sh* any.max > 1s")
    assert [one.category for one in machine.tick(long_waits=[machine.wait(1500), machine.wait(1500, POLL, TWO)])] == [
        "lock"
    ]
    machine.catalog.processes[10] = "bank"
    assert machine.tick(long_waits=[machine.wait(1500)._replace(program="bank")]) == []
    named = Machine("poll.max > 1s")
    assert [one.category for one in named.tick(long_waits=[named.wait(1500, POLL)])] == ["poll"]


def test_run_queue_part_of_a_wait_is_judged_by_itself() -> None:
    machine = Machine("lock.max > 500ms", "runq.max > 200ms")
    assert machine.detector.thresholds_ns("shop", LOCK, machine.catalog) == (500 * MS, 200 * MS)
    (one,) = machine.tick(long_waits=[machine.wait(600, ready_ms=300)])
    assert (one.category, one.value) == ("run-queue", 300 * MS)
    assert machine.tick(long_waits=[machine.wait(600, ready_ms=199)]) == []
    (other,) = machine.tick(long_waits=[machine.wait(800, ready_ms=199)])
    assert (other.category, other.value, other.length_ns) == ("lock", 601 * MS, 800 * MS)


def test_auto_reports_nothing_until_it_knows_what_is_usual() -> None:
    machine = Machine(AUTO)
    assert machine.detector.lowest_ns == LEAST_AUTO_NS
    assert machine.detector.thresholds_ns("shop", LOCK, machine.catalog) == (NEVER_NS, NEVER_NS)
    assert machine.tick(long_waits=[machine.wait(90_000)]) == []
    version = machine.detector.version
    machine.learn(3, 3, 3)
    assert machine.detector.version > version
    assert machine.detector.thresholds_ns("shop", LOCK, machine.catalog) == (THRESHOLD_NS, NEVER_NS)
    assert machine.tick(long_waits=[machine.wait(THRESHOLD_NS // MS)]) == []
    (one,) = machine.tick(long_waits=[machine.wait(THRESHOLD_NS // MS + 1)])
    assert (one.rule, one.threshold, one.usual_ns) == (AUTO, THRESHOLD_NS, USUALLY)


def test_auto_ignores_idle_waits_and_those_of_intended_length() -> None:
    for kernel in (POLL, SLEEP):
        machine = Machine(AUTO)
        machine.learn(3, 3, 3, kernel=kernel)
        assert machine.tick(long_waits=[machine.wait(90_000, kernel)]) == []


def test_wait_among_short_ones_is_judged_by_those() -> None:
    machine = Machine(AUTO)
    machine.learn(short=1000)
    (one,) = machine.tick(long_waits=[machine.wait(1500)])
    assert (one.rule, one.usual_ns) == (AUTO, log2.high_ns(log2.lane_of(MS)))
    assert machine.tick(long_waits=[machine.wait(1500, key=TWO)]) == []  # which has made none


def test_wait_that_began_before_learning_is_not_judged_by_what_is_usual() -> None:
    machine = Machine(AUTO)
    machine.learn(3, 3, 3)
    assert machine.tick(long_waits=[machine.wait(60_000)]) == []


def test_wait_in_progress_is_reported_when_it_crosses_and_again_when_it_ends() -> None:
    machine = Machine("lock.max > 2s")
    going = machine.going(900)
    assert machine.tick(waiting=[going]) == []
    assert machine.tick(waiting=[going]) == []
    (one,) = machine.tick(waiting=[going])
    assert (one.value, one.is_going_on, one.was_reported, one.after) == (2900 * MS, True, False, "")
    assert machine.tick(waiting=[going]) == []
    ended_ns = machine.at_ns + S // 2
    long_waits = LongWait(
        going.site._replace(user=USER, wake=FIRST_WAKE), going.switched_out_ns, ended_ns, 0, 1, 3, "shop"
    )
    (end,) = machine.tick(long_waits=[long_waits])
    assert (end.value, end.is_going_on, end.was_reported, end.after) == (4400 * MS, False, True, "running")
    (kept,) = machine.detector.outliers.every
    assert (kept.at_ns, kept.length_ns, kept.was_reported) == (one.at_ns, 4400 * MS, False)
    assert machine.tick() == []


def test_wait_without_an_end_record_ends_at_the_tick() -> None:
    machine = Machine("any.now > 1s")
    going = machine.going(1500, FSYNC)
    (one,) = machine.tick(waiting=[going])
    assert one.metric == "now"
    (end,) = machine.tick()
    assert end.wait
    assert (end.wait.is_exact, end.length_ns, end.was_reported) == (False, 2500 * MS, True)


def test_now_covers_only_waits_in_progress() -> None:
    machine = Machine("lock.now > 1s")
    assert machine.tick(long_waits=[machine.wait(5000)]) == []


def test_wait_that_ends_while_it_is_shown_in_progress_is_reported_once() -> None:
    machine = Machine("lock.max > 1s")
    going = machine.going(1500)
    ended = LongWait(going.site, going.switched_out_ns, machine.at_ns + S + 1, 0, 1, 3, "shop")
    assert [one.is_going_on for one in machine.tick(waiting=[going], long_waits=[ended])] == [False]


def test_long_wait_from_before_learning_is_no_outlier_by_what_is_usual() -> None:
    machine = Machine(AUTO, "lock.now > 60s")
    old = machine.going(50_000, key=TWO)
    found: Sequence[Outlier] = ()
    for _ in range(12):
        found = machine.tick((3, 3, 3), waiting=[old])
    assert [one.rule for one in machine.detector.outliers.every] == ["lock.now > 60s"]
    assert [one.value for one in found] == [61_000 * MS]


def test_bound_is_not_taken_for_an_age() -> None:
    machine = Machine("lock.now > 5s")
    going = machine.going(500)
    old = going._replace(since_ns=going.switched_out_ns - 60 * S, bound=Bound.AT_MOST)
    assert machine.tick(waiting=[old]) == []
    exact = old._replace(bound=Bound.EXACT)
    assert [one.value for one in machine.tick(waiting=[exact])] == [61_500 * MS]


def test_wait_with_only_a_bound_is_not_exact_and_longer_than_it_was_seen() -> None:
    for bound in Bound:
        machine = Machine("lock.now > 5s")
        (one,) = machine.tick(waiting=[machine.going(5500)._replace(bound=bound)])
        assert one.wait
        assert one.wait.is_exact == (bound is Bound.EXACT) == (not one.wait.began_earlier)
        (end,) = machine.tick()
        assert value_and_bound(end).startswith(">") == (bound is not Bound.EXACT)


def test_longest_of_many_of_a_kind_are_reported_and_others_counted() -> None:
    machine = Machine("lock.max > 100ms")
    found = machine.tick(long_waits=[machine.wait(200 + n) for n in range(80)])
    assert len(found) == 50
    assert (found[0].length_ns, found[0].more, found[1].more) == (279 * MS, 30, 0)


def test_counted_waits_are_not_reported_later() -> None:
    machine = Machine("lock.now > 1s")
    waits = [machine.going(1500 + n, key=ThreadKey(10, 100 + n)) for n in range(80)]
    first = machine.tick(waiting=waits)
    assert (len(first), sum(one.more for one in first)) == (50, 30)
    for _ in range(22):
        assert machine.tick(waiting=waits) == []
    ended = [LongWait(one.site, one.switched_out_ns, machine.at_ns + 1, 0, 1, 3, "shop") for one in waits]
    last = machine.tick(long_waits=ended)
    assert (len(last), {one.was_reported for one in last}, sum(one.more for one in last)) == (50, {True}, 0)


def test_wait_is_not_judged_by_itself() -> None:
    for ticks in range(11, 24):
        machine = Machine(AUTO)
        for _ in range(ticks):
            machine.tick((3, 3, 3))
        assert len(machine.tick((1500,), long_waits=[machine.wait(1500)._replace(began_ns=machine.at_ns - S)])) == 1


def test_waits_that_last_for_days_are_never_unusual() -> None:
    machine = Machine(AUTO)
    machine.learn(*[60 * 3600 * 1000] * 10)
    assert machine.detector.thresholds_ns("shop", LOCK, machine.catalog) == (NEVER_NS, NEVER_NS)


def test_triggers_may_change_at_run_time() -> None:
    machine = Machine("lock.max > 100ms")
    version = machine.detector.version
    machine.detector.set_triggers(rules("fsync.max > 100ms"))
    assert [one.category for one in machine.tick(long_waits=[machine.wait(200), machine.wait(200, FSYNC)])] == ["fsync"]
    assert machine.detector.version > version


def test_tick_is_judged_by_percentile_threads_and_rate() -> None:
    machine = Machine("lock.p99 > 50ms", "lock.waiting > 0.5", "comm:shop lock.events > 9")
    assert machine.detector.lowest_ns == NEVER_NS
    assert machine.tick([3] * 9) == []
    (one,) = machine.tick([3, 3, 90])
    assert (one.metric, one.value, one.wait, one.length_ns) == ("p99", 90 * MS, None, 0)
    assert [one.metric for one in machine.tick([60] * 9)] == ["waiting"]  # the first rule is as it was
    (of_shop,) = machine.tick([1] * 10)
    assert (of_shop.metric, of_shop.program, of_shop.value) == ("events", "shop", 10.0)


def test_trigger_for_ticks_may_have_a_duration_and_reports_once() -> None:
    machine = Machine("lock.p99 > 50ms for 3s")
    counts = [len(machine.tick([90])) for _ in range(5)]
    assert counts == [0, 0, 1, 0, 0]
    assert machine.tick([3]) == []
    assert [len(machine.tick([90])) for _ in range(3)] == [0, 0, 1]


def test_suspect_trigger_reports_each_suspect_once_while_it_lasts() -> None:
    machine = Machine("suspect")
    hop = Hop(ThreadKey(20, 0), "flock", 3, 3, "lock", None, 9 * S, what="job.lock")
    one = Suspect(HOLDER, (hop, hop._replace(program="sleep", state="sleep", what="")), 3.0, 3.0)
    other = one._replace(hops=(hop._replace(what="other.lock"), one.end), harm=2.0)
    seen = [
        [
            (reported.rule, reported.category, reported.program, reported.value)
            for reported in machine.tick(suspects=found)
        ]
        for found in (Found((one,)), Found((one,)), Found((one, other)), Found(), Found((one,)))
    ]
    first, second = ("suspect", "lock", "sleep", 3.0), ("suspect", "lock", "sleep", 2.0)
    assert seen == [[first], [], [second], [], [first]]
    (reported,) = Machine("suspect").tick(suspects=Found((one,)))
    assert one_line(reported, OwnNames()) == "3.00 threads lock, suspect: flock waits for job.lock"
    assert Machine("auto").tick(suspects=Found((one,))) == []


LOG, OTHER = FileId(1, 2, 3), FileId(1, 4, 5)


def calls(*lengths_ms: int, now_ms: int = 0) -> FileTotals:
    """Totals of calls that took so long; one is in progress for `now_ms`."""
    total, longest = sum(lengths_ms) * MS, max(lengths_ms, default=0) * MS
    return FileTotals(len(lengths_ms), 0, total, total, longest, log2.of(*(ms * MS for ms in lengths_ms)), now_ms * MS)


def test_a_trigger_for_file_operations_names_the_slowest_of_each_program() -> None:
    machine = Machine("file.max > 100ms")
    machine.catalog.processes[20] = "backup"
    files = FileActivity(
        {
            FileKey(10, "fsync", LOG): calls(20, 300),
            FileKey(10, "read", OTHER): calls(150),
            FileKey(20, "write", OTHER): calls(100, now_ms=900),
        },
        {LOG: "/db/redo.log"},
    )
    assert not machine.detector.lowest_ns < NEVER_NS
    for _ in range(2):  # each tick has its own calls
        (one,) = machine.tick(files=files)
        assert (one.category, one.program, one.value, one.wait) == ("fsync", "shop", 300 * MS, None)
        assert one.io == SlowIo(FILE, "fsync /db/redo.log")
    assert machine.tick() == []


def test_a_trigger_for_calls_in_progress_and_for_named_programs() -> None:
    machine = Machine("comm:backup file.now > 500ms")
    machine.catalog.processes[20] = "backup"
    files = FileActivity({FileKey(10, "read", LOG): calls(now_ms=900), FileKey(20, "write", LOG): calls(now_ms=800)})
    (one,) = machine.tick(files=files)
    assert (one.program, one.category, one.value) == ("backup", "write", 800 * MS)


def test_a_call_in_progress_is_reported_once_and_the_next_one_again() -> None:
    machine = Machine("file.now > 1500ms")

    def values(now_ms: int) -> list[float]:
        files = FileActivity({FileKey(10, "fsync", LOG): calls(now_ms=now_ms)}, {LOG: "/db/redo.log"})
        return [one.value for one in machine.tick(files=files)]

    assert [values(now_ms) for now_ms in (1000, 2000, 3000, 4000)] == [[], [2000 * MS], [], []]
    assert [values(now_ms) for now_ms in (1600, 2600)] == [[1600 * MS], []]  # another one, in the very next tick


def test_percentile_and_rate_of_requests_are_of_all_programs_together() -> None:
    machine = Machine("request.p50 > 10ms", "request.events > 4")
    key, slow = DiskKey(8 << 20, "sync-write", 10, 11), 40 * MS
    few = DiskTotals(4, max_ns=slow, histogram=log2.of(*[slow] * 4))
    (one,) = machine.tick(disks=DiskActivity({key: few}, names={8 << 20: "sda"}))
    assert (one.metric, one.program, one.category, one.value) == ("p50", "", "sync-write", slow)
    assert one.io == SlowIo(DISK, "sync-write sda")
    assert machine.tick(disks=DiskActivity({key: few})) == []  # it has been told
    (rate,) = machine.tick(disks=DiskActivity({key: few, key._replace(pid=20): few}))
    assert (rate.metric, rate.value, rate.io) == ("events", 8.0, None)
