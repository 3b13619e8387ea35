"""Causes of waits that have no stack because of the CPU budget are estimated from those that have one all the same."""

from offtop.model.classify.cause_finder import CauseFinder, CauseShare
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.classify.left_out import LeftOut, estimated_ns, left_out_in, likely_idle
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.snapshot import Cost, Filters, Thinned, ThreadTotals
from offtop.model.values.stack import KERNEL, QUEUED, SHORT, Frame, Stack
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.breakdown import Idle, Part
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.window import Window
from offtop.units import NS_PER_S
from tests.model.aggregate.test_waker_rows import FixedNames

MS = 1_000_000
GIL, DISK, JOIN = (10, 20, NO_WAKE, 7), (11, 21, NO_WAKE, 7), (12, 22, NO_WAKE, 7)
TINY_NS = 20_000
LEFT_OUT = LeftOut(8 * MS, TINY_NS, 4000 * MS)


def part(waits: int, each_ns: int) -> Part:
    return Part(waits, waits * each_ns, each_ns if waits else 0, log2.of(*[each_ns] * waits))


def estimate(table: dict[tuple[int, ...], Part], below_ns: float = TINY_NS) -> dict[tuple[int, ...], int]:
    return estimated_ns(table, table, LEFT_OUT._replace(below_ns=below_ns))


def test_time_without_stacks_is_where_the_samples_are() -> None:
    table = {
        (SHORT, 0, NO_WAKE, 7): Part(1800, 800 * 5 * MS + 1000 * TINY_NS),  # 800 without a stack, 1,000 tiny ones
        GIL: part(30, 5 * MS),
        DISK: part(10, 5 * MS),
        JOIN: Part(0, 1000 * MS),  # in progress
        (QUEUED, 0, NO_WAKE, 7): part(500, MS),
        (SHORT, 0, NO_WAKE, 9): Part(500, 500 * TINY_NS),  # no wait of this process was sampled
    }
    assert estimate(table) == {GIL: 600 * 5 * MS, DISK: 200 * 5 * MS}


def test_waits_in_progress_at_a_stack_are_no_samples() -> None:
    short = {(SHORT, 0, NO_WAKE, 7): part(800, 5 * MS)}
    in_progress = DISK, part(10, 5 * MS).plus(Part(0, 60_000 * MS))
    assert estimate(dict([*short.items(), (GIL, part(30, 5 * MS)), in_progress])) == {GIL: 3000 * MS, DISK: 1000 * MS}


def test_idle_waits_without_a_stack_count_at_no_cause() -> None:
    table = {(SHORT, 0, NO_WAKE, 7): part(800, 5 * MS), GIL: part(10, 5 * MS)}
    assert estimated_ns(table, {**table, JOIN: part(30, 5 * MS)}, LEFT_OUT) == {GIL: 1000 * MS}


def test_idle_waits_without_a_stack_are_told_if_they_are_half_of_the_time() -> None:
    table = {(SHORT, 0, NO_WAKE, 7): part(800, 5 * MS), GIL: part(10, 5 * MS)}
    for samples, says in ((30, "about 3.00 threads wait without a stack, and are likely idle"), (8, "")):
        with_idle = {**table, JOIN: part(samples, 5 * MS)}
        assert likely_idle(table, with_idle, LEFT_OUT._replace(below_ns=0), 1000 * MS) == says


def test_no_more_time_is_estimated_than_was_left_out() -> None:
    table = {(SHORT, 0, NO_WAKE, 7): part(800, 5 * MS), GIL: part(10, 5 * MS)}
    assert estimated_ns(table, table, LEFT_OUT._replace(below_ns=0, waits_ns=3000 * MS)) == {GIL: 3000 * MS}


def test_few_samples_and_long_waits_say_nothing() -> None:
    short = {(SHORT, 0, NO_WAKE, 7): Part(1000, 5000 * MS)}
    assert estimate({**short, GIL: part(4, 5 * MS)}) == {}
    assert estimate({**short, GIL: part(40, 9 * MS)}) == {}
    assert estimate({GIL: part(40, 5 * MS)}) == {}


def test_of_a_site_with_longer_waits_only_the_shorter_ones_are_samples() -> None:
    short = {(SHORT, 0, NO_WAKE, 7): Part(800, 4000 * MS)}
    mixed = Part(30, 30 * 5 * MS + 50 * 9 * MS, 9 * MS, log2.of(*[5 * MS] * 30, *[9 * MS] * 50))
    found = estimate({**short, GIL: mixed, DISK: part(10, 6 * MS)}, 0.0)
    assert 0.74 < found[GIL] / (found[GIL] + found[DISK]) < 0.78
    assert found[GIL] + found[DISK] == 4000 * MS


def test_tiny_waits_are_no_waits_without_a_stack() -> None:
    tiny = {(SHORT, 0, NO_WAKE, 7): Part(1000, 1000 * TINY_NS)}
    assert estimate({**tiny, GIL: part(40, 5 * MS)}) == {}


def tick(thinned: Thinned, *short: tuple[int, int]) -> HistoryTick:
    """Return a tick with short waits: (number, ns) of each thread."""
    threads = {ThreadKey(7, tid): ThreadTotals(short_waits=many, short_ns=ns) for tid, (many, ns) in enumerate(short)}
    window = Window(*(1, NS_PER_S, NS_PER_S), threads=threads, cost=Cost(thinned=thinned), filters=Filters(min_ns=MS))
    return HistoryTick.of(window, Idle())


def test_average_of_short_waits_leaves_out_those_that_only_lack_a_stack() -> None:
    thinned = Thinned(stacks_from_ns=8 * MS, cpus=1, waits=800, waits_ns=4000 * MS)
    ticks = [tick(thinned, (1000, 4000 * MS + 400 * TINY_NS), (800, 600 * TINY_NS)), tick(Thinned(), (9, MS))]
    assert left_out_in(ticks) == LeftOut(8 * MS, TINY_NS, 4000 * MS)
    assert left_out_in(ticks[1:]) is None


def test_an_estimate_says_so() -> None:
    assert CauseShare(None, 5, 0.74, 7, is_estimated=True).in_short(Catalog(), False) == "about 74% match no cause rule"


def test_causes_are_estimated_from_idle_samples_too() -> None:
    table = {(SHORT, 0, NO_WAKE, 7): part(800, 5 * MS), GIL: part(10, 5 * MS)}
    catalog = Catalog({stack: Stack((Frame(KERNEL, 0, "futex_wait"),)) for stack in (10, 12, 20, 22)})
    with_idle = {**table, JOIN: part(30, 5 * MS)}
    (one,) = CauseFinder(FixedNames(), WITHOUT_RULES).rules_of(table, catalog, with_idle, LEFT_OUT)
    assert (one.total_ns, one.share, one.is_estimated) == (1050 * MS, 1050 / 4050, True)
