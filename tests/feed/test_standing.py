"""Standing waits count as idle from the tick in which that is known; all sums stay."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from offtop import paths
from offtop.feed.pace import Pace
from offtop.feed.suspect_watch import SuspectWatch
from offtop.model.classify import suspect_weights
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Fixed
from offtop.model.classify.suspect import HOLDER, Hop, Suspect
from offtop.model.classify.suspect_weights import Weights
from offtop.model.values.blockers import FILE_LOCK, PIPE, Blocker
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import Move, Sampling, SiteTotals, Snapshot, ThreadTotals, Waiting
from offtop.model.values.stack import NO_STACK
from offtop.model.values.table import SITES, SiteKeys, integers
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.breakdown import (
    ALL,
    Leaf,
    Scope,
    Shares,
    breakdown_of,
    by_category,
    by_thread,
    merged,
    shares,
    total,
)
from offtop.model.windows.history import FindStanding, History, HistoryTick, moved_in, none_standing
from offtop.model.windows.stuck import Stuck
from offtop.model.windows.window import Window, merge
from offtop.person import person
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from tests.model.machine import CATEGORIES, RULES, WEIGHTS
from tests.model.windows.test_history import never
from tests.model.world import BOOK, IDLE, Step, snapshots, stretches
from tests.ui.scripted import ScriptedSource, Waits

SECOND = 10**9
READER = Waits("tail", 60, "tail", 60, "pipe", "pipe_read", waits_on=True)
OLD = READER._replace(older_ms=5_000)
WRITER = Waits("yes", 70, "yes", 70, "pipe", "pipe_write", waits_on=True)


class _Source(ScriptedSource):
    blockers: Mapping[ThreadKey, tuple[Blocker, ...]] = {}
    """What must act before which thread can go on, from now on."""

    began_ns = 0

    @property
    def since_ns(self) -> int:
        return self.began_ns

    def after(self, seconds: int) -> Snapshot:
        return replace(super().after(seconds), blockers=self.blockers)


class _Watched:
    def __init__(self, *table: Waits, weights: Weights = WEIGHTS) -> None:
        self.source = _Source(table, ticks=1000, ends=True)
        rules = Fixed(RULES)
        self.watch = SuspectWatch(self.source, weights, rules)
        idle_by_rule = CauseFinder(self.source.names, rules).idle_by_rule
        self.history = History(CATEGORIES.idle, never, idle_by_rule=idle_by_rule, standing=self.watch.standing)

    def ticks(self, count: int) -> HistoryTick:
        """Return the last of `count` more ticks."""
        kept = None
        for _ in range(count + (self.source.reads == 0)):
            snapshot = self.source.read()
            assert snapshot
            kept = self.history.add(snapshot)
        assert kept
        return kept


def leaves(kept: HistoryTick) -> dict[Leaf, int]:
    """Time by leaf, in ms."""
    return {leaf: part.total_ns // 1_000_000 for leaf, part in kept.leaves.items()}


def test_suspects_are_kept_as_long_as_the_history_keeps_their_tick() -> None:
    watched = _Watched(OLD)
    watched.history._max_ns = 3 * SECOND  # pyright: ignore[reportPrivateUsage]
    for _ in range(5):
        watched.ticks(1)
        watched.watch.tick(watched.history)
    kept = [tick.number for tick in watched.history.last(10 * SECOND)]
    assert [number for number in range(1, 7) if watched.watch.at(number)] == kept == [3, 4, 5]


PIPE_WAIT, STANDS = Leaf("pipe"), Leaf("pipe", True, True)


def test_wait_from_before_offtop_is_standing_in_the_first_tick() -> None:
    watched = _Watched(OLD, READER._replace(pid=61, tid=61))
    kept = watched.ticks(1)
    assert leaves(kept) == {PIPE_WAIT: 1000, STANDS: 1000}
    blocked = watched.history.stuck(kept)
    assert [blocked.leaf(row) for row in range(2)] == [STANDS, PIPE_WAIT]
    assert blocked.standing == watched.watch.tick(watched.history).standing == 1


def test_no_wait_is_standing_in_the_first_ten_seconds() -> None:
    weights = suspect_weights.parse(paths.suspects().read_text())
    watched = _Watched(OLD, READER._replace(pid=61, tid=61), weights=weights)
    assert leaves(watched.ticks(9)) == {PIPE_WAIT: 2000}
    assert leaves(watched.ticks(1)) == {PIPE_WAIT: 1000, STANDS: 1000}


def test_suspect_of_an_outlier_has_its_sentence() -> None:
    watched = _Watched(OLD)
    watched.ticks(1)
    hop = Hop(ThreadKey(20, 0), "flock", 3, 3, "lock", None, 9 * SECOND, via=FILE_LOCK, what="job.lock")
    one = Suspect(HOLDER, (hop, Hop(ThreadKey(30, 0), "sleep", 1, 1, "sleep", None, 0)), 3.0, 3.0)
    assert watched.watch.sentence(one) == "3 flock wait for job.lock (9.00s), held by sleep(30), which sleeps"


@pytest.mark.parametrize("is_known", [False, True])
def test_clip_knows_how_long_offtop_had_measured_before(tmp_path: Path, is_known: bool) -> None:
    weights = suspect_weights.parse(paths.suspects().read_text())
    watched = _Watched(OLD, weights=weights)
    last = watched.ticks(15)
    watched.source.began_ns = last.at_ns - 15 * SECOND if is_known else 0
    clip = Recorder(tmp_path / "clip", watched.source, person(), leave_bytes=0, past=True)
    for snapshot in watched.history.snapshots_of_last(5 * SECOND, last.at_ns):
        clip.add(snapshot)
    clip.close()
    replayed = RecordedSource(tmp_path / "clip")
    watch = SuspectWatch(replayed, weights, Fixed(RULES))
    history = History(CATEGORIES.idle, never, standing=watch.standing)
    seen = [leaves(kept) for kept in Pace(replayed, history, SECOND).ticks()]
    assert seen == [{STANDS if is_known else PIPE_WAIT: 1000}] * 5
    assert watch.has_settled == is_known


def test_wait_is_standing_from_the_tick_in_which_it_is_a_minute_old_and_earlier_ticks_stay() -> None:
    watched = _Watched(READER)
    assert leaves(watched.ticks(59)) == {PIPE_WAIT: 1000}
    assert leaves(watched.ticks(1)) == {STANDS: 1000}
    minute = watched.history.last(60 * SECOND)
    assert [*map(leaves, minute)] == [{PIPE_WAIT: 1000}] * 59 + [{STANDS: 1000}]
    assert {leaf: part.total_ns for leaf, part in merged([kept.breakdown for kept in minute]).categories.items()} == {
        PIPE_WAIT: 59 * SECOND,
        STANDS: SECOND,
    }


def test_wait_that_was_found_late_is_standing_when_it_is_a_minute_old() -> None:
    watched = _Watched(READER._replace(begins=10, older_ms=5_000))
    assert leaves(watched.ticks(12)) == {PIPE_WAIT: 1000}
    assert leaves(watched.ticks(52)) == {PIPE_WAIT: 1000}
    assert leaves(watched.ticks(1)) == {STANDS: 1000}


def test_merged_window_counts_a_wait_as_standing_if_it_is_at_its_end() -> None:
    watched = _Watched(READER)
    watched.ticks(70)
    for whole in (watched.history.since_start(), watched.history.until(watched.history.last(1)[-1].at_ns)):
        assert whole
        assert leaves(whole) == {STANDS: 70_000}


def test_hung_reader_whose_writers_wait_is_shown_until_they_are_gone() -> None:
    watched = _Watched(OLD, WRITER._replace(older_ms=90_000), WRITER._replace(pid=71, tid=71, ends=80))
    watched.source.blockers = {ThreadKey(pid, pid): (Blocker(60, 0, PIPE, True),) for pid in (70, 71)}
    kept = watched.ticks(70)
    assert leaves(kept) == {PIPE_WAIT: 3000}
    (one,) = watched.watch.tick(watched.history).suspects
    assert (one.end.program, one.waiting, watched.watch.tick(watched.history).standing) == ("tail", 2, 0)
    watched.source.blockers = {}
    assert leaves(watched.ticks(1)) == {PIPE_WAIT: 2000, STANDS: 1000}


def test_reader_for_which_only_standing_waits_wait_is_standing() -> None:
    watched = _Watched(OLD, OLD._replace(process="cat", pid=61, tid=61))
    watched.source.blockers = {ThreadKey(61, 61): (Blocker(60, 0, PIPE, True),)}
    assert leaves(watched.ticks(1)) == {STANDS: 2000}


def test_waits_for_locks_disks_and_servers_are_never_standing() -> None:
    table = (
        Waits("a", 10, "a", 10, "lock", "futex_do_wait", waits_on=True, older_ms=900_000),
        Waits("b", 11, "b", 11, "fsync", "jbd2_log_wait_commit", waits_on=True, older_ms=900_000),
        WRITER._replace(older_ms=900_000),
    )
    assert leaves(_Watched(*table).ticks(61)) == {Leaf("lock"): 1000, Leaf("fsync"): 1000, PIPE_WAIT: 1000}


def test_wait_of_an_idle_category_is_not_standing() -> None:
    table = Waits("nginx", 700, "nginx", 700, "poll", "do_epoll_wait", waits_on=True, older_ms=900_000)
    assert leaves(_Watched(table).ticks(1)) == {Leaf("poll", True): 1000}


def test_no_wait_is_standing_without_a_wait_for_graph() -> None:
    watched = _Watched(OLD)
    plain = History(CATEGORIES.idle, never)
    taken = [watched.source.after(second) for second in (0, 1)]
    (kept,) = [kept for kept in map(plain.add, taken) if kept]
    assert leaves(kept) == {PIPE_WAIT: 1000}
    sampled = [replace(one, sampling=Sampling(1)) for one in taken]
    (kept,) = [kept for kept in map(watched.history.add, sampled) if kept]
    assert (leaves(kept), watched.watch.tick(watched.history).standing) == ({PIPE_WAIT: 1000}, 1)


def every_wait(_: Snapshot, window: Window, __: Shares, ___: Stuck) -> SiteKeys:
    """Let each wait that lasts the whole tick be standing."""
    return window.still


def added(taken: list[Snapshot], standing: FindStanding) -> list[HistoryTick]:
    history = History(IDLE, never, standing=standing)
    return [kept for kept in map(history.add, taken) if kept]


@given(stretches)
def test_standing_waits_change_no_sum_of_a_category_thread_or_tick(happened: list[list[Step]]) -> None:
    taken = snapshots(happened)
    ticks, plain = added(taken, every_wait), added(taken, none_standing)
    for one, other in zip(ticks, plain, strict=True):
        assert by_category(one.breakdown) == by_category(other.breakdown)
        assert by_thread(one.shares, Scope(ALL)) == by_thread(other.shares, Scope(ALL))
        assert one.breakdown == breakdown_of(shares(one.window, one.idle), one.span_ns)
    moved = moved_in(ticks, taken[0].at_ns)
    summed = merged([one.breakdown for one in [*ticks, *([moved] if moved else [])]])
    whole = HistoryTick.of(merge([one.window for one in ticks]), ticks[-1].idle)
    in_all = total(by_category(whole.breakdown).values()).total_ns
    assert total(by_category(summed).values()).total_ns == in_all


def test_standing_time_stays_at_its_site_when_the_wait_ends_at_another() -> None:
    was, now = (SiteKey(10, 1, 3, user, NO_WAKE) for user in (NO_STACK, 4))
    begun = Waiting(was, SECOND, SECOND)
    thread = was.thread
    taken = [Snapshot(0, second * SECOND, {}, {}, {thread: begun}, BOOK) for second in (2, 3, 4, 5)]
    ended = ThreadTotals(1, 5 * SECOND, max_ns=5 * SECOND), SiteTotals(1, 5 * SECOND, max_ns=5 * SECOND)
    moves = [Move(was, now, SECOND, 5 * SECOND)]
    taken.append(Snapshot(0, 6 * SECOND, {thread: ended[0]}, {now: ended[1]}, {}, BOOK, moves=moves))

    def from_the_second_tick(snapshot: Snapshot, window: Window, _: Shares, __: Stuck) -> SiteKeys:
        return window.still if snapshot.at_ns > 3 * SECOND else SiteKeys(integers([], SITES.width))

    ticks = added(taken, from_the_second_tick)
    moved = moved_in(ticks, 2 * SECOND)
    assert moved
    sums: dict[tuple[int, bool], int] = {}
    for one in (*ticks, moved):
        idle = np.array([leaf.idle for leaf in one.shares.leaves])[one.shares.leaf].tolist()
        for (_, _, _, user, _), is_idle, ns in zip(
            one.shares.ids.tolist(), idle, one.shares.total_ns.tolist(), strict=True
        ):
            sums[user, is_idle] = sums.get((user, is_idle), 0) + ns
    assert {key: ns for key, ns in sums.items() if ns} == {(NO_STACK, True): 2 * SECOND, (4, False): 2 * SECOND}


def test_waits_that_may_be_standing_are_shown_in_the_first_seconds_but_make_no_suspect() -> None:
    table = (OLD._replace(pid=pid, tid=pid) for pid in range(60, 80))
    watched = _Watched(*table, weights=replace(WEIGHTS, settle_ns=10 * SECOND))
    for seconds, leaf in ((3, PIPE_WAIT), (7, STANDS)):
        kept = watched.ticks(seconds)
        assert (leaves(kept), watched.watch.tick(watched.history).suspects) == ({leaf: 20_000}, [])


def test_cpus_of_programs_that_compete_for_a_cpu_are_looked_up() -> None:
    busy = _Watched(
        *(Waits("svc", 10, f"w{tid}", tid, "run-queue", "schedule", short_waits=1, running_ms=100) for tid in (11, 12)),
        Waits("yes", 20, "yes", 20, "run-queue", "schedule", short_waits=1, running_ms=900),
    )
    busy.ticks(3)
    assert busy.source.asked == [set()] * 3
    starved = _Watched(
        *(
            Waits("svc", 10, f"w{tid}", tid, "run-queue", "schedule", waits_ms=(800,), ready_ms=800, running_ms=100)
            for tid in (11, 12)
        ),
        Waits("yes", 20, "yes", 20, "run-queue", "schedule", short_waits=1, running_ms=900),
    )
    starved.ticks(3)
    starved.watch.tick(starved.history)
    assert {10, 20} in starved.source.asked
