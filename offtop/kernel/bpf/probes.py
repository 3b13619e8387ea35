"""Small questions to the kernel, each answered by trying. Nothing of it stays.

Of each the answer is an errno, 0 where it can be done, or None where nobody can tell: libbpf is missing, or older than
0.7.
"""

import ctypes as ct
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from offtop.errors import KernelError
from offtop.kernel.bpf.libbpf import enable_statistics, library

_HASH, _ARRAY, _RING_BUFFER = 1, 2, 27  # enum bpf_map_type
_RAW_TRACEPOINT = 17  # BPF_PROG_TYPE_RAW_TRACEPOINT
_RETURN_0 = bytes.fromhex("b700000000000000 9500000000000000")
"""`r0 = 0; exit`."""
_RECORD = (7).to_bytes(4, "little"), (23).to_bytes(8, "little")


def a_map(size_bytes: int) -> int | None:
    """Of an array of `size_bytes`."""
    return _tried(partial(_map, _ARRAY, 4, 8, size_bytes // 8))


def ring_buffer() -> int | None:
    return _tried(partial(_map, _RING_BUFFER, 0, 0, os.sysconf("SC_PAGE_SIZE")))


def raw_tracepoint(name: str) -> int | None:
    """Attach a program there that does nothing."""
    try:
        lib = library()
    except KernelError:
        return None
    if not hasattr(lib, "bpf_map_create"):  # its bpf_prog_load is another function
        return None
    fd = lib.bpf_prog_load(_RAW_TRACEPOINT, b"offtop_doctor", b"GPL", _RETURN_0, ct.c_size_t(2), None)
    if fd < 0:
        return _errno(fd)
    try:
        return _tried(partial(lib.bpf_raw_tracepoint_open, name.encode(), fd))
    finally:
        os.close(fd)


def statistics() -> int | None:
    try:
        os.close(enable_statistics())
    except KernelError:
        return None
    except OSError as error:
        return error.errno
    return 0


def memory_of(pid: int) -> int:
    """To read in another process's memory. It is opened, which the kernel checks, and not read, which may hang. ESRCH
    for one that has none: a thread of the kernel's, or one that has ended."""
    if _own_memory() == errno.EPERM:  # seccomp: nobody's may be read
        return errno.EPERM
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except PermissionError:
        return errno.EPERM
    except OSError:
        is_hidden = not Path(f"/proc/{pid}").exists() and is_there(pid)  # /proc is mounted with hidepid
        return errno.EPERM if is_hidden else errno.ESRCH
    return 0


def _own_memory() -> int:
    """To read in our own memory as if it were another's; at an address where nothing is."""
    vector = (ct.c_size_t * 2)(ct.addressof(ct.create_string_buffer(1)), 1)
    nowhere = (ct.c_size_t * 2)(0, 1)
    libc = ct.CDLL(None, use_errno=True)
    libc.process_vm_readv(os.getpid(), vector, ct.c_ulong(1), nowhere, ct.c_ulong(1), ct.c_ulong(0))
    return ct.get_errno()


def is_there(pid: int) -> bool:
    """Whether there is a process of that id, shown in /proc or not."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _map(kind: int, key_bytes: int, value_bytes: int, entries: int) -> int:
    """A descriptor, or an error below 0. Raises KernelError without libbpf."""
    lib = library()
    if hasattr(lib, "bpf_map_create"):
        return lib.bpf_map_create(kind, None, key_bytes, value_bytes, entries, None)
    return lib.bpf_create_map(kind, key_bytes, value_bytes, entries, 0)  # before libbpf 0.7


def _tried(make: Callable[[], int]) -> int | None:
    try:
        fd = make()
    except KernelError:
        return None
    if fd < 0:
        return _errno(fd)
    os.close(fd)
    return 0


def _errno(fd: int) -> int:
    """Libbpf says -1 before 1.0, and -errno since."""
    return ct.get_errno() if fd == -1 else -fd
