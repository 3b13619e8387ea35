"""The BPF programs that count requests to block devices (bpf/disks.c): loaded on request, detached by closing them.

They run beside those of offcpu.c, count the same threads, and write to the same of two buffers, and to the same maps of
stacks.
"""

import struct

from offtop.errors import KernelError
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.io_program import STACK, STACK_IDS_BYTES, IoProgram
from offtop.kernel.bpf.program import Program

KEY = struct.Struct("=24s6I")
"""`struct disk_key`: worker, device, pid, tid, operation, cpu, is_selected."""
REQUEST = struct.Struct(f"=3Q4I2Q{KEY.size}s16s")
"""`struct disk_request`."""
NUMBERS = 8
TOTALS = struct.Struct(f"={NUMBERS}Q16s" + f"{layout.LANES * 8}s" * 3)
"""`struct disk_totals`."""
USER = struct.Struct(f"={KEY.size}s16s")
"""`struct disk_user`."""
_REQUESTS, _TOTALS, _STACKS, _FLUSHERS = 16_384, 8192, 8192, 256
"""Requests in progress at one time; threads, operations and devices in a tick, by CPU; stacks of those; devices that
are flushed, or slow."""
_SIZES = {
    "disk_requests": (8, REQUEST.size),
    "disk_totals_0": (KEY.size, TOTALS.size),
    "disk_totals_1": (KEY.size, TOTALS.size),
    "disk_stacks_0": (KEY.size + STACK_IDS_BYTES, STACK.size),
    "disk_stacks_1": (KEY.size + STACK_IDS_BYTES, STACK.size),
    "disk_flushers": (4, USER.size),
    "disk_lost": (4, 8),
}
_RAW_TRACEPOINTS = {
    "on_complete": "block_rq_complete",
    "on_bio_complete": "block_bio_complete",
    "on_requeue": "block_rq_requeue",
    "on_merge": "block_rq_merge",
    "on_back_merge": "block_bio_backmerge",
    "on_front_merge": "block_bio_frontmerge",
    "on_issue": "block_rq_issue",
    "on_bio_queue": "block_bio_queue",
}
"""In the order in which they are attached: the end of each request whose start is seen must be seen, too."""


class DiskProgram(IoProgram):
    """The attached programs and their maps. Raises OSError if the kernel refuses a map."""

    KIND, KEY, LOST_KINDS = "disk", KEY, 3

    def __init__(self, program: Program, features: Features) -> None:
        """Load and attach. Raises KernelError, or another OfftopError."""
        if why := why_unavailable(features):
            raise KernelError(f"Requests to disks cannot be shown: {why}")
        entries = {
            "DISK_REQUESTS": _REQUESTS,
            "DISK_TOTALS": _TOTALS,
            "DISK_STACKS": _STACKS,
            "DISK_FLUSHERS": _FLUSHERS,
        }
        defines = {**entries, **features.disks}
        begins = (
            {"on_start": "block_io_start"} if "REQUEST_STARTS" in features.disks else {"on_insert": "block_rq_insert"}
        )
        fds = program.load_beside("disks.c", {**_RAW_TRACEPOINTS, **begins}, [*_SIZES], defines, own_scratch=True)
        super().__init__(fds, _SIZES)


def why_unavailable(features: Features) -> str:
    """Why requests cannot be counted, with the remedy; empty if they can."""
    if not features.disks:
        return "this kernel does not describe requests to block devices. Use Linux 5.15 or newer with CONFIG_BLOCK=y"
    return ""
