"""Test turning BPF wake IDs into catalog IDs, against maps that the test fills."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast

import pytest

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import SiteDeltas
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.id_table import IdTable
from offtop.kernel.bpf.layout import ObjectRecord, ThreadRecord
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.resolve import wakes
from offtop.kernel.resolve.wakes import Wakes
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import SiteTotals, Snapshot
from offtop.model.values.stack import FIRST_STACK, NO_STACK, Frame, Stack
from offtop.model.values.wake import (
    BRIEF,
    DEPTH,
    EXIT,
    FIRST_WAKE,
    LOOP,
    LOST,
    NO_OBJECT,
    SOFTIRQ,
    THREAD,
    TIMEOUT,
    UNSEEN,
    WHOLE,
    Object,
    Storm,
    Wake,
    Waker,
)
from offtop.model.windows.window import between
from tests.kernel.reads import READS

PID, SLEEPER = 100, 101
FUTEX_WAKE, TIMER, ENDED, ALARM, SIGIO, RCU = range(FIRST_STACK, FIRST_STACK + 6)
STACKS: Mapping[int, Sequence[str]] = {
    FUTEX_WAKE: ("try_to_wake_up", "wake_up_q", "futex_wake"),
    TIMER: ("try_to_wake_up", "hrtimer_wakeup", "hrtimer_interrupt", "asm_sysvec_apic_timer_interrupt"),
    ENDED: ("try_to_wake_up", "exit_notify", "do_exit"),
    ALARM: ("try_to_wake_up", "timerfd_tmrproc", "hrtimer_interrupt", "asm_sysvec_apic_timer_interrupt"),
    SIGIO: ("try_to_wake_up", "complete_signal", "send_sigio", "net_rx_action", "handle_softirqs", "run_ksoftirqd"),
    RCU: ("try_to_wake_up", "swake_up_one", "rcu_core", "handle_softirqs", "do_softirq", "__local_bh_enable_ip"),
}
WAITED = 50
"""The kernel stack of each link's wait."""
SILENT = ThreadRecord._make([0] * (len(ThreadRecord._fields) - 1) + [bytes(layout.HISTOGRAM_BYTES)])
"""Process of a thread that exists."""


class FakeMap:
    """The part of a Map that is needed here."""

    def __init__(self, entries: int = 16, value_bytes: int = 8) -> None:
        self.entries, self.value_bytes = entries, value_bytes
        self.held: dict[bytes, bytes] = {}

    def put(self, raw_id: int, value: bytes) -> None:
        self.held[raw_id.to_bytes(8, "little")] = value

    def lookup(self, key: bytes) -> bytes | None:
        return self.held.get(key)

    def drain(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Yield the contents in two parts."""
        keys = [*self.held]
        for part in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
            if part:
                values = b"".join(self.held.pop(key) for key in part)
                yield memoryview(b"".join(part)), memoryview(values)


def number(value: bytes | memoryview) -> int:
    return int.from_bytes(value, "little")


def table(entries: int = 16) -> tuple[FakeMap, IdTable[int]]:
    held = FakeMap(entries)
    return held, IdTable(cast(Map, held), number)


def test_an_empty_table_knows_nothing_and_stays_as_it_is() -> None:
    _, ids = table()
    assert ids.read(77) is None
    assert ids.fill == 0
    assert not ids.make_room(at_once=False)
    assert ids.make_room(at_once=True)
    assert ids.read(77) is None


def test_a_half_full_table_is_cleared_and_old_ids_still_resolve() -> None:
    held, ids = table(entries=16)
    for raw in range(20, 29):
        held.put(raw, (raw * 2).to_bytes(8, "little"))
    assert [ids.read(raw) for raw in range(20, 27)] == [raw * 2 for raw in range(20, 27)]
    assert ids.fill == 7 / 16
    assert not ids.make_room(at_once=False)
    assert ids.read(27) == 54
    assert ids.make_room(at_once=False)
    assert held.held == {}
    assert ids.fill == 0
    assert [ids.read(raw) for raw in (20, 27, 28)] == [40, 54, 56], "28 was in it, but not read yet"
    assert ids.fill == 3 / 16, "they count, because BPF adds again what it finds missing"
    assert ids.make_room(at_once=True)
    assert ids.read(20) == 40
    assert ids.read(21) is None, "cleared two times ago"


def test_ids_that_are_never_read_fill_a_table_too() -> None:
    held, ids = table(entries=16)
    for raw in (*range(20, 27), *range(20, 27)):
        ids.note_inserted(raw)
    assert ids.fill == 7 / 16, "each counts once"
    held.put(20, bytes(8))
    ids.read(20)
    ids.note_inserted(20)
    assert ids.fill == 7 / 16, "and still once after it was read"
    assert not ids.make_room(at_once=False)
    ids.note_inserted(27)
    assert ids.make_room(at_once=False)
    assert ids.fill == 0


def raw_object(kind: int, **fields: int | bytes) -> bytes:
    words = {**dict.fromkeys(ObjectRecord._fields, 0), "unused": b"", "local": b"", "peer": b"", "kind": kind, **fields}
    return layout.OBJECT.pack(*words.values())


NONE = raw_object(0)


def _raw_ids(_pid: int, kernel: int, user: int) -> tuple[int, int]:
    return kernel, user


class Kernel:
    """The maps of wakers and wakes, and a Wakes that reads them."""

    def __init__(self) -> None:
        self.wakers, self.wakes = FakeMap(1 << 20, layout.WAKER.size), FakeMap(1 << 20, layout.WAKE.size)
        self.catalog = Catalog()
        for stack, names in STACKS.items():
            self.catalog.stacks[stack] = Stack(tuple(Frame("[kernel]", 0, name) for name in names))
        self.objects = FakeMap(1 << 20, layout.OBJECT.size)
        wakers, wakes, objects = (cast(Map, one) for one in (self.wakers, self.wakes, self.objects))
        self.read = Wakes(wakers, wakes, objects, self.catalog, _raw_ids, lambda _: "", READS)
        self._next = layout.FIRST_ID

    def waker(self, tid: int, kernel: int = FUTEX_WAKE, user: int = NO_STACK, pid: int = PID, comm: str = "") -> int:
        raw = layout.FIRST_ID + tid * 16 + kernel
        name = (comm or f"t{tid}").encode()
        self.wakers.put(raw, layout.WAKER.pack(kernel, user, pid if tid else 0, tid, name))
        return raw

    def wake(self, *wakers: int, end: int = layout.NO_WAKE, futex: int = 0, raw: int = 0) -> int:
        """Add a wake: the first is the waker, each next one ended the previous one's last wait.

        All waits are on the given futex.
        """
        links = [word for one in wakers[1:] for word in (WAITED, NO_STACK, one)]
        links += [0] * (3 * layout.LINKS - len(links))
        self._next += 1
        found = raw_object(layout.OBJECT_FUTEX, argument=futex, detail=layout.FUTEX_PRIVATE) if futex else NONE
        value = layout.WAKE.pack(wakers[0], wakers[0], found, len(wakers) - 1, end, 0, *links)
        self.wakes.put(raw or self._next, value)
        return raw or self._next

    def made(self, *wakers: int, end: int = layout.NO_WAKE) -> Wake:
        """Return the wake that ended a wait of the sleeper."""
        return self.catalog.wake(self.read.id_of(self.wake(*wakers, end=end), PID, SLEEPER))


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def test_reserved_ids_stay_as_they_are(kernel: Kernel) -> None:
    for raw in (layout.NO_WAKE, layout.WAKE_LOST, layout.WAKE_SHORT, layout.WAKE_UNSEEN):
        assert kernel.read.id_of(raw, PID, SLEEPER) == raw
    assert kernel.read.id_of(layout.FIRST_ID, PID, SLEEPER) == layout.WAKE_LOST
    assert kernel.read.unread == 1


def test_equal_wakes_share_one_id(kernel: Kernel) -> None:
    waker = kernel.waker(7)
    first = kernel.read.id_of(kernel.wake(waker, futex=0xABC), PID, SLEEPER)
    assert first == FIRST_WAKE
    assert kernel.read.id_of(kernel.wake(waker, futex=0xABC), PID, SLEEPER) == first
    assert kernel.read.id_of(kernel.wake(waker, futex=0xDEF), PID, SLEEPER) == first + 1
    assert kernel.catalog.wake(first).object == Object("futex", "0xabc", PID)
    assert kernel.catalog.wake(first).waker[:5] == (THREAD, "", PID, 7, "t7")


def test_a_wait_on_something_else_than_its_call_names_has_no_object(kernel: Kernel) -> None:
    raw = kernel.wake(kernel.waker(7), futex=0xABC)
    on_futex, elsewhere = (kernel.read.id_of(raw, PID, SLEEPER, is_on_object) for is_on_object in (True, False))
    assert kernel.catalog.wake(on_futex).object == Object("futex", "0xabc", PID)
    assert kernel.catalog.wake(elsewhere) == kernel.catalog.wake(on_futex)._replace(object=NO_OBJECT)
    assert kernel.read.id_of(raw, PID, SLEEPER) == on_futex
    assert kernel.read.id_of(raw, PID, SLEEPER, is_on_object=False) == elsewhere


def test_how_a_chain_ends(kernel: Kernel) -> None:
    a, b, c = kernel.waker(1), kernel.waker(2), kernel.waker(3)
    sleeper, timer = kernel.waker(SLEEPER), kernel.waker(0, TIMER)
    assert kernel.made(a).end == UNSEEN
    assert kernel.made(a, end=layout.WAKE_SHORT).end == BRIEF
    assert kernel.made(a, end=layout.WAKE_LOST).end == LOST
    assert kernel.made(a, b, c, end=layout.FIRST_ID).end == DEPTH
    assert kernel.made(timer) == Wake(kernel.made(timer).waker, NO_OBJECT, (), WHOLE)
    assert kernel.made(timer).waker.kind == TIMEOUT
    whole = kernel.made(a, b, timer, a, b, end=layout.WAKE_SHORT)
    assert ([link.waker.tid for link in whole.links], whole.end) == ([2, 0], WHOLE)
    loop = kernel.made(a, b, a, c, end=layout.FIRST_ID)
    assert ([link.waker.tid for link in loop.links], loop.end) == ([2, 1], LOOP)
    own = kernel.made(a, sleeper, b)
    assert ([link.waker.tid for link in own.links], own.end) == ([SLEEPER], LOOP)
    lost = kernel.made(a, layout.WAKE_LOST, end=layout.FIRST_ID)
    assert (lost.links[0].waker.name, lost.end) == ("(waker lost)", LOST)


def test_a_child_that_exits_has_a_waker_too(kernel: Kernel) -> None:
    wake = kernel.made(kernel.waker(9, ENDED), kernel.waker(0, TIMER))
    assert (wake.waker.kind, wake.waker.tid) == (EXIT, 9)
    assert ([link.waker.kind for link in wake.links], wake.end) == ([TIMEOUT], WHOLE)


def test_equal_tids_in_two_namespaces_are_no_loop(kernel: Kernel) -> None:
    outside = kernel.waker(SLEEPER, pid=9_999_999)
    assert kernel.made(outside, kernel.waker(0, TIMER)).end == WHOLE


def test_an_interrupt_is_not_the_thread_it_interrupted(kernel: Kernel) -> None:
    raw = kernel.waker(55, TIMER, user=60, comm="innocent")
    waker = kernel.made(raw).waker
    assert (waker.kind, waker.pid, waker.tid, waker.comm, waker.user) == (TIMEOUT, 0, 0, "", NO_STACK)


def test_a_softirq_is_not_the_thread_that_runs_it(kernel: Kernel) -> None:
    waker = kernel.made(kernel.waker(55, SIGIO, user=60, comm="ksoftirqd/0")).waker
    assert waker == Waker(SOFTIRQ, "net_rx", kernel=SIGIO)
    waker = kernel.made(kernel.waker(56, RCU, user=60, comm="innocent")).waker
    assert waker == Waker(SOFTIRQ, "rcu_core", kernel=RCU)
    assert waker.label == "softirq (rcu_core)"


class SlowReads:
    """A reader that misses its first deadline."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, *_: object) -> bytes:
        self.asked += 1
        if self.asked == 1:
            raise TimeoutError
        return b"1000-2000 rw-s 0 08:01 5 /dev/shm/queue"


def test_a_wake_keeps_its_id_in_a_tick_even_if_its_object_is_known_meanwhile() -> None:
    wakers, wakes, objects = (FakeMap(1 << 20, one.size) for one in (layout.WAKER, layout.WAKE, layout.OBJECT))
    raw = layout.OBJECT_ID_BIT | layout.FIRST_ID
    objects.put(raw, raw_object(layout.OBJECT_FUTEX, argument=0x1010))
    catalog = Catalog()
    raw_wakers, raw_wakes, raw_objects = (cast(Map, one) for one in (wakers, wakes, objects))
    reads = cast(Channel, SlowReads())
    read = Wakes(raw_wakers, raw_wakes, raw_objects, catalog, _raw_ids, lambda _: "", reads)
    ids = [read.id_of(raw, PID, SLEEPER) for _ in range(2)]
    read.make_room(at_once=False)
    later = read.id_of(raw, PID, SLEEPER)
    assert [catalog.wake(one).object.name for one in (*ids, later)] == ["0x1010", "0x1010", "/dev/shm/queue+0x10"]


def test_the_number_of_chains_is_bounded(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakes, "_MOST_CHAINS", 10)
    monkeypatch.setattr(wakes, "_MOST_WAKES", 20)
    threads = [kernel.waker(tid) for tid in range(1, 30)]
    made = [kernel.made(threads[n % 5], threads[5 + n], end=layout.FIRST_ID) for n in range(24)]
    assert [wake.end for wake in made] == [DEPTH] * 10 + [LOST] * 14
    assert len({*made}) == 10 + 5
    assert kernel.read.unread == 14, "their chains are lost"
    ids = [kernel.read.id_of(kernel.wake(one), PID, SLEEPER) for one in threads[5:]]
    assert ids.count(layout.WAKE_LOST) == 24 - 5
    assert kernel.read.unread == 14 + 24 - 5
    kernel.read.forget(set(), {*range(FIRST_WAKE, FIRST_WAKE + 12)})
    assert kernel.made(threads[20]).waker.tid == 21


def test_the_least_recently_named_chains_are_evicted_before_space_runs_out(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakes, "_MOST_CHAINS", 16)
    ledger, threads = Ledger(0, catalog=kernel.catalog), [kernel.waker(tid) for tid in range(1, 100)]
    first = kernel.wake(threads[0], threads[1], end=layout.FIRST_ID)
    kernel.catalog.stacks.update((1000 + tick, Stack(())) for tick in range(31))
    snapshots: list[Snapshot] = []
    ids: list[int] = []
    for tick in range(1, 31):
        raw = [first, *(kernel.wake(threads[3 * tick + n], threads[0], end=layout.FIRST_ID) for n in range(3))]
        ids = [kernel.read.id_of(one, PID, SLEEPER) for one in raw]
        sites = [SiteKey(PID, SLEEPER, FIRST_STACK, 1000 + tick, one) for one in ids]
        ended = SiteDeltas.of([(site, SiteTotals(1, 5_000, 0, 5_000, log2.of(5_000))) for site in sites])
        storms = {ids[0]: Storm(1, 8, 0, 8)}
        ledger.tick(tick * 10_000, 1_000, [(ThreadKey(PID, SLEEPER), SILENT)], ended, [], storms=storms)
        if kernel.read.most_kept is not None:
            assert kernel.read.most_kept == 8
            assert len(kernel.catalog.wakes) - FIRST_WAKE >= 12
            kernel.read.forget(set(), ledger.drop_wakes(kernel.read.most_kept))
            assert len(kernel.catalog.wakes) - FIRST_WAKE == 8
        assert {*ids} <= kernel.catalog.wakes.keys() and {kernel.catalog.wake(one).end for one in ids} == {DEPTH}
        assert {site.wake for site in ledger.sites if site.tid} == {
            one for one in kernel.catalog.wakes if one >= FIRST_WAKE
        }
        snapshots.append(Snapshot(0, ledger.at_ns, ledger.threads.frozen(), ledger.sites.frozen(), {}, kernel.catalog))
    assert kernel.read.unread == 0
    assert ids[0] == FIRST_WAKE, "a chain in use stays"
    assert ledger.storms == {FIRST_WAKE: Storm(30, 240, 0, 8)}
    assert sum(totals.waits for totals in dict(ledger.sites).values()) == 4 * 30
    for earlier, later in pairwise(snapshots):
        parts = dict(between(earlier, later).each_site())
        assert [totals.waits for totals in parts.values()] == [1] * 4, "and nothing of the evicted ones"
        assert all(site.tid for site in parts)
    assert ledger.age(keep_ns=200_000)
    stacks = {stack for stack in kernel.catalog.stacks if stack >= 1000}
    assert {1000 + tick for tick in range(11, 31)} <= stacks, "an old window may still name them"


def test_chains_named_in_one_tick_are_not_evicted(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakes, "_MOST_CHAINS", 16)
    ledger, threads = Ledger(0, catalog=kernel.catalog), [kernel.waker(tid) for tid in range(1, 40)]
    raw = [kernel.wake(one, threads[0], end=layout.FIRST_ID) for one in threads[1:]]
    ids = [kernel.read.id_of(one, PID, SLEEPER) for one in raw]
    sites = [SiteKey(PID, SLEEPER, FIRST_STACK, WAITED, one) for one in ids]
    ended = SiteDeltas.of([(site, SiteTotals(1, 5_000, 0, 5_000, log2.of(5_000))) for site in sites])
    ledger.tick(10_000, 1_000, [(ThreadKey(PID, SLEEPER), SILENT)], ended, [])
    assert kernel.read.unread == 38 - 16
    assert ledger.drop_wakes(kernel.read.most_kept or 0) == set()
    ledger.tick(20_000, 1_000, [], SiteDeltas.of([]), [], storms={ids[0]: Storm(1, 8, 0, 8)})
    assert ledger.drop_wakes(0) == {*ids[1:]}
    assert ledger.sites[SiteKey(0, 0, FIRST_STACK, NO_STACK)].waits == 37
    assert Ledger(0).drop_wakes(0) == set()


def test_a_waker_missing_from_the_map_counts_as_lost(kernel: Kernel) -> None:
    assert kernel.made(layout.FIRST_ID + 7).waker.name == "(waker lost)"
    assert kernel.read.unread == 1
    kernel.made(layout.WAKE_LOST)
    assert kernel.read.unread == 1, "BPF has counted that"


def test_an_evicted_wake_is_created_again(kernel: Kernel) -> None:
    raw = kernel.wake(kernel.waker(7))
    first = kernel.read.id_of(raw, PID, SLEEPER)
    del kernel.catalog.wakes[first]
    kernel.read.forget({FUTEX_WAKE}, {first})
    again = kernel.read.id_of(raw, PID, SLEEPER)
    assert again != first
    assert kernel.catalog.wake(again).waker.tid == 7


def test_a_storm_across_ticks_is_one_storm_of_the_full_size(kernel: Kernel) -> None:
    waker = kernel.waker(7)
    (wake,) = kernel.read.storms([((1000, 7), (waker, 60, 5, 1))])
    assert kernel.catalog.wake(wake).waker.tid == 7
    assert kernel.read.storms([((1000, 7), (waker, 40, 80, 0))]) == {wake: Storm(0, 40, 80, 100)}
    assert kernel.read.storms([((1000, 7), (0, 0, 15, 0))]) == {wake: Storm(0, 0, 15, 0)}, "these only slept again"
    assert kernel.read.storms([]) == {}
    assert kernel.read.storms([((1000, 7), (0, 0, 1, 0))]) == {}, "its waker is unknown by now"


def test_simultaneous_timeouts_are_no_storm(kernel: Kernel) -> None:
    assert kernel.read.storms([((1000, 7), (kernel.waker(0, TIMER), 60, 50, 1))]) == {}
    found = kernel.read.storms([((2000, 7), (kernel.waker(0, ALARM), 60, 50, 1))])
    assert [*found.values()] == [Storm(1, 60, 50, 60)], "one timerfd, many readers"


def test_two_storms_of_one_waker_in_a_tick_add_up(kernel: Kernel) -> None:
    waker, other = kernel.waker(7), kernel.waker(8)
    found = kernel.read.storms(
        [((1000, 7), (waker, 60, 5, 1)), ((2000, 7), (waker, 90, 9, 1)), ((1000, 8), (other, 8, 0, 1))]
    )
    assert [*found.values()] == [Storm(2, 150, 14, 90), Storm(1, 8, 0, 8)]


def test_a_waker_stack_is_another_after_a_module_change() -> None:
    found = [FIRST_STACK, FIRST_STACK + 1]
    catalog = Catalog(
        {one: Stack((Frame("[module]", 0, name),)) for one, name in zip(found, ("nfs_wake", "dlm_wake"), strict=True)}
    )
    of_wakers, of_wakes = FakeMap(value_bytes=layout.WAKER.size), FakeMap(value_bytes=layout.WAKE.size)
    of_wakers.put(30, layout.WAKER.pack(20, 0, 5, 5, b"x"))
    of_wakes.put(40, layout.WAKE.pack(30, 30, NONE, 0, 0, 0, *[0] * (3 * layout.LINKS)))

    def stacks(_pid: int, _kernel: int, _user: int) -> tuple[int, int]:
        return found[0], NO_STACK

    table = Wakes(cast(Map, of_wakers), cast(Map, of_wakes), cast(Map, FakeMap()), catalog, stacks, lambda _: "", READS)

    def function() -> str:
        return catalog.stack(catalog.wakes[table.id_of(40, 7, 7)].waker.kernel).frames[0].name

    assert function() == "nfs_wake"
    del found[0]
    table.forget_kernel_names()
    assert function() == "dlm_wake"
