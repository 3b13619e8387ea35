"""Test that memory and cost do not grow while 1,000 threads sleep; `make soak` does it for an hour with 10,000."""

from pathlib import Path
from statistics import median

import pytest

from tests.kernel import offtop_process, programs
from tests.soak.test_threads import SLEEPERS

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_settings")]

_WARM_TICKS, _TICKS = 40, 45


def test_1000_sleeping_threads_cost_as_much_later_as_at_first(tmp_path: Path) -> None:
    binary = programs.build(tmp_path / "sleepers", SLEEPERS, "-D_GNU_SOURCE", "-pthread")
    with (
        programs.running([binary, "1000"]) as child,
        offtop_process.started("--json", "-d", "0.1", "-p", str(child.pid)) as offtop,
    ):
        costs = [offtop.tick()["cost"] for _ in range(_WARM_TICKS + _TICKS)][_WARM_TICKS:]
    third = _TICKS // 3
    for figure, most in (("rss_bytes", 1.05), ("cpu_pct", 1.5)):
        first, last = (median(one[figure] for one in some) for some in (costs[:third], costs[-third:]))
        assert 0 < last <= first * most, figure
