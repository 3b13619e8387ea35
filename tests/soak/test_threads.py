"""While 10,000 threads sleep for an hour, the memory and CPU use of the screen do not grow; run by `make soak`."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from tests import command
from tests.kernel import programs
from tests.ui.terminal import Terminal, terminal

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

_SECONDS = float(os.environ.get("OFFTOP_SOAK_SECONDS", 3600))
_THREADS = 10_000
_SAMPLE_S = 60.0
_HISTORY = "1m"
"""With the default, the history fills up for ten minutes."""
_WARM = 0.25
"""Share of the run that is not compared: until the history is full."""
_MOST_GROWTH = 1.05
"""Growth of memory from the first third after that to the last that still counts as none."""
_MOST_CPU_GROWTH = 1.5
"""The same for the CPU use, which depends on what else the machine does."""

SLEEPERS = r"""
#include <pthread.h>
#include <stdlib.h>
static void *sleeper(void *us) { for (;;) usleep((long)us); }
int main(int argc, char **argv)
{
	pthread_t made;
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	for (long i = 0, threads = atol(argv[1]); i < threads; i++)
		if (pthread_create(&made, &small, sleeper, (void *)(1000000 + 2000000 / threads * i)))
			return 1;
	next();
	return 0;
}
"""
"""So many threads sleep again and again, 1 to 3 s each time."""


class Sample(NamedTuple):
    """What offtop's processes use."""

    pss_mb: float
    cpu_pct: float


def test_10_000_threads_for_an_hour_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = programs.build(tmp_path / "sleepers", SLEEPERS, "-D_GNU_SOURCE", "-pthread")
    with (
        programs.running([binary, str(_THREADS)]) as child,
        # Only this process: names and stacks of others would be kept for a quarter of an hour.
        terminal([str(command.OFFTOP), "-p", str(child.pid), "--history", _HISTORY], 160, 50) as shown,
    ):
        shown.read_until(b"WAITING")
        samples = sampled(shown)
    warm = samples[int(_WARM * len(samples)) :]
    third = max(1, len(warm) // 3)
    first, last = (Sample(*map(median, zip(*some, strict=True))) for some in (warm[:third], warm[-third:]))
    with capsys.disabled():
        print(f"\n{_THREADS:,} threads; by minute, PSS in MB and CPU in percent of one core:")
        print("  ".join(f"{one.pss_mb:.0f} {one.cpu_pct:.0f}%" for one in samples))
        print(
            f"first third {first.pss_mb:.1f} MB {first.cpu_pct:.1f} %, last {last.pss_mb:.1f} MB {last.cpu_pct:.1f} %"
        )
    assert last.pss_mb <= first.pss_mb * _MOST_GROWTH
    assert last.cpu_pct <= first.cpu_pct * _MOST_CPU_GROWTH


def sampled(shown: Terminal) -> list[Sample]:
    """Return a sample for each minute, or each tenth of a shorter run."""
    seconds = min(_SAMPLE_S, _SECONDS / 10)
    samples: list[Sample] = []
    for _ in range(round(_SECONDS / seconds)):
        began_s, before_s = time.monotonic(), cpu_s(command.family(shown.pid))
        shown.look_on(seconds)
        family = command.family(shown.pid)
        used_pct = 100 * (cpu_s(family) - before_s) / (time.monotonic() - began_s)
        samples.append(Sample(sum(map(pss_mb, family)), used_pct))
    return samples


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU time of processes, and of their children that have ended."""
    ticks = 0
    for pid in pids:
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
