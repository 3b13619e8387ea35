"""Describe the machine, find commands, and wait until other processes leave the CPUs alone."""

import os
import platform
import shutil
import time
from pathlib import Path

from bench.answer import UnanswerableError

_BUSY_PCT = 25.0


def described() -> str:
    return f"{os.cpu_count()} CPUs, Linux {platform.release()} {platform.machine()}"


def busy_pct(seconds: float) -> float:
    """Return the non-idle share of all CPUs over the next `seconds`."""
    before = _cpu_ticks()
    time.sleep(seconds)
    after = _cpu_ticks()
    passed = [b - a for a, b in zip(before, after, strict=True)]
    return 100 * (1 - (passed[3] + passed[4]) / max(1, sum(passed[:8])))


def _cpu_ticks() -> list[int]:
    """Return user nice system idle iowait irq softirq steal … of all CPUs together, in ticks."""
    with Path("/proc/stat").open() as lines:
        return [int(field) for field in lines.readline().split()[1:]]


def wait_for_quiet(most_seconds: float) -> tuple[str, float]:
    """Wait until the CPUs are quiet, at most `most_seconds`.

    Return a description and the seconds waited.
    """
    began = time.monotonic()
    busy = busy_pct(1)
    while busy > _BUSY_PCT and time.monotonic() - began < most_seconds:
        busy = busy_pct(1)
    waited = time.monotonic() - began
    description = f"load average {os.getloadavg()[0]:.2f}, others use {busy:.0f}% of the CPUs"
    if waited > 2:
        description += f", waited {waited:.0f} s for quiet"
    return description + (": NOISY" if busy > _BUSY_PCT else ""), waited


def need(command: str, package: str) -> str:
    """Return the path of a command. Raises UnanswerableError if it is not installed."""
    path = shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise UnanswerableError(f"{command} is not installed (Debian's package {package})")
    return path
