"""Test that BPF counts as lost what it has no room for, and the laws hold.

If they are broken on purpose, the check fails.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from offtop.feed.pace import Pace
from offtop.kernel.accounting.drain import Drain
from offtop.kernel.accounting.tick_records import SiteDeltas, ThreadRecords
from offtop.kernel.bpf import map_sizes
from offtop.kernel.live import LiveSource
from offtop.kernel.scope.config import BpfConfig, Settings
from offtop.model.classify.categories import is_periodic
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import EXITED, UNNAMED, Filters, SiteTotals
from offtop.model.values.stack import STACK_LOST
from offtop.model.windows.history import History
from offtop.model.windows.window import Window
from tests.conftest import lacks
from tests.kernel import programs, waits, watch
from tests.kernel.test_counts import count_23_sleeps
from tests.kernel.watch import MS, S, Watch

pytestmark = pytest.mark.kernel

TINY = 16
ROOMY = 8192
BROKEN_LAW = r"^\d+, as "
"""Prefix of the messages of watch.check_sums."""
_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin")

SLEEPERS = r"""
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
static int threads, sleeps, places;
static struct timespec each;
static __attribute__((noinline)) void down(int depth)
{
	if (depth)
		down(depth - 1);
	else
		nanosleep(&each, 0);
	__asm__ volatile("");
}
static void *sleeper(void *number)
{
	for (int i = 0; i < sleeps; i++)
		down((long)number % places);
	return 0;
}
int main(int argc, char **argv)
{
	threads = atoi(argv[1]), sleeps = atoi(argv[2]), each.tv_nsec = atoi(argv[3]) * 1000, places = atoi(argv[4]);
	pthread_t *all = calloc(threads, sizeof(*all));
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	while (next()) {
		for (long i = 0; i < threads; i++)
			if (pthread_create(&all[i], &small, sleeper, (void *)i))
				return 1;
		for (int i = 0; i < threads; i++)
			pthread_join(all[i], 0);
	}
	return 0;
}
"""
"""At each go, so many threads start, sleep so often and so long, and exit.

Each sleeps at one of so many depths.
"""

EXITS = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
static atomic_long waited_ns, over;
static int waits;
static long now_ns(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}
static void *brief(void *made_ns)
{
	struct timespec shorter = {0, 300000}, longer = {0, 1500000};
	for (int i = 0; i < waits; i++)
		nanosleep(i % 4 ? &shorter : &longer, 0);
	waited_ns += now_ns(CLOCK_MONOTONIC) - *(long *)made_ns - now_ns(CLOCK_THREAD_CPUTIME_ID);
	free(made_ns);
	over++;
	return 0;
}
int main(int argc, char **argv)
{
	long a_second = atol(argv[1]), seconds = atol(argv[2]), made = 0;
	waits = atoi(argv[3]);
	pthread_t thread;
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
	next();
	for (long began_ns = now_ns(CLOCK_MONOTONIC); made < a_second * seconds; usleep(1000))
		for (long due = (now_ns(CLOCK_MONOTONIC) - began_ns) / 1000 * a_second / 1000000; made < due; made++) {
			long *made_ns = malloc(sizeof(*made_ns));
			*made_ns = now_ns(CLOCK_MONOTONIC);
			if (pthread_create(&thread, &small, brief, made_ns))
				return 1;
		}
	while (over < made)
		usleep(1000);
	usleep(20000);
	tell("waited", (void *)waited_ns);
	tell("made", (void *)made);
	next();
	return 0;
}
"""
"""Creates so many threads per second, for so many seconds, after its go.

Each waits so often, mostly below the minimum, and exits. Then it prints how many it made, and their total waiting
time before their exit.
"""

TOGETHER = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
static atomic_long waited_ns;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static int is_released;
static long now_ns(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}
static void *held(void *made_ns)
{
	pthread_mutex_lock(&mutex);
	while (!is_released)
		pthread_cond_wait(&released, &mutex);
	pthread_mutex_unlock(&mutex);
	waited_ns += now_ns(CLOCK_MONOTONIC) - *(long *)made_ns - now_ns(CLOCK_THREAD_CPUTIME_ID);
	return 0;
}
int main(int argc, char **argv)
{
	int threads = atoi(argv[1]);
	pthread_t *made = calloc(threads, sizeof(*made));
	long *made_ns = calloc(threads, sizeof(*made_ns));
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	next();
	for (int i = 0; i < threads; i++) {
		made_ns[i] = now_ns(CLOCK_MONOTONIC);
		if (pthread_create(&made[i], &small, held, &made_ns[i]))
			return 1;
	}
	next();
	pthread_mutex_lock(&mutex);
	is_released = 1;
	pthread_cond_broadcast(&released);
	pthread_mutex_unlock(&mutex);
	for (int i = 0; i < threads; i++)
		pthread_join(made[i], 0);
	tell("waited", (void *)waited_ns);
	next();
	return 0;
}
"""
"""At the first go, so many threads start and wait. At the second one, all exit; then it prints their waiting time."""

PATHS = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
enum { DEPTH = 17 };
static atomic_uint paths;
static unsigned last;
static void right(unsigned path, int depth);
static __attribute__((noinline)) void left(unsigned path, int depth)
{
	struct timespec each = {0, 1500000};
	if (!depth)
		nanosleep(&each, 0);
	else if (path & 1)
		right(path >> 1, depth - 1);
	else
		left(path >> 1, depth - 1);
	__asm__ volatile("");
}
static __attribute__((noinline)) void right(unsigned path, int depth)
{
	left(path, depth);
	__asm__ volatile("" ::: "memory");
}
static void *sleeper(void *unused)
{
	for (unsigned path; (path = paths++) < last;)
		left(path, DEPTH);
	return 0;
}
int main(int argc, char **argv)
{
	pthread_t made[20];
	last = atoi(argv[1]);
	next();
	for (int i = 0; i < 20; i++)
		pthread_create(&made[i], 0, sleeper, 0);
	for (int i = 0; i < 20; i++)
		pthread_join(made[i], 0);
	next();
	return 0;
}
"""
"""After its go, 20 threads wait so often in all, each time with another user stack, 10,000 times a second."""


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("sleepers") / "sleepers", SLEEPERS, *_C)


def sleepers(
    binary: Path, threads: int, sleeps: int, each_us: int, places: int = 1
) -> AbstractContextManager[programs.Program]:
    return programs.running([binary, *map(str, (threads, sleeps, each_us, places))])


def watching_only(child: programs.Program) -> AbstractContextManager[Watch]:
    return watch.watching(Filters(pids=(child.pid,)))


def set_map_sizes(
    monkeypatch: pytest.MonkeyPatch, threads: int = ROOMY, sites: int = ROOMY, stacks: int = ROOMY
) -> None:
    """Set the number of map entries of sources from here on."""
    rooms = {("record", "exited_0", "exited_1"): threads, ("sites_0", "sites_1"): sites}
    rooms[("kernel_stacks", "user_stacks")] = stacks
    watch.resize_maps(monkeypatch, {name: room for names, room in rooms.items() for name in names})


def storm(child: programs.Program, live: Watch) -> list[Window]:
    """Run the sleepers once, from start to end, over some ticks."""
    child.go_on_alone()
    windows = [live.tick(0.03) for _ in range(5)]
    child.listen()
    return windows + [live.tick(0.05) for _ in range(4)]


def lost(windows: Iterable[Window]) -> dict[str, int]:
    """Return losses by kind."""
    every = Counter[str]()
    for window in windows:
        every.update(window.lost)
    del every["missed_runs"]
    return dict(every)


def at_stack_lost(windows: Iterable[Window], kernel: bool = False, user: bool = False) -> SiteTotals:
    """Return the totals at sites whose kernel stack, user stack, or both are lost."""
    found = SiteTotals()
    for window in windows:
        for key, totals in window.each_site():
            if (key.kernel == STACK_LOST or not kernel) and (key.user == STACK_LOST or not user):
                found = found.plus(totals)
    return found


def long_waits(windows: Iterable[Window], pid: int) -> tuple[Counter[ThreadKey], Counter[ThreadKey]]:
    """Count the waits from the minimum up of a process, by its threads and by their sites."""
    of_threads, of_sites = Counter[ThreadKey](), Counter[ThreadKey]()
    for window in windows:
        for key, t in window.each_thread():
            if key.pid == pid:
                of_threads[key] += t.waits - t.short_waits
        for site, totals in window.each_site():
            if site.pid == pid:
                of_sites[site.thread] += totals.waits
    return of_threads, of_sites


@pytest.mark.parametrize(("probe", "threads"), [("auto", TINY), pytest.param("switch", 64, marks=pytest.mark.variant)])
def test_in_tiny_maps_every_loss_is_counted_and_the_laws_hold(
    monkeypatch: pytest.MonkeyPatch, binary: Path, probe: str, threads: int
) -> None:
    set_map_sizes(monkeypatch, threads, TINY, TINY)
    with contextlib.ExitStack() as both:
        child = both.enter_context(sleepers(binary, threads=200, sleeps=20, each_us=1500, places=40))
        # with the switch probe, each watched thread takes room as long as it lives: the rest of the machine would take
        # all
        filters = Filters(pids=(child.pid,)) if probe == "switch" else Filters()
        tiny = both.enter_context(watch.watching(filters, probe))
        windows = [window for _ in range(2) for window in storm(child, tiny)]
        assert lost(windows).keys() >= {"sites", "stacks", "threads"}
        assert at_stack_lost(windows, kernel=True, user=True).total_ns > 0
        last = tiny.tick(0.05)
        waiting = {key.tid for key, t in last.each_thread() if key.pid == child.pid and t.offcpu_ns}
        assert waiting <= {child.pid}, "an exited thread no longer waits, lost or not"


def test_there_is_room_for_twice_the_threads_of_a_big_machine(tmp_path: Path) -> None:
    loadavg = tmp_path / "loadavg"
    for threads, room in ((90, 8_192), (9_085, 32_768), (400_000, 262_144)):
        loadavg.write_text(f"0.91 2.08 2.60 3/{threads} 4194303\n")
        sizes = map_sizes.for_machine(map_sizes.threads_now(str(loadavg)))
        assert (sizes.threads, sizes.stacks, sizes.exits) == (room, min(room, 32_768), min(room, 32_768))
    assert map_sizes.for_machine().threads >= len([*Path("/proc/self/task").iterdir()])


def test_each_wait_without_room_for_its_site_is_lost_under_stack_lost(
    monkeypatch: pytest.MonkeyPatch, binary: Path
) -> None:
    set_map_sizes(monkeypatch, sites=TINY)
    with sleepers(binary, threads=200, sleeps=20, each_us=1500) as child, watching_only(child) as tiny:
        windows = storm(child, tiny)
        waits_lost, ns_lost = at_stack_lost(windows, kernel=True, user=True)[:2]
        assert lost(windows) == {"sites": waits_lost}
        assert waits_lost > 200 * 20 // 2
        assert ns_lost >= waits_lost * MS
        of_threads, of_sites = long_waits(windows, child.pid)
        assert of_threads == of_sites


def test_each_stack_without_room_is_lost_and_its_wait_under_stack_lost(
    monkeypatch: pytest.MonkeyPatch, binary: Path
) -> None:
    set_map_sizes(monkeypatch, stacks=TINY)
    with sleepers(binary, threads=200, sleeps=20, each_us=1500, places=40) as child, watching_only(child) as tiny:
        windows = storm(child, tiny)
        stacks_lost = at_stack_lost(windows, kernel=True).waits + at_stack_lost(windows, user=True).waits
        assert lost(windows) == {"stacks": stacks_lost}
        assert stacks_lost > 200
        of_threads, of_sites = long_waits(windows, child.pid)
        assert of_threads == of_sites


@pytest.mark.parametrize("room", [pytest.param("of this machine", marks=pytest.mark.variant), "for 64"])
def test_2000_threads_that_live_within_one_tick_are_reported_or_lost(
    monkeypatch: pytest.MonkeyPatch, binary: Path, room: str
) -> None:
    if room == "for 64":
        set_map_sizes(monkeypatch, threads=64)
    with sleepers(binary, threads=2000, sleeps=1, each_us=2000) as child, watching_only(child) as fresh:
        fresh.tick()
        child.go()
        windows = [fresh.tick(0.1) for _ in range(4)]
        every = [(key, t) for window in windows for key, t in window.each_thread() if key.pid == child.pid != key.tid]
        seen = {key for key, t in every if t.waits}
        threads_lost = lost(windows).get("threads", 0)
        assert sum(t.waits for _, t in every) + threads_lost >= 2000
        assert len(seen) + threads_lost >= 2000
        if room == "for 64":
            assert lost(windows).keys() == {"threads"}
        else:
            assert lost(windows) == {}
            assert len(seen) == 2000
            assert sum(t.offcpu_ns for _, t in every) >= 4 * S


@pytest.mark.parametrize(("threads", "places"), [(ROOMY // 8 + 100, 1), (8, 8)], ids=["exits", "user stacks"])
def test_tables_are_drained_between_two_ticks_only_when_they_fill(
    monkeypatch: pytest.MonkeyPatch, binary: Path, threads: int, places: int
) -> None:
    """Below a fourth of ROOMY, new entries wait for the next tick. An exit counts as two, a user stack as 512."""
    set_map_sizes(monkeypatch)
    flip, flips = Drain.flip, list[int]()

    def counted(drain: Drain) -> tuple[int, int, int]:
        flips.append(len(flips))
        return flip(drain)

    with sleepers(binary, threads, sleeps=1, each_us=2000, places=places) as child, watching_only(child) as live:
        live.tick()
        monkeypatch.setattr(Drain, "flip", counted)
        live.source.drain()
        assert not flips
        child.go()
        live.source.drain()
        assert len(flips) == 1
        live.source.drain()
        assert len(flips) == 1
        window = live.tick()
        slept = {key for key, t in window.each_thread() if key.pid == child.pid != key.tid and t.waits}
        assert (len(slept), lost([window])) == (threads, {})


def test_only_the_totals_of_300_exited_threads_per_tick_stay(binary: Path) -> None:
    with sleepers(binary, threads=300, sleeps=1, each_us=2000) as child, watching_only(child) as fresh:
        ledger = fresh.source._parts.ledger  # pyright: ignore[reportPrivateUsage]
        windows: list[Window] = []
        kept: list[int] = []
        for _ in range(20):
            child.go()
            windows.append(fresh.tick())
            kept.append(max(entries_of_exited(fresh.source, child.pid).values()))
        windows += [fresh.tick(0.05) for _ in range(3)]
        assert not any(entries_of_exited(fresh.source, child.pid).values())
        assert 300 <= max(kept) < 3 * 300, "some at a time, but never those of many ticks"
        ended = [t for window in windows for key, t in window.each_thread() if key.pid == child.pid != key.tid]
        assert ledger.threads[EXITED].waits >= sum(t.waits for t in ended) >= 20 * 300
        assert ledger.threads[EXITED].offcpu_ns >= sum(t.offcpu_ns for t in ended)


def entries_of_exited(source: LiveSource, pid: int) -> dict[str, int]:
    """Return how many entries there are about exited threads of a process.

    This is by table, for all tables with entries by thread.
    """
    ledger = source._parts.ledger  # pyright: ignore[reportPrivateUsage]
    kept: dict[str, Iterable[tuple[int, ...]]] = {
        "threads": ledger.threads,
        "sites": ledger.sites,
        "waiting": ledger.waiting,
        "late": [*ledger._deferred.sites()],  # pyright: ignore[reportPrivateUsage]
        "rows": [(code >> 32, code & 0xFFFFFFFF) for code in ledger._table._row_of],  # pyright: ignore[reportPrivateUsage]
    }
    return {place: sum(key[0] == pid != key[1] for key in keys) for place, keys in kept.items()}


def test_dropped_sites_break_a_law(monkeypatch: pytest.MonkeyPatch, binary: Path) -> None:
    drained = Drain.sites

    def dropped(drain: Drain, half: int) -> SiteDeltas:
        drained(drain, half)
        return SiteDeltas.of(())

    with sleepers(binary, threads=20, sleeps=10_000, each_us=2000) as child, watching_only(child) as live:
        child.go_on_alone()
        live.tick(0.1)
        with monkeypatch.context() as broken, pytest.raises(watch.LawError, match=BROKEN_LAW):
            broken.setattr(Drain, "sites", dropped)
            live.tick(0.1)
        live.tick(0.1)


def test_a_buffer_whose_threads_are_never_read_breaks_a_law(monkeypatch: pytest.MonkeyPatch, binary: Path) -> None:
    read_threads = Drain.threads

    def of_one_half(drain: Drain, half: int, *rest: Any) -> ThreadRecords:
        return ThreadRecords.of(()) if half else read_threads(drain, half, *rest)

    with sleepers(binary, threads=20, sleeps=10_000, each_us=2000) as child, watching_only(child) as live:
        child.go_on_alone()
        live.tick(0.1)
        monkeypatch.setattr(Drain, "threads", of_one_half)
        with pytest.raises(watch.LawError, match=BROKEN_LAW):
            for _ in range(4):
                live.tick(0.1)


def test_without_the_switch_in_probe_23_sleeps_are_missing() -> None:
    with watch.watching_kernel_stacks() as live:
        with waits.running("sleep", times=23, each_ms=10) as child:
            count_23_sleeps(live, child)
        detach(live.source, "sched_exit_tp")
        with waits.running("sleep", times=23, each_ms=10) as child:
            live.tick()
            child.go()
            child.finish()
            assert watch.thread(live.tick(0.02), child.tid).waits == 0
        with (
            waits.running("sleep", times=23, each_ms=10) as child,
            pytest.raises((AssertionError, KeyError)),
        ):
            count_23_sleeps(live, child)


def detach(source: LiveSource, tracepoint: str) -> None:
    """Close the link to the tracepoint; its descriptor stays closable."""
    fds = source._program._fds  # pyright: ignore[reportPrivateUsage]
    links = [fd for fd in fds.values() if f"tp_name:\t{tracepoint}\n" in Path(f"/proc/self/fdinfo/{fd}").read_text()]
    if not links:
        lacks(f"the tracepoint {tracepoint}")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, links[0])
    os.close(nothing)


@pytest.mark.parametrize("room", [1, 2])
def test_a_thread_that_exits_between_flip_and_scan_is_complete_or_lost(
    monkeypatch: pytest.MonkeyPatch, binary: Path, room: int
) -> None:
    flipped = Drain.flip
    set_map_sizes(monkeypatch, threads=room)
    with sleepers(binary, threads=1, sleeps=50, each_us=2000) as child, watching_only(child) as tiny:

        def flip_and_let_it_end(drain: Drain) -> tuple[int, int, int]:
            half = flipped(drain)
            child.listen()
            time.sleep(0.05)
            return half

        tiny.tick()
        child.go_on_alone()
        time.sleep(0.03)
        with monkeypatch.context() as between:
            between.setattr(Drain, "flip", flip_and_let_it_end)
            windows = [tiny.tick()]
        windows += [tiny.tick(0.05) for _ in range(4)]
        of_threads, of_sites = long_waits(windows, child.pid)
        assert of_threads == of_sites
        assert of_sites.total() >= 40
        assert lost(windows).keys() <= ({"threads"} if room == 1 else set())


def test_time_from_before_the_filters_were_set_is_in_no_window(monkeypatch: pytest.MonkeyPatch, binary: Path) -> None:
    write, flipped = BpfConfig.write, Drain.flip
    with contextlib.ExitStack() as both:
        child = both.enter_context(sleepers(binary, threads=1, sleeps=10_000, each_us=2000))
        other = both.enter_context(contextlib.ExitStack())
        other.enter_context(sleepers(binary, threads=1, sleeps=10_000, each_us=2000)).go_on_alone()

        def write_late(config: BpfConfig, settings: Settings) -> None:
            time.sleep(0.1)
            write(config, settings)

        def flip_and_end_the_other(drain: Drain) -> tuple[int, int, int]:
            half = flipped(drain)
            other.close()
            return half

        monkeypatch.setattr(BpfConfig, "write", write_late)
        monkeypatch.setattr(Drain, "flip", flip_and_end_the_other)
        with watching_only(child) as live:
            windows = [live.tick(0.1) for _ in range(3)]
        assert {key.pid for window in windows for key, _ in window.each_thread()} == {child.pid}


@pytest.fixture(scope="module")
def exits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("exits") / "exits", EXITS, *_C)


def test_time_of_exited_threads_without_room_is_in_one_row(monkeypatch: pytest.MonkeyPatch, exits: Path) -> None:
    set_map_sizes(monkeypatch, threads=TINY)
    with programs.running([exits, "300", "3", "20"]) as child, watching_only(child) as tiny:
        tiny.tick()
        child.go_on_alone()
        windows = [tiny.tick(0.2) for _ in range(15)]
        child.listen()
        windows += [tiny.tick(0.1) for _ in range(6)]  # until everything deferred is counted
        made = child.at["made"]
        threads_lost = lost(windows)["threads"]
        assert lost(windows).keys() == {"threads"}
        assert made // 3 < threads_lost <= made
        check_time_of_exited(windows, child)
        catalog = windows[-1].catalog
        assert catalog.comm(UNNAMED) == catalog.process(UNNAMED.pid) == "[ended, not named]"


@pytest.mark.variant
def test_exits_between_two_distant_reads_have_room(monkeypatch: pytest.MonkeyPatch, exits: Path) -> None:
    set_map_sizes(monkeypatch, threads=2048)
    with programs.running([exits, "1000", "5", "20"]) as child, watching_only(child) as live:
        child.go_on_alone()
        pace = Pace(live.source, History((), is_periodic), 6 * S)
        windows: list[Window] = []
        for kept in pace.ticks():
            watch.check_sums(kept.window)
            windows.append(kept.window)
            if kept.window.span_ns > 5 * S:
                pace.stop()
        child.listen()
        assert lost(windows) == {}
        mine = {key: totals for key, totals in windows[-1].each_thread() if key.pid == child.pid}
        assert len(mine) > 4000, "each under its own key"
        assert max(totals.max_ns for totals in mine.values()) > 0


def test_threads_that_exit_together_keep_their_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is room for a quarter of them."""
    set_map_sizes(monkeypatch, threads=256)
    binary = programs.build(tmp_path / "together", TOGETHER, *_C)
    with programs.running([binary, "1000"]) as child, watching_only(child) as tiny:
        child.go()
        windows = [tiny.tick(0.2)]
        child.go()
        windows += [tiny.tick(0.1) for _ in range(8)]
        check_time_of_exited(windows, child)
        assert 1000 // 2 < lost(windows)["threads"] <= 1000


def test_as_many_stacks_as_waits_are_stored_or_told(tmp_path: Path) -> None:
    binary = programs.build(tmp_path / "paths", PATHS, *_C)
    with programs.running([binary, "2000"]) as child, watching_only(child) as live:
        child.go_on_alone()
        windows = [live.tick(0.1) for _ in range(5)]
        child.listen()
        windows += [live.tick(0.1) for _ in range(3)]
        check_stacks(windows, child.pid, 2000)
        assert lost(windows) == {}


def check_time_of_exited(windows: Sequence[Window], child: programs.Program) -> None:
    """Check that the threads that have exited, with and without a name, waited as long as the program says."""
    assert time_of_exited(windows, child) == pytest.approx(child.at["waited"], rel=0.05)


def time_of_exited(windows: Sequence[Window], child: programs.Program) -> int:
    """Return the off-CPU time of a program's threads but the main one, if it is the only one watched."""
    ns = Counter[ThreadKey]()
    for window in windows:
        for key, totals in window.each_thread():
            ns[key] += totals.offcpu_ns
    # Not the other way round: a lost thread whose only wait was at a site is named by that.
    assert "threads" in lost(windows) or not ns[UNNAMED]
    return ns.total() - ns[ThreadKey(child.pid, child.pid)]


def check_stacks(windows: Sequence[Window], pid: int, stacks: int) -> None:
    """Check that so many waits have a user stack each, or have lost theirs, which is told."""
    of_threads, of_sites = long_waits(windows, pid)
    assert of_threads == of_sites
    users = {key.user for window in windows for key, _ in window.each_site() if key.pid == pid}
    without = sum(
        totals.waits
        for window in windows
        for key, totals in window.each_site()
        if key.pid == pid and STACK_LOST in (key.kernel, key.user)
    )
    assert without <= lost(windows).get("stacks", 0) + lost(windows).get("sites", 0)
    assert len(users) >= stacks - without
