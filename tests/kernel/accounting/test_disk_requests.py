"""Requests whose completion the kernel did not report are lost, and not in progress."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from offtop.kernel.accounting.disk_requests import DiskRequests
from offtop.kernel.bpf.disk_program import KEY, NUMBERS, REQUEST, TOTALS, DiskProgram
from offtop.kernel.procfs import diskstats
from offtop.kernel.procfs.diskstats import DiskStats
from offtop.model.values import histogram as log2
from offtop.model.values.disks import DiskActivity

MS = 1_000_000
SDA = 8 << 20
READ, FLUSH, PASSED_ON = 0, 2, 34


class Table:
    """A map of BPF programs that holds these entries."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}

    def read(self) -> Sequence[tuple[bytes, bytes]]:
        return [(b"".join(self.entries), b"".join(self.entries.values()))]

    drain = read

    def lookup(self, key: bytes) -> bytes | None:
        return self.entries.get(key)


class Program(DiskProgram):
    def __init__(self) -> None:
        self.maps = {name: Table() for name in ("disk_requests", "disk_totals_0", "disk_stacks_0", "disk_lost")}

    def hold(self, address: int, issued_ns: int, operation: int = READ) -> None:
        raw = KEY.pack(b"", SDA, 42, 43, operation, 0, 1)
        value = REQUEST.pack(issued_ns - MS, issued_ns, 0, 0, 0, 0, 0, 0, 0, raw, b"db")
        self.maps["disk_requests"].entries[address.to_bytes(8, "little")] = value


def counting(monkeypatch: pytest.MonkeyPatch, in_device: int, counts: bool = True) -> tuple[Program, DiskRequests]:
    def counts_requests(name: str) -> bool:
        return counts

    program = Program()
    stats: Mapping[int, DiskStats] = {SDA: DiskStats("sda", in_device, 0)}
    monkeypatch.setattr(diskstats, "read", lambda: stats)
    monkeypatch.setattr(diskstats, "counts_requests", counts_requests)
    operations = {"REQ_OP_READ": READ, "REQ_OP_FLUSH": FLUSH, "REQ_OP_DRV_IN": PASSED_ON}
    flags = {"FLAG_META": 0, "FLAG_AHEAD": 0, "FLAG_SYNC": 0}
    return program, DiskRequests(cast("Any", program), operations, flags, lambda _, kernel, user: (kernel, user))


def tick(requests: DiskRequests) -> DiskActivity:
    requests.drain(0, time.monotonic_ns())
    return requests.take(())


def said(monkeypatch: pytest.MonkeyPatch, *in_device: int, then: int) -> None:
    """Make /proc/diskstats say these numbers of requests one after the other, and `then` after that."""
    numbers = iter(in_device)
    monkeypatch.setattr(diskstats, "read", lambda: {SDA: DiskStats("sda", next(numbers, then), 0)})


def test_oldest_requests_that_the_disk_does_not_have_are_lost_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program, requests = counting(monkeypatch, in_device=1)
    now_ns = time.monotonic_ns()
    program.hold(1, now_ns - 900 * MS)
    program.hold(2, now_ns - 100 * MS)
    ((_, totals),) = tick(requests).totals.items()
    assert (totals.in_device, 100 * MS < totals.now_ns < 900 * MS) == (1, True)
    assert [tick(requests).lost for _ in range(3)] == [1, 0, 0]
    program.hold(1, time.monotonic_ns() - MS)  # the address is used again, which the BPF programs count
    program.maps["disk_lost"].entries[bytes(4)] = (1).to_bytes(8, "little")
    said(monkeypatch, then=2)
    found = tick(requests)
    assert (found.lost, sum(totals.in_device for totals in found.totals.values())) == (0, 2)


def test_request_is_lost_if_the_disk_was_without_it_at_two_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that writes and waits in turn has another request in the disk at most moments."""
    program, requests = counting(monkeypatch, in_device=1)
    program.hold(1, time.monotonic_ns() - 900 * MS)
    said(monkeypatch, 1, 0, then=1)
    assert len(tick(requests).totals) == 1, "one number may be wrong"
    for lost in (0, 1):
        said(monkeypatch, 1, 0, 1, 0, then=1)
        found = tick(requests)
        assert (found.totals, found.lost) == ({}, lost)
    said(monkeypatch, then=1)
    assert tick(requests).totals == {}, "two ticks have found so"


def test_slow_request_is_in_progress_beside_a_younger_one_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    program, requests = counting(monkeypatch, in_device=0)
    program.hold(2, time.monotonic_ns() - 100 * MS)
    assert [tick(requests).lost for _ in range(2)] == [0, 1]
    program.hold(1, time.monotonic_ns() - 900 * MS)
    said(monkeypatch, then=1)
    ((_, totals),) = tick(requests).totals.items()
    assert totals.now_ns >= 900 * MS


def test_request_that_one_tick_takes_for_lost_is_back_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    program, requests = counting(monkeypatch, in_device=0)
    program.hold(1, time.monotonic_ns() - 900 * MS)
    assert tick(requests).totals == {}
    for _ in range(2):
        said(monkeypatch, then=1)
        found = tick(requests)
        ((_, totals),) = found.totals.items()
        assert (totals.in_device, found.lost) == (1, 0)


def test_slow_request_is_not_lost_if_another_ends_while_diskstats_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, requests = counting(monkeypatch, in_device=1)
    program.hold(1, time.monotonic_ns() - 900 * MS)
    program.hold(2, time.monotonic_ns() - 800 * MS)
    numbers = iter([2, 2, 1])

    def read() -> Mapping[int, DiskStats]:
        number = next(numbers, 1)
        if number == 1:
            program.maps["disk_requests"].entries.pop((2).to_bytes(8, "little"), None)
        return {SDA: DiskStats("sda", number, 0)}

    monkeypatch.setattr(diskstats, "read", read)
    ((_, totals),) = tick(requests).totals.items()
    assert (totals.in_device, totals.now_ns >= 900 * MS) == (1, True)


def test_request_beside_one_that_diskstats_does_not_count_is_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    program, requests = counting(monkeypatch, in_device=1)
    program.hold(1, time.monotonic_ns() - 900 * MS)
    program.hold(2, time.monotonic_ns() - 100 * MS, PASSED_ON)
    assert sum(totals.in_device for totals in tick(requests).totals.values()) == 2


@pytest.mark.parametrize(
    ("age_ms", "operation", "counts"),
    [(10, READ, True), (900, FLUSH, True), (900, PASSED_ON, True), (900, READ, False)],
)
def test_request_that_may_be_in_the_disk_is_in_progress(
    monkeypatch: pytest.MonkeyPatch, age_ms: int, operation: int, counts: bool
) -> None:
    program, requests = counting(monkeypatch, in_device=0, counts=counts)
    program.hold(1, time.monotonic_ns() - age_ms * MS, operation)
    found = tick(requests)
    ((_, totals),) = found.totals.items()
    assert (found.lost, totals.in_device) == (0, 1)


def test_time_that_was_shown_of_a_lost_request_is_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    program, requests = counting(monkeypatch, in_device=1)
    program.hold(1, time.monotonic_ns() - 100 * MS)
    (shown,) = tick(requests).totals.values()
    said(monkeypatch, then=0)
    assert (shown.in_device, tick(requests).totals) == (1, {})
    empty = bytes(log2.LANES * 8)
    completed = TOTALS.pack(1, 4096, 0, 900 * MS, 900 * MS, *[0] * (NUMBERS - 5), b"db", empty, empty, empty)
    program.maps["disk_totals_0"].entries[KEY.pack(b"", SDA, 42, 43, READ, 0, 1)] = completed
    (after,) = tick(requests).totals.values()
    assert after.outstanding_ns == 900 * MS - shown.outstanding_ns
