"""How many entries the BPF maps have on a machine, and how much kernel memory they take.

Maps are allocated when they are made, because nothing may be allocated inside of the scheduler. So their sizes follow
the number of threads, up to limits that keep a machine with 128 CPUs and 50,000 threads below 256 MB.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from offtop.kernel.bpf import layout

_LEAST, _MOST_THREADS, _MOST_SITES, _MOST_KEPT, _MOST_KERNEL_STACKS = 1 << 13, 1 << 18, 1 << 17, 1 << 15, 1 << 14
RULES, SPACES = 65_536, 16_384
"""Addresses whose unwind rules are loaded into BPF, and processes for which they are. The least recently used ones are
evicted."""
MEMOS = 8192
"""Threads whose last user stack, or kernel stack, is kept, where that is not in task storage."""
_LEAST_CHANGED = 256
"""Entries per CPU of the list of changed threads: kernel threads alone are dozens on a busy CPU."""
RUNNING = 4
"""Threads per CPU for which a list of changed threads has room besides, because they may have done nothing but run."""
PYTHON_PROCESSES, PYTHON_THREADS = 4096, 16_384
THRESHOLDS = 16_384
EXECS = 8192
OUTLIERS_BYTES = 1 << 20
"""Size of the ring buffer of outliers: room for 10,000 long waits in a tick."""
_COPIES_BYTES = 2 << 20
"""Size of the ring buffer of stack copies, for stacks of up to 16 KB; see _copies_pages() in program.py."""
_PYTHON_THREAD_BYTES = 16
"""struct python_thread in bpf/python.c."""
PER_CPU_ARRAYS = "per-CPU arrays"
_PER_CPU_BYTES = 20_000
"""Bytes of all per-CPU arrays together: a little more than now."""
_SLOTS = 2
"""SLOTS in bpf/userstack.c."""
_UNWIND_BYTES = 64
"""State of an unwind in struct copy, besides what layout.py has."""
RECORD_BYTES = 200 + 2 * layout.THREAD.size
"""struct record in bpf/offcpu.h. In a container it has 16 more."""
_BUCKET_BYTES, _ELEMENT_BYTES = 16, 48
"""Of struct bucket and struct htab_elem in kernel/bpf/hashtab.c."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Number of entries of the maps."""

    threads: int
    """Records of threads, where they are not in task storage."""
    sites: int
    stacks: int
    """User stacks."""
    wakes: int = 8192
    storms: int = 4096
    exits: int = 0
    """Threads that exit between two drains, which are at most a second apart; 0: as many as `threads`."""
    kernel_stacks: int = 0
    """0: as many as `stacks`."""

    def changed_per_cpu(self, cpus: int) -> int:
        """Return how many threads with something to report each CPU can note."""
        return max(_LEAST_CHANGED, self.threads // 4 // cpus)

    def defines(self) -> dict[str, int]:
        """Return the macros that bpf/offcpu.c needs."""
        return {
            "THREADS": self.threads,
            "EXITS": self.exits or self.threads,
            "SITES": self.sites,
            "STACKS": self.stacks,
            "KERNEL_STACKS": self.kernel_stacks or self.stacks,
            "WAKES": self.wakes,
            "STORMS": self.storms,
        }


def threads_now(loadavg: str = "/proc/loadavg") -> int:
    """Return the number of threads of the whole machine, also in a container. `loadavg`: see proc(5)."""
    return int(Path(loadavg).read_text().split()[3].partition("/")[2])


def for_machine(threads: int | None = None) -> Sizes:
    """Return the sizes for a machine with that number of threads; None: this machine.

    They allow for twice the number of threads, thousands of exits a second, and two stacks a thread, as far as memory
    allows. They are powers of two, so that compiled programs can be reused.
    """
    wanted = 2 * (threads_now() if threads is None else threads) + 2048
    room = max(_LEAST, min(_MOST_THREADS, 1 << (wanted - 1).bit_length()))
    kept = min(_MOST_KEPT, room)
    return Sizes(
        threads=room,
        sites=min(_MOST_SITES, 2 * room),
        stacks=kept,
        wakes=kept,
        exits=kept,
        kernel_stacks=min(_MOST_KERNEL_STACKS, kept),
    )


def memory_bytes(sizes: Sizes, cpus: int, *, stack_kb: int = 16, in_hash: bool = False, waking: bool = True) -> int:
    """Return how much kernel memory the maps take, within some percent.

    `stack_kb`: see Unwind. `in_hash`: threads' records are in a map; otherwise they are in task storage, which takes up
    to 1 KB a thread more, and 1 KB for the memo of a thread with user stacks. `waking`: the maps of wakers are there,
    too.
    """
    return sum(size for _, size in maps(sizes, cpus, stack_kb=stack_kb, in_hash=in_hash, waking=waking))


def maps(sizes: Sizes, cpus: int, *, stack_kb: int, in_hash: bool, waking: bool) -> Iterator[tuple[str, int]]:
    """Yield the name and the bytes of each map that takes more than 100 KB, and of all per-CPU arrays together.

    For parameters, see memory_bytes.
    """
    entries = sizes.defines()
    by_name = {
        **dict.fromkeys(("exited_0", "exited_1"), entries["EXITS"]),
        **dict.fromkeys(("sites_0", "sites_1"), entries["SITES"]),
        "kernel_stacks": entries["KERNEL_STACKS"],
        "user_stacks": entries["STACKS"],
    }
    if waking:
        by_name |= dict.fromkeys(("wakers", "wakes", "objects"), entries["WAKES"])
        by_name |= dict.fromkeys(("storms_0", "storms_1"), entries["STORMS"])
    for name, count in by_name.items():
        yield name, _hash_bytes(*layout.SIZES[name], count, cpus)
    if in_hash:
        yield "record", _hash_bytes(8, RECORD_BYTES, sizes.threads, cpus)
        yield "memos", _hash_bytes(8, layout.MEMO.size, MEMOS, cpus, is_lru=True)
    else:
        yield "changed", layout.CHANGED.size * (sizes.changed_per_cpu(cpus) + RUNNING) * cpus
    yield "thresholds", _hash_bytes(*layout.OUTLIER_SIZES["thresholds"], THRESHOLDS, cpus)
    yield "rules", _hash_bytes(*layout.UNWIND_SIZES["rules"], RULES, cpus, is_lru=True)
    yield "spaces", _hash_bytes(*layout.UNWIND_SIZES["spaces"], SPACES, cpus, is_lru=True)
    yield "execs", _hash_bytes(*layout.SIZES["execs"], EXECS, cpus, is_lru=True)
    python_bytes = layout.PYTHON_SIZES["python_processes"]
    yield "python_processes", _hash_bytes(*python_bytes, PYTHON_PROCESSES, cpus, is_lru=True)
    yield "python_threads", _hash_bytes(4, _PYTHON_THREAD_BYTES, PYTHON_THREADS, cpus, is_lru=True)
    yield "outliers", OUTLIERS_BYTES
    yield "copies", _COPIES_BYTES
    yield PER_CPU_ARRAYS, _PER_CPU_BYTES * cpus
    yield "copy_scratch", _SLOTS * cpus * (layout.COPY_HEAD.size + (stack_kb << 10) + layout.MEMO.size + _UNWIND_BYTES)


def _hash_bytes(key_bytes: int, value_bytes: int, entries: int, cpus: int, *, is_lru: bool = False) -> int:
    """Return the bytes of a preallocated hash, as htab_map_mem_usage in kernel/bpf/hashtab.c adds them up."""
    buckets = 1 << (entries - 1).bit_length()
    elements = entries if is_lru else entries + cpus
    return buckets * _BUCKET_BYTES + elements * (_ELEMENT_BYTES + _rounded(key_bytes) + _rounded(value_bytes))


def _rounded(size: int) -> int:
    return -(-size // 8) * 8
