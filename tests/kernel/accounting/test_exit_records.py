"""Test which records of exited threads count."""

from offtop.kernel.accounting.exit_records import Exit, not_scanned
from offtop.kernel.accounting.tick_records import ThreadRecords
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values.catalog import ThreadKey

KEY = ThreadKey(7, 7)


def record(tid_acquired_ns: int, is_previous: int = 0) -> ThreadRecord:
    zero = ThreadRecord(*(0,) * (len(ThreadRecord._fields) - 1), histogram=bytes(320))
    return zero._replace(waits=3, state=1, tid_acquired_ns=tid_acquired_ns, is_previous=is_previous)


def exited(tid_acquired_ns: int) -> list[Exit]:
    """Return both records of a thread that exited at 100 ns."""
    older, last = record(tid_acquired_ns, is_previous=1), record(tid_acquired_ns)
    return [(99, KEY, b"one", tid_acquired_ns, older), (100, KEY, b"one", tid_acquired_ns, last)]


def test_an_older_record_that_the_scan_has_reported_counts_once() -> None:
    scanned = ThreadRecords.of([(KEY, record(50))])
    assert not_scanned(exited(50), scanned) == exited(50)[1:]


def test_an_older_record_that_no_scan_has_reported_counts() -> None:
    assert not_scanned(exited(50), ThreadRecords.of(())) == exited(50)


def test_a_scanned_thread_with_the_same_tid_is_another_thread() -> None:
    scanned = ThreadRecords.of([(KEY, record(60))])
    assert not_scanned(exited(50), scanned) == exited(50)
