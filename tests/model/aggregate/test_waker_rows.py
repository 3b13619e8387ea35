"""Wakers: each has all blocked time of the waits that it ended, and no time counts twice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.filter_syntax import of_object, of_waker, parse
from offtop.model.aggregate.waker_rows import (
    BELOW,
    BELOW_OBJECT,
    EXITED_OBJECT,
    EXITED_WAKER,
    WITHOUT_WAKE,
    WakerKey,
    by_wake,
    codes,
    grouped,
    object_of,
    ready_by_wake,
    top_of_wakes,
    waker_of,
)
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, SiteTotals, Snapshot, ThreadTotals
from offtop.model.values.stack import FILTERED, KERNEL, NO_STACK, SHORT, Frame, Stack
from offtop.model.values.table import SITES, integers
from offtop.model.values.wake import (
    CHAIN,
    EXIT,
    IRQ,
    MODES,
    NO_OBJECT,
    NO_STORM,
    NO_WAKE,
    NOBODY,
    OFFCPU,
    OFFWAKE,
    SIGNAL,
    SOFTIRQ,
    THREAD,
    TIMEOUT,
    TIMER,
    WAKE_LOST,
    WAKE_SHORT,
    WAKE_UNSEEN,
    WAKEUP,
    Object,
    Storm,
    Wake,
    Waker,
    gathers,
)
from offtop.model.windows.breakdown import RUN_QUEUE, Idle, Part, Scope, Shares, shares, total
from offtop.model.windows.window import Window, between, merge, storms_over

LOCK, PIPE, POLL = 3, 4, 5
MUTEX, QUEUE = Object("futex", "0x7f40", 7), Object("pipe", "pipe:[77]")
CLERK, COOK = Waker(THREAD, "", 7, 71, "clerk"), Waker(THREAD, "", 7, 72, "cook")
TELLER, DISK = Waker(THREAD, "", 8, 81, "teller"), Waker(IRQ, "nvme_irq")
ENDED = Waker(EXIT, "", 9, 91, "child")
BOOK = Catalog(processes={7: "shop", 8: "bank", 9: "sh"})
for _id, _category in ((LOCK, "lock"), (PIPE, "pipe"), (POLL, "poll")):
    BOOK.stacks[_id] = Stack((Frame(KERNEL, 0, _category),), 0, _category)
BOOK.wakes |= {
    10: Wake(CLERK, MUTEX),
    11: Wake(COOK, MUTEX),
    12: Wake(TELLER, QUEUE),
    13: Wake(DISK),
    14: Wake(ENDED),
    15: Wake(CLERK, QUEUE),
}
BLOCKED = Scope(blocked=True)


def second(*sites: tuple[SiteKey, SiteTotals], short: ThreadTotals | None = None, idle: Idle | None = None) -> Shares:
    """A second with these sites, and the short waits of thread 19 of process 1."""
    threads = {ThreadKey(1, 19): short} if short else {}
    return shares(Window(0, 0, 10**9, threads=threads, sites=dict(sites), catalog=BOOK), idle or Idle())


def site(tid: int, kernel: int, wake: int, pid: int = 1) -> SiteKey:
    return SiteKey(pid, tid, kernel, NO_STACK, wake)


def waited(waits: int, total_ns: int, ready_ns: int = 0) -> SiteTotals:
    return SiteTotals(waits, total_ns, ready_ns, total_ns, log2.of(*[total_ns] * waits))


EVERY = second(
    (site(11, LOCK, 10), waited(1, 500, 100)),
    (site(12, LOCK, 11), waited(1, 200)),
    (site(13, PIPE, 12), waited(1, 90, 30)),
    (site(14, PIPE, 13), waited(1, 7)),
    (site(15, LOCK, NO_WAKE), SiteTotals(0, 1000)),
    (site(16, LOCK, WAKE_UNSEEN), waited(1, 20)),
    (SiteKey(*EXITED, LOCK, NO_STACK), waited(2, 40)),
    short=ThreadTotals(3, 33, 3, short_waits=3, short_ns=33, short_runqueue_ns=3),
)
"""Blocked: 400 by clerk, 200 by cook, 60 by teller, 7 by the disk, 1000 goes on, of 20 nobody saw who; 40 of threads
that have ended, and 30 of short ones. 133 of run queue."""
_BELOW, _EXITED = WITHOUT_WAKE


def ns(table: dict[tuple[int, ...], tuple[int, int, int, int]]) -> dict[int, int]:
    return {wake: part[1] for (wake,), part in table.items()}


# ---- by wake


def test_blocked_time_goes_to_the_waker() -> None:
    by_id = {10: 400, 11: 200, 12: 60, 13: 7, NO_WAKE: 1000, WAKE_UNSEEN: 20, _EXITED: 40, _BELOW: 30}
    assert ns(by_wake(EVERY, BLOCKED)) == by_id
    assert by_wake(EVERY, BLOCKED)[(10,)] == (1, 400, 500, log2.of(500))  # the wait counts in full
    assert total(by_wake(EVERY, BLOCKED).values()).total_ns == sum(by_id.values()) == 1757


def test_run_queue_time_that_followed_is_separate() -> None:
    assert ns(ready_by_wake(EVERY, BLOCKED)) == {10: 100, 12: 30, _BELOW: 3}
    assert ns(ready_by_wake(EVERY, Scope("pipe", blocked=True))) == {12: 30}
    assert ns(ready_by_wake(EVERY, Scope("lock", blocked=True))) == {10: 100}
    assert ns(by_wake(EVERY, Scope(RUN_QUEUE, blocked=True))) == {10: 100, 12: 30, _BELOW: 3}


def test_scope_is_a_category_a_process_or_a_thread() -> None:
    assert ns(by_wake(EVERY, Scope("pipe", blocked=True))) == {12: 60, 13: 7}
    assert ns(by_wake(EVERY, Scope(pid=1, tid=12, blocked=True))) == {11: 200}
    assert ns(by_wake(EVERY, Scope(pid=2, blocked=True))) == {}
    every = second((site(11, POLL, 10), waited(1, 5)), (site(12, LOCK, 10), waited(1, 3)), idle=Idle({"poll"}))
    assert ns(by_wake(every, Scope(idle=False, blocked=True))) == {10: 3}


def test_filtered_waits_have_no_waker() -> None:
    left_out = ThreadTotals(1, 50, 20, filtered_ns=50, filtered_runqueue_ns=20)
    assert by_wake(second(short=left_out), BLOCKED) == {}


def test_no_waits_have_no_wakers() -> None:
    assert by_wake(second(), BLOCKED) == ready_by_wake(second(), BLOCKED) == {}
    assert grouped({}, waker_of(BOOK, True)) == {}
    assert top_of_wakes(second(), BLOCKED, {WakerKey("clerk", 7, 71)}, waker_of(BOOK, True)) == {}
    assert codes(integers([], SITES.width)).tolist() == []


def test_exited_short_and_filtered_waits_have_no_wake() -> None:
    ids = integers(
        [site(1, LOCK, 10), site(1, SHORT, 0), site(1, FILTERED, 0), (*EXITED, LOCK, 0, 0), (*EXITED, SHORT, 0, 0)],
        SITES.width,
    )
    assert codes(ids).tolist() == [10, _BELOW, _BELOW, _EXITED, _EXITED]


# ---- by waker, by what was waited on


def test_wakers_are_threads_processes_or_no_thread() -> None:
    table = by_wake(EVERY, BLOCKED)
    others = {
        WakerKey("irq (nvme_irq)"): 7,
        WakerKey("(still waiting)"): 1000,
        WakerKey("(wakeup not recorded)"): 20,
        EXITED_WAKER: 40,
        BELOW: 30,
    }
    by_thread, by_process = (grouped(table, waker_of(BOOK, of_threads)) for of_threads in (True, False))
    assert {key: part.total_ns for key, part in by_thread.items()} == {
        WakerKey("clerk", 7, 71): 400,
        WakerKey("cook", 7, 72): 200,
        WakerKey("teller", 8, 81): 60,
        **others,
    }
    assert {key: part.total_ns for key, part in by_process.items()} == {
        WakerKey("shop", 7): 600,
        WakerKey("bank", 8): 60,
        **others,
    }
    assert by_process[WakerKey("shop", 7)] == Part(2, 600, 500, log2.of(500) + log2.of(200))


def test_process_without_a_name_is_named_by_its_thread() -> None:
    assert waker_of(Catalog(wakes={10: Wake(CLERK)}), False)(10) == WakerKey("clerk", 7)


def test_object_has_the_time_of_all_waits_on_it_whatever_the_waker() -> None:
    every = second(
        *((site(tid, LOCK, wake), waited(1, 10)) for tid, wake in enumerate((10, 11, 12, 15, 13, WAKE_LOST), 1))
    )
    assert {key: part.total_ns for key, part in grouped(by_wake(every, BLOCKED), object_of(BOOK)).items()} == {
        MUTEX: 20,
        QUEUE: 20,
        NO_OBJECT: 20,
    }
    assert [object_of(BOOK)(code) for code in WITHOUT_WAKE] == [BELOW_OBJECT, EXITED_OBJECT]


@pytest.mark.parametrize(
    ("waker", "label", "by_process"),
    [
        (CLERK, "clerk", WakerKey("shop", 7)),
        (DISK, "irq (nvme_irq)", WakerKey("irq (nvme_irq)")),
        (Waker(IRQ), "irq", WakerKey("irq")),
        (Waker(SOFTIRQ, "net_rx"), "softirq (net_rx)", WakerKey("softirq (net_rx)")),
        (Waker(TIMER, "timerfd_tmrproc"), "timer (timerfd_tmrproc)", WakerKey("timer (timerfd_tmrproc)")),
        (Waker(TIMEOUT), "timeout", WakerKey("timeout")),
        (Waker(TIMEOUT, "hrtimer_wakeup"), "hrtimer_wakeup", WakerKey("hrtimer_wakeup")),
        (Waker(SIGNAL, "", 9, 91, "bash"), "signal (bash)", WakerKey("signal (bash)")),
        (Waker(SIGNAL), "signal", WakerKey("signal")),
        (ENDED, "exit (child)", WakerKey("exit (child)")),
        (Waker(NOBODY, "(waker lost)"), "(waker lost)", WakerKey("(waker lost)")),
        (Waker(), "unknown", WakerKey("unknown")),
    ],
)
def test_label_of_each_kind_of_waker(waker: Waker, label: str, by_process: WakerKey) -> None:
    catalog = Catalog(processes={7: "shop"}, wakes={10: Wake(waker)})
    assert waker.label == label
    assert waker_of(catalog, True)(10) == WakerKey(label, waker.pid, waker.tid)
    assert waker_of(catalog, False)(10) == by_process


def test_label_of_an_object_has_kind_name_and_the_process_if_it_is_local() -> None:
    labels = {
        MUTEX: "futex 0x7f40 of 7",
        QUEUE: "pipe:[77]",
        Object("file", "/var/log/x"): "file /var/log/x",
        Object("epoll", "epoll#3"): "epoll#3",
        BELOW_OBJECT: "(waits below the minimum)",
    }
    assert {one: one.label for one in labels} == labels


def test_top_of_a_waker_is_where_most_of_the_time_that_it_ended_was_spent() -> None:
    every = second(
        (site(11, LOCK, 10), waited(1, 50)),
        (site(12, PIPE, 15), waited(1, 70)),
        (site(13, PIPE, 12), waited(1, 90)),
        short=ThreadTotals(1, 99, short_waits=1, short_ns=99),
    )
    clerk, shop = WakerKey("clerk", 7, 71), WakerKey("shop", 7)
    assert top_of_wakes(every, BLOCKED, {clerk}, waker_of(BOOK, True)) == {clerk: site(12, PIPE, 15)}
    assert top_of_wakes(every, Scope("lock", blocked=True), {shop}, waker_of(BOOK, False)) == {shop: site(11, LOCK, 10)}
    assert top_of_wakes(every, BLOCKED, {QUEUE, MUTEX}, object_of(BOOK)) == {
        QUEUE: site(13, PIPE, 12),
        MUTEX: site(11, LOCK, 10),
    }
    assert top_of_wakes(every, BLOCKED, {BELOW}, waker_of(BOOK, True)) == {}  # short waits have no place


WAKE_IDS = st.sampled_from([*BOOK.wakes])
SECONDS = st.dictionaries(
    st.builds(site, st.integers(1, 5), st.sampled_from([LOCK, PIPE, POLL]), WAKE_IDS),
    st.tuples(st.integers(0, 5), st.integers(1, 10**9), st.integers(0, 100)).map(
        lambda one: waited(one[0], one[1], one[1] * one[2] // 100)
    ),
    max_size=9,
)


@given(SECONDS, st.sampled_from(["", "lock", "poll", "short"]), st.booleans(), st.booleans())
def test_wakers_and_objects_have_all_blocked_time_between_them(
    sites: dict[SiteKey, SiteTotals], category: str, idle_shown: bool, of_threads: bool
) -> None:
    short = ThreadTotals(1, 99, 9, short_waits=1, short_ns=99, short_runqueue_ns=9)
    every = second(*sites.items(), short=short, idle=Idle({"poll"}))
    scope = Scope(category, idle=idle_shown, blocked=True)
    expected = total(part for _, part in every.in_scope(scope).by(np.zeros(len(every.in_scope(scope).leaf), np.int64)))
    table = by_wake(every, scope)
    assert total(table.values()) == expected
    assert total(grouped(table, waker_of(BOOK, of_threads)).values()) == expected
    assert total(grouped(table, object_of(BOOK)).values()) == expected


# ---- drilled into one of them


class FixedNames:
    version = 0

    def of(self, frame: Frame) -> str:
        return frame.name


def left_by(chosen: Filter, every: Shares) -> dict[int, int]:
    return ns(by_wake(every.of(chosen.mask(every, BOOK, CauseFinder(FixedNames(), WITHOUT_RULES))), BLOCKED))


@given(SECONDS, st.booleans())
def test_selecting_a_row_leaves_the_time_of_the_row(sites: dict[SiteKey, SiteTotals], of_threads: bool) -> None:
    short = ThreadTotals(1, 99, 9, short_waits=1, short_ns=99, short_runqueue_ns=9)
    every = second(*sites.items(), (SiteKey(*EXITED, LOCK, NO_STACK), waited(2, 40)), short=short)
    table = by_wake(every, BLOCKED)
    for key, part in grouped(table, waker_of(BOOK, of_threads)).items():
        assert sum(left_by(of_waker(key), every).values()) == part.total_ns
    for thing, part in grouped(table, object_of(BOOK)).items():
        if thing.kind:
            assert sum(left_by(of_object(thing), every).values()) == part.total_ns


def test_waker_named_like_another_kind_of_waker_is_not_that_one() -> None:
    names = {
        20: Waker(THREAD, "", 6, 61, "timeout"),  # the command
        21: Waker(TIMEOUT),
        22: Waker(IRQ),
        23: Waker(IRQ, "nvme_irq"),
        24: Waker(SIGNAL, "", 6, 61, "timeout"),
        25: Waker(EXIT, "", 6, 62, "timeout"),
        26: Waker(EXIT, "", 6, 63, "Timeout"),
    }
    catalog = Catalog(
        processes={6: "timeout"}, wakes={n: Wake(one, Object("file", one.comm)) for n, one in names.items()}
    )
    every = second(*((site(tid, LOCK, tid), waited(1, 10)) for tid in names))

    def left(chosen: Filter) -> list[int]:
        return every.ids[chosen.mask(every, catalog, CauseFinder(FixedNames(), WITHOUT_RULES)), 4].tolist()

    assert left(of_waker(WakerKey("timeout", 6, 61))) == [20]
    assert left(of_waker(WakerKey("timeout", 6))) == [20]
    assert left(of_waker(WakerKey("timeout"))) == [21]
    assert left(of_waker(WakerKey("irq"))) == [22]
    assert left(of_waker(WakerKey("exit (timeout)"))) == [25]
    assert left(of_waker(WakerKey("signal (timeout)", 6, 61))) == [24]
    assert left(of_object(Object("file", "Timeout"))) == [26]


# ---- modes, and storms


def test_chain_mode_gathers_everything_that_wakeup_mode_needs_but_not_vice_versa() -> None:
    shown_of = {gathered: [shown for shown in MODES if gathers(gathered, shown)] for gathered in MODES}
    assert shown_of == {
        OFFCPU: [OFFCPU],
        WAKEUP: [OFFCPU, WAKEUP, OFFWAKE],
        OFFWAKE: [OFFCPU, WAKEUP, OFFWAKE],
        CHAIN: [*MODES],
    }
    assert [gathers("what a later offtop has", mode) for mode in MODES] == [True, False, False, False]


def taken(at: int, mode: str = CHAIN, **storms: Storm) -> Snapshot:
    return Snapshot(0, at, storms={int(waker[1:]): one for waker, one in storms.items()}, mode=mode)


def test_windows_have_the_storms_of_their_span_and_merge() -> None:
    first, second_, third = (
        taken(0),
        taken(10, w10=Storm(1, 20, 18, 20)),
        taken(20, w10=Storm(3, 50, 40, 15), w12=Storm(1, 8, 0, 8)),
    )
    one, two = between(first, second_), between(second_, third)
    assert one.storms == {10: Storm(1, 20, 18, 20)}
    assert two.storms == {10: Storm(2, 30, 22, 15), 12: Storm(1, 8, 0, 8)}
    assert merge([one, two]).storms == storms_over([one, two]) == {10: Storm(3, 50, 40, 20), 12: Storm(1, 8, 0, 8)}
    assert between(third, third).storms == {}
    assert storms_over([]) == {}


def test_merged_windows_have_the_mode_that_all_of_them_have() -> None:
    windows = {mode: between(taken(0), taken(1, mode)) for mode in MODES}
    assert [one.mode for one in windows.values()] == [*MODES]
    for modes, least in (
        ((CHAIN, CHAIN), CHAIN),
        ((CHAIN, WAKEUP), WAKEUP),
        ((WAKEUP, OFFCPU, CHAIN), OFFCPU),
        ((OFFWAKE, CHAIN), OFFWAKE),
    ):
        assert merge([windows[mode] for mode in modes]).mode == least
    later = between(taken(0), taken(1, "what a later offtop has"))
    assert merge([windows[CHAIN], later]).mode == later.mode


def test_storm_is_a_herd_if_most_woken_threads_sleep_again() -> None:
    assert [Storm(1, 10, again).is_herd for again in (0, 5, 6, 10)] == [False, False, True, True]
    assert not NO_STORM.is_herd
    assert Storm(2, 20, 18, 12).wasted_switches == 36
    assert Storm(1, 8, 3, 8).plus(Storm(2, 20, 18, 12)) == Storm(3, 28, 21, 12)
    assert NO_STORM.plus(NO_STORM) == NO_STORM


# ---- filters


@pytest.mark.parametrize(
    ("text", "wakes"),
    [
        ("waker=clerk", [10, 15]),
        ("waker=shop", [10, 11, 15]),  # the process
        ("waker=c*", [10, 11, 14, 15]),  # child, too
        ("waker!=c*", [12, 13, NO_WAKE, WAKE_LOST, WAKE_SHORT, WAKE_UNSEEN]),
        ("waker=irq", [13]),  # the kind
        ("waker=nvme_irq", [13]),
        ('waker="irq (nvme_irq)"', [13]),
        ("waker=exit", [14]),
        ("waker=thread", [10, 11, 12, 15]),
        ("waker=unknown", [NO_WAKE, WAKE_LOST, WAKE_SHORT, WAKE_UNSEEN]),
        ('waker="(still waiting)"', [NO_WAKE]),
        ("wakerpid=7", [10, 11, 15]),
        ("wakerpid=8,9", [12, 14]),
        ("wakerpid!=7", [12, 13, 14, NO_WAKE, WAKE_LOST, WAKE_SHORT, WAKE_UNSEEN]),
        ("wakerpid=0", []),
        ("wakertid=72", [11]),
        ("wakertid=71,72,79", [10, 11, 15]),
        ("object=pipe", [12, 15]),
        ("object=pipe:[77]", [12, 15]),
        ("object=0x7f40", [10, 11]),
        ('object="futex 0x7f40 of 7"', [10, 11]),
        ("object!=*", [13, 14, NO_WAKE, WAKE_LOST, WAKE_SHORT, WAKE_UNSEEN]),
        ("clerk", [10, 15]),
        ("nvme", [13]),
        ("0x7f4", [10, 11]),
        ("!shop", [12, 13, 14, NO_WAKE, WAKE_LOST, WAKE_SHORT, WAKE_UNSEEN]),
        ("waker=cook object=pipe", []),
        ("waker=clerk object=pipe", [15]),
    ],
)
def test_waits_are_filtered_by_waker_and_object(text: str, wakes: list[int]) -> None:
    ids = [10, 11, 12, 13, 14, 15, NO_WAKE, WAKE_LOST, WAKE_SHORT, WAKE_UNSEEN]
    every = second(*((site(tid, LOCK, wake), waited(1, 10)) for tid, wake in enumerate(ids, 1)))
    assert every.ids[parse(text).mask(every, BOOK, CauseFinder(FixedNames(), WITHOUT_RULES)), 4].tolist() == wakes


def test_short_waits_and_those_of_exited_threads_have_no_waker_to_filter_by() -> None:
    chosen = {
        text: left_by(parse(text), EVERY)
        for text in ("waker=*wait*", 'waker="(waits below the minimum)"', 'waker="(exited)"', "wakertid=71", "object=*")
    }
    assert chosen == {
        "waker=*wait*": {NO_WAKE: 1000, _BELOW: 30},
        'waker="(waits below the minimum)"': {_BELOW: 30},
        'waker="(exited)"': {_EXITED: 40},
        "wakertid=71": {10: 400},
        "object=*": {10: 400, 11: 200, 12: 60},
    }


def test_filter_knows_whether_it_needs_wakers_and_handles_empty_input() -> None:
    asks = dict.fromkeys(("waker=a", "waker!=a", "wakerpid=1", "wakertid=1"), True)
    asks |= dict.fromkeys(("", "a", "!a", "comm=a", "stack=a", "max>1", "pid=1", "object=a"), False)
    assert {text: parse(text).needs_wakers for text in asks} == asks
    assert of_waker(WakerKey("irq")).needs_wakers
    assert not of_object(QUEUE).needs_wakers
    for one in (parse("waker=a object=b"), of_waker(WakerKey("irq")), of_object(QUEUE)):
        assert one.mask(second(), BOOK, CauseFinder(FixedNames(), WITHOUT_RULES)).tolist() == []
