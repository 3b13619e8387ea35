"""The BPF programs that count file operations (bpf/files.c): loaded when they are requested, detached by closing them.

They run beside those of offcpu.c, count the same threads, and write to the same of two buffers, and to the same maps of
stacks.
"""

import struct
from collections.abc import Mapping

from offtop.errors import KernelError
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.io_program import STACK, STACK_IDS_BYTES, IoProgram
from offtop.kernel.bpf.program import Program
from offtop.kernel.procfs import syscalls
from offtop.model.values.files import MMAP_READ, OPERATIONS

KEY = struct.Struct("=QIIIIII")
"""`struct file_key`: inode, device, generation, pid, operation, cpu, and 4 unused bytes."""
TOTALS = struct.Struct(f"=5Q16s{layout.LANES * 8}s")
"""`struct file_totals`."""
CALL = struct.Struct(f"=6Q{KEY.size}s16sQ")
"""`struct file_call`."""
REQUEST = struct.Struct(f"=2Q{KEY.size}s16s")
"""`struct ring_request`."""
PATH_BYTES = 1024 + 256
PATH = struct.Struct(f"=II{PATH_BYTES}s")
"""`struct file_path`."""
ID = struct.Struct("=QII")
"""`struct file_id`: inode, device, generation."""
_CALLS, _TOTALS, _STACKS, _NAMES, _RING_USERS = 8192, 16_384, 8192, 8192, 256
"""Calls in progress at one time; processes, operations and files in a tick, by CPU; stacks of those; files with a path;
processes with slow requests to io_uring.
"""
_ARGUMENT_SHIFT, _RETURNED, _HAS_BYTES = 8, 0xF, 1 << 16
_ARGUMENTS = {**dict.fromkeys(("open", "openat", "openat2", "creat"), _RETURNED), "sendfile": 1}
"""Which argument is the descriptor, where it is not the first. copy_file_range and sendfile count at what they read."""
_WITH_BYTES = frozenset(
    {
        *("read", "write", "pread", "pwrite", "readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2"),
        *("copy_file_range", "sendfile"),
    }
)
_SIZES = {
    "file_operations": (4, 4),
    "file_calls": (4, CALL.size),
    "file_totals_0": (KEY.size, TOTALS.size),
    "file_totals_1": (KEY.size, TOTALS.size),
    "file_stacks_0": (KEY.size + STACK_IDS_BYTES, STACK.size),
    "file_stacks_1": (KEY.size + STACK_IDS_BYTES, STACK.size),
    "file_names": (ID.size, PATH.size),
    "file_lost": (4, 8),
}
_RING_OPERATIONS = {
    **dict.fromkeys(("READ", "READV", "READ_FIXED", "READV_FIXED"), "uring-read"),
    **dict.fromkeys(("WRITE", "WRITEV", "WRITE_FIXED", "WRITEV_FIXED"), "uring-write"),
    "FSYNC": "uring-fsync",
    "SYNC_FILE_RANGE": "uring-syncrange",
    "FALLOCATE": "uring-fallocate",
    "FTRUNCATE": "uring-ftruncate",
}
"""By the kernel's names, without IORING_OP_."""
_RING_SIZES = {"ring_operations": (4, 4), "ring_requests": (8, REQUEST.size)}
_RAW_TRACEPOINTS = {"on_enter": "sys_enter", "on_leave": "sys_exit", "on_switch": "sched_switch"}


class FileProgram(IoProgram):
    """The attached programs and their maps. Raises OSError if the kernel refuses a map."""

    KIND, KEY, LOST_KINDS = "file", KEY, 2

    def __init__(self, program: Program, features: Features) -> None:
        """Load and attach. Raises KernelError, or another OfftopError."""
        if why := why_unavailable(features):
            raise KernelError(f"File operations cannot be shown: {why}")
        entries = {"FILE_CALLS": _CALLS, "FILE_TOTALS": _TOTALS, "FILE_STACKS": _STACKS, "FILE_NAMES": _NAMES}
        defines = {**entries, **features.paths}
        tracepoints = _RAW_TRACEPOINTS
        if not why_without_faults(features):
            defines |= {**features.mappings, "MMAP_READ": OPERATIONS.index(MMAP_READ) + 1}
            tracepoints = {**tracepoints, "on_fault": "page_fault_user"}
        sizes = dict(_SIZES)
        if not why_without_rings(features):
            defines |= {**features.rings, "RING_USERS": _RING_USERS}
            tracepoints = {**tracepoints, "on_request_end": "io_uring_complete", "on_submit": features.ring_submission}
            sizes |= _RING_SIZES
        super().__init__(program.load_beside("files.c", tracepoints, [*sizes], defines), sizes)
        self._fill("file_operations", _operations())
        if "ring_operations" in self.maps:
            self._fill("ring_operations", _ring_operations(features.ring_operations))

    def _fill(self, name: str, entries: Mapping[int, int]) -> None:
        for number, entry in entries.items():
            self.maps[name].update(number.to_bytes(4, "little"), entry.to_bytes(4, "little"))


def why_unavailable(features: Features) -> str:
    """Why file operations cannot be counted, with the remedy; empty if they can."""
    if not features.files or not features.paths or "REG_CALL" not in features.registers:
        return "this kernel does not describe open files or system calls. Use Linux 5.15 or newer, on x86-64 or arm64"
    return ""


def why_without_faults(features: Features) -> str:
    """Why page faults on mapped files cannot be counted; empty if they can."""
    return "" if features.mappings else "this kernel has no tracepoint at page faults (arm64 has none)"


def why_without_rings(features: Features) -> str:
    """Why requests to io_uring cannot be counted; empty if they can."""
    return "" if features.rings else "this kernel does not report requests to io_uring, as Linux 5.19 and newer do"


def _operations() -> dict[int, int]:
    """Return the entries of file_operations, by system call number."""
    entries: dict[int, int] = {}
    for operation, name in enumerate(OPERATIONS):
        argument = _ARGUMENTS.get(name, 0)
        # 0 stands for no operation, so they are counted from 1.
        entry = operation + 1 | argument << _ARGUMENT_SHIFT | (_HAS_BYTES if name in _WITH_BYTES else 0)
        for number in (syscalls.number_of(name), syscalls.number_of(f"{name}64")):
            if 0 <= number < layout.CALLS:
                entries[number] = entry
    return entries


def _ring_operations(kernel: Mapping[str, int]) -> dict[int, int]:
    """Return the entries of ring_operations, by number of the operation. `kernel`: its operations by their names."""
    entries: dict[int, int] = {}
    for name, operation in _RING_OPERATIONS.items():
        number = kernel.get(f"IORING_OP_{name}")
        if number is not None:
            has_bytes = _HAS_BYTES if operation in ("uring-read", "uring-write") else 0
            entries[number] = OPERATIONS.index(operation) + 1 | has_bytes
    return entries
