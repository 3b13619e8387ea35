"""Test that the laws of accounting hold, and no wait gets lost, while what a tick leaves out changes in every tick."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from offtop.kernel.accounting import changed_threads
from offtop.kernel.bpf import layout
from offtop.kernel.tracing.budget import HIGHEST_LEVEL
from offtop.model.values.snapshot import Filters
from offtop.model.windows.window import Window, merge
from tests.kernel import programs, watch
from tests.kernel.test_sums import settle
from tests.kernel.watch import MS, Watch

pytestmark = pytest.mark.kernel

_TICKS = 40
_SWITCH_FACTOR = 1.25
"""How much longer a switch may take while the detail changes than before."""

WORKERS = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
static atomic_int is_over;
static pthread_barrier_t begin, end;
static const long us[] = {100, 300, 1500, 5000, 20000, 70000, 150000};
enum { WORKERS = sizeof(us) / sizeof(us[0]) };
static void *work(void *number)
{
	long n = (long)number, sleeps = 0;
	char name[16];
	snprintf(name, sizeof(name), "worker%ld", n);
	tell(name, (void *)(long)gettid());
	pthread_barrier_wait(&end);
	for (pthread_barrier_wait(&begin); !is_over; sleeps++)
		usleep(us[n]);
	snprintf(name, sizeof(name), "sleeps%ld", n);
	tell(name, (void *)sleeps);
	pthread_barrier_wait(&end);
	pause();
	return 0;
}
int main(void)
{
	pthread_t made;
	pthread_barrier_init(&begin, 0, WORKERS + 1);
	pthread_barrier_init(&end, 0, WORKERS + 1);
	for (long n = 0; n < WORKERS; n++)
		pthread_create(&made, 0, work, (void *)n);
	pthread_barrier_wait(&end);
	next();
	pthread_barrier_wait(&begin);
	next();
	is_over = 1;
	pthread_barrier_wait(&end);
	next();
	return 0;
}
"""
"""Between its first and second go, seven threads sleep 0.1 to 150 ms each time, and count how often.

They are idle before and after.
"""
_WORKERS = range(7)

Dial = Callable[[Watch, random.Random], object]
"""Sets one of the things that decide how detailed a tick is to a random value."""


def set_level(live: Watch, chance: random.Random) -> None:
    live.source._budget.level = chance.randint(0, HIGHEST_LEVEL)  # pyright: ignore[reportPrivateUsage]


def set_scan(live: Watch, chance: random.Random) -> None:
    """Let the next tick have a scan of the waits in progress, or not."""
    if chance.random() < 0.5:
        live.leave_out_next_scan()


def set_level_of_cpus(live: Watch, chance: random.Random) -> None:
    parts = live.source._parts  # pyright: ignore[reportPrivateUsage]
    cpus = [one._replace(level=chance.randint(0, 6)) for one in parts.drain.thinning()]
    raw = b"".join(layout.THINNING.pack(*one) for one in cpus)
    parts.program.maps["thinning"].update(bytes(4), raw)


def set_minimum(live: Watch, chance: random.Random) -> None:
    live.source.set_filters(Filters(min_ns=chance.choice([0, MS // 5, MS, 10 * MS, 100 * MS])))


DIALS: dict[str, Dial] = {
    "level": set_level,
    "scans": set_scan,
    "minimum of a CPU": set_level_of_cpus,
    "requested minimum": set_minimum,
}


def residue_ns(window: Window, tid: int, running_ns: int) -> int:
    """Return how much of a window a thread neither ran nor waited.

    Below 0 if switches count as both: until a switch is over, the kernel counts it as running time.
    """
    return window.span_ns - running_ns - watch.thread(window, tid).offcpu_ns


@pytest.mark.parametrize(
    "dials",
    [
        *(pytest.param([dial], id=name, marks=pytest.mark.variant) for name, dial in DIALS.items()),
        pytest.param([*DIALS.values()], id="all of them"),
    ],
)
def test_each_wait_counts_once_while_the_detail_changes_in_each_tick(
    dials: list[Dial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(28)
    # In some ticks all threads are visited, in others those that have changed.
    monkeypatch.setattr(changed_threads, "threads_now", lambda: chance.choice([0, 1 << 30]))
    binary = programs.build(tmp_path / "workers", WORKERS, "-D_GNU_SOURCE", "-pthread")
    with programs.running([binary]) as child, watch.watching() as live:
        tids = [child.at[f"worker{n}"] for n in _WORKERS]
        settle(tids)
        live.tick()
        before = [(watch.running_ns(child.pid, tid), watch.switches(tid)) for tid in tids]
        child.go()
        windows = [live.tick(0.3)]
        both_ns = -residue_ns(windows[0], tids[0], watch.running_ns(child.pid, tids[0]) - before[0][0])
        switch_ns = max(0, both_ns) / watch.thread(windows[0], tids[0]).waits
        for at in range(_TICKS):
            for dial in dials:
                dial(live, chance)
            windows.append(live.tick(0.01 if at % 4 else 0.16))  # each checks the sums of the window, or raises
        child.go()
        settle(tids)
        windows += [live.tick(), live.tick(0.05)]
        whole = merge(windows)
        watch.check_sums(whole)
        assert whole.lost == {}
        for n, (tid, (ran_ns, (left, put_aside))) in enumerate(zip(tids, before, strict=True)):
            totals, now = watch.thread(whole, tid), watch.switches(tid)
            assert (totals.waits, totals.involuntary) == (now[0] - left, now[1] - put_aside)
            # A thread is not switched out if its timer ends before that.
            assert totals.waits >= 0.99 * child.at[f"sleeps{n}"] > 0
            residue = residue_ns(whole, tid, watch.running_ns(child.pid, tid) - ran_ns)
            assert abs(residue) <= 0.003 * whole.span_ns + _SWITCH_FACTOR * switch_ns * totals.waits
        at_sites = sum(totals.waits for site, totals in whole.each_site() if site.pid == child.pid)
        mine = [totals for key, totals in whole.each_thread() if key.pid == child.pid]
        assert at_sites + sum(one.short_waits for one in mine) == sum(one.waits for one in mine)
