"""Test that a process above the CPU quota of its cgroup is found by the counters of that cgroup."""

import subprocess
import sys

import pytest

from offtop.kernel.resolve.quotas import Quotas
from tests.kernel import waits
from tests.kernel.programs import until

SPIN = "while True: pass"


@pytest.mark.kernel
def test_a_process_above_its_quota_is_found_and_one_below_it_is_not() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", SPIN]) as above,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as below,
    ):
        try:
            tight, wide = {"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "5000"}, {"cpu.cfs_quota_us": "90000"}
            with (
                waits.in_cgroup("cpu", above.pid, tight, {"cpu.max": "5000 50000"}) as group,
                waits.in_cgroup("cpu", below.pid, wide, {"cpu.max": "90000 100000"}),
            ):
                quotas = Quotas()
                until(lambda: above.pid in quotas.find([above.pid, below.pid]))
                found = quotas.find([])
                assert {*found} == {above.pid}, "also at a moment at which it has a CPU"
                assert found[above.pid].endswith(group.name)
        except waits.UnavailableError as missing:
            pytest.skip(str(missing))
        finally:
            for one in (above, below):
                one.kill()
