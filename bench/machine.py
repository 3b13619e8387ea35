"""The machine under the bench: what it is, what it has, and how busy others keep it."""

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
    """Share of all CPUs that was not idle in the next `seconds`."""
    before = _cpu_ticks()
    time.sleep(seconds)
    after = _cpu_ticks()
    passed = [b - a for a, b in zip(before, after, strict=True)]
    return 100 * (1 - (passed[3] + passed[4]) / max(1, sum(passed[:8])))


def _cpu_ticks() -> list[int]:
    """user nice system idle iowait irq softirq steal …, of all CPUs together."""
    with Path("/proc/stat").open() as lines:
        return [int(field) for field in lines.readline().split()[1:]]


def wait_for_quiet(most_seconds: float) -> tuple[str, float]:
    """Return when others leave the CPUs alone, at the latest after `most_seconds`: what to say, and the seconds."""
    began = time.monotonic()
    busy = busy_pct(1)
    while busy > _BUSY_PCT and time.monotonic() - began < most_seconds:
        busy = busy_pct(1)
    waited = time.monotonic() - began
    said = f"load average {os.getloadavg()[0]:.2f}, others use {busy:.0f}% of the CPUs"
    if waited > 2:
        said += f", waited {waited:.0f} s for quiet"
    return said + (": NOISY" if busy > _BUSY_PCT else ""), waited


def need(command: str, package: str) -> str:
    """Path of a command. Raises UnanswerableError."""
    path = shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise UnanswerableError(f"{command} is not installed (Debian's package {package})")
    return path
