"""System calls as text: `futex(0x7f1200004040, WAIT_PRIVATE, 2)`.

Only arguments that say something by themselves are shown, since a tick reads no memory for this: descriptors, ids,
timeouts and commands. Pointers are left out, except a futex's address, which identifies the lock. Calls are looked up
by name, since numbers differ between machines and a recording may be from another one.
"""

from collections.abc import Callable, Mapping, Sequence

ARGUMENTS = 6
"""Maximum number of arguments of a system call."""

_Format = Callable[[int], str]
"""Returns one argument as text; empty if it is not worth showing."""

_FUTEX_OPERATIONS = (
    "WAIT",
    "WAKE",
    "FD",
    "REQUEUE",
    "CMP_REQUEUE",
    "WAKE_OP",
    "LOCK_PI",
    "UNLOCK_PI",
    "TRYLOCK_PI",
    "WAIT_BITSET",
    "WAKE_BITSET",
    "WAIT_REQUEUE_PI",
    "CMP_REQUEUE_PI",
    "LOCK_PI2",
)
_FUTEX_PRIVATE, _FUTEX_CLOCK_REALTIME = 128, 256
_CLOCKS = {
    0: "REALTIME",
    1: "MONOTONIC",
    2: "PROCESS_CPUTIME_ID",
    3: "THREAD_CPUTIME_ID",
    4: "MONOTONIC_RAW",
    5: "REALTIME_COARSE",
    6: "MONOTONIC_COARSE",
    7: "BOOTTIME",
    8: "REALTIME_ALARM",
    9: "BOOTTIME_ALARM",
    11: "TAI",
}
_FCNTL_COMMANDS = {
    0: "DUPFD",
    1: "GETFD",
    2: "SETFD",
    3: "GETFL",
    4: "SETFL",
    5: "GETLK",
    6: "SETLK",
    7: "SETLKW",
    8: "SETOWN",
    9: "GETOWN",
    12: "GETLK64",
    13: "SETLK64",
    14: "SETLKW64",
    36: "OFD_GETLK",
    37: "OFD_SETLK",
    38: "OFD_SETLKW",
    1024: "SETLEASE",
    1025: "GETLEASE",
    1026: "NOTIFY",
    1030: "DUPFD_CLOEXEC",
    1031: "SETPIPE_SZ",
    1032: "GETPIPE_SZ",
    1033: "ADD_SEALS",
    1034: "GET_SEALS",
}
_LOCKS = {1: "SH", 2: "EX", 8: "UN"}
_LOCK_NOT_BLOCKING = 4
_WAITED_FOR = {0: "ALL", 1: "PID", 2: "PGID", 3: "PIDFD"}
_TIMER_ABSTIME = 1
_AT_FDCWD = -100
_REGISTERED_RING = 16


def call_text(name: str, args: Sequence[int]) -> str:
    """Format the call `name` with the register values `args`.

    The result is only the name if the arguments say nothing.

    `name` may be anything: empty, or from a recording.
    """
    if len(args) < ARGUMENTS:
        return name
    shape = _SHAPES.get(name.removesuffix("_time64"))  # 32-bit programs have these variants because of 2038
    if shape is None:
        return name
    words = [shown(args[at]) for at, shown in shape]
    return f"{name}({', '.join(word for word in words if word)})"


def _int(value: int) -> int:
    """Convert to a C int: 32 bits of the register, signed."""
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _signed(value: int) -> str:
    return str(_int(value))


def _unsigned(value: int) -> str:
    return str(value & 0xFFFFFFFF)


def _fd(value: int) -> str:
    return "AT_FDCWD" if _int(value) == _AT_FDCWD else _signed(value)


def _address(value: int) -> str:
    return hex(value & 0xFFFFFFFFFFFFFFFF)


def _command(value: int) -> str:
    return hex(value & 0xFFFFFFFF)


def _timeout(value: int) -> str:
    ms = _int(value)
    return f"timeout={ms}ms" if ms > 0 else f"timeout={ms}"


def _with_label(label: str) -> _Format:
    """Show a count with its label."""
    return lambda value: f"{label}={_signed(value)}"


def _unless_zero(label: str) -> _Format:
    """Show a count with its label, unless it is 0."""
    return lambda value: f"{label}={_signed(value)}" if value else ""


def _registered_ring(flags: int) -> str:
    """Say if the first argument is the index of a registered ring, not a descriptor (IORING_ENTER_REGISTERED_RING)."""
    return "REGISTERED_RING" if flags & _REGISTERED_RING else ""


def _one_of(names: Mapping[int, str]) -> _Format:
    """Show the name for a number, or the number if there is none."""
    return lambda value: names.get(_int(value), _signed(value))


def _lock(value: int) -> str:
    blocking = _int(value) & ~_LOCK_NOT_BLOCKING
    known = _LOCKS.get(blocking, str(blocking))
    return known if blocking == _int(value) else f"{known}|NB"


def _absolute(value: int) -> str:
    return "ABSTIME" if value & _TIMER_ABSTIME else ""


def _futex_operation(value: int) -> str:
    number = _int(value)
    operation = number & ~(_FUTEX_PRIVATE | _FUTEX_CLOCK_REALTIME)
    if not 0 <= operation < len(_FUTEX_OPERATIONS):
        return _command(value)
    private = "_PRIVATE" if number & _FUTEX_PRIVATE else ""
    clock = "|CLOCK_REALTIME" if number & _FUTEX_CLOCK_REALTIME else ""
    return f"{_FUTEX_OPERATIONS[operation]}{private}{clock}"


_Shape = tuple[tuple[int, _Format], ...]
"""Which arguments are shown, and how."""

_OF_DESCRIPTOR = """
    read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 close lseek _llseek readahead fadvise64
    recv recvfrom recvmsg recvmmsg send sendto sendmsg sendmmsg accept accept4 connect listen bind shutdown
    getsockopt setsockopt fsync fdatasync syncfs sync_file_range ftruncate ftruncate64 fallocate
    getdents getdents64 fstat fstat64 fstatfs fstatfs64 fchmod fchown fchdir fgetxattr fsetxattr
    openat openat2 newfstatat fstatat statx mkdirat mknodat unlinkat fchmodat fchmodat2 fchownat faccessat faccessat2
    readlinkat utimensat name_to_handle_at open_by_handle_at execveat
    mq_timedsend mq_timedreceive vmsplice epoll_ctl epoll_pwait2 timerfd_settime timerfd_gettime
    inotify_add_watch fanotify_mark finit_module io_uring_register pidfd_getfd pidfd_send_signal setns
"""
"""Calls whose first argument is a descriptor and the only one that is shown."""

_SHAPES: Mapping[str, _Shape] = dict.fromkeys(_OF_DESCRIPTOR.split(), ((0, _fd),)) | {
    "futex": ((0, _address), (1, _futex_operation), (2, _unsigned)),
    "futex_wait": ((0, _address), (1, _unsigned)),
    "futex_waitv": ((1, _with_label("n")),),
    "poll": ((1, _with_label("n")), (2, _timeout)),
    "ppoll": ((1, _with_label("n")),),
    "select": ((0, _with_label("n")),),
    "_newselect": ((0, _with_label("n")),),
    "pselect6": ((0, _with_label("n")),),
    "epoll_wait": ((0, _fd), (3, _timeout)),
    "epoll_pwait": ((0, _fd), (3, _timeout)),
    "io_uring_enter": ((0, _fd), (1, _unless_zero("submit")), (2, _with_label("min")), (3, _registered_ring)),
    "io_getevents": ((1, _with_label("min")),),
    "io_pgetevents": ((1, _with_label("min")),),
    "clock_nanosleep": ((0, _one_of(_CLOCKS)), (1, _absolute)),
    "wait4": ((0, _signed),),
    "waitpid": ((0, _signed),),
    "waitid": ((0, _one_of(_WAITED_FOR)), (1, _signed)),
    "flock": ((0, _fd), (1, _lock)),
    "fcntl": ((0, _fd), (1, _one_of(_FCNTL_COMMANDS))),
    "fcntl64": ((0, _fd), (1, _one_of(_FCNTL_COMMANDS))),
    "ioctl": ((0, _fd), (1, _command)),
    "semop": ((0, _signed),),
    "semtimedop": ((0, _signed),),
    "msgrcv": ((0, _signed),),
    "msgsnd": ((0, _signed),),
    "sendfile": ((0, _fd), (1, _fd)),
    "sendfile64": ((0, _fd), (1, _fd)),
    "splice": ((0, _fd), (2, _fd)),
    "tee": ((0, _fd), (1, _fd)),
    "copy_file_range": ((0, _fd), (2, _fd)),
    "renameat": ((0, _fd), (2, _fd)),
    "renameat2": ((0, _fd), (2, _fd)),
    "linkat": ((0, _fd), (2, _fd)),
}
