"""Threads that have one id one behind the other: what each did is its own, in whatever order they are heard of.

Who has been waited for, or has lost its id to one that called exec, may wait for a CPU still, to leave for good.
"""

from itertools import pairwise
from typing import Any

import pytest

from offtop.kernel.accounting import deferred
from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import Ended, Ran, Walked
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import ThreadKey
from offtop.model.windows.window import between
from offtop.units import NS_PER_S
from tests.kernel import watch
from tests.kernel.accounting.test_ledger import MIN_NS, NOTHING, Wait, record_of, site_records, snapshot

KEY = ThreadKey(7, 7)
TICK_NS = 10_000
A, B, C = 1, 2, 3
"""Since when each has that id."""


class Ticks:
    """A ledger, tick by tick; the sums of each hold."""

    def __init__(self) -> None:
        self.ledger = Ledger(0)
        self.at = [snapshot(self.ledger)]
        self.threads_lost = 0

    def tick(
        self,
        threads: list[tuple[ThreadKey, ThreadRecord]],
        sites: Ended = NOTHING,
        *walked: Walked,
        ns: int = TICK_NS,
        **told: Any,
    ) -> None:
        at_ns = self.at[-1].at_ns + ns
        self.ledger.tick(at_ns, MIN_NS, threads, sites, walked, threads_lost=self.threads_lost, **told)
        self.at.append(snapshot(self.ledger))
        watch.check_sums(between(self.at[-2], self.at[-1]))

    def give_up(self) -> None:
        """The kernel could not keep some records: what is held back is of those."""
        for _ in range(4):
            self.threads_lost += 1
            self.tick([])

    @property
    def now_ns(self) -> int:
        return self.at[-1].at_ns

    def counted_ns(self, first: int = 0, last: int = -1) -> int:
        """Of all that had the id, by their ticks."""
        window = between(self.at[first], self.at[last])
        return sum(totals.offcpu_ns for _, totals in window.each_thread())


def sleep(left_ns: int, back_ns: int, kernel: int = 3) -> Wait:
    return Wait(left_ns, back_ns, back_ns, preempted=False, kernel=kernel, user=kernel + 10)


def did(born_ns: int, waits: list[Wait], from_ns: int, to_ns: int) -> tuple[ThreadKey, ThreadRecord]:
    record = record_of(waits, from_ns, to_ns)
    assert record
    return KEY, record._replace(born_ns=born_ns)


def ended(born_ns: int, waits: list[Wait], from_ns: int, to_ns: int) -> Ended:
    sites = Ended.of(site_records(KEY, waits, from_ns, to_ns))
    return sites._replace(born_ns=[born_ns] * len(sites.keys))


@pytest.mark.parametrize(
    ("tick_ns", "silent_ticks"),
    [(TICK_NS, 0), (10 * NS_PER_S, 0), (NS_PER_S, 11)],
    ids=["a tick later", "ticks of 10 s", "11 s later"],
)
def test_one_that_is_heard_of_late_leaves_who_has_its_id_now_alone(tick_ns: int, silent_ticks: int) -> None:
    ticks = Ticks()
    first = sleep(tick_ns // 10, 12 * tick_ns // 10)
    now = sleep(15 * tick_ns // 10, (6 + silent_ticks) * tick_ns - tick_ns // 2, kernel=4)
    ticks.tick([did(A, [first], 0, tick_ns)], ns=tick_ns)
    ticks.tick([did(B, [now], tick_ns, 2 * tick_ns)], ended(A, [first], tick_ns, 2 * tick_ns), ns=tick_ns)
    for _ in range(silent_ticks):
        ticks.tick([], ns=tick_ns)
    ticks.tick([did(A, [first], tick_ns, 2 * tick_ns)], gone={KEY: ticks.now_ns}, ns=tick_ns)
    assert ticks.ledger.waiting[KEY].left_ns == now.left_ns
    for _ in range(2):
        ticks.tick([], ns=tick_ns)
        assert ticks.counted_ns(-2) == tick_ns
    assert not ticks.ledger.book.life(KEY).to_ns, "it goes on"
    span = ticks.now_ns, ticks.now_ns + tick_ns
    ticks.tick([did(B, [now], *span)], ended(B, [now], *span), ns=tick_ns)
    assert ticks.counted_ns() == first.off_ns + now.off_ns


def test_of_three_that_had_an_id_the_first_may_be_heard_of_last() -> None:
    ticks = Ticks()
    first, second, third = sleep(1_500, 12_000), sleep(13_000, 22_000, 4), sleep(25_000, 90_000, 5)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick([did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000))
    both = [did(B, [second], 20_000, 30_000), did(C, [third], 20_000, 30_000)]
    ticks.tick(both, ended(B, [second], 20_000, 30_000))
    assert ticks.ledger.waiting[KEY].left_ns == 25_000
    ticks.tick([did(A, [first], 10_000, 20_000)], gone={KEY: 39_000})
    assert ticks.ledger.waiting[KEY].left_ns == 25_000
    ticks.tick([])
    assert ticks.counted_ns(-2) == TICK_NS
    assert ticks.counted_ns() == first.off_ns + second.off_ns + 50_000 - 25_000
    assert not ticks.ledger.book.life(KEY).to_ns


def test_who_ends_in_the_tick_in_which_the_one_before_is_heard_of_has_ended() -> None:
    ticks = Ticks()
    first, second = sleep(1_500, 12_000), sleep(15_000, 26_000, 4)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick([did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000))
    last = [did(A, [first], 10_000, 20_000), did(B, [second], 20_000, 30_000)]
    ticks.tick(last, ended(B, [second], 20_000, 30_000), gone={KEY: 28_000})
    assert ticks.ledger.book.life(KEY).to_ns == 28_000
    assert ticks.ledger.waiting == {}
    ticks.tick([])
    assert KEY not in ticks.ledger.threads, "given back"
    assert ticks.counted_ns() == first.off_ns + second.off_ns


@pytest.mark.parametrize("silent_s", [0, 30])
def test_who_was_taken_for_lost_and_lost_its_id_is_counted_once_when_it_is_heard_of(silent_s: int) -> None:
    ticks = Ticks()
    first = sleep(5_000, 14_000)
    ticks.tick([])
    ticks.tick([], ended(A, [first], 10_000, 20_000))
    ticks.give_up()
    assert ticks.counted_ns() == first.off_ns
    second = sleep(ticks.now_ns + 5_000, ticks.now_ns + 60 * NS_PER_S, 4)
    ticks.ledger.begin(KEY, ticks.now_ns + 4_000)
    ticks.tick([did(B, [second], ticks.now_ns, ticks.now_ns + TICK_NS)])
    for _ in range(silent_s):
        ticks.tick([], ns=NS_PER_S)
    ticks.tick([did(A, [first], 10_000, 20_000)], gone={KEY: ticks.now_ns})
    assert ticks.ledger.waiting[KEY].left_ns == second.left_ns
    assert not ticks.ledger.book.life(KEY).to_ns
    ticks.tick([], ns=NS_PER_S)
    assert ticks.counted_ns(-2) == NS_PER_S
    assert ticks.counted_ns() == first.off_ns + ticks.now_ns - second.left_ns
    assert sum(totals.waits for _, totals in between(ticks.at[0], ticks.at[-1]).each_thread()) == 1


def test_who_was_taken_for_lost_and_is_heard_of_half_a_minute_later_is_counted_once() -> None:
    ticks = Ticks()
    wait = sleep(5_000, 14_000)
    ticks.tick([])
    ticks.tick([], ended(A, [wait], 10_000, 20_000))
    for _ in range(40):
        ticks.tick([], ns=NS_PER_S)
    assert ticks.counted_ns() == wait.off_ns, "taken for lost"
    ticks.tick([did(A, [wait], 10_000, 20_000)], gone={KEY: ticks.now_ns})
    assert ticks.counted_ns() == wait.off_ns


@pytest.mark.parametrize("in_one_tick", [True, False])
@pytest.mark.parametrize("anew", [True, False])
def test_two_halves_of_one_that_was_taken_for_lost_have_no_less_than_nothing(in_one_tick: bool, anew: bool) -> None:
    ticks = Ticks()
    waits = [Wait(5_000, 14_000, 13_000, False, 3, 13), Wait(18_000, 24_000, 19_000, False, 3, 13)]
    ticks.tick([])
    spans = (10_000, 20_000), (20_000, 30_000)
    for span in spans:
        ticks.tick([], ended(A, waits, *span))
    ticks.give_up()
    assert ticks.counted_ns() == 15_000
    halves = [(KEY, did(A, waits, *span)[1]._replace(left_ns=0)) for span in spans]
    for some in [halves] if in_one_tick else [halves[:1], halves[1:]]:
        ticks.tick(some, gone={KEY: 30_000}, anew=anew)
    assert ticks.counted_ns() == 15_000
    whole = between(ticks.at[0], ticks.at[-1])
    assert sum(totals.waits for _, totals in whole.each_thread()) == 2
    for before, after in pairwise(ticks.at):
        for _, totals in between(before, after).each_thread():
            assert min(*totals[:9], *log2.to_lanes([totals.histogram])[0]) >= 0


def test_what_was_given_up_is_not_taken_for_the_first_wait_that_is_left() -> None:
    """It had one too short for a site behind it, which is all that is left."""
    ticks = Ticks()
    waits = [sleep(5_000, 14_000), sleep(15_000, 15_000 + MIN_NS - 1)]
    ticks.tick([])
    ticks.tick([], ended(A, waits, 10_000, 20_000))
    ticks.give_up()
    assert ticks.counted_ns() == 9_000
    ticks.tick([did(A, waits, 10_000, 20_000)], gone={KEY: ticks.now_ns}, anew=True)
    assert ticks.counted_ns(-2) == MIN_NS - 1
    assert ticks.counted_ns() == 9_000 + MIN_NS - 1


def test_what_is_given_up_in_two_ticks_is_counted_once_when_its_thread_is_heard_of() -> None:
    ticks = Ticks()
    waits = [sleep(5_000, 14_000), sleep(18_000, 24_000, 4)]
    ticks.tick([])
    for from_ns in (10_000, 20_000):
        ticks.tick([], ended(A, waits, from_ns, from_ns + 10_000))
        ticks.give_up()
    assert ticks.counted_ns() == 15_000
    ticks.tick([did(A, waits, 10_000, 30_000)], gone={KEY: 30_000})
    assert ticks.counted_ns() == 15_000


def test_what_was_shown_of_one_is_taken_off_once_and_of_that_one_alone() -> None:
    ticks = Ticks()
    first, more = sleep(1_000, 12_000), sleep(13_000, 28_000, 4)
    second, third = sleep(16_000, 32_000, 5), sleep(35_000, 900_000, 6)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick([did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000))
    ticks.tick([], ended(A, [more], 20_000, 30_000))
    ticks.tick([did(C, [third], 30_000, 40_000)], ended(B, [second], 30_000, 40_000))
    ticks.give_up()
    goes_on_ns = ticks.now_ns - third.left_ns
    assert ticks.counted_ns() == first.off_ns + more.off_ns + second.off_ns + goes_on_ns


def test_what_one_waited_for_is_not_shown_of_the_next_that_is_in_progress() -> None:
    """Its sites are given up while another waits under its id."""
    ticks = Ticks()
    first = sleep(5_000, 14_000)
    second = sleep(21_000, 900_000, 4)
    ticks.tick([])
    ticks.tick([], ended(A, [first], 10_000, 20_000))
    ticks.tick([did(B, [second], 20_000, 30_000)])
    ticks.give_up()
    assert ticks.ledger.waiting[KEY].left_ns == second.left_ns
    assert not ticks.ledger.book.life(KEY).to_ns, "it goes on"
    assert ticks.counted_ns() == first.off_ns + ticks.now_ns - second.left_ns


@pytest.mark.parametrize("is_lost", [False, True])
def test_who_has_an_id_and_who_had_it_before_are_not_mixed_up(is_lost: bool) -> None:
    """A thread called exec, and has its main thread's id, of whom nothing is heard for a while."""
    key = ThreadKey(7, 7)
    mains = Wait(left_ns=1_500, back_ns=14_500, ready_ns=14_000, preempted=False, kernel=3, user=13)
    others = Wait(left_ns=16_000, back_ns=17_200, ready_ns=17_000, preempted=False, kernel=3, user=13)
    going_on = Wait(left_ns=18_000, back_ns=90_000, ready_ns=90_000, preempted=False, kernel=4, user=14)
    begun, ended, record = (record_of(waits, *span) for waits, span in (
        ([mains], (0, 10_000)), ([mains], (10_000, 20_000)), ([others, going_on], (10_000, 20_000)),
    ))  # fmt: skip
    assert begun and ended and record
    sites = Ended.of([*site_records(key, [mains], 10_000, 20_000), *site_records(key, [others], 10_000, 20_000)])
    ledger = Ledger(0)
    at = [snapshot(ledger)]

    def tick(threads: list[tuple[ThreadKey, ThreadRecord]], sites: Ended = NOTHING, **told: Any) -> None:
        threads_lost = int(is_lost and len(at) > 2)
        ledger.tick(at[-1].at_ns + 10_000, MIN_NS, threads, sites, [], threads_lost=threads_lost, **told)
        at.append(snapshot(ledger))
        watch.check_sums(between(at[-2], at[-1]))

    tick([(key, begun)])
    assert ledger.waiting[key].left_ns == 1_500
    tick([(key, record._replace(born_ns=5))], sites._replace(born_ns=[0, 5]))
    assert ledger.waiting[key].left_ns == 18_000
    assert between(at[1], at[2]).threads[key].offcpu_ns == 1_200 + 2_000
    tick([] if is_lost else [(key, ended)], gone={} if is_lost else {key: 15_000})
    assert ledger.waiting[key].left_ns == 18_000
    tick([])
    tick([])
    whole = between(at[0], at[-1])
    assert whole.threads[key].offcpu_ns == 13_000 + 1_200 + 50_000 - 18_000
    assert whole.threads[key].waits == 2


def test_who_was_met_by_a_walk_alone_is_not_mixed_up_with_who_has_its_id_next() -> None:
    """A process has been waited for, so that its id is free, and waits for a CPU to leave for good."""
    key = ThreadKey(7, 7)
    first = Wait(left_ns=1_500, back_ns=14_500, ready_ns=14_000, preempted=False, kernel=3, user=13)
    others = Wait(left_ns=16_000, back_ns=17_200, ready_ns=17_000, preempted=False, kernel=3, user=13)
    going_on = Wait(left_ns=18_000, back_ns=90_000, ready_ns=90_000, preempted=False, kernel=4, user=14)
    ended, record = (record_of(waits, 10_000, 20_000) for waits in ([first], [others, going_on]))
    assert ended and record
    both = Ended.of([*site_records(key, [first], 10_000, 20_000), *site_records(key, [others], 10_000, 20_000)])
    ledger = Ledger(1_000)
    at = [snapshot(ledger)]

    def tick(
        threads: list[tuple[ThreadKey, ThreadRecord]], sites: Ended = NOTHING, *walked: Walked, **told: Any
    ) -> None:
        ledger.tick(len(at) * 10_000, MIN_NS, threads, sites, walked, **told)
        at.append(snapshot(ledger))
        watch.check_sums(between(at[-2], at[-1]))

    tick([], NOTHING, Walked(key, 1_500, False, 0, 3, born_ns=4), primed_ns=9_000, ran=[Ran(key, 100, 1_200)])
    assert ledger.waiting[key].left_ns == 1_500
    tick(
        [(key, record._replace(born_ns=5))],
        both._replace(born_ns=[4, 5]),
        ran=[Ran(key, 100, 15_000)],
    )
    ledger.begin(key, 15_000)
    assert ledger.waiting[key].left_ns == 18_000
    tick([(key, ended._replace(born_ns=4))], gone={key: 25_000}, ran=[Ran(key, 150, 1_200, ended=True)])
    assert ledger.waiting[key].left_ns == 18_000
    assert (ledger.book.life(key).from_ns, ledger.book.life(key).to_ns) == (15_000, 0)
    tick([], ran=[Ran(key, 180, 15_000)])
    whole = between(at[0], at[-1]).threads[key]
    assert (whole.waits, whole.offcpu_ns) == (2, 14_500 - 10_000 + 1_200 + 40_000 - 18_000)
    assert whole.running_ns == 100 + 180  # what it ran at last, when another had its id, is not told


@pytest.mark.parametrize("was_shown", [False, True])
@pytest.mark.parametrize("in_halves", [False, True])
def test_who_was_taken_for_lost_and_comes_all_the_same_is_counted_once(was_shown: bool, in_halves: bool) -> None:
    key = ThreadKey(7, 100)
    waits = [
        Wait(left_ns=5_000, back_ns=14_000, ready_ns=13_000, preempted=False, kernel=3, user=13),
        Wait(
            left_ns=15_000, back_ns=15_000 + MIN_NS - 1, ready_ns=15_000 + MIN_NS - 1, preempted=True, kernel=0, user=0
        ),
        Wait(left_ns=18_000, back_ns=24_000, ready_ns=18_000, preempted=True, kernel=3, user=13),
    ]
    begun = record_of(waits[:1], 0, 10_000)
    spans = [(10_000, 20_000), (20_000, 30_000)] if in_halves else [(10_000, 30_000)]
    records = [record._replace(left_ns=0) for span in spans if (record := record_of(waits, *span))]
    assert begun and len(records) == len(spans)
    ledger = Ledger(0)
    at = [snapshot(ledger)]

    def tick(threads: list[tuple[ThreadKey, ThreadRecord]], sites: Ended = NOTHING, **told: Any) -> None:
        ledger.tick(len(at) * 10_000, MIN_NS, threads, sites, [], **told)
        at.append(snapshot(ledger))
        watch.check_sums(between(at[-2], at[-1]))

    tick([(key, begun)] if was_shown else [])
    tick([], Ended.of(site_records(key, waits, 10_000, 20_000)))
    tick([], Ended.of(site_records(key, waits, 20_000, 30_000)))
    while key not in ledger.threads or not ledger.threads[key].waits:
        tick([], threads_lost=1)
    tick([(key, record) for record in records], gone={key: 30_000}, threads_lost=1)
    whole = between(at[0], at[-1])
    assert whole.threads[key].waits == 3
    assert sum(one.waits for _, one in whole.each_site()) == 2
    sums = whole.threads[key]
    if not was_shown:
        assert sums.offcpu_ns == sum(wait.off_ns for wait in waits)
        assert sums.short_ns == MIN_NS - 1


def test_who_ends_and_is_given_back_before_the_one_of_its_id_is_heard_of_leaves_what_was_shown_of_that() -> None:
    for silent_ticks in (0, 1):
        ticks = Ticks()
        first, second = sleep(1_500, 12_000), sleep(15_000, 26_000, kernel=4)
        ticks.tick([did(A, [first], 0, 10_000)])
        ticks.tick([did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000))
        ticks.tick([did(B, [second], 20_000, 30_000)], ended(B, [second], 20_000, 30_000), gone={KEY: 28_000})
        for _ in range(silent_ticks):
            ticks.tick([])
        assert (KEY in ticks.ledger.threads) == (silent_ticks == 0)
        ticks.tick([did(A, [first], 10_000, 20_000)], gone={KEY: ticks.now_ns})
        for _ in range(3):
            ticks.tick([])
        assert ticks.counted_ns() == first.off_ns + second.off_ns
        assert KEY not in ticks.ledger.threads


def test_who_waits_for_a_cpu_to_end_is_in_no_walk_and_is_counted_once_when_all_are_walked() -> None:
    ticks = Ticks()
    first = sleep(1_500, 12_000)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick([], ended(A, [first], 10_000, 20_000), primed_ns=19_000)
    ticks.tick([did(A, [first], 10_000, 20_000)], gone={KEY: 28_000})
    assert ticks.counted_ns() == first.off_ns


def test_who_has_the_id_goes_on_waiting_where_the_end_of_the_one_before_comes_with_a_walk_of_all() -> None:
    ticks = Ticks()
    first, second = sleep(1_500, 12_000), sleep(15_000, 55_000, kernel=4)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.tick(
        [did(A, [first], 10_000, 20_000), did(B, [second], 10_000, 20_000)],
        ended(A, [first], 10_000, 20_000),
        Walked(KEY, 15_000, False, 0, 4, born_ns=B),
        primed_ns=19_000,
    )
    assert ticks.ledger.waiting[KEY].left_ns == second.left_ns
    for _ in range(3):
        ticks.tick([])
    ticks.tick([did(B, [second], 50_000, 60_000)], ended(B, [second], 50_000, 60_000))
    assert ticks.counted_ns() == first.off_ns + second.off_ns


def test_where_the_next_of_an_id_is_lost_the_one_before_waits_no_longer() -> None:
    ticks = Ticks()
    first, second = sleep(1_500, 12_000), sleep(13_000, 17_000, kernel=4)
    ticks.tick([did(A, [first], 0, 10_000)])
    ticks.threads_lost += 1
    ticks.tick([], ended(B, [second], 10_000, 20_000))
    ticks.give_up()
    assert KEY not in ticks.ledger.waiting
    assert ticks.ledger.book.life(KEY).to_ns


def test_where_others_are_asked_for_only_what_passed_since_counts_of_the_one_before_too() -> None:
    ticks = Ticks()
    first, second = sleep(1_500, 42_000), sleep(15_000, 900_000, kernel=4)
    ticks.tick([did(B, [second], 10_000, 20_000)])
    for _ in range(3):
        ticks.tick([])
    ticks.tick([did(A, [first], 40_000, 50_000)], ended(A, [first], 40_000, 50_000), gone={KEY: 43_000}, anew=True)
    assert ticks.counted_ns(-2) == 2_000 + TICK_NS


@pytest.mark.parametrize("lives", [False, True])
def test_what_the_one_before_ran_is_not_of_who_has_its_id_which_it_neither_ends_nor_revives(lives: bool) -> None:
    """By exec: then both began at the same time."""
    ticks = Ticks()
    first, second = sleep(1_500, 12_000), sleep(15_000, 900_000 if lives else 26_000, kernel=4)
    ticks.tick([did(A, [first], 0, 10_000)], ran=[Ran(KEY, 1_000, 1)])
    ticks.tick([did(B, [second], 10_000, 20_000)], ended(A, [first], 10_000, 20_000), ran=[Ran(KEY, 1_300, 1)])
    if lives:
        ticks.tick([], ran=[Ran(KEY, 1_400, 1)])
    else:
        by_now = ended(B, [second], 20_000, 30_000)
        ran = Ran(KEY, 1_400, 1, ended=True, born_ns=B)
        ticks.tick([did(B, [second], 20_000, 30_000)], by_now, gone={KEY: 28_000}, ran=[ran])
    ran_ns = ticks.ledger.threads[KEY].running_ns
    late = Ran(KEY, 9_000, 1, ended=True, born_ns=A)
    ticks.tick([did(A, [first], 10_000, 20_000)], gone={KEY: 39_000}, ran=[late])
    assert ticks.ledger.threads[KEY].running_ns == ran_ns
    assert bool(ticks.ledger.book.life(KEY).to_ns) != lives
    for _ in range(2):
        ticks.tick([], ran=[Ran(KEY, 1_500, 1)] if lives else [])
    assert (KEY in ticks.ledger.threads) == lives


def test_sites_that_are_left_out_take_nobody_else_s_time_with_them() -> None:
    sites = Ended.of(site_records(KEY, [sleep(1_000, 3_000), sleep(4_000, 9_000, kernel=4)], 0, 10_000))
    both = sites._replace(born_ns=[A, B])
    assert (both.without([0]).keys, both.without([0]).born_ns) == (sites.keys[1:], [B])


def test_what_is_remembered_of_threads_that_were_lost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "_MOST_LOST", 2)
    ticks = Ticks()
    for born_ns in range(1, 6):
        ticks.tick([], ended(born_ns, [sleep(5_000, 9_000)], 0, 10_000))
    ticks.give_up()
    assert len(ticks.ledger._late._given_up) == 2  # pyright: ignore[reportPrivateUsage]
    whole_ns = ticks.counted_ns()
    for born_ns in (4, 5):
        ticks.tick([did(born_ns, [sleep(5_000, 9_000)], 0, 10_000)])
        assert ticks.counted_ns() == whole_ns


def test_what_is_remembered_of_threads_that_had_an_id_before_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "_MOST_LOST", 2)
    ticks = Ticks()
    waits = {born_ns: sleep(ticks.now_ns + born_ns * TICK_NS - 4_000, 900_000) for born_ns in range(1, 6)}
    for born_ns, wait in waits.items():
        ticks.tick([did(born_ns, [wait], ticks.now_ns, ticks.now_ns + TICK_NS)])
    assert len(ticks.ledger._late._shown) == 2  # pyright: ignore[reportPrivateUsage]
