"""Which device the file of a descriptor is on, from fdinfo and mountinfo (Documentation/filesystems/proc.rst)."""

import re
from collections.abc import Mapping

from offtop.kernel.procfs.guarded_reads import Channel

_MOST_BYTES = 1 << 20
_ID = re.compile(rb"^mnt_id:\t(\d+)$", re.MULTILINE)
_MOUNT = re.compile(rb"^(\d+) \d+ (\d+):(\d+) .* - (\S+)", re.MULTILINE)
"""Id, major and minor number, and kind of file system."""


def mount_id(reads: Channel, pid: int, fd: int) -> int | None:
    """Return the id of the mount that a descriptor of a process is on. Raises OSError."""
    (text,) = reads.ask(pid, "contents", [f"/proc/{pid}/fdinfo/{fd}"], _MOST_BYTES)
    found = _ID.search(text)
    return int(found[1]) if found else None


def devices(reads: Channel, pid: int) -> Mapping[int, tuple[int, int, bytes]]:
    """Return the device (major, minor) and kind of file system of each mount that a process sees, by the mount's id.

    Major 0: the file system has no single block device of its own, like tmpfs, NFS and btrfs. Returns no mounts if
    there are too many. Raises OSError.
    """
    (text,) = reads.ask(pid, "contents", [f"/proc/{pid}/mountinfo"], _MOST_BYTES)
    if len(text) >= _MOST_BYTES:  # truncated
        return {}
    return {int(mount): (int(major), int(minor), kind) for mount, major, minor, kind in _MOUNT.findall(text)}
