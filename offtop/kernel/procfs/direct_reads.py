"""Read files of /proc and of cgroups that need no deadline, unlike those of guarded_reads."""

import os
import sys
from pathlib import Path

_PART_BYTES = 1 << 16


def every_pid() -> list[int]:
    """Return the PIDs of all processes."""
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]


def read_content(path: str | Path, most_bytes: int = sys.maxsize) -> bytes:
    """Read a file; empty if it does not exist, is not readable, or is not a valid path.

    If its process or cgroup is removed meanwhile, this is what was read until then.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    found = b""
    try:
        while part := os.read(fd, min(_PART_BYTES, most_bytes - len(found))):  # mostly a page at a time
            found += part
    except OSError:
        pass
    finally:
        os.close(fd)
    return found
