"""What the kernel counts of each block device (/proc/diskstats, Documentation/admin-guide/iostats.rst)."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from offtop.model.values.disks import MINOR_BITS

_PATH = Path("/proc/diskstats")
_NS_PER_MS = 1_000_000
_BUSY_COLUMN = 12


class DiskStats(NamedTuple):
    name: str
    """Raw."""
    in_device: int
    """Requests that the device has at this moment, without flushes."""
    busy_ns: int
    """Time with any request in progress since the start of the system, in whole ms."""


def read() -> Mapping[int, DiskStats]:
    """Return the counts of each device by its number, as the kernel encodes it (dev_t); empty if there are none."""
    try:
        lines = _PATH.read_bytes().decode(errors="surrogateescape").splitlines()
    except OSError:
        return {}
    found: dict[int, DiskStats] = {}
    for line in lines:
        fields = line.split()
        if len(fields) > _BUSY_COLUMN:
            device = int(fields[0]) << MINOR_BITS | int(fields[1])
            found[device] = DiskStats(fields[2], int(fields[11]), int(fields[_BUSY_COLUMN]) * _NS_PER_MS)
    return found


def counts_requests(name: str) -> bool:
    """Return whether the kernel counts the requests of a disk (queue/iostats, which can be switched off)."""
    try:
        return Path("/sys/block", name.replace("/", "!"), "queue/iostats").read_bytes() == b"1\n"
    except OSError:
        return False
