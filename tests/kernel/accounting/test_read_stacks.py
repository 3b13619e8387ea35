"""Test user stacks that were read while a thread waited: each belongs to one wait."""

import numpy as np
import pytest

from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.tick_records import OffCpuTask, SiteDeltas
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import SiteTotals
from offtop.model.values.stack import ENDED, FIRST_STACK, GONE, Frame, Stack
from offtop.model.windows.window import between
from tests.kernel.accounting.simulated_kernel import MIN_NS, NOTHING, Wait, primed, record_of, site_records, snapshot
from tests.kernel.watch import check_sums


@pytest.mark.parametrize("others", [0, 1])
def test_wait_of_a_process_that_has_exited_keeps_the_user_stack_that_was_read(others: int) -> None:
    """Unless other waits of the thread ended at the same kernel stack: then it is unknown which of them are there."""
    key, read, gone = ThreadKey(7, 100), 50, 60
    catalog = Catalog(stacks={read: Stack((Frame("/bin/x", 1),)), gone: Stack((Frame(GONE, 0),), end=ENDED)})
    waits = [
        Wait(1_500, 8_000, ready_ns=8_000, preempted=False, kernel=FIRST_STACK, user=gone),
        Wait(9_000, 11_000, ready_ns=11_000, preempted=False, kernel=FIRST_STACK, user=gone),
    ][: 1 + others]
    ledger = Ledger(1_000, catalog=catalog)
    ledger.tick(2_000, MIN_NS, [], NOTHING, [OffCpuTask(key, 1_500, False, 0, FIRST_STACK)], primed_ns=1_400)
    ledger.read_users(np.array([key]), np.array([1_500]), np.array([read]))
    ledger.tick(3_000, MIN_NS, [], NOTHING, [])
    before = snapshot(ledger)
    record = record_of(waits, 3_000, 12_000)
    assert record
    ended = SiteDeltas.of(site_records(key, waits, 3_000, 12_000))
    ledger.tick(12_000, MIN_NS, [(key, record)], ended, [], exited={key: 11_900})
    check_sums(window := between(before, snapshot(ledger)))
    ended_at = {site.user: totals.waits for site, totals in window.sites.items() if totals.waits}
    assert ended_at == ({gone: 2} if others else {read: 1})


def test_a_user_stack_read_belongs_to_one_wait_only() -> None:
    ledger, one_key = primed(), ThreadKey(7, 100)
    one = ledger.waiting[one_key]
    for key, switched_out_ns in (
        (one_key, one.switched_out_ns - 1),
        (one_key, one.switched_out_ns + 1),
        (ThreadKey(7, 101), one.switched_out_ns),
    ):
        ledger.read_users(np.array([key]), np.array([switched_out_ns]), np.array([9]))
        assert ledger.waiting == {one_key: one}
    ledger.read_users(np.array([one_key]), np.array([one.switched_out_ns]), np.array([9]))
    assert ledger.waiting == {one_key: one._replace(user=9)}
    # time already shown stays where it is; from now on time counts at the new site
    a = snapshot(ledger)
    ledger.tick(12_000, MIN_NS, [], NOTHING, [])
    b = snapshot(ledger)
    assert dict(between(a, b).each_site()) == {SiteKey(7, 100, 3, 9): SiteTotals(0, 10_000)}
    ledger.tick(22_000, MIN_NS, [], NOTHING, [])
    assert dict(between(b, snapshot(ledger)).each_site()) == {SiteKey(7, 100, 3, 9): SiteTotals(0, 10_000)}
    assert dict(between(a, snapshot(ledger)).each_site()) == {SiteKey(7, 100, 3, 9): SiteTotals(0, 20_000)}
