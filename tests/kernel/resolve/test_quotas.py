"""Test that a process above the CPU quota of its cgroup is found by the counters of that cgroup."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from offtop.kernel.procfs.cgroups import Mount, Quota
from offtop.kernel.resolve import quotas
from offtop.kernel.resolve.quotas import ProcessQuotas, Quotas
from tests.kernel import waits
from tests.kernel.programs import until

SPIN = "while True: pass"
QUOTA = Quota("/svc", 20_000_000, 100_000_000, periods=1000, throttled=1000, throttled_ns=0)


def test_counters_of_a_recreated_cgroup_start_over(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"periods": 1000, "throttled": 1000}

    def quota_of(content: bytes, mounts: Sequence[Mount]) -> Quota:
        return QUOTA._replace(**counters)

    monkeypatch.setattr(quotas.cgroups, "quota_of", quota_of)
    finder, pid = Quotas(), os.getpid()
    finder.find([pid])
    counters.update(periods=1010, throttled=1010)
    assert finder.find([pid]) == {pid: QUOTA._replace(**counters)}
    counters.update(periods=3, throttled=0)
    assert finder.find([pid]) == {}
    counters.update(periods=10, throttled=7)
    assert finder.find([pid]) == {pid: QUOTA._replace(**counters)}


@pytest.mark.parametrize(("is_exact", "throttled", "is_found"), [(False, 4, False), (True, 4, True), (True, 0, False)])
def test_quota_is_that_of_the_cgroup_if_it_was_used_up_or_in_most_periods_where_that_is_all_that_is_known(
    monkeypatch: pytest.MonkeyPatch, is_exact: bool, throttled: int, is_found: bool
) -> None:
    now = [QUOTA]

    def quota_of(content: bytes, mounts: Sequence[Mount]) -> Quota:
        return now[0]

    monkeypatch.setattr(quotas.cgroups, "quota_of", quota_of)
    finder, pid = Quotas(is_exact), os.getpid()
    assert finder.find([pid]) == {}
    now[0] = QUOTA._replace(periods=1010, throttled=1000 + throttled)
    assert ({*finder.find([pid])} == {pid}) == is_found


def test_quotas_of_a_process_are_read_again_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, there, reads = [100.0], [False], list[int]()

    def quota_of(content: bytes, mounts: Sequence[Mount]) -> Quota | None:
        reads.append(1)
        return QUOTA if there[0] else None

    monkeypatch.setattr(quotas.cgroups, "quota_of", quota_of)
    known, pid = ProcessQuotas(lambda: now[0]), os.getpid()
    assert [known.has_quota(pid) for _ in range(3)] == [False] * 3
    there[0], now[0] = True, 104.0
    assert (known.has_quota(pid), len(reads)) == (False, 1)
    now[0] = 105.1
    assert (known.has_quota(pid), len(reads)) == (True, 2)


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
                finder = Quotas()
                until(lambda: above.pid in finder.find([above.pid, below.pid]))
                found = finder.find([])
                assert {*found} == {above.pid}, "also at a moment at which it has a CPU"
                assert found[above.pid].path.endswith(group.name)
                assert found[above.pid].cpus == 0.1
        except waits.UnavailableError as missing:
            pytest.skip(str(missing))
        finally:
            for one in (above, below):
                one.kill()
