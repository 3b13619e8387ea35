"""Waits in progress are compared with those of another tick, by the slots of their threads or without them."""

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values.catalog import SiteKey
from offtop.model.values.snapshot import Waiting
from offtop.model.values.waits import WaitList, Waits, changed

THREADS = 6


class Step(NamedTuple):
    """What a thread does between two ticks."""

    tid: int
    slot: int
    waits: bool
    changes: bool
    """Something about its wait changes."""
    is_new: bool
    """It begins another wait."""


class Threads:
    """The waits of threads, with versions and slots as the ledger gives them."""

    def __init__(self) -> None:
        self._of_slots: dict[int, tuple[int, int, int]] = {}
        """Slot → tid, begin of the wait in ns, version."""
        self._next = 0

    def after(self, steps: list[Step]) -> None:
        for one in steps:
            was = self._of_slots.get(one.slot)
            if not one.waits:
                self._of_slots.pop(one.slot, None)
            elif was is None or one.is_new or one.changes or was[0] != one.tid:
                goes_on = was is not None and was[0] == one.tid and not one.is_new
                self._of_slots[one.slot] = (one.tid, was[1] if was and goes_on else self._next, self._next)
                self._next += 1

    def waits(self, lineage: object, *, with_slots: bool) -> Waits:
        slots = sorted(self._of_slots)
        found = [self._of_slots[slot] for slot in slots]
        some = WaitList.of([Waiting(SiteKey(1, tid, 5, 0), since_ns, since_ns) for tid, since_ns, _ in found])
        versions = np.array([version for *_, version in found], np.int64)
        return Waits(some, versions, lineage, np.array(slots, np.int64) if with_slots else None)


steps = st.lists(
    st.builds(
        Step,
        tid=st.integers(10, 10 + THREADS),
        slot=st.integers(0, THREADS),
        waits=st.booleans(),
        changes=st.booleans(),
        is_new=st.booleans(),
    ),
    max_size=12,
    unique_by=(lambda one: one.slot, lambda one: one.tid),
)


@given(steps, steps)
def test_slots_change_no_comparison(before: list[Step], after: list[Step]) -> None:
    threads, lineage = Threads(), object()
    threads.after(before)
    earlier = [threads.waits(lineage, with_slots=one) for one in (True, False)]
    threads.after(after)
    later = [threads.waits(lineage, with_slots=one) for one in (True, False)]
    for a, b in ((earlier, later), (later, earlier), (earlier, earlier)):
        assert a[0].changed_since(b[0]).tolist() == a[1].changed_since(b[1]).tolist()
        if len({*a[1]}) == len(a[1]) and len({*b[1]}) == len(b[1]):  # a thread has one slot
            assert a[0].ended_by(b[0]).tolist() == a[1].ended_by(b[1]).tolist()


def test_a_wait_goes_on_if_only_something_about_it_changes() -> None:
    threads, lineage = Threads(), object()
    threads.after([Step(tid, tid, waits=True, changes=False, is_new=True) for tid in range(4)])
    before = threads.waits(lineage, with_slots=True)
    # 0 goes on, 1 changes, 2 begins another wait, and 3 ends; another thread gets its slot
    threads.after(
        [
            Step(1, 1, waits=True, changes=True, is_new=False),
            Step(2, 2, waits=True, changes=False, is_new=True),
            Step(9, 3, waits=True, changes=False, is_new=True),
        ]
    )
    now = threads.waits(lineage, with_slots=True)
    assert before.ended_by(now).tolist() == [2, 3]
    assert now.changed_since(before).tolist() == before.changed_since(now).tolist() == [False, True, True, True]


def test_all_waits_are_new_if_there_were_none() -> None:
    threads = Threads()
    threads.after([Step(1, 0, waits=True, changes=False, is_new=True)])
    now = threads.waits(threads, with_slots=True)
    assert [*changed(now, {})] == [*now.values()] != []
    assert now.changed_since(Threads().waits(threads, with_slots=True)).tolist() == [True]
    assert Threads().waits(threads, with_slots=True).changed_since(now).tolist() == []
