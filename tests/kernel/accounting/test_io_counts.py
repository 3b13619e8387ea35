"""Time that was shown of a call in progress is subtracted once, when BPF counts the call, however late."""

from offtop.kernel.accounting import io_counts
from offtop.kernel.accounting.io_counts import OwedTime


def test_owed_time_is_paid_once_and_leaves_no_total_below_zero() -> None:
    owed = OwedTime[str]()
    owed.add("a", 70, 50)
    owed.add("a", 30, 10)
    assert owed.pay("b", 40, 0) == (40, 0)
    assert owed.pay("a", 40, 45) == (0, 0), "the rest is owed until the next tick"
    assert owed.pay("a", 90, 20) == (30, 5)
    assert owed.pay("a", 90, 20) == (90, 20)
    assert len(owed) == 0


def test_time_that_is_never_counted_is_not_owed_forever() -> None:
    owed = OwedTime[int]()
    most = io_counts._MOST_OWED  # pyright: ignore[reportPrivateUsage]
    for key in range(most):
        owed.add(key, 5)
    owed.add(0, 5)  # owed since just now
    owed.add(most, 5)
    assert len(owed) == most
    assert [owed.pay(key, 20) for key in (0, 1, 2, most)] == [(10,), (20,), (15,), (15,)]
