"""Decide which BPF maps are safe in sched_switch, where the kernel holds a run queue lock.

A program there must not take a lock that may sleep, and must not allocate from the slab: an allocation may wake
kswapd, which takes a run queue lock. Everything that offtop writes there is in preallocated maps, except for task
storage (the kernel allocates it per thread) and ring buffers (each has a lock). Kernels differ in both, and fixes were
backported, so this is decided by the kernel's types, not by its version.
"""

import platform
from typing import Literal, NamedTuple

from offtop.kernel.bpf.libbpf import KernelTypes

Allocator = Literal["kmalloc", "bpf_mem_alloc", "kmalloc_nolock"]
_SLEEPING_LOCK = "spinlock_t"
_LOCKLESS_SLAB = ("x86_64", "aarch64", "s390x")
"""Machines with a double-word compare-and-exchange, without which kmalloc_nolock() always fails."""


class MapInternals(NamedTuple):
    """How the running kernel allocates task storage and locks ring buffers."""

    storage_allocator: Allocator
    """`kmalloc` (GFP_ATOMIC) until 6.3; `bpf_mem_alloc` since 6ae9d5e99e1d (6.4); `kmalloc_nolock` since f484f4a3e058
    (6.19)."""
    ring_buffer_lock: str
    """Type of the lock: `spinlock_t`; `raw_spinlock_t` since 8b62645b09f8 (6.12, backported to 6.6.83);
    `rqspinlock_t` since a650d38915c1 (6.15). Empty if unknown."""
    spinlocks_sleep: bool
    """Whether this is a PREEMPT_RT kernel, in which a `spinlock_t` is a mutex."""


class SafeMaps(NamedTuple):
    """Whether programs at sched_switch may use these kinds of maps."""

    task_storage: bool
    ring_buffer: bool


def map_internals(types: KernelTypes) -> MapInternals:
    """Read them from the kernel's BTF."""
    allocator: Allocator = "kmalloc"
    if types.offset("bpf_local_storage_map", "use_kmalloc_nolock") is not None:
        allocator = "kmalloc_nolock"
    elif types.offset("bpf_local_storage_map", "storage_ma") is not None:
        allocator = "bpf_mem_alloc"
    return MapInternals(
        storage_allocator=allocator,
        ring_buffer_lock=types.member_type("bpf_ringbuf", "spinlock"),
        spinlocks_sleep=types.offset("spinlock", "rlock") is None,
    )


def safe_maps(internals: MapInternals, machine: str = platform.machine()) -> SafeMaps:
    """Decide which kinds of maps are safe.

    With PREEMPT_RT, kmalloc_nolock() takes a sleeping lock, or always fails if preemption is disabled (mm/slub.c).
    """
    task_storage = {
        "kmalloc": False,
        "bpf_mem_alloc": True,
        "kmalloc_nolock": not internals.spinlocks_sleep and machine in _LOCKLESS_SLAB,
    }
    return SafeMaps(
        task_storage=task_storage[internals.storage_allocator],
        ring_buffer=not internals.spinlocks_sleep or internals.ring_buffer_lock not in ("", _SLEEPING_LOCK),
    )
