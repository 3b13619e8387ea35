"""ctypes bindings for the calls of libbpf that offtop uses: maps, iterators, statistics and the kernel's types.

libbpf is the kernel project's own library (Debian's libbpf1), and libbcc links to it, so this is no additional
dependency. bcc itself stays in a child process (compile.py), because its compiler takes 100 MB.
"""

import ctypes as ct
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from offtop.errors import KernelError
from offtop.kernel.bpf.distribution import install_command
from offtop.kernel.procfs.syscalls import number_of

_NAMES = ("libbpf.so.1", "libbpf.so.0")
_MOST_READ = 1 << 15
"""The kernel returns up to 32 KB of the output of an iterator at once (bpf_seq_read)."""
_FIRST_BATCH, _LARGEST_BATCH = 256, 4096
"""How many entries are read from a map at once: the number doubles after each batch, up to the largest."""
_KIND_STRUCT = 4
_KIND_ENUM = 6
_KIND_TYPEDEF = 8
_KIND_UNION = 5
_KIND_FUNCTION = 12
_KIND_FUNC_PROTO = 13
_CLOSED_BY_EXEC = 8  # PERF_FLAG_FD_CLOEXEC
_PERF_EVENT = 41  # BPF_PERF_EVENT
_SET_BPF = 0x40042408  # PERF_EVENT_IOC_SET_BPF
UPROBES = Path("/sys/bus/event_source/devices/uprobe/type")
KPROBES = UPROBES.parent.with_name("kprobe") / "type"
"""These files exist if the kernel supports uprobes and kprobes as perf events (since 33ea4b24277b, 4.17)."""


class _Member(ct.Structure):
    _fields_ = (("name_off", ct.c_uint32), ("type", ct.c_uint32), ("offset", ct.c_uint32))


class _Type(ct.Structure):
    _fields_ = (("name_off", ct.c_uint32), ("info", ct.c_uint32), ("size_or_type", ct.c_uint32))


class _Enumerator(ct.Structure):
    _fields_ = (("name_off", ct.c_uint32), ("value", ct.c_int32))


class _BatchOptions(ct.Structure):
    _fields_ = (("sz", ct.c_size_t), ("elem_flags", ct.c_uint64), ("flags", ct.c_uint64))


class ProgramOptions(ct.Structure):
    """The head of libbpf's `struct bpf_prog_load_opts`."""

    _fields_ = (
        ("sz", ct.c_size_t),
        ("attempts", ct.c_int),
        ("expected_attach_type", ct.c_uint32),
        ("prog_btf_fd", ct.c_uint32),
        ("prog_flags", ct.c_uint32),
        ("prog_ifindex", ct.c_uint32),
        ("kern_version", ct.c_uint32),
        ("attach_btf_id", ct.c_uint32),
        ("attach_prog_fd", ct.c_uint32),
    )


_OnSample = ct.CFUNCTYPE(ct.c_int, ct.c_void_p, ct.c_void_p, ct.c_size_t)


class ProgramStatistics(ct.Structure):
    """Head of `struct bpf_prog_info` (include/uapi/linux/bpf.h), as far as it is used."""

    _fields_ = (
        ("_before", ct.c_uint8 * 192),
        ("run_time_ns", ct.c_uint64),
        ("run_cnt", ct.c_uint64),
        ("recursion_misses", ct.c_uint64),
        ("_after", ct.c_uint8 * 64),
    )
    run_time_ns: int
    run_cnt: int
    recursion_misses: int


@cache
def library() -> ct.CDLL:
    """Load libbpf. Raises KernelError if it is not installed."""
    for name in _NAMES:
        try:
            lib = ct.CDLL(name, use_errno=True)
        except OSError:
            continue
        lib.libbpf_set_print(None)  # offtop reports errors itself
        lib.btf__load_vmlinux_btf.restype = ct.c_void_p
        lib.btf__type_by_id.restype = ct.c_void_p
        lib.btf__type_by_id.argtypes = [ct.c_void_p, ct.c_uint32]
        lib.btf__find_by_name_kind.argtypes = [ct.c_void_p, ct.c_char_p, ct.c_uint32]
        lib.btf__name_by_offset.restype = ct.c_char_p
        lib.btf__name_by_offset.argtypes = [ct.c_void_p, ct.c_uint32]
        lib.bpf_map_lookup_elem.argtypes = [ct.c_int, ct.c_void_p, ct.c_void_p]
        lib.bpf_map_update_elem.argtypes = [ct.c_int, ct.c_void_p, ct.c_void_p, ct.c_uint64]
        lib.bpf_map_delete_elem.argtypes = [ct.c_int, ct.c_void_p]
        for batch in (lib.bpf_map_lookup_batch, lib.bpf_map_lookup_and_delete_batch):
            batch.argtypes = [ct.c_int, *[ct.c_void_p] * 4, ct.POINTER(ct.c_uint32), ct.POINTER(_BatchOptions)]
        lib.ring_buffer__new.restype = ct.c_void_p
        lib.ring_buffer__new.argtypes = [ct.c_int, _OnSample, ct.c_void_p, ct.c_void_p]
        lib.ring_buffer__consume.argtypes = [ct.c_void_p]
        lib.ring_buffer__free.argtypes = [ct.c_void_p]
        lib.bpf_raw_tracepoint_open.argtypes = [ct.c_char_p, ct.c_int]
        lib.bpf_obj_get_info_by_fd.argtypes = [ct.c_int, ct.c_void_p, ct.POINTER(ct.c_uint32)]
        return lib
    raise KernelError(f"The library libbpf is missing. Install it: {install_command('libbpf1', 'libbpf')}")


class RingBuffer:
    """A BPF ring buffer, read by one thread at a time. Close it."""

    def __init__(self, fd: int, add: Callable[[bytes], None]) -> None:
        """`add`: called with each record. Raises OSError."""

        self._failure: Exception | None = None

        def on_sample(_context: int, data: int, size_bytes: int) -> int:
            try:
                add(ct.string_at(data, size_bytes))
            except Exception as error:  # ctypes would ignore it, and return an undefined value to libbpf
                self._failure = error
                return -1
            return 0

        self._on_sample = _OnSample(on_sample)  # libbpf calls it as long as the ring buffer exists
        self._ring = library().ring_buffer__new(fd, self._on_sample, None, None)
        if not self._ring:
            raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))

    def consume(self) -> None:
        """Pass all available records to `add`. Raises what `add` raises."""
        if self._ring:
            library().ring_buffer__consume(self._ring)
        if self._failure:
            raise self._failure

    def close(self) -> None:
        """Free the ring buffer. May be called twice."""
        library().ring_buffer__free(self._ring)
        self._ring = None


class _MapInformation(ct.Structure):
    """The head of the kernel's `struct bpf_map_info`."""

    _fields_ = (
        ("type", ct.c_uint32),
        ("id", ct.c_uint32),
        ("key_size", ct.c_uint32),
        ("value_size", ct.c_uint32),
        ("max_entries", ct.c_uint32),
    )


class Map:
    """A BPF map, by its descriptor. Methods raise OSError if the kernel returns an error."""

    def __init__(self, fd: int, per_cpu: int = 1) -> None:
        """`per_cpu`: number of CPUs whose values a lookup returns. Raises OSError."""
        info = _MapInformation()
        size = ct.c_uint32(ct.sizeof(info))
        if library().bpf_obj_get_info_by_fd(fd, ct.byref(info), ct.byref(size)):
            raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
        self.fd, self.entries = fd, info.max_entries
        self.key_bytes, self.value_bytes = info.key_size, info.value_size
        self._value = ct.create_string_buffer((info.value_size + 7) // 8 * 8 * per_cpu)
        self._allocate(0)

    @property
    def memory_bytes(self) -> int:
        """Kernel memory that the map takes, as the kernel counts it; 0 if it does not say."""
        found = re.search(r"^memlock:\s*(\d+)", Path(f"/proc/self/fdinfo/{self.fd}").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0

    def lookup(self, key: bytes) -> bytes | None:
        """Value of `key`, or None if there is none. For a per-CPU map, the values of all CPUs."""
        if library().bpf_map_lookup_elem(self.fd, key, self._value):
            return None
        return self._value.raw

    def update(self, key: bytes, value: bytes) -> None:
        if library().bpf_map_update_elem(self.fd, key, value, 0):
            raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))

    def delete(self, key: bytes) -> None:
        """Delete a key, if it exists."""
        library().bpf_map_delete_elem(self.fd, key)

    def drain(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Read and delete every entry.

        Yields a few large batches of concatenated keys and concatenated values.

        A batch is valid until the next one is read. The caller must make sure that nothing writes to the map meanwhile.
        """
        return self._batches(library().bpf_map_lookup_and_delete_batch)

    def read(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Like `drain`, but without deleting. Entries that are written meanwhile may be missing."""
        return self._batches(library().bpf_map_lookup_batch)

    def _batches(self, batch: Callable[..., int]) -> Iterator[tuple[memoryview, memoryview]]:
        if not self._batch_size:
            self._allocate(min(self.entries, _FIRST_BATCH))
        at = ct.create_string_buffer(max(8, self.key_bytes))
        first = True
        options = _BatchOptions(ct.sizeof(_BatchOptions), 0, 0)
        while True:
            n = ct.c_uint32(self._batch_size)
            failed = batch(self.fd, None if first else at, at, self._keys, self._values, ct.byref(n), ct.byref(options))
            error = ct.get_errno() if failed else 0
            if error == 28 and self._batch_size < self.entries:  # ENOSPC: one hash bucket does not fit into the batch
                self._allocate(self.entries)
                continue
            if error not in (0, 2):  # ENOENT: that was the last batch
                raise OSError(error, os.strerror(error))
            if n.value:
                keys, values = memoryview(self._keys).cast("B"), memoryview(self._values).cast("B")
                yield keys[: n.value * self.key_bytes], values[: n.value * self.value_bytes]
            if error:
                return
            if self._batch_size < min(self.entries, _LARGEST_BATCH):
                self._allocate(min(self.entries, 2 * self._batch_size))
            first = False

    def _allocate(self, entries: int) -> None:
        """Allocate the buffers for one batch."""
        self._batch_size = entries
        self._keys = ct.create_string_buffer(entries * self.key_bytes)
        self._values = ct.create_string_buffer(entries * self.value_bytes)


def read_iterator(link_fd: int) -> bytes:
    """Run an attached iterator once, and return everything that it writes. Raises OSError."""
    fd = library().bpf_iter_create(link_fd)
    if fd < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    try:
        return b"".join(iter(partial(os.read, fd, _MOST_READ), b""))
    finally:
        os.close(fd)


def attach_typed(program_fd: int) -> int:
    """Attach a program to its tracepoint, until the returned descriptor is closed. Raises OSError."""
    fd = library().bpf_raw_tracepoint_open(None, program_fd)
    if fd < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return fd


class _PerfEvent(ct.Structure):
    """The head of the kernel's `struct perf_event_attr` (include/uapi/linux/perf_event.h)."""

    _fields_ = (
        ("type", ct.c_uint32),
        ("size", ct.c_uint32),
        ("config", ct.c_uint64),
        ("sample_period", ct.c_uint64),
        ("sample_type", ct.c_uint64),
        ("read_format", ct.c_uint64),
        ("flags", ct.c_uint64),
        ("wakeup_events", ct.c_uint32),
        ("bp_type", ct.c_uint32),
        ("probe_of", ct.c_uint64),
        ("probe_offset", ct.c_uint64),
    )


def attach_uprobe(program_fd: int, path: str, offset: int) -> int:
    """Run a program when a thread executes `offset` of a file, until the descriptor is closed.

    Raises OSError: ENOENT if this kernel has no uprobes.
    """
    return _attach_probe(program_fd, UPROBES, os.fsencode(path), offset)


def attach_kprobe(program_fd: int, function: str) -> int:
    """Run a program at each call of a kernel function, until the descriptor is closed.

    Raises OSError: ENOENT if this kernel has no kprobes, or not as perf events (before 4.17).
    """
    return _attach_probe(program_fd, KPROBES, function.encode(), 0)


def _attach_probe(program_fd: int, kind: Path, target: bytes, offset: int) -> int:
    name = ct.create_string_buffer(target)
    event = _PerfEvent(
        type=int(kind.read_text()),
        size=ct.sizeof(_PerfEvent),
        sample_period=1,
        wakeup_events=1,
        probe_of=ct.addressof(name),
        probe_offset=offset,
    )
    # For all processes. The event is opened on one CPU, but the program runs on all.
    fd = ct.CDLL(None, use_errno=True).syscall(
        number_of("perf_event_open"), ct.byref(event), -1, 0, -1, _CLOSED_BY_EXEC
    )
    if fd < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    link = library().bpf_link_create(program_fd, fd, _PERF_EVENT, None)  # it holds the event, and reports misses
    if link >= 0:
        os.close(fd)
        return link
    try:
        fcntl.ioctl(fd, _SET_BPF, program_fd)  # perf event links exist since b89fbfbb854c (5.15)
    except OSError:
        os.close(fd)
        raise
    return fd


class _KprobeInformation(ct.Structure):
    """The kernel's `struct bpf_link_info` for a perf_event link to a kprobe."""

    _fields_ = (
        *((name, ct.c_uint32) for name in ("type", "id", "prog_id", "_unused", "kind", "_unused_too")),
        ("function", ct.c_uint64),
        *((name, ct.c_uint32) for name in ("function_bytes", "offset")),
        *((name, ct.c_uint64) for name in ("address", "missed")),
    )
    missed: int


def kprobe_misses(link_fd: int) -> int:
    """How often the kernel skipped a kprobe because the CPU was already in another one.

    Always 0 on kernels that do not report it: those before 3acf8ace6823 (6.7, and 6.6.59).
    """
    info = _KprobeInformation()
    size = ct.c_uint32(ct.sizeof(info))
    library().bpf_obj_get_info_by_fd(link_fd, ct.byref(info), ct.byref(size))
    return info.missed


def enable_statistics() -> int:
    """Enable statistics of BPF programs, until the returned descriptor is closed.

    Raises OSError without CAP_SYS_ADMIN. The sysctl is never used, because it would stay set if offtop were killed.
    """
    fd = library().bpf_enable_stats(0)
    if fd < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return fd


def statistics(program_fd: int) -> ProgramStatistics:
    """Read the kernel's statistics of a program. Raises OSError."""
    info = ProgramStatistics()
    size = ct.c_uint32(ct.sizeof(info))
    if library().bpf_obj_get_info_by_fd(program_fd, ct.byref(info), ct.byref(size)):
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return info


class KernelTypes:
    """The running kernel's BTF, which describes its types. Loading it takes some 15 ms."""

    def __init__(self) -> None:
        """Raises KernelError if the kernel has no BTF."""
        self._btf = library().btf__load_vmlinux_btf()
        if not self._btf or self._btf > (1 << 64) - 4096:
            if not Path("/sys/kernel").exists():
                raise KernelError("There is no /sys here, which offtop needs. Mount it: mount -t sysfs sysfs /sys")
            raise KernelError(
                "This kernel does not describe its types (no /sys/kernel/btf/vmlinux), which offtop needs. "
                "Use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as the distributions' kernels are; "
                "in a container, make sure that /sys is mounted."
            )

    def offset(self, struct: str, member: str) -> int | None:
        """Byte offset of a member of a struct; None if there is no such struct or member."""
        return self._offsets(struct).get(member)

    def member_type(self, struct: str, member: str) -> str:
        """Name of the type of a struct's direct member.

        Empty if there is no such member, or its type has no name.
        """
        at = self._find_address(struct, _KIND_STRUCT)
        if at is None:
            return ""
        for i in range(_Type.from_address(at).info & 0xFFFF):
            found = _Member.from_address(at + ct.sizeof(_Type) + i * ct.sizeof(_Member))
            if library().btf__name_by_offset(self._btf, found.name_off).decode() == member:
                return library().btf__name_by_offset(self._btf, self._type(found.type).name_off).decode()
        return ""

    def size(self, struct: str) -> int | None:
        """Size of a struct in bytes; None if there is no such struct."""
        found = self._find(struct, _KIND_STRUCT)
        return None if found is None else found.size_or_type

    def has_tracepoint(self, name: str) -> bool:
        """Whether the kernel has this raw tracepoint."""
        return self._find(f"btf_trace_{name}", _KIND_TYPEDEF) is not None

    def tracepoint_type(self, name: str) -> int | None:
        """BTF id of a raw tracepoint's type; None if there is no such tracepoint.

        Programs with typed arguments attach by it.
        """
        found = library().btf__find_by_name_kind(self._btf, f"btf_trace_{name}".encode(), _KIND_TYPEDEF)
        return found if found > 0 else None

    def tracepoint_arguments(self, name: str) -> int:
        """Number of arguments of a raw tracepoint; 0 if there is no such tracepoint."""
        typedef = self._find(f"btf_trace_{name}", _KIND_TYPEDEF)
        if typedef is None:
            return 0
        pointer = self._type(typedef.size_or_type)
        proto = self._type(pointer.size_or_type)
        if (proto.info >> 24) & 31 != _KIND_FUNC_PROTO:
            return 0
        return (proto.info & 0xFFFF) - 1  # the first is the void * that every tracepoint function takes

    def has_function(self, name: str) -> bool:
        """Whether the kernel has this function. For a BPF helper: whether programs can call it."""
        return self._find(name, _KIND_FUNCTION) is not None

    def function(self, name: str) -> int | None:
        """BTF id of a kernel function, by which programs call a kfunc.

        None if there is no such function.
        """
        found = library().btf__find_by_name_kind(self._btf, name.encode(), _KIND_FUNCTION)
        return found if found > 0 else None

    def enumerators(self, enum: str) -> Mapping[str, int]:
        """Names and values of an enum; empty if there is no such enum."""
        at = self._find_address(enum, _KIND_ENUM)
        if at is None:
            return {}
        first, count = at + ct.sizeof(_Type), _Type.from_address(at).info & 0xFFFF
        members = (_Enumerator.from_address(first + i * ct.sizeof(_Enumerator)) for i in range(count))
        return {library().btf__name_by_offset(self._btf, one.name_off).decode(): one.value for one in members}

    @cache  # noqa: B019 - one object lives for the whole run
    def _offsets(self, struct: str) -> dict[str, int]:
        at = self._find_address(struct, _KIND_STRUCT)
        return {} if at is None else dict(self._members(at, 0))

    def _members(self, at: int, base: int) -> Iterator[tuple[str, int]]:
        """Yield (name, offset) of each member of the struct or union at `at`.

        Descends into anonymous members.
        """
        info = _Type.from_address(at).info
        has_bitfields = bool(info >> 31)
        for i in range(info & 0xFFFF):
            member = _Member.from_address(at + ct.sizeof(_Type) + i * ct.sizeof(_Member))
            offset = base + (member.offset & 0xFFFFFF if has_bitfields else member.offset) // 8
            name = library().btf__name_by_offset(self._btf, member.name_off).decode()
            if name:
                yield name, offset
                continue
            inner = library().btf__type_by_id(self._btf, member.type)
            if (_Type.from_address(inner).info >> 24) & 31 in (_KIND_STRUCT, _KIND_UNION):
                yield from self._members(inner, offset)

    def _find_address(self, name: str, kind: int) -> int | None:
        found = library().btf__find_by_name_kind(self._btf, name.encode(), kind)
        return library().btf__type_by_id(self._btf, found) if found > 0 else None

    def _find(self, name: str, kind: int) -> _Type | None:
        at = self._find_address(name, kind)
        return None if at is None else _Type.from_address(at)

    def _type(self, type_id: int) -> _Type:
        return _Type.from_address(library().btf__type_by_id(self._btf, type_id))
