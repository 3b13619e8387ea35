"""Running, runnable, blocked and residue add up to the span of a thread that existed throughout; sums over threads add
up."""

from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate.account import NO_ACCOUNT, Account, Residue, accounts, blocked, explained, unexplained_pct
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey, ThreadLifetime
from offtop.model.values.snapshot import EXITED, Machine, ThreadTotals
from offtop.model.values.table import SITES, SiteKeys, integers
from offtop.model.windows.breakdown import Leaf, Part
from offtop.model.windows.window import Window, merge
from offtop.units import NS_PER_S as S

WORKER, HELPER, OTHER = ThreadKey(7, 71), ThreadKey(7, 72), ThreadKey(8, 80)
ASLEEP = ThreadKey(9, 90)
BEGAN_NS = 100 * S
"""CLOCK_MONOTONIC where the first window begins."""


def window(
    threads: Mapping[ThreadKey, ThreadTotals],
    span_ns: int = 10 * S,
    still: Sequence[ThreadKey] = (),
    catalog: Catalog | None = None,
    at_ns: int = 0,
) -> Window:
    sites = SiteKeys(integers([SiteKey(*key, 3, 0) for key in still], SITES.width))
    return Window(0, at_ns or BEGAN_NS + span_ns, span_ns, threads, still=sites, catalog=catalog or Catalog())


def ran(running: float = 0, ready: float = 0, blocked: float = 0, waits: int = 0, put_aside: int = 0) -> ThreadTotals:
    """In seconds."""
    running_ns, ready_ns, blocked_ns = (round(part * S) for part in (running, ready, blocked))
    return ThreadTotals(waits, ready_ns + blocked_ns, ready_ns, involuntary=put_aside, running_ns=running_ns)


def test_residue_is_what_running_runnable_and_blocked_time_leave_of_the_span() -> None:
    every = accounts([window({WORKER: ran(4, 1, 3, waits=5, put_aside=2)})])
    one = every.by_thread()[WORKER]
    assert one == Account(1, 1, 4 * S, 1 * S, 3 * S, 2 * S, voluntary=3, involuntary=2, worst_ns=3 * S)
    assert one.sum_ns == 10 * S
    assert every.of(7) == every.of(7, 71) == every.of(None) == one


def test_thread_that_waited_all_the_time_is_blocked_for_the_span() -> None:
    every = accounts([window({WORKER: ran(4, 1, 5)}, still=[ASLEEP])])
    assert every.by_thread()[ASLEEP] == Account(1, 1, blocked_ns=10 * S, worst_ns=10 * S)
    assert (every.of(None).threads, every.of(None).blocked_ns) == (2, 15 * S)
    without = accounts([window({WORKER: ran(4, 1, 5)}, still=[ASLEEP])], whole=False)
    assert {*without.by_thread()} == {WORKER}


def test_thread_that_waited_in_one_of_two_windows_counts_for_that_one() -> None:
    first = window({WORKER: ran(10)}, still=[HELPER, ASLEEP])
    second = window({HELPER: ran(2, 1, 7, waits=1)}, still=[WORKER, ASLEEP], at_ns=BEGAN_NS + 20 * S)
    for whole in (True, False):
        every = accounts([first, second], whole).by_thread()
        assert every[WORKER] == Account(1, 1, running_ns=10 * S, blocked_ns=10 * S, worst_ns=10 * S)
        assert every[HELPER] == Account(1, 1, 2 * S, 1 * S, 17 * S, voluntary=1, worst_ns=17 * S)
        assert every[ASLEEP] == Account(1, 1, blocked_ns=20 * S, worst_ns=20 * S)


def test_accounts_of_processes_and_of_everything_are_sums_of_their_threads() -> None:
    every = accounts([window({WORKER: ran(4, 1, 3, 5, 2), HELPER: ran(1, 0, 9, 4), OTHER: ran(8, 2)})])
    assert every.by_process() == {
        7: Account(2, 2, 5 * S, 1 * S, 12 * S, 2 * S, voluntary=7, involuntary=2, worst_ns=9 * S),
        8: Account(1, 1, 8 * S, 2 * S),
    }
    assert every.of(7) == every.by_process()[7]
    assert every.of(7, 72) == every.by_thread()[HELPER]
    assert every.of(None) == Account(3, 3, 13 * S, 3 * S, 12 * S, 2 * S, voluntary=7, involuntary=2, worst_ns=9 * S)
    assert every.of(5) == every.of(7, 80) == NO_ACCOUNT


@pytest.mark.parametrize(
    ("life", "through"),
    [
        (ThreadLifetime(), True),
        (ThreadLifetime(from_ns=BEGAN_NS - S), True),
        (ThreadLifetime(from_ns=BEGAN_NS), True),
        (ThreadLifetime(from_ns=BEGAN_NS + 1), False),
        (ThreadLifetime(to_ns=BEGAN_NS + 9 * S), False),
        (ThreadLifetime(to_ns=BEGAN_NS + 10 * S), False),
        (ThreadLifetime(to_ns=BEGAN_NS + 11 * S), True),  # later on
        (ThreadLifetime(BEGAN_NS + 3 * S, BEGAN_NS + 4 * S), False),
    ],
)
def test_thread_that_started_or_exited_in_the_span_has_no_residue(life: ThreadLifetime, through: bool) -> None:
    every = accounts([window({WORKER: ran(1, 0, 2), OTHER: ran(10)}, catalog=Catalog(lives={WORKER: life}))])
    one = every.by_thread()[WORKER]
    assert (one.through, one.residue_ns) == ((1, 7 * S) if through else (0, 0))
    assert (one.running_ns, one.blocked_ns) == (1 * S, 2 * S)
    assert (every.of(None).threads, every.of(None).through) == (2, 1 + through)
    assert every.of(None).residue_ns == 7 * S * through


def test_thread_that_started_in_the_first_of_two_windows_did_not_exist_throughout() -> None:
    catalog = Catalog(lives={WORKER: ThreadLifetime(BEGAN_NS + 5 * S)})
    first = window({WORKER: ran(5)}, catalog=catalog)
    second = window({WORKER: ran(9)}, catalog=catalog, at_ns=BEGAN_NS + 20 * S)
    assert accounts([first, second]).by_thread()[WORKER] == Account(1, 0, running_ns=14 * S)
    assert accounts([second]).by_thread()[WORKER] == Account(1, 1, running_ns=9 * S, residue_ns=1 * S)


def test_residue_is_slightly_negative_if_the_kernel_adds_up_late() -> None:
    one = accounts([window({WORKER: ran(9, 0, 1.004)})]).by_thread()[WORKER]
    assert (one.through, one.residue_ns) == (1, -4_000_000)


def test_evicted_threads_have_no_account() -> None:
    every = accounts([window({EXITED: ran(1, 1, 1), OTHER: ran(10)})])
    assert {*every.by_thread()} == {OTHER}
    assert every.of(None).running_ns == 10 * S


def test_no_windows_have_an_empty_account() -> None:
    every = accounts([window({})])
    assert (every.by_thread(), every.by_process(), every.of(None), every.of(7)) == ({}, {}, NO_ACCOUNT, NO_ACCOUNT)
    assert unexplained_pct(every, Machine(2)) == 0
    assert NO_ACCOUNT.sum_ns == 0


Parts = tuple[int, int, int]
"""Where 0 to 1000 is cut: the four parts of a thread's time."""
cuts = st.lists(st.integers(0, 1000), min_size=3, max_size=3).map(sorted).map(tuple)
machines = st.lists(st.lists(cuts, min_size=1, max_size=4), min_size=1, max_size=6)
"""For each thread, for each window; those that are missing wait."""


@given(machines, st.lists(st.integers(1, 50), min_size=4, max_size=4))
def test_parts_of_each_thread_add_up_to_its_span_and_sums_add_up(
    threads: list[list[Parts]], lengths: list[int]
) -> None:
    """Threads two by two in a process; each lives through all windows."""
    keys = [ThreadKey(10 + n // 2, 100 + n) for n in range(len(threads))]
    windows: list[Window] = []
    at_ns = BEGAN_NS
    for number in range(max(map(len, threads))):
        span_ns = lengths[number] * 1000
        at_ns += span_ns
        table: dict[ThreadKey, ThreadTotals] = {}
        still: list[ThreadKey] = []
        for key, of_thread in zip(keys, threads, strict=True):
            a, b, c = (cut * lengths[number] for cut in of_thread[number]) if number < len(of_thread) else (0, 0, 0)
            if c == 0:
                still.append(key)  # nothing but blocked
            else:
                table[key] = ThreadTotals(1, span_ns - c + (b - a), b - a, running_ns=a)  # and c - b is left
        windows.append(window(table, span_ns, still, at_ns=at_ns))
    every = accounts(windows)
    each = every.by_thread()
    assert {*each} == {*keys}
    for key, of_thread in zip(keys, threads, strict=True):
        measured = [(cuts, length) for cuts, length in zip(of_thread, lengths, strict=False)]
        assert each[key].sum_ns == every.span_ns
        assert each[key].running_ns == sum(cuts[0] * length for cuts, length in measured)
        assert each[key].ready_ns == sum((cuts[1] - cuts[0]) * length for cuts, length in measured)
        assert each[key].residue_ns == sum((cuts[2] - cuts[1]) * length for cuts, length in measured)
    assert every.of(None) == added(each.values())
    for pid, one in every.by_process().items():
        assert one == every.of(pid) == added(each[key] for key in keys if key.pid == pid)
    whole = accounts([merge(windows)])
    assert (whole.by_thread(), whole.span_ns) == (each, every.span_ns)


def added(those: Iterable[Account]) -> Account:
    every = list(those)
    sums = Account(*(sum(column) for column in zip(*every, strict=True)))
    return sums._replace(worst_ns=max(one.worst_ns for one in every))


def test_steal_and_interrupts_explain_their_share_of_a_residue() -> None:
    machine = Machine(2, steal_ns=2 * S, interrupt_ns=1 * S)
    assert explained(4 * S, 4 * S, machine) == Residue(2 * S, 1 * S, 1 * S)
    # half of the machine's residue has half of what was taken
    assert explained(2 * S, 4 * S, machine) == Residue(1 * S, S // 2, S // 2)
    assert explained(2 * S, 2 * S, machine) == Residue(2 * S, 0, 0)
    assert explained(1 * S, 1 * S, machine) == Residue(1 * S, 0, 0)
    assert explained(5 * S, 4 * S, machine) == Residue(2 * S, 1 * S, 2 * S)  # a part is never more than all
    assert explained(-4, 4 * S, machine) == Residue(unexplained_ns=-4)
    assert explained(4, -4, machine) == Residue(unexplained_ns=4)
    assert explained(0, 0, machine) == Residue()
    assert explained(S, S, Machine()) == Residue(unexplained_ns=S)


@given(*[st.integers(-10 * S, 1000 * S)] * 2, *[st.integers(0, 1000 * S)] * 2)
def test_explanations_add_up_to_the_residue(residue_ns: int, whole_ns: int, steal_ns: int, irq_ns: int) -> None:
    left = explained(residue_ns, whole_ns, Machine(2, steal_ns, irq_ns))
    assert sum(left) == residue_ns
    assert 0 <= left.steal_ns <= steal_ns
    assert 0 <= left.interrupt_ns <= irq_ns
    assert left.unexplained_ns >= 0 or residue_ns < 0


def test_unexplained_time_is_a_percentage_of_all_cpus() -> None:
    every = accounts([window({WORKER: ran(4, 1, 3), OTHER: ran(9)})])  # 2 s and 1 s are left, of 10 s on 2 CPUs
    assert unexplained_pct(every, Machine(2)) == 15
    assert unexplained_pct(every, Machine(2, steal_ns=1 * S, interrupt_ns=1 * S)) == 5
    assert unexplained_pct(every, Machine(2, steal_ns=9 * S)) == 0
    assert unexplained_pct(every, Machine()) == 0
    late = accounts([window({WORKER: ran(10, 0, 0.01)})])
    assert unexplained_pct(late, Machine(2)) == 0


def test_time_of_each_leaf_is_sorted_longest_first() -> None:
    parts = {Leaf("lock"): Part(1, 5), Leaf("poll", True): Part(1, 7), Leaf("pipe"): Part(1, 5), Leaf("tty"): Part()}
    assert blocked(parts) == [(Leaf("poll", True), 7), (Leaf("lock"), 5), (Leaf("pipe"), 5)]
    assert blocked({}) == []
