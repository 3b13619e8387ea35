"""Test how long threads ran, and their lifetimes."""

from itertools import pairwise

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import RuntimeSample
from offtop.model.values.catalog import ThreadKey, ThreadLifetime
from offtop.model.values.snapshot import EXITED, ThreadTotals
from offtop.model.windows.window import between
from offtop.units import NS_PER_S
from tests.kernel.accounting.simulated_kernel import MIN_NS, NOTHING, TICK_NS, snapshot

ONE = ThreadKey(7, 100)
BEGAN_NS, BORN_NS = 1_000, 1_500
"""When the ledger began, and when a later thread began."""


def after(*ticks: tuple[list[RuntimeSample], dict[ThreadKey, int]]) -> tuple[Ledger, list[int]]:
    """Return a ledger after ticks of TICK_NS, and how long ONE ran in each.

    Each tick has the runtime samples and the exits of its threads.
    """
    ledger = Ledger(BEGAN_NS)
    taken = [snapshot(ledger)]
    for number, (ran, exited) in enumerate(ticks, 1):
        for one in ran:
            ledger.begin(one.key, one.start_ns)
        in_order = sorted(ran, key=lambda one: not one.ended)  # the order in which BPF reports them
        ledger.tick(BEGAN_NS + number * TICK_NS, MIN_NS, [], NOTHING, [], exited=exited, ran=in_order)
        taken.append(snapshot(ledger))
    each = [between(a, b).threads.get(ONE, ThreadTotals()).running_ns for a, b in pairwise(taken)]
    return ledger, each


def test_a_thread_from_before_counts_from_its_first_sample() -> None:
    assert after(([RuntimeSample(ONE, 5_000, 10)], {}), ([RuntimeSample(ONE, 5_600, 10)], {}), ([], {}))[1] == [
        0,
        600,
        0,
    ]


def test_a_new_thread_counts_all_that_it_ran() -> None:
    ledger, each = after(([RuntimeSample(ONE, 5_000, BORN_NS)], {}), ([RuntimeSample(ONE, 5_600, BORN_NS)], {}))
    assert each == [5_000, 600]
    assert ledger.catalog.lives == {ONE: ThreadLifetime(BORN_NS)}


def test_a_thread_on_a_cpu_runs_until_the_tick_ends_minus_time_off() -> None:
    at_ns = BEGAN_NS + TICK_NS - 400
    assert after(([RuntimeSample(ONE, 5_000, BORN_NS, at_ns)], {}), ([RuntimeSample(ONE, 5_900, BORN_NS)], {}))[1] == [
        5_400,
        500,
    ]
    # a little too much was counted: the next tick counts that much less
    first, less, more = (
        RuntimeSample(ONE, 5_000, BORN_NS, at_ns),
        RuntimeSample(ONE, 5_300, BORN_NS),
        RuntimeSample(ONE, 5_900, BORN_NS),
    )
    assert after(([first], {}), ([less], {}), ([more], {}))[1] == [5_400, 0, 500]


def test_more_than_a_tick_can_hold_is_another_thread() -> None:
    hour_ns = 3_600 * 10**9
    assert after(
        ([RuntimeSample(ONE, 10, 10)], {}),
        ([RuntimeSample(ONE, hour_ns, 10)], {}),
        ([RuntimeSample(ONE, hour_ns + 9, 10)], {}),
    )[1] == [*(0, 0, 9)]


def test_a_reused_tid_inherits_nothing() -> None:
    old, again_ns = RuntimeSample(ONE, 5_000, BORN_NS, ended=True), BEGAN_NS + TICK_NS + 700
    new = RuntimeSample(ONE, 30, again_ns)
    ledger, each = after(([old], {ONE: 9_000}), ([new], {}), ([], {}))
    assert (each, ledger.catalog.lives) == ([5_000, 30, 0], {ONE: ThreadLifetime(again_ns)})
    # in the same tick too, in whichever order they are seen
    for ran in ([old, new._replace(start_ns=9_500)], [new._replace(start_ns=9_500), old]):
        ledger, each = after((ran, {ONE: 9_000}), ([RuntimeSample(ONE, 50, 9_500)], {}), ([], {}), ([], {}))
        assert (each, ledger.catalog.lives) == ([5_030, 20, 0, 0], {ONE: ThreadLifetime(9_500)})
        assert set(ledger.threads) == {ONE}  # it is alive, so it has not been evicted
        assert after((ran, {ONE: 9_000}), ([], {}))[0].catalog.lives == {
            ONE: ThreadLifetime(9_500)
        }  # even if it does nothing


def test_an_exited_thread_has_an_end_time_and_is_evicted() -> None:
    ledger, each = after(
        ([RuntimeSample(ONE, 5_000, BORN_NS)], {}), ([RuntimeSample(ONE, 5_600, BORN_NS, ended=True)], {ONE: 12_000})
    )
    assert (each, ledger.catalog.lives) == ([5_000, 600], {ONE: ThreadLifetime(BORN_NS, 12_000)})
    ledger.tick(40_000, MIN_NS, [], NOTHING, [])
    assert set(ledger.threads) == {EXITED}
    assert ledger.threads[EXITED].running_ns == 5_600


def test_a_thread_sampled_before_its_exit_has_exited() -> None:
    met, ended = RuntimeSample(ONE, 5_000, BORN_NS), RuntimeSample(ONE, 5_600, BORN_NS, ended=True)
    ledger, each = after(([met, ended], {ONE: 9_000}), ([], {}))
    assert (each, ledger.catalog.lives) == ([5_600, 0], {ONE: ThreadLifetime(BORN_NS, 9_000)})
    assert set(ledger.threads) == {EXITED}


def test_exec_from_a_thread_keeps_its_own_run_time() -> None:
    """Another thread takes over ONE's TID with exec.

    It has run for 8,000 ns under its own TID.
    """
    main_ended = RuntimeSample(ONE, 5_000, BORN_NS, ended=True)
    for of_tick, in_second_tick in (([main_ended, RuntimeSample(ONE, 8_000, BORN_NS)], 500), ([main_ended], 0)):
        ledger, each = after(
            (of_tick, {ONE: 9_000}),
            ([RuntimeSample(ONE, 8_500, BORN_NS)], {}),
            ([RuntimeSample(ONE, 8_600, BORN_NS)], {}),
        )
        assert (each, ledger.catalog.lives) == ([5_000, in_second_tick, 100], {ONE: ThreadLifetime(BORN_NS)})
        assert set(ledger.threads) == {ONE}


def test_run_time_while_filtered_out_is_not_counted_later() -> None:
    """The same holds for a thread that began while it was filtered out."""
    ledger, other = Ledger(BEGAN_NS), RuntimeSample(ThreadKey(7, 101), 9_000, 10)
    late = RuntimeSample(ThreadKey(7, 102), NS_PER_S, 3 * NS_PER_S // 2)
    ticks: list[tuple[list[RuntimeSample], bool]] = [
        ([RuntimeSample(ONE, 5_000, 10), other], False),
        ([other], True),  # ONE no longer passes the filter
        ([RuntimeSample(ONE, 500_000, 10), late, other._replace(exec_ns=9_500)], True),
        ([RuntimeSample(ONE, 500_300, 10), late._replace(exec_ns=NS_PER_S + 40)], False),
    ]
    ran: list[dict[ThreadKey, int]] = []
    for number, (samples, primed) in enumerate(ticks, 1):
        before = snapshot(ledger)
        at_ns = number * NS_PER_S
        ledger.tick(at_ns, MIN_NS, [], NOTHING, [], ran=samples, primed_ns=at_ns - 1_000 if primed else 0)
        window = between(before, snapshot(ledger))
        ran.append({key: totals.running_ns for key, totals in window.each_thread()})
    assert ran == [{}, {}, {other.key: 500}, {ONE: 300, late.key: 40}]


def test_late_run_time_of_an_old_thread_leaves_the_new_one_alone() -> None:
    before, now = RuntimeSample(ONE, 5_000, 20), RuntimeSample(ONE, 30, 12_000)
    late = before._replace(exec_ns=6_000, ended=True)
    later = now._replace(exec_ns=50)
    ledger, each = after(([before], {}), ([now], {}), ([late], {}), ([later], {}))
    assert (each, ledger.catalog.lives) == ([0, 30, 0, 20], {ONE: ThreadLifetime(12_000)})
    ended = later._replace(ended=True)
    ledger, each = after(([before], {}), ([now], {}), ([ended], {ONE: 29_000}), ([late], {}))
    assert (each, ledger.catalog.lives) == ([0, 30, 20, 0], {ONE: ThreadLifetime(12_000, 29_000)})


def test_a_thread_that_began_during_the_scan_counts_a_tick_later() -> None:
    ledger, scan_ns = Ledger(0), NS_PER_S // 20
    began_during_scan = RuntimeSample(ONE, 500, NS_PER_S - scan_ns)
    other = RuntimeSample(ThreadKey(7, 101), 500, NS_PER_S // 2)
    ledger.tick(NS_PER_S, MIN_NS, [], NOTHING, [])
    ledger.tick(2 * NS_PER_S, MIN_NS, [], NOTHING, [], ran=[began_during_scan, other])
    assert ledger.threads[ONE].running_ns == 500
    assert other.key not in ledger.threads, "it did not pass the filter before"
