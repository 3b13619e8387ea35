"""What must act to end a wait, as a snapshot has it."""

import re

from offtop.model.values.blockers import FILE_LOCK, VIA, Blocker
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
