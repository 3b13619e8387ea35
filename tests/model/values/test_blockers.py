"""What must act to end a wait, as a snapshot has it."""

import re

import pytest

from offtop.model.values.blockers import FILE_LOCK, VIA, Blocker, limit_of, limit_text
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot


def test_a_snapshot_names_all_that_hold_what_a_thread_waits_for() -> None:
    heirs = (Blocker(10, 0, FILE_LOCK, True, "job.lock"), Blocker(11, 0, FILE_LOCK, True, "job.lock"))
    taken = Snapshot(0, 1, blockers={ThreadKey(20, 21): heirs}, titles={10: "postgres: idle in transaction"})
    assert taken.blockers[ThreadKey(20, 21)] == heirs
    assert Snapshot(0, 1).blockers == {}
    assert Snapshot(0, 1).titles == {}


def test_every_way_to_know_a_blocker_is_described() -> None:
    assert all(re.fullmatch("[a-z-]+", via) and text for via, text in VIA.items())


@pytest.mark.parametrize("text", ["", "1", "1 ", "max /a", "-1 /a", "\u00b2 /a", f"{1 << 63} /a", f"{'9' * 5000} /a"])
def test_text_that_is_no_memory_limit_has_none(text: str) -> None:
    """A recording may have any text there: Python refuses to read a number of 5,000 digits."""
    assert limit_of(text) == (0, "")


def test_memory_limit_is_read_from_its_text() -> None:
    assert limit_of(limit_text(4096, "/sys/fs/cgroup/a b/memory.max")) == (4096, "/sys/fs/cgroup/a b/memory.max")
