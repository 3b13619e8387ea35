"""Requests to block devices add up over spans."""

from offtop.model.values import histogram as log2
from offtop.model.values.disks import DeviceTotals, DiskActivity, DiskKey, DiskTotals, added, device_text

KEY = DiskKey(8 << 20 | 16, "read", 10, 11)
ONE = DiskTotals(1, 4096, 5, 20, 25, 0, 0, 0, 25, log2.of(25), log2.of(5), log2.of(20))
WAITS = DiskTotals(outstanding_ns=30, now_ns=30, in_queue=1, in_device=2)


def test_spans_add_up() -> None:
    first = DiskActivity({KEY: ONE}, {KEY.device: DeviceTotals(ONE, busy_ns=7)}, lost=1)
    later = DiskActivity({KEY: WAITS}, {KEY.device: DeviceTotals(WAITS, busy_ns=3)}, lost=2)
    both = added([first, None, later])
    assert both is not None
    assert both.totals[KEY] == ONE._replace(outstanding_ns=55, now_ns=30, in_queue=1, in_device=2)
    assert both.devices[KEY.device] == DeviceTotals(both.totals[KEY], busy_ns=10)
    assert both.lost == 3


def test_what_is_over_is_not_in_progress_any_more() -> None:
    both = added([DiskActivity({KEY: WAITS}, {KEY.device: DeviceTotals(WAITS)}), DiskActivity()])
    assert both is not None
    assert both.totals[KEY] == both.devices[KEY.device].reads == DiskTotals(outstanding_ns=30)


def test_nothing_adds_up_to_nothing() -> None:
    assert added([]) is None
    assert added([None, DiskActivity()]) == DiskActivity()


def test_requests_of_one_span_stand_beside_each_other() -> None:
    device = DeviceTotals(WAITS, WAITS._replace(now_ns=40), ONE)
    assert device.every == ONE._replace(outstanding_ns=85, now_ns=40, in_queue=2, in_device=4)


def test_a_device_without_a_name_is_called_by_its_numbers() -> None:
    assert (DiskActivity().name(KEY.device), device_text(KEY.device)) == ("8:16", "8:16")
    assert DiskActivity(names={KEY.device: "sdb"}).name(KEY.device) == "sdb"
