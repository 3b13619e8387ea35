"""Layouts and constants of bpf/offcpu.h, as Python reads and writes them. A test compares the two."""

import platform
import struct
from functools import lru_cache
from typing import NamedTuple

LANES = 40
HISTOGRAM_BYTES = 4 * LANES
FRAMES = 127
SCAN_FRAMES, SHORT_FRAMES, SCHED_FRAMES = 64, 24, 8

KIND_SITE, KIND_SHORT, KIND_FILTERED, KIND_LOST = 1, 2, 3, 4
KIND_MASK, KIND_NEW, KIND_PREEMPTED = 0xF, 0x10, 0x20
RUNNING = 1 << 31
THIN_BELOW_NS, LOWEST_MIN_NS = 64_000_000, 1024
TASK_NEW = 0x800
SCANNED_RUNNABLE, SCANNED_THREAD, SCANNED_STACK, SCANNED_RAN, SCANNED_BEGAN_EARLIER = 1, 2, 4, 8, 16
SCANNED_HOLDER, SCANNED_STARTED, SCANNED_DEEP, SCANNED_FROZEN = 32, 64, 128, 256
SCAN_WAITS, SCAN_PRIME = 1, 2
SCAN_BUFFERS = (4, 8)
SCAN_ALONE = 16
SCAN_RUNS = 32
ONLY_PIDS, ONLY_TIDS, ONLY_USER, ONLY_KERNEL, ONLY_CGROUP, CGROUP_V1 = 1, 2, 4, 8, 16, 32
LOST_KINDS = ("wakings", "stacks", "threads", "sites", "events", "copies", "wakes", "outliers", "memos", "chains")

CONFIG = struct.Struct("=QQIIIIIIIIQIIQQQQQ15Q")
THREAD = struct.Struct(f"=6Q2I8Q2I4Q4I4Q{HISTOGRAM_BYTES}s")
EXITED_KEY = struct.Struct("=QII")
EXITED = struct.Struct(f"=16sQ{THREAD.size}s")
SITE_KEY = struct.Struct("=IIQQQQ")
SITE_NUMBERS = 4
"""Number of u64 before the lanes of `struct site`."""
SITE = struct.Struct(f"={SITE_NUMBERS}Q{HISTOGRAM_BYTES}s")
STACK = struct.Struct(f"=QQ{FRAMES + 1}Q")
THRESHOLD_KEY = struct.Struct("=Q16s")
THRESHOLD = struct.Struct("=QQ")
OUTLIER = struct.Struct(f"=6Q4I{THRESHOLD_KEY.size}s")
(
    END_LINKED,
    END_COMPLETE,
    END_TRUNCATED,
    END_MEMORY,
    END_BAD_PC,
    END_NO_UNWIND_INFO,
    END_NO_RULE,
    END_CFA_UNSUPPORTED,
) = range(1, 9)
END_UNSURE = 0x100
END_PYTHON_SHIFT, END_GENERATION_SHIFT, END_EXECS_SHIFT = 9, 16, 32
END_NOT_COPIED = 9
"""Only used by unwinding in user space: like END_MEMORY, but the memory is a copy."""
COPIED = EXACT = 1 << 63
NO_WAKE, WAKE_LOST, WAKE_SHORT, WAKE_UNSEEN, WAKE_CPU, WAKE_NO_ROOM = range(6)
OBJECT_ID_BIT = 1 << 63
MAX_OBJECTS = 64
PYTHON, PYTHON_ENTRY = 1 << 62, 1 << 61
PYTHON_FRAMES = 64
PYTHON_ADDRESS = (1 << 56) - 1
PYTHON_NO_HOLDER = 0xFFFFFFFF
PYTHON_CALL_ALWAYS, PYTHON_CALL_FLAG, PYTHON_CALL_SHIM = range(3)
PYTHON_SHIM_OWNER = 3
PYTHON_LAYOUT = struct.Struct("=QQ10I4H")
FIRST_ID = 16
LINKS = 7
INTERRUPTS = 2
"""Maximum number of code ranges by which interrupts enter the kernel."""
RETURNS = 4
"""Maximum number of code ranges by which a thread returns to its program after an interrupt."""
WAKER = struct.Struct("=QQII16s")
OBJECT = struct.Struct("=4Q4I5H6s16s16s")
WAKE = struct.Struct(f"=QQ{OBJECT.size}sHHI{3 * LINKS}Q")
STORM_KEY = struct.Struct("=QII")
STORM = struct.Struct("=4Q")
THINNING = struct.Struct("=8Q")
CALLS_WITHIN = struct.Struct(f"=6Q{LANES}Q")
CALLS_NOW = struct.Struct("=QQQ")
CALLS = 512
OBJECT_FILE, OBJECT_EPOLL, OBJECT_FUTEX, OBJECT_FUTEX_WAIT, OBJECT_CHILD, OBJECT_ID = range(1, 7)
OBJECT_POLL, OBJECT_LOCK, OBJECT_RING = 7, 8, 9
PROTECTS_UNKNOWN, PROTECTS_MM, PROTECTS_INODE, PROTECTS_POSITION, PROTECTS_PIPE = range(5)
LOCK_SEMAPHORE, LOCK_RWSEM = 1, 2
NO_DESCRIPTOR = 0xFFFFFFFF
FUTEX_PRIVATE = 128
MAGIC_PIPES = 0x50495045
MAGIC_SOCKETS = 0x534F434B
FAMILY_UNIX, FAMILY_IPV4, FAMILY_IPV6 = 1, 2, 10
MAX_FRAME_BYTES = 1 << 24
CFA_NONE, CFA_SP, CFA_BP, CFA_AT_BP, CFA_LINK, CFA_SIGNAL, CFA_UNSUPPORTED, CFA_END = range(8)
SAVED_NOT, SAVED_BELOW, SAVED_AT, SAVED_AT_BP, SAVED_LINK = range(5)
RULE_KEY = struct.Struct("=QII")
RULE = struct.Struct("=ihBBI")
SPACE = struct.Struct("=I")
MEMO_WORDS, GENERATIONS = 80, 256
MEMO = struct.Struct(f"=6Q10I{MEMO_WORDS}H{MEMO_WORDS}Q")
MEMO_SETTINGS = struct.Struct("=QII")
MEMO_COUNTS = struct.Struct("=5Q")
_IS_ARM = platform.machine() == "aarch64"
REGISTERS = 34 if _IS_ARM else 21
COPY_HEAD = struct.Struct(f"=QQ{REGISTERS}QQQQQQ10I{FRAMES + 1 + PYTHON_FRAMES}Q")
SCANNED_TASK = struct.Struct("=9Q8I16s")
CHANGED = struct.Struct("=2I")
ARGUMENTS = 6
CALLEE_SAVED = 11
MODE_MASK, MODE_32_BIT = (0x10, 0x10) if _IS_ARM else (0xFFFFFFFF, 0x23)
"""Mask and value of the mode of a 32-bit program: arm64's PSR_MODE32_BIT, x86-64's __USER32_CS."""
SCANNED_STACK_LAYOUT = struct.Struct(
    f"=QQq{ARGUMENTS}QQQQ{CALLEE_SAVED}QQQ{OBJECT.size}s{SCHED_FRAMES * 8}s{SHORT_FRAMES * 8}s"
)

HASH_KEYS = 136
SIZES = {
    "config": (4, CONFIG.size),
    "active_buffer": (4, 4),
    "scan_mode": (4, 4),
    "clock_sample": (4, 8),
    "clock_offset": (4, 8),
    "scratch": (4, STACK.size + 8 * (HASH_KEYS + 2)),
    "lost": (4, 8),
    "added": (4, 8),
    "thinning": (4, THINNING.size),
    "only_pids": (4, 4),
    "only_tids": (4, 4),
    "only_cgroup": (4, 4),
    "exited_0": (EXITED_KEY.size, EXITED.size),
    "exited_1": (EXITED_KEY.size, EXITED.size),
    "exited_sums": (4, THREAD.size),
    "sites_0": (SITE_KEY.size, SITE.size),
    "sites_1": (SITE_KEY.size, SITE.size),
    "object_sites": (4, 8),
    "kernel_stacks": (8, STACK.size),
    "user_stacks": (8, STACK.size),
    "wakers": (8, WAKER.size),
    "wakes": (8, WAKE.size),
    "storms_0": (STORM_KEY.size, STORM.size),
    "storms_1": (STORM_KEY.size, STORM.size),
    "calls": (4, 4),
    "objects": (8, OBJECT.size),
    "execs": (4, 4),
    "barrier": (4, 4),
    "barrier_inner": (4, 4),
}
"""Key and value bytes of each map."""
CHANGED_SIZES = {"changed": (4, CHANGED.size), "changes": (4, 8)}
"""Key and value bytes of the maps that exist only if BPF notes which threads have something to report."""
OUTLIER_SIZES = {"thresholds": (THRESHOLD_KEY.size, THRESHOLD.size), "outliers": (0, 0)}
"""Key and value bytes of the maps that report single waits, which need a ring buffer."""
UNWIND_SIZES = {
    "rules": (RULE_KEY.size, RULE.size),
    "spaces": (4, SPACE.size),
    "copies_left": (4, 8),
    "copies": (0, 0),
    "memo_settings": (4, MEMO_SETTINGS.size),
    "memo_counts": (4, MEMO_COUNTS.size),
    "rule_generations": (4, 4),
}
"""Key and value bytes of the maps that exist only if user stacks are unwound by rules."""
KERNEL_MEMO_SIZES = {
    "kernel_memo_settings": (4, MEMO_SETTINGS.size),
    "kernel_memo_counts": (4, MEMO_COUNTS.size),
}
"""Key and value bytes of the maps that exist only if kernel stacks are verified."""

PYTHON_SIZES = {"python_processes": (4, PYTHON_LAYOUT.size)}
"""Key and value bytes of the maps that exist only if Python frames are read."""
WITHIN_SIZES = {"within_calls": (4, CALLS_WITHIN.size), "within_now": (4, CALLS_NOW.size)}
"""Key and value bytes of the maps that exist only if just the waits inside one function are counted."""
PER_CPU = ("lost", "added", "changes", "exited_sums", "thinning", "within_calls", "memo_counts", "kernel_memo_counts")


class ThreadRecord(NamedTuple):
    """`struct thread`: what one thread did in one tick."""

    switched_out_ns: int
    waits: int
    offcpu_ns: int
    runqueue_ns: int
    max_ns: int
    tid_acquired_ns: int
    """When the thread acquired its tid, which another thread may have had before (CLOCK_MONOTONIC)."""
    state: int
    short_waits: int
    short_ns: int
    short_runqueue_ns: int
    first_switched_out_ns: int
    first_off_ns: int
    first_runqueue_ns: int
    first_kernel: int
    first_user: int
    first_wake: int
    first_kind: int
    """KIND_*, with KIND_NEW if it was the thread's wait for its first CPU, KIND_PREEMPTED if it was preempted."""
    involuntary: int
    preempted_ns: int
    exec_ns: int
    exec_at_ns: int
    exec_off_ns: int
    objects: int
    is_previous: int
    """Set if the thread has exited, and this is from the previous tick, for which no task scan has reported it."""
    filtered_waits: int
    lost_waits: int
    filtered_ns: int
    filtered_runqueue_ns: int
    lost_ns: int
    lost_runqueue_ns: int
    histogram: bytes
    """Of u32, unlike the histograms of bpf/files.c and bpf/disks.c."""


class Thinning(NamedTuple):
    """`struct thinning`: how one CPU limits its time for stacks."""

    since_ns: int
    stacks_ns: int
    stacks: int
    next_waits: int
    sampled_ns: int
    level: int
    waits: int
    waits_ns: int


class ObjectRecord(NamedTuple):
    """`struct object`: what a thread waits on."""

    file: int
    inode: int
    magic: int
    argument: int
    kind: int
    device: int
    detail: int
    peer_pid: int
    family: int
    protocol: int
    state: int
    local_port: int
    peer_port: int
    unused: bytes
    local: bytes
    peer: bytes

    @classmethod
    def of(cls, value: bytes | memoryview) -> "ObjectRecord":
        return cls._make(OBJECT.unpack(value))


class ScannedStack(NamedTuple):
    """System call and user registers of a thread that is off CPU: the first part of `struct scanned_stack`."""

    pcount: int
    """How often the thread got a CPU. If the number differs later, the thread has run meanwhile."""
    call: int
    """Number of the system call that it is in; -1 if it is in none, or that is unknown."""
    arguments: tuple[int, ...]
    ip: int
    sp: int
    """User stack pointer; 0 if the user registers are unknown."""
    bp: int
    callee_saved: tuple[int, ...]
    """Other callee-saved registers, or zeros: x86-64 rbx and r12 to r15, arm64 x19 to x28 and, in a leaf, x30."""
    mode: int
    """Mode of the program: x86-64's code segment, arm64's pstate; 0 if unknown."""
    thread: int
    """Value of pthread_self() in the thread, on arm64 of gettid(); 0 if unknown."""


@lru_cache(maxsize=65_536)
def object_of(value: bytes) -> ObjectRecord:
    """Parse an object. Cached, because most threads wait on the same object again."""
    return ObjectRecord.of(value)


@lru_cache(maxsize=65_536)
def text_of(comm: bytes) -> str:
    """Decode a thread's name from the kernel: up to 15 arbitrary bytes, so it may have control characters."""
    return comm.split(b"\0", 1)[0].decode(errors="replace")
