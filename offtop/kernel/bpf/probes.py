"""Test what the kernel allows, by trying it. Every test cleans up after itself.

A test returns 0 if it works, an errno if it does not, or None if that is unknown because libbpf is missing or older
than 0.7.
"""

import ctypes as ct
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from offtop.errors import KernelError
from offtop.kernel.bpf.libbpf import KernelTypes, ProgramOptions, enable_statistics, library

_ARRAY, _RING_BUFFER = 2, 27  # enum bpf_map_type
_RAW_TRACEPOINT = 17  # BPF_PROG_TYPE_RAW_TRACEPOINT
_TRACING, _TRACE_ITER = 26, 28  # BPF_PROG_TYPE_TRACING, BPF_TRACE_ITER
_RETURN_0 = bytes.fromhex("b700000000000000 9500000000000000")
"""`r0 = 0; exit`."""


def array_map(size_bytes: int) -> int | None:
    """Create an array map of `size_bytes`."""
    return _try(partial(_create_map, _ARRAY, 4, 8, size_bytes // 8))


def ring_buffer() -> int | None:
    """Create a ring buffer."""
    return _try(partial(_create_map, _RING_BUFFER, 0, 0, os.sysconf("SC_PAGE_SIZE")))


def raw_tracepoint(name: str) -> int | None:
    """Attach a program that does nothing to a raw tracepoint."""
    try:
        lib = library()
    except KernelError:
        return None
    if not hasattr(lib, "bpf_map_create"):  # libbpf before 0.7, in which bpf_prog_load is another function
        return None
    fd = lib.bpf_prog_load(_RAW_TRACEPOINT, b"offtop_doctor", b"GPL", _RETURN_0, ct.c_size_t(2), None)
    if fd < 0:
        return _errno(fd)
    try:
        return _try(partial(lib.bpf_raw_tracepoint_open, name.encode(), fd))
    finally:
        os.close(fd)


def iterator(btf_id: int) -> int | None:
    """Load an iterator that does nothing. `btf_id`: of the kernel function that stands for it, bpf_iter_NAME."""
    try:
        lib = library()
    except KernelError:
        return None
    if not hasattr(lib, "bpf_map_create"):  # see raw_tracepoint
        return None
    options = ProgramOptions(ct.sizeof(ProgramOptions), expected_attach_type=_TRACE_ITER, attach_btf_id=btf_id)
    load = partial(lib.bpf_prog_load, _TRACING, b"offtop_probe", b"GPL", _RETURN_0, ct.c_size_t(2), ct.byref(options))
    return _try(load)


def has_map_iterators(types: KernelTypes) -> bool:
    """Whether the kernel allows iterators over maps. Some do not, although they have them."""
    number = types.function("bpf_iter_bpf_map_elem")
    return number is not None and iterator(number) in (0, None)


def statistics() -> int | None:
    """Enable statistics of BPF programs."""
    try:
        os.close(enable_statistics())
    except KernelError:
        return None
    except OSError as error:
        return error.errno
    return 0


def memory_of(pid: int) -> int:
    """Test whether another process's memory may be read.

    Its memory is opened, where the kernel checks the permission, but not read, which may hang. ESRCH if the process
    has no memory: a kernel thread, or a process that has exited.
    """
    if _own_memory() == errno.EPERM:  # seccomp forbids it for every process
        return errno.EPERM
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except PermissionError:
        return errno.EPERM
    except OSError:
        is_hidden = not Path(f"/proc/{pid}").exists() and process_exists(pid)  # /proc is mounted with hidepid
        return errno.EPERM if is_hidden else errno.ESRCH
    return 0


def _own_memory() -> int:
    """Call process_vm_readv() on our own process, at an unmapped address. Returns the errno."""
    vector = (ct.c_size_t * 2)(ct.addressof(ct.create_string_buffer(1)), 1)
    unmapped = (ct.c_size_t * 2)(0, 1)
    libc = ct.CDLL(None, use_errno=True)
    libc.process_vm_readv(os.getpid(), vector, ct.c_ulong(1), unmapped, ct.c_ulong(1), ct.c_ulong(0))
    return ct.get_errno()


def process_exists(pid: int) -> bool:
    """Whether there is a process with that id, even if /proc does not show it."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _create_map(kind: int, key_bytes: int, value_bytes: int, entries: int) -> int:
    """Create a map; returns a descriptor, or a negative error code.

    Raises KernelError without libbpf.
    """
    lib = library()
    if hasattr(lib, "bpf_map_create"):
        return lib.bpf_map_create(kind, None, key_bytes, value_bytes, entries, None)
    return lib.bpf_create_map(kind, key_bytes, value_bytes, entries, 0)  # before libbpf 0.7


def _try(make: Callable[[], int]) -> int | None:
    try:
        fd = make()
    except KernelError:
        return None
    if fd < 0:
        return _errno(fd)
    os.close(fd)
    return 0


def _errno(fd: int) -> int:
    # libbpf returns -1 and sets errno before 1.0, and -errno since.
    return ct.get_errno() if fd == -1 else -fd
