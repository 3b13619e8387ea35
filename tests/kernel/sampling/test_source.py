"""Test the /proc sampling source against the tracing one, on waits of 50 ms and longer."""

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pytest

from offtop.errors import KernelError, UsageError
from offtop.kernel.procfs import cgroups, threads
from offtop.kernel.sampling.source import PROBE, ProcSource
from offtop.model.aggregate.steps import Shape, Steps
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Bound, Filters, Snapshot, ThreadTotals
from offtop.model.windows.breakdown import Part
from offtop.model.windows.window import Window, between
from tests.conftest import lacks
from tests.kernel import waits, watch
from tests.kernel.watch import MS, Watch

pytestmark = pytest.mark.kernel

_TIMES, _EACH_MS = 30, 50
_SPIN = "while True: pass"
_MANY = """
import threading, time
def nap():
    while True:
        time.sleep(.05)
for _ in range(199):
    threading.Thread(target=nap).start()
nap()
"""
_NAP = "import time\nwhile True: time.sleep(.01)"
_OPENS = """
import gc, os
from tests.kernel.sampling.test_source import sampling
def opened():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
with sampling():
    pass
before = opened()
with sampling() as sampled:
    sampled.tick()
    during = opened()
print(before, during, opened())
"""


class Sampled:
    """A ProcSource, and the end of its last tick."""

    def __init__(self, filters: Filters = Filters(), cpu_pct: float = 20) -> None:
        self.source = ProcSource(watch.rules(), filters, cpu_pct)
        self.last = self.read()

    def read(self) -> Snapshot:
        snapshot = self.source.read()
        assert snapshot is not None
        return snapshot

    def tick(self, after_s: float = 0) -> Window:
        """Return what passed since the last tick, after checking its accounting sums."""
        time.sleep(after_s)
        earlier, self.last = self.last, self.read()
        window = between(earlier, self.last)
        watch.check_sums(window)
        return window


@contextlib.contextmanager
def sampling(filters: Filters = Filters(), cpu_pct: float = 20) -> Generator[Sampled]:
    sampled = Sampled(filters, cpu_pct)
    try:
        yield sampled
    finally:
        sampled.source.close()


@contextlib.contextmanager
def started(*command: str | Path) -> Generator[int]:
    with subprocess.Popen(command) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def beside(traced: Watch, run: contextlib.AbstractContextManager[None]) -> tuple[Window, Window]:
    """Return the traced and the sampled window of the time in which `run` runs."""
    with sampling() as sampled:
        traced.tick()
        sampled.tick()
        with run:
            pass
        return traced.tick(), sampled.tick()


def within(part: float, share: float, of: float) -> bool:
    return abs(part - of) <= share * of


def test_totals_of_known_waits_are_within_a_tenth_of_the_traced_ones(live: Watch) -> None:
    kinds = ("sleep", "futex", "pipe", "poll", "child", "tcp")
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(waits.running(kind, _TIMES, _EACH_MS)) for kind in kinds]

        @contextlib.contextmanager
        def run() -> Generator[None]:
            for child in children:
                child.go()
            for child in children:
                child.finish()
            yield

        traced, sampled = beside(live, run())
        for child in children:
            category = child.wait.category
            whole, estimate = (_of(window, child.tid, category) for window in (traced, sampled))
            # The child also waits in a pipe before its go and after its end, so scale by how long each source watched.
            longer = traced.span_ns / sampled.span_ns if category == "pipe" else 1
            assert within(longer * estimate.total_ns, 0.1, whole.total_ns), (child.name, estimate, whole)
            one, other = watch.thread(traced, child.tid), watch.thread(sampled, child.tid)
            assert abs(one.waits - other.waits) <= 1, "waits are counted, not estimated"
            assert abs(one.runqueue_ns - other.runqueue_ns) <= 10 * MS


def test_disk_waits_are_counted(live: Watch) -> None:
    with contextlib.ExitStack() as stack:
        try:
            child = stack.enter_context(waits.running("read", _TIMES, _EACH_MS))
        except waits.UnavailableError as why:
            lacks(str(why))

        @contextlib.contextmanager
        def run() -> Generator[None]:
            child.go()
            child.finish()
            yield

        traced, sampled = beside(live, run())
    whole, estimate = (_of(window, child.tid, child.wait.category) for window in (traced, sampled))
    assert within(estimate.total_ns, 0.1, whole.total_ns), (estimate, whole)


@pytest.mark.variant
def test_threads_competing_for_a_cpu_are_in_the_run_queue_not_blocked(live: Watch) -> None:
    with contextlib.ExitStack() as stack:
        pids = [stack.enter_context(started("taskset", "-c", "0", sys.executable, "-c", _SPIN)) for _ in range(3)]
        time.sleep(0.5)

        @contextlib.contextmanager
        def run() -> Generator[None]:
            time.sleep(2)
            yield

        traced, sampled = beside(live, run())
    every, estimate = (_sum([watch.thread(window, pid) for pid in pids]) for window in (traced, sampled))
    per_s, guessed_per_s = every.runqueue_ns / traced.span_ns, estimate.runqueue_ns / sampled.span_ns
    assert within(guessed_per_s, 0.1, per_s), (guessed_per_s, per_s)
    assert estimate.blocked_ns <= 0.05 * sampled.span_ns
    assert estimate.preempted_ns >= 0.9 * estimate.runqueue_ns


@pytest.mark.variant
def test_a_woken_thread_without_a_cpu_is_in_the_run_queue_and_counts_once() -> None:
    """The thread has the lowest priority, beside one that takes all of its CPU."""
    idle = ("taskset", "-c", "0", "chrt", "-i", "0", sys.executable, "-c", _NAP)
    with started("taskset", "-c", "0", sys.executable, "-c", _SPIN), started(*idle) as pid:
        time.sleep(0.5)
        with sampling(Filters(pids=(pid,))) as sampled:
            was_ns = before_ns = queued_ns(pid)
            while before_ns == was_ns:  # after this change, all that is added has passed since
                before_ns = queued_ns(pid)
            windows = [sampled.tick(0.5) for _ in range(10)]
            least_ns = queued_ns(pid) - before_ns
    every, span_ns = _sum([watch.thread(one, pid) for one in windows]), sum(one.span_ns for one in windows)
    assert within(every.offcpu_ns + every.running_ns, 0.05, span_ns), (every, span_ns)
    guessed_ns = sum(one.sampling.guessed_ns for one in windows if one.sampling)
    assert least_ns > 0.1 * span_ns
    assert 0.5 * least_ns <= every.runqueue_ns, (every, least_ns)
    assert every.runqueue_ns + guessed_ns >= 0.9 * least_ns, (every, guessed_ns, least_ns)


def queued_ns(pid: int) -> int:
    """Return the kernel's run queue time, which it adds only when the wait is over."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])


@pytest.mark.variant
def test_the_sampling_rate_follows_the_budget_and_is_reported(live: Watch) -> None:
    rates: list[float] = []
    for cpu_pct in (2, 40):
        with sampling(cpu_pct=cpu_pct) as sampled:
            sampled.tick(1)
            window = sampled.tick(1)
            assert window.sampling
            rates.append(window.sampling.rate_hz(window.span_ns))
            assert sampled.last.probe == PROBE
    assert rates[0] * 2 < rates[1]


def test_lookups_beyond_the_budget_are_skipped_and_totals_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[ThreadKey] = []

    def seen(root: str, key: ThreadKey) -> threads.ThreadState | None:
        looked_up.append(key)
        until_s = time.thread_time() + 0.002
        while time.thread_time() < until_s:
            pass
        return see(root, key)

    see = threads.read_state
    monkeypatch.setattr(threads, "read_state", seen)
    with started(sys.executable, "-c", _MANY) as pid:
        time.sleep(0.5)
        with sampling(Filters(pids=(pid,)), cpu_pct=5) as sampled:
            sampled.tick(0.2)
            looked_up.clear()
            window = sampled.tick(0.5)
            totals = [totals for _, totals in window.each_thread()]
            assert len(looked_up) < 100
            assert sum(one.waits > 0 for one in totals) > 190
            assert within(_sum(totals).offcpu_ns, 0.1, 200 * window.span_ns)


@pytest.mark.variant
def test_expensive_ticks_reduce_the_number_of_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_check(root: str, key: ThreadKey) -> bool:
        until_s = time.thread_time() + 0.01
        while time.thread_time() < until_s:
            pass
        return False

    scans: list[int] = []
    with started("sleep", "60") as pid:
        for _ in range(2):
            with sampling(Filters(pids=(pid,)), cpu_pct=5) as sampled:
                windows = [sampled.tick(0.05) for _ in range(20)]
                scans.append(sum(one.sampling.scans for one in windows if one.sampling))
            monkeypatch.setattr(threads, "is_ready", slow_check)
    assert scans[0] > 1.5 * scans[1]


def test_a_wait_across_many_samples_is_one_wait_and_ages_with_the_clock() -> None:
    with started("sleep", "60") as pid, sampling(Filters(pids=(pid,))) as sampled:
        time.sleep(0.2)
        first = sampled.tick()
        one = next(iter(sampled.last.waiting.values()))
        window = sampled.tick(0.5)
        assert sampled.last.waiting[one.site.thread] is one
        assert (watch.thread(window, pid).offcpu_ns, watch.thread(window, pid).waits) == (window.span_ns, 0)
        assert _of(window, pid, "sleep").total_ns == window.span_ns
        assert sampled.last.catalog.call(one.call) in {"clock_nanosleep", "nanosleep"}
        assert one.bound in (Bound.AT_LEAST, Bound.AT_MOST)
        assert {key.pid for key, _ in first.each_thread()} == {pid}


def test_the_tree_has_kernel_functions_only_and_no_unended_waits() -> None:
    with started("sleep", "60") as pid, sampling(Filters(pids=(pid,))) as sampled:
        window = sampled.tick(0.2)
        steps = Steps(window.catalog, sampled.source.names, Shape())
        (site,) = watch.sites_of(window, pid)
        names = [step.name for step in steps.sleeper((site.kernel, site.user, site.wake))]
        assert "hrtimer_nanosleep" in names
        assert not [name for name in names if name.startswith("(")]


def test_the_source_ends_when_all_selected_processes_exited() -> None:
    with started("sleep", "60") as pid, sampling(Filters(pids=(pid,))) as sampled:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        assert sampled.source.read() is not None
        assert sampled.source.read() is None


def test_new_filters_apply_from_the_next_tick_on() -> None:
    with started("sleep", "60") as pid, sampling() as sampled:
        assert len({key.pid for key, _ in sampled.tick(0.1).each_thread()}) > 1
        sampled.source.set_filters(Filters(pids=(pid,)))
        sampled.tick(0.1)
        assert {key.pid for key, _ in sampled.tick(0.1).each_thread()} == {pid}
        sampled.source.set_filters(Filters(who="kernel"))
        sampled.tick(0.1)
        window = sampled.tick(0.1)
        assert (2, 2) in dict(window.each_thread()), "kthreadd"
        assert pid not in {key.pid for key, _ in window.each_thread()}


def test_unsupported_filters_and_modes_are_refused() -> None:
    with sampling() as sampled:
        for filters in (Filters(within="a:b"), Filters(states=1), Filters(max_ns=5)):
            with pytest.raises(UsageError, match="needs BPF"):
                sampled.source.set_filters(filters)
        with pytest.raises(UsageError, match="--cgroup needs BPF"):
            sampled.source.set_filters(Filters(cgroup=f"{cgroups.mounted()[0].point}/x"))
        with pytest.raises(UsageError, match="Mode chain needs BPF"):
            sampled.source.set_mode("chain", 4)
        with pytest.raises(UsageError, match="No process"):
            sampled.source.set_filters(Filters(pids=(4_194_303,)))


def test_the_sums_hold_while_threads_come_and_go() -> None:
    storm = (
        "import threading, time\nwhile 1:\n t = [threading.Thread(target=time.sleep, args=(.02,)) for _ in range(9)]\n"
    )
    storm += " [x.start() for x in t]; [x.join() for x in t]"
    with started(sys.executable, "-c", storm), sampling() as sampled:
        for _ in range(12):
            sampled.tick(0.1)


def test_threads_that_come_and_go_between_samples_are_counted_as_lost() -> None:
    with sampling(cpu_pct=0.1) as sampled:
        sampled.tick()
        for _ in range(50):
            subprocess.run(["true"], check=True)
        lost = sampled.tick().lost["threads"]
        assert lost > 25
        sampled.source.set_filters(Filters(who="user"))
        assert [_lost_known(sampled.tick()) for _ in range(2)] == [True, False], "from the next tick on"
        sampled.source.set_filters(Filters())
        assert not _lost_known(sampled.tick())
        for _ in range(50):
            subprocess.run(["true"], check=True)
        window = sampled.tick()
        assert _lost_known(window)
        assert window.lost["threads"] > 25


@pytest.mark.variant
def test_threads_that_live_between_ticks_keep_all_their_waits(live: Watch) -> None:
    pids: list[int] = []

    @contextlib.contextmanager
    def run() -> Generator[None]:
        for _ in range(16):
            with subprocess.Popen(["sleep", ".2"]) as child:
                pids.append(child.pid)
        yield

    windows = beside(live, run())
    every, estimate = (_sum([watch.thread(window, pid) for pid in pids]) for window in windows)
    assert within(estimate.offcpu_ns, 0.2, every.offcpu_ns), (estimate, every)
    assert estimate.waits >= len(pids)


def test_an_unknown_number_of_lost_threads_is_reported() -> None:
    with sampling(Filters(who="user")) as sampled:
        assert sampled.source.notices[0].endswith("also how many threads started and exited in between")
    with sampling() as sampled:
        assert sampled.source.notices[0].endswith("the sampling interval")


@pytest.mark.parametrize(
    ("failure", "raised", "says"),
    [
        (ValueError("not a number"), ValueError, "not a number"),
        (OSError(errno.EMFILE, "Too many open files"), KernelError, "ulimit -n"),
        (OSError(errno.ENOENT, "No such file"), KernelError, "mount -t proc"),
    ],
)
def test_an_error_in_the_sampler_reaches_the_reader(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, raised: type[Exception], says: str
) -> None:
    failed = threading.Event()

    def walk(tasks: threads.ThreadScanner) -> None:
        failed.set()
        raise failure

    with sampling() as sampled:
        monkeypatch.setattr(threads.ThreadScanner, "scan", walk)
        assert failed.wait(60)
        with pytest.raises(raised, match=says):
            sampled.read()


def test_nothing_is_left_open() -> None:
    """Run in a process of its own.

    The other source, here, opens files of whatever this machine runs.
    """
    ended = subprocess.run([sys.executable, "-c", _OPENS], capture_output=True, text=True, check=True, timeout=60)
    before, during, after = map(int, ended.stdout.split())
    assert before == after < during


def _of(window: Window, tid: int, category: str) -> Part:
    found: Mapping[str, Part] = watch.by_category(window, tid)
    return found.get(category, Part())


def _lost_known(window: Window) -> bool:
    return window.sampling is not None and window.sampling.lost_known


def _sum(some: Sequence[ThreadTotals]) -> ThreadTotals:
    total = ThreadTotals()
    for one in some:
        total = total.plus(one)
    return total


def test_options_that_only_bpf_follows_are_named() -> None:
    with contextlib.closing(ProcSource(watch.rules(), Filters(), ignored=["--min", "--depth"])) as source:
        assert source.notices[:1] == ("without BPF these options have no effect: --min, --depth",)
        assert dict(source.about())["without effect"] == "--min, --depth"
