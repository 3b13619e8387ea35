"""How long threads ran, and who they are."""

from itertools import pairwise

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.run_times import Runs
from offtop.kernel.accounting.tick_records import Ran
from offtop.model.values.catalog import Life, ThreadKey
from offtop.model.values.snapshot import EXITED, ThreadTotals
from offtop.model.windows.window import between
from offtop.units import NS_PER_S
from tests.kernel.accounting.test_ledger import MIN_NS, NOTHING, TICK_NS, snapshot

ONE = ThreadKey(7, 100)
BEGAN_NS, BORN_NS = 1_000, 1_500
"""When the ledger began, and a thread that began later."""


def after(*ticks: tuple[list[Ran], dict[ThreadKey, int]]) -> tuple[Ledger, list[int]]:
    """A ledger after ticks of TICK_NS, in each of which threads ran and ended; how long ONE ran in each of them."""
    ledger = Ledger(BEGAN_NS)
    taken = [snapshot(ledger)]
    for number, (ran, gone) in enumerate(ticks, 1):
        for one in ran:
            ledger.begin(one.key, one.start_ns)
        in_order = sorted(ran, key=lambda one: not one.ended)  # as the kernel side tells
        ledger.tick(BEGAN_NS + number * TICK_NS, MIN_NS, [], NOTHING, [], gone=gone, ran=in_order)
        taken.append(snapshot(ledger))
    each = [between(a, b).threads.get(ONE, ThreadTotals()).running_ns for a, b in pairwise(taken)]
    return ledger, each


def test_a_thread_that_was_there_before_runs_from_the_first_time_that_it_is_told_of() -> None:
    assert after(([Ran(ONE, 5_000, 10)], {}), ([Ran(ONE, 5_600, 10)], {}), ([], {}))[1] == [0, 600, 0]


def test_a_thread_that_began_later_ran_all_that_it_has_run() -> None:
    ledger, each = after(([Ran(ONE, 5_000, BORN_NS)], {}), ([Ran(ONE, 5_600, BORN_NS)], {}))
    assert each == [5_000, 600]
    assert ledger.book.lives == {ONE: Life(BORN_NS)}


def test_a_thread_on_a_cpu_ran_on_until_the_end_of_the_tick_but_for_what_it_was_off() -> None:
    at_ns = BEGAN_NS + TICK_NS - 400
    assert after(([Ran(ONE, 5_000, BORN_NS, at_ns)], {}), ([Ran(ONE, 5_900, BORN_NS)], {}))[1] == [5_400, 500]
    # a little too much was told: that much less is told later
    first, less, more = Ran(ONE, 5_000, BORN_NS, at_ns), Ran(ONE, 5_300, BORN_NS), Ran(ONE, 5_900, BORN_NS)
    assert after(([first], {}), ([less], {}), ([more], {}))[1] == [5_400, 0, 500]


def test_what_no_thread_can_have_run_in_a_tick_is_another_thread_s() -> None:
    hour_ns = 3_600 * 10**9
    assert after(([Ran(ONE, 10, 10)], {}), ([Ran(ONE, hour_ns, 10)], {}), ([Ran(ONE, hour_ns + 9, 10)], {}))[1] == [
        *(0, 0, 9)
    ]


def test_an_id_that_is_used_again_is_of_another_thread_which_inherits_nothing() -> None:
    old, again_ns = Ran(ONE, 5_000, BORN_NS, ended=True), BEGAN_NS + TICK_NS + 700
    new = Ran(ONE, 30, again_ns)
    ledger, each = after(([old], {ONE: 9_000}), ([new], {}), ([], {}))
    assert (each, ledger.book.lives) == ([5_000, 30, 0], {ONE: Life(again_ns)})
    # in the same tick, too, in whichever order they are met
    for ran in ([old, new._replace(start_ns=9_500)], [new._replace(start_ns=9_500), old]):
        ledger, each = after((ran, {ONE: 9_000}), ([Ran(ONE, 50, 9_500)], {}), ([], {}), ([], {}))
        assert (each, ledger.book.lives) == ([5_030, 20, 0, 0], {ONE: Life(9_500)})
        assert set(ledger.threads) == {ONE}  # it lives, and so has not been given back
        assert after((ran, {ONE: 9_000}), ([], {}))[0].book.lives == {ONE: Life(9_500)}  # though it does nothing


def test_a_thread_that_ended_has_a_life_with_an_end_and_is_given_back() -> None:
    ledger, each = after(([Ran(ONE, 5_000, BORN_NS)], {}), ([Ran(ONE, 5_600, BORN_NS, ended=True)], {ONE: 12_000}))
    assert (each, ledger.book.lives) == ([5_000, 600], {ONE: Life(BORN_NS, 12_000)})
    ledger.tick(40_000, MIN_NS, [], NOTHING, [])
    assert set(ledger.threads) == {EXITED}
    assert ledger.threads[EXITED].running_ns == 5_600


def test_one_that_was_met_before_its_end_has_ended_all_the_same() -> None:
    met, ended = Ran(ONE, 5_000, BORN_NS), Ran(ONE, 5_600, BORN_NS, ended=True)
    ledger, each = after(([met, ended], {ONE: 9_000}), ([], {}))
    assert (each, ledger.book.lives) == ([5_600, 0], {ONE: Life(BORN_NS, 9_000)})
    assert set(ledger.threads) == {EXITED}


def test_who_calls_exec_and_takes_the_id_of_its_main_thread_lives_and_does_not_run_what_that_ran_nor_again() -> None:
    """Another thread of the process has run for 8,000 under its own id, and goes on under ONE's."""
    main_ended = Ran(ONE, 5_000, BORN_NS, ended=True)
    for of_tick, told in (([main_ended, Ran(ONE, 8_000, BORN_NS)], 500), ([main_ended], 0)):
        ledger, each = after(
            (of_tick, {ONE: 9_000}), ([Ran(ONE, 8_500, BORN_NS)], {}), ([Ran(ONE, 8_600, BORN_NS)], {})
        )
        assert (each, ledger.book.lives) == ([5_000, told, 100], {ONE: Life(BORN_NS)})
        assert set(ledger.threads) == {ONE}


def test_what_ran_while_nobody_asked_for_it_is_not_told_when_it_is_asked_for_again() -> None:
    """Nor of a thread that began meanwhile."""
    ledger, other = Ledger(BEGAN_NS), Ran(ThreadKey(7, 101), 9_000, 10)
    late = Ran(ThreadKey(7, 102), NS_PER_S, 3 * NS_PER_S // 2)
    ticks: list[tuple[list[Ran], bool]] = [
        ([Ran(ONE, 5_000, 10), other], False),
        ([other], True),  # ONE is not asked for any more
        ([Ran(ONE, 500_000, 10), late, other._replace(exec_ns=9_500)], True),
        ([Ran(ONE, 500_300, 10), late._replace(exec_ns=NS_PER_S + 40)], False),
    ]
    ran: list[dict[ThreadKey, int]] = []
    for number, (told, primed) in enumerate(ticks, 1):
        before = snapshot(ledger)
        at_ns = number * NS_PER_S
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [], ran=told, primed_ns=at_ns - 1_000 if primed else 0)
        window = between(before, snapshot(ledger))
        ran.append({key: totals.running_ns for key, totals in window.each_thread()})
    assert ran == [{}, {}, {other.key: 500}, {ONE: 300, late.key: 40}]


def test_what_one_ran_that_had_the_id_before_is_not_of_who_has_it_now_whom_it_does_not_revive() -> None:
    before, now = Ran(ONE, 5_000, 20), Ran(ONE, 30, 12_000)
    late = before._replace(exec_ns=6_000, ended=True)
    goes_on = now._replace(exec_ns=50)
    ledger, each = after(([before], {}), ([now], {}), ([late], {}), ([goes_on], {}))
    assert (each, ledger.book.lives) == ([0, 30, 0, 20], {ONE: Life(12_000)})
    ended = goes_on._replace(ended=True)
    ledger, each = after(([before], {}), ([now], {}), ([ended], {ONE: 29_000}), ([late], {}))
    assert (each, ledger.book.lives) == ([0, 30, 20, 0], {ONE: Life(12_000, 29_000)})


def test_who_began_while_others_were_walked_is_told_of_a_tick_later_with_all_that_it_ran() -> None:
    runs, walk_ns = Runs(0), NS_PER_S // 20
    assert runs.new_ns(Ran(ONE, 500, NS_PER_S - walk_ns), None, NS_PER_S, 2 * NS_PER_S) == 500
    other = Ran(ThreadKey(7, 101), 500, NS_PER_S // 2)
    assert runs.new_ns(other, None, NS_PER_S, 2 * NS_PER_S) == 0, "it was not asked for before"
