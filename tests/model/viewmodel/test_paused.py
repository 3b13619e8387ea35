"""Two threads of process 7, of which one only waits, and one of process 9."""

from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import Snapshot, ThreadTotals, Waiting
from offtop.model.viewmodel.paused import all_threads

MAIN, WORKER, OTHER = ThreadKey(7, 7), ThreadKey(7, 8), ThreadKey(9, 9)


def test_threads_are_counted_once_by_process() -> None:
    waiting = {key: Waiting(SiteKey(*key, 1, 0), 1, 1) for key in (MAIN, WORKER)}
    every = all_threads(Snapshot(0, 0, {MAIN: ThreadTotals(), OTHER: ThreadTotals()}, waiting=waiting))
    assert every.of_process == {7: 2, 9: 1}
    assert [*every.threads] == [MAIN, WORKER, OTHER]
    assert (len(every.threads), WORKER in every.threads, ThreadKey(9, 8) in every.threads) == (3, True, False)
    assert "no thread" not in every.threads


def test_there_are_no_threads_before_the_first_snapshot() -> None:
    every = all_threads(None)
    assert ([*every.threads], every.of_process) == ([], {})
