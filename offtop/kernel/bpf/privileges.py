"""Check which of the capabilities that offtop uses this process has, and what is missing without them.

Root has all of them. Another user, or root in a container, may have some: two are required, and each of the others
enables a part of offtop, which is reported if it is missing.
"""

import os
import re
from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

from offtop.errors import KernelError, PrivilegeError

_INITIAL_NAMESPACE = 0xEFFFFFFD
"""Inode of the initial user namespace (PROC_USER_INIT_INO, include/linux/proc_ns.h)."""


class Capability(NamedTuple):
    bit: int
    """Bit number in `CapEff` (include/uapi/linux/capability.h)."""
    loses: str
    """What is missing without it."""


CAPABILITIES = {
    "CAP_BPF": Capability(39, "everything: loading BPF programs needs it"),
    "CAP_PERFMON": Capability(38, "everything: attaching BPF programs and reading kernel memory need it"),
    "CAP_SYS_PTRACE": Capability(
        19, "user stacks of processes that you may not trace, at least while they wait, and their open files"
    ),
    "CAP_SYSLOG": Capability(34, "names of kernel functions, and so categories, wakers and what is waited on"),
    "CAP_SYS_ADMIN": Capability(
        21,
        "the ns per switch in the header, and peers in other containers; if kernel.perf_event_paranoid is above 2, "
        "also --within, and before Linux 6.16 the low cost (kprobes)",
    ),
    "CAP_DAC_READ_SEARCH": Capability(
        2,
        "callers in user stacks of other users' waits in progress; names in programs and perf maps that only their "
        "owner may read",
    ),
    "CAP_CHECKPOINT_RESTORE": Capability(40, "names in programs and libraries that were deleted or replaced"),
}
NEEDED = ("CAP_BPF", "CAP_PERFMON")
WANTED = ("CAP_SYS_PTRACE", "CAP_SYSLOG")
"""Not required, but much is missing without them."""
_INCLUDES = {
    "CAP_SYS_ADMIN": ("CAP_BPF", "CAP_PERFMON", "CAP_CHECKPOINT_RESTORE"),
    "CAP_DAC_OVERRIDE": ("CAP_DAC_READ_SEARCH",),
}
"""Capability → others that it includes.

See bpf_capable(), perfmon_capable() and checkpoint_restore_ns_capable() (include/linux/capability.h); and, for
reading, generic_permission() (fs/namei.c).
"""
_BITS = {**{name: one.bit for name, one in CAPABILITIES.items()}, "CAP_DAC_OVERRIDE": 1}


def capabilities(status_file: str = "/proc/self/status") -> frozenset[str]:
    """Which of CAPABILITIES this process holds, directly or through another one.

    Raises KernelError without /proc.
    """
    try:
        status = Path(status_file).read_text(errors="replace")
    except OSError as error:
        raise KernelError("There is no /proc here, which offtop needs. Mount it: mount -t proc proc /proc") from error
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    mask = int(found[1], 16) if found else 0
    held = {name for name, bit in _BITS.items() if mask >> bit & 1}
    return frozenset(held.union(*(_INCLUDES.get(name, ()) for name in held)) & CAPABILITIES.keys())


def is_confined() -> bool:
    """Whether the capabilities apply only to a user namespace, and so not to BPF.

    That is so in a rootless container.
    """
    try:
        return Path("/proc/self/ns/user").stat().st_ino != _INITIAL_NAMESPACE
    except OSError:  # the kernel has no user namespaces, or /proc is not mounted
        return False


def check(held: Set[str]) -> None:
    """Raise PrivilegeError if these capabilities do not allow tracing the kernel."""
    missing = [name for name in NEEDED if name not in held]
    if missing and (os.geteuid() == 0 or len(missing) < len(NEEDED)):
        raise PrivilegeError(
            f"offtop lacks {', '.join(missing)}, which tracing the kernel needs. "
            "Try: sudo offtop   In a container, it needs CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYSLOG."
        )
    if missing:
        raise PrivilegeError(
            "offtop needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYSLOG) to attach to the "
            "scheduler. Try: sudo offtop. See it without root: offtop demo"
        )
    if is_confined():
        raise PrivilegeError(
            "offtop is root of a user namespace only, as in a rootless container, and so may not load BPF programs. "
            "Start it outside: sudo offtop"
        )
