"""Test which records of exited threads count."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from offtop.kernel.accounting.drain import Drain
from offtop.kernel.accounting.tick_records import ThreadRecords
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.table import integers

KEY = ThreadKey(7, 7)
NO_RECORDS = ThreadRecords.of(())
Entry = tuple[bytes, bytes]


class ExitedMap:
    """A map of exited threads, as far as Drain.exits() uses it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def read(self) -> list[tuple[memoryview, memoryview]]:
        keys, values = (b"".join(parts) for parts in zip(*self.entries, strict=True)) if self.entries else (b"", b"")
        return [(memoryview(keys), memoryview(values))]

    def drain(self) -> list[tuple[memoryview, memoryview]]:
        read = self.read()
        self.entries.clear()
        return read

    def delete(self, key: bytes) -> None:
        self.entries = [one for one in self.entries if one[0] != key]


def record(tid_acquired_ns: int, is_previous: int = 0) -> ThreadRecord:
    zero = ThreadRecord(*(0,) * (len(ThreadRecord._fields) - 1), histogram=bytes(layout.HISTOGRAM_BYTES))
    return zero._replace(
        waits=3, state=1, tid_acquired_ns=tid_acquired_ns, is_previous=is_previous, first_switched_out_ns=1000
    )


def exited(tid_acquired_ns: int) -> list[Entry]:
    """Return both records of a thread that exited: of the previous tick, and of this one."""
    records = (99, record(tid_acquired_ns, is_previous=1)), (100, record(tid_acquired_ns))
    return [
        (
            layout.EXITED_KEY.pack(at_ns, *KEY),
            layout.EXITED.pack(b"one", tid_acquired_ns, layout.THREAD.pack(*one)),
        )
        for at_ns, one in records
    ]


def drain_of(maps: Mapping[str, ExitedMap], catalog: Catalog) -> Drain:
    nothing: Any = SimpleNamespace(maps=maps, scan_links=(), changed_link=None)
    return Drain(nothing, catalog, *[nothing] * 5, begin=lambda ids, start_ns: None)


def counted(scan: ThreadRecords, in_time: bool = True) -> list[tuple[int, int]]:
    """Return tick and is_previous of each exit record that counts, of a thread that exited during the scan of tick 0.

    `in_time`: its records arrive before the exits of that tick are read; otherwise after it.
    """
    maps = {"exited_0": ExitedMap(), "exited_1": ExitedMap()}
    drain = drain_of(maps, Catalog())
    found: list[tuple[int, int]] = []
    for tick, scanned in enumerate((scan, NO_RECORDS)):
        if tick == (0 if in_time else 1):
            maps["exited_1"].entries += exited(50)
        drain._named.append(integers([], 2))  # pyright: ignore[reportPrivateUsage]
        found += [(tick, one.is_previous) for _, one in drain.exits(tick, 500 * tick, scanned).records]
    return found


def scanned(tid_acquired_ns: int) -> ThreadRecords:
    return ThreadRecords.of([(KEY, record(tid_acquired_ns))])


@pytest.mark.parametrize("in_time", [True, False])
def test_an_older_record_that_the_scan_has_reported_does_not_count(in_time: bool) -> None:
    assert counted(scanned(50), in_time) == [(1, 0)]


@pytest.mark.parametrize("scan", [NO_RECORDS, scanned(60)], ids=["no thread", "a later owner of the tid"])
@pytest.mark.parametrize("in_time", [True, False])
def test_both_records_count_if_the_scan_has_not_reported_the_thread(scan: ThreadRecords, in_time: bool) -> None:
    assert counted(scan, in_time) == [(0 if in_time else 1, 1), (1, 0)]


@pytest.mark.parametrize("is_in_use", [True, False])
def test_a_tid_in_use_again_has_its_new_owners_name_and_no_end(is_in_use: bool) -> None:
    maps, catalog = {"exited_0": ExitedMap(), "exited_1": ExitedMap()}, Catalog()
    maps["exited_0"].entries += exited(50)
    drain, catalog.comms[KEY] = drain_of(maps, catalog), "another"
    drain._named.append(integers([(7, 8), KEY] if is_in_use else [(7, 8)], 2))  # pyright: ignore[reportPrivateUsage]
    exits = drain.exits(0, 500, scanned(60) if is_in_use else NO_RECORDS)
    assert catalog.comms[KEY] == ("another" if is_in_use else "one")
    assert exits.ends_ns == ({} if is_in_use else {KEY: 100})
