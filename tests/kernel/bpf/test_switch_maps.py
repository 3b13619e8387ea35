"""Test that code in sched_switch allocates nothing and takes no lock that may sleep.

This is checked on this kernel, and against the types of others.
"""

import itertools
import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.errors import KernelError
from offtop.kernel.bpf import cache, features, libbpf, pid_namespace, program, switch_maps
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.bpf.switch_maps import Allocator, MapInternals, SafeMaps, safe_maps
from tests.conftest import lacks
from tests.kernel import programs, waits, watch
from tests.kernel.offtop_process import wait_for
from tests.kernel.test_counts import count_23_sleeps
from tests.kernel.test_switch_in_probes import BRIEF
from tests.kernel.watch import Watch

_NO_PREALLOC = 1  # BPF_F_NO_PREALLOC
_HASHES = (1, 5, 9, 10)  # BPF_MAP_TYPE_HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH
_ALLOCATORS: tuple[Allocator, ...] = ("kmalloc", "bpf_mem_alloc", "kmalloc_nolock")
_LOCKS = ("", "spinlock_t", "raw_spinlock_t", "rqspinlock_t")


@pytest.mark.parametrize(
    ("allocator", "sleep", "machine"), [*itertools.product(_ALLOCATORS, (False, True), ("x86_64", "riscv64"))]
)
def test_task_storage_needs_an_allocator_without_sleeping_locks(
    allocator: Allocator, sleep: bool, machine: str
) -> None:
    is_safe = allocator == "bpf_mem_alloc" or (allocator, sleep, machine) == ("kmalloc_nolock", False, "x86_64")
    assert safe_maps(MapInternals(allocator, "rqspinlock_t", sleep), machine).task_storage == is_safe


@pytest.mark.parametrize(("lock", "sleep"), [*itertools.product(_LOCKS, (False, True))])
def test_ring_buffers_need_a_lock_that_cannot_sleep(lock: str, sleep: bool) -> None:
    is_safe = not sleep or lock in ("raw_spinlock_t", "rqspinlock_t")
    assert safe_maps(MapInternals("bpf_mem_alloc", lock, sleep)).ring_buffer == is_safe


class _Types(libbpf.KernelTypes):
    """The types of another kernel, as far as these tests need them."""

    def __init__(self, members: dict[tuple[str, str], str]) -> None:
        """Take `members`, which maps (struct, member) to the name of its type."""
        self._known = members

    def offset(self, struct: str, member: str) -> int | None:
        return 0 if (struct, member) in self._known else None

    def member_type(self, struct: str, member: str) -> str:
        return self._known.get((struct, member), "")


_STORAGE, _RING, _LOCK = "bpf_local_storage_map", ("bpf_ringbuf", "spinlock"), ("spinlock", "rlock")


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({_RING: "spinlock_t", _LOCK: "raw_spinlock"}, SafeMaps(False, True)),  # 5.14 to 6.3
        ({_RING: "spinlock_t"}, SafeMaps(False, False)),  # the same, real-time
        ({(_STORAGE, "storage_ma"): "bpf_mem_alloc", _RING: "spinlock_t", _LOCK: "raw_spinlock"}, SafeMaps(True, True)),
        ({(_STORAGE, "storage_ma"): "bpf_mem_alloc", _RING: "spinlock_t"}, SafeMaps(True, False)),  # 6.4 to 6.11
        ({(_STORAGE, "storage_ma"): "bpf_mem_alloc", _RING: "raw_spinlock_t"}, SafeMaps(True, True)),  # 6.12
        (
            {(_STORAGE, "use_kmalloc_nolock"): "bool", _RING: "rqspinlock_t", _LOCK: "raw_spinlock"},
            SafeMaps(True, True),
        ),
        ({(_STORAGE, "use_kmalloc_nolock"): "bool", _RING: "rqspinlock_t"}, SafeMaps(False, True)),  # 6.19, real-time
    ],
)
def test_kernel_types_decide_which_maps_are_safe(members: dict[tuple[str, str], str], expected: SafeMaps) -> None:
    assert safe_maps(switch_maps.map_internals(_Types(members)), "x86_64") == expected


@pytest.mark.kernel
def test_the_types_of_this_kernel_are_read() -> None:
    types = libbpf.KernelTypes()
    internals = switch_maps.map_internals(types)
    assert internals.ring_buffer_lock in _LOCKS[1:]
    assert internals.spinlocks_sleep == ("PREEMPT_RT" in os.uname().version)
    assert types.member_type("bpf_ringbuf", "no_such_member") == types.member_type("no_such_struct", "spinlock") == ""


@pytest.fixture
def by_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sources keep thread records in the hash, as on a kernel below 6.4."""
    watch.without(monkeypatch, "task_storage")


@pytest.mark.kernel
@pytest.mark.parametrize("task_storage", [True, False])
def test_every_hash_is_preallocated(task_storage: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not task_storage:
        watch.without(monkeypatch, "task_storage")
    elif not features.detect(libbpf.KernelTypes()).task_storage:
        lacks("safe task storage")
    with watch.watching() as live:
        attached = live.source._program  # pyright: ignore[reportPrivateUsage]
        assert attached.in_task_storage == task_storage
        request = {name: value for name, value in attached._request.items() if name != "waking_type"}  # pyright: ignore[reportPrivateUsage]
        kept = cache.cache_file(request)
    assert kept
    wait_for(kept.exists, 30)
    maps = json.loads(kept.read_bytes().partition(b"\n")[2])["maps"]
    hashes = {name: one for name, one in maps.items() if one["kind"] in _HASHES}
    assert ("record" in hashes) == (not task_storage)
    assert {"sites_0", "exited_1", "kernel_stacks", "user_stacks", "execs"} <= hashes.keys()
    assert [name for name, one in hashes.items() if one["flags"] & _NO_PREALLOC] == []


@pytest.mark.kernel
@pytest.mark.usefixtures("by_hash")
def test_the_hash_counts_23_sleeps_and_help_names_it() -> None:
    with waits.running("sleep", times=23, each_ms=10) as child, watch.watching_kernel_stacks() as live:
        count_23_sleeps(live, child)
        assert dict(live.source.about())["thread records"] == "a preallocated table"
        assert live.source.notices == []


@pytest.mark.variant
@pytest.mark.kernel
@pytest.mark.usefixtures("by_hash")
def test_the_hash_drops_the_record_of_an_exited_thread(tmp_path: Path) -> None:
    """Each child has slept 20 times; later ones get the memory of earlier ones' task_structs."""
    binary = programs.build(tmp_path / "brief", BRIEF, "-D_GNU_SOURCE")
    with watch.watching_kernel_stacks() as live:
        brief = subprocess.Popen([binary], start_new_session=True)
        try:
            windows = [live.tick(0.1) for _ in range(25)]  # each tick checks the sums
        finally:
            os.killpg(brief.pid, signal.SIGKILL)
            brief.wait()
        windows += [live.tick(0.2) for _ in range(2)]
        records = _pids(live)
    waits_of: dict[int, int] = {}
    for window in windows:
        for key, thread in window.each_thread():
            life = window.catalog.life(key)
            if window.catalog.comm(key) == "brief" and key.pid != brief.pid and life.to_ns - life.from_ns > 200_000_000:
                waits_of[key.pid] = waits_of.get(key.pid, 0) + thread.waits - thread.involuntary
    exited = {pid: count for pid, count in waits_of.items() if not Path(f"/proc/{pid}").exists()}
    assert len(exited) > 100
    assert sum(20 <= count <= 22 for count in exited.values()) >= 0.95 * len(exited), exited
    assert os.getppid() in records and not records & exited.keys()


_IDS = struct.Struct("=20xIIIIIQ")
"""The first fields of struct record that are read here: pid, tid, began_earlier, selection, noted, tid_acquired_ns."""


def _record_map(live: Watch) -> libbpf.Map:
    return libbpf.Map(live.source._program._fds["map record"])  # pyright: ignore[reportPrivateUsage]


def _pids(live: Watch) -> set[int]:
    """Return the PIDs in the hash of thread records."""
    record = _record_map(live)
    size = record.value_bytes
    return {_IDS.unpack_from(v, at)[0] for _, v in record.read() for at in range(0, len(v), size)}


@pytest.mark.kernel
@pytest.mark.usefixtures("by_hash")
def test_a_thread_in_reused_task_memory_has_its_own_ids_and_start_time() -> None:
    with waits.running("sleep", times=23, each_ms=10) as child, watch.watching_kernel_stacks() as live:
        live.tick(0.05)
        record = _record_map(live)
        size = record.value_bytes
        key, value = next(
            (bytes(keys[at * 8 :][:8]), bytearray(values[at * size :][:size]))
            for keys, values in record.read()
            for at in range(len(keys) // 8)
            if _IDS.unpack_from(values, at * size)[:2] == (child.pid, child.pid)
        )
        tid_acquired_ns = _IDS.unpack_from(value)[-1]
        _IDS.pack_into(value, 0, 4_000_000, 4_000_001, *_IDS.unpack_from(value)[2:])
        record.update(key, bytes(value))
        child.go()
        child.finish()
        found = _IDS.unpack_from(record.lookup(key) or b"")
        assert (found[:2], found[-1]) == ((child.pid, child.pid), tid_acquired_ns)


@pytest.mark.kernel
@pytest.mark.usefixtures("by_hash")
def test_threads_without_room_in_the_hash_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    watch.resize_maps(monkeypatch, {"record": 16})
    with watch.watching_kernel_stacks() as live:
        assert live.tick(0.2).lost["threads"] > 0


@pytest.mark.kernel
def test_without_a_ring_buffer_the_rest_counts_and_a_notice_names_the_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch.without(monkeypatch, "ring_buffer")
    with watch.watching() as live, waits.running("sleep", times=23, each_ms=10) as child:
        live.tick()
        child.go()
        child.finish()
        watch.check_sleeps([live.tick(0.02)], child.tid, 23)
        (notice,) = live.source.notices
        assert "ring buffers use a lock that may sleep" in notice and "frame pointers only" in notice
        assert ("missing", notice) in live.source.about()
        assert not {"map outliers", "map copies"} & live.source._program._fds.keys()  # pyright: ignore[reportPrivateUsage]


def attach_kernel_stacks(probe: str = "auto") -> program.Program:
    """Attach the programs that watch.watching_kernel_stacks() attaches, too."""
    types = libbpf.KernelTypes()
    return program.attach(features.detect(types), probe, defines=pid_namespace.defines(types), unwind=Unwind("off"))


@pytest.fixture
def silent_exit_probe(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Attach the switch-in probe `exit` to a tracepoint that is never hit."""
    monkeypatch.setitem(program.SWITCH_IN_TRACEPOINTS, "exit", "sched_process_hang")
    yield


@pytest.mark.kernel
@pytest.mark.usefixtures("silent_exit_probe")
def test_a_probe_that_is_never_called_falls_back_to_the_next() -> None:
    with watch.watching_kernel_stacks() as live, waits.running("sleep", times=23, each_ms=10) as child:
        assert live.last.probe == "switch"
        live.tick()
        child.go()
        child.finish()
        watch.check_sleeps([live.tick(0.02)], child.tid, 23, missed=2)
        first, second = live.source.notices
        assert first.startswith("The switch-in probe 'exit' does not work here (it is attached, but the kernel never")
        assert second.startswith("Stacks are unwound at every switch")


@pytest.mark.kernel
@pytest.mark.usefixtures("silent_exit_probe")
def test_a_requested_probe_that_is_never_called_is_refused() -> None:
    with pytest.raises(KernelError, match=r"^The switch-in probe 'exit' does not work here: .* Leave --probe out"):
        attach_kernel_stacks("exit")


@pytest.mark.kernel
def test_no_thread_counts_during_the_probe_test() -> None:
    attached = attach_kernel_stacks()
    try:
        time.sleep(0.05)
        assert attached.maps["config"].lookup(bytes(4)) == bytes(attached.maps["config"].value_bytes)
        assert sum(len(keys) for name in ("sites_0", "exited_0") for keys, _ in attached.maps[name].read()) == 0
    finally:
        attached.close()
