"""What this process may do of what offtop asks for, and what offtop goes without where it may not.

Root may all of it. Who is not root, or root in a container, may what its capabilities say; two of them are needed, of
each other one something is lost, which is said.
"""

import os
import re
from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

from offtop.errors import KernelError, PrivilegeError

_MACHINE_S_OWN = 0xEFFFFFFD
"""Inode of the first user namespace (PROC_USER_INIT_INO, include/linux/proc_ns.h)."""


class Capability(NamedTuple):
    bit: int
    """In `CapEff` (include/uapi/linux/capability.h)."""
    loses: str
    """What offtop cannot do without it."""


CAPABILITIES = {
    "CAP_BPF": Capability(39, "everything: nobody else may load its programs"),
    "CAP_PERFMON": Capability(38, "everything: nobody else may attach them, or read the kernel's memory"),
    "CAP_SYS_PTRACE": Capability(
        19, "user stacks of processes that it may not look into, at least while they wait, and what they have open"
    ),
    "CAP_SYSLOG": Capability(34, "names of kernel functions, and so categories, wakers and what is waited on"),
    "CAP_SYS_ADMIN": Capability(
        21,
        "the ns per switch in the header, and who is at the other end in other containers; where "
        "kernel.perf_event_paranoid is above 2, --within, and before Linux 6.16 the low cost (kprobes)",
    ),
    "CAP_DAC_READ_SEARCH": Capability(
        2,
        "callers in user stacks of waits in progress of other users; names in programs and perf maps that only their "
        "owner may read",
    ),
    "CAP_CHECKPOINT_RESTORE": Capability(40, "names in programs and libraries that were deleted or replaced"),
}
NEEDED = ("CAP_BPF", "CAP_PERFMON")
WANTED = ("CAP_SYS_PTRACE", "CAP_SYSLOG")
"""Without which much is missing."""
_BRINGS = {
    "CAP_SYS_ADMIN": ("CAP_BPF", "CAP_PERFMON", "CAP_CHECKPOINT_RESTORE"),
    "CAP_DAC_OVERRIDE": ("CAP_DAC_READ_SEARCH",),
}
"""bpf_capable(), perfmon_capable() and checkpoint_restore_ns_capable() (include/linux/capability.h); and, as to
reading, generic_permission() (fs/namei.c)."""
_BITS = {**{name: one.bit for name, one in CAPABILITIES.items()}, "CAP_DAC_OVERRIDE": 1}


def capabilities(status_file: str = "/proc/self/status") -> frozenset[str]:
    """Which of CAPABILITIES this process holds, or has by another one. Raises KernelError without /proc."""
    try:
        status = Path(status_file).read_text(errors="replace")
    except OSError as error:
        raise KernelError("There is no /proc here, which offtop reads. Mount it: mount -t proc proc /proc") from error
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    mask = int(found[1], 16) if found else 0
    held = {name for name, bit in _BITS.items() if mask >> bit & 1}
    return frozenset(held.union(*(_BRINGS.get(name, ()) for name in held)) & CAPABILITIES.keys())


def is_confined() -> bool:
    """Whether capabilities are those of a user namespace, as in a rootless container: they do not count for BPF."""
    try:
        return Path("/proc/self/ns/user").stat().st_ino != _MACHINE_S_OWN
    except OSError:  # no user namespaces, or no /proc
        return False


def check(held: Set[str]) -> None:
    """Raises PrivilegeError where the kernel lets nobody watch it who holds no more than these."""
    missing = [name for name in NEEDED if name not in held]
    if missing and (os.geteuid() == 0 or len(missing) < len(NEEDED)):
        raise PrivilegeError(
            f"offtop lacks {', '.join(missing)}, without which the kernel lets nobody watch it. "
            "Try: sudo offtop   In a container, it needs CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYSLOG."
        )
    if missing:
        raise PrivilegeError(
            "offtop needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYSLOG) to attach to the "
            "scheduler. Try: sudo offtop. See it without root: offtop demo"
        )
    if is_confined():
        raise PrivilegeError(
            "offtop is root of a user namespace only, as in a rootless container, and those may not load BPF programs. "
            "Start it outside: sudo offtop"
        )
