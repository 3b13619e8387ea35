"""Drops the privileges of a child process before it handles untrusted files or replies.

The child becomes nobody, without capabilities and without a way to gain any. Landlock denies it the file system except
a few directories, and seccomp refuses system calls that it does not need. If a crafted file takes such a child over, it
can compute and answer its parent, and little else. Everything must be imported, loaded or opened before that, because
afterwards no memory can be made executable and no library can be found.
"""

import ctypes as ct
import errno
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offtop.printable import printable

if TYPE_CHECKING:  # a child does not need it
    from offtop.kernel.sandbox import Sandbox

_MOST_MEMORY_BYTES = 4 << 30
"""Limit of the address space. It is large because a small file may unpack to a large one."""
_NOBODY = 65534
_CAPABILITY_VERSION_3 = 0x20080522
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_NAME, _SET_NO_NEW_PRIVILEGES = 1, 4, 15, 38
"""prctl(2): PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_NO_NEW_PRIVS (linux/prctl.h)."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls, which have these numbers on every machine. The constants below are from linux/landlock.h."""
_GET_VERSION = 1
_PATH_BENEATH = 1
_READ_FILE, _READ_DIRECTORY = 1 << 2, 1 << 3
_RIGHTS_ADDED = ((5, 16), (3, 15), (2, 14), (1, 13))
"""(ABI version, number of file access rights from that version on), newest first."""
_TCP = 3
"""Rights to bind and to connect, from ABI version 4 on."""
_SIGNALS, _ABSTRACT_SOCKETS = 2, 1
"""Scopes, from ABI version 6 on."""

_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
"""libseccomp: SCMP_ACT_ALLOW, SCMP_ACT_KILL_PROCESS, SCMP_ACT_ERRNO."""
_MASKED_EQUAL = 7
"""SCMP_CMP_MASKED_EQ."""
_ALL_BITS = (1 << 64) - 1
_EXECUTABLE = 4
"""PROT_EXEC."""
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NEEDED = (
    "access brk clock_getres clock_gettime clock_nanosleep close dup exit exit_group faccessat faccessat2 fcntl fstat "
    "fstat64 fstatfs ftruncate futex getcwd getegid geteuid getgid getpid getrandom getrusage gettid gettimeofday "
    "getuid lseek lstat madvise memfd_create mremap munmap nanosleep newfstatat poll ppoll pread64 preadv pselect6 "
    "read readlink readlinkat readv recvfrom recvmsg restart_syscall rt_sigaction rt_sigprocmask rt_sigreturn "
    "sched_getaffinity sched_yield select sendmsg sendto sigaltstack stat statx sysinfo time times uname write writev"
)
"""System calls that libdw and the Python around it need. A few more are allowed with certain arguments only."""
_DANGEROUS = (
    "acct add_key bpf chroot clone clone3 delete_module execve execveat finit_module fork fsconfig fsmount fsopen "
    "init_module io_uring_enter io_uring_register io_uring_setup kcmp kexec_file_load kexec_load keyctl kill mount "
    "mount_setattr move_mount move_pages name_to_handle_at open_by_handle_at open_tree perf_event_open personality "
    "pidfd_getfd pidfd_open pidfd_send_signal pivot_root process_madvise process_vm_readv process_vm_writev ptrace "
    "quotactl reboot request_key rt_sigqueueinfo rt_tgsigqueueinfo setns settimeofday swapoff swapon syslog tgkill "
    "tkill umount2 unshare userfaultfd vfork"
)
"""System calls that no child needs. A child that makes one has been taken over, so it is killed."""


NOT_NOBODY = (
    "the process that reads binaries cannot stop being root ({}). "
    "Give offtop CAP_SETUID and CAP_SETGID, or run it as a user other than root, with capabilities"
)
"""Message for the user; `{}` takes the text of a RefusedError."""


_YES, _NO = "yes", "no"
"""The first part of a child's first message. The measures that failed follow, or why it could not be confined."""


class RefusedError(Exception):
    """The kernel refused to let the process stop being root.

    The text says which call failed, and why.
    """


class _Argument(ct.Structure):
    """`struct scmp_arg_cmp` (seccomp.h)."""

    _fields_ = (("number", ct.c_uint), ("how", ct.c_int), ("mask", ct.c_uint64), ("value", ct.c_uint64))


def confine(most_file_bytes: int, readable: Collection[str] = (), network: bool = False) -> list[str]:
    """Drop all privileges that can be dropped; return the measures that failed, as texts.

    `most_file_bytes`: limit on the size of files that it writes. `readable`: directories whose files can still be
    opened for reading. `network`: for the child that uses the network and therefore parses nothing. It may do what the
    user nobody may, except for dangerous system calls and writing to files by name.
    Raises RefusedError if the process would stay root; it must exit then.
    """
    libc, filters = ct.CDLL(None, use_errno=True), _libseccomp()
    limits = (
        (resource.RLIMIT_AS, _MOST_MEMORY_BYTES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, most_file_bytes),
    )
    for what, most in limits:
        resource.setrlimit(what, (most, most))
    with suppress(OSError):  # a crafted binary may fill the memory: have the kernel kill this process first
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"1000")
        os.close(fd)
    if os.geteuid() == 0:
        _become_nobody()
    libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))  # a user other than root may have some
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # ctrl-Z is for offtop, which may be continued alone
    settings = (
        (_SET_NO_NEW_PRIVILEGES, 1),
        (_SET_DUMPABLE, 0),  # no core dump, and no access for other processes of nobody
        (_SET_DEATH_SIGNAL, signal.SIGKILL),  # last, because the kernel resets it when the user changes
    )
    for setting, value in settings:
        libc.prctl(setting, *(ct.c_ulong(word) for word in (value, 0, 0, 0)))
    lacking: list[str] = []
    try:
        _restrict_files(libc, readable, network)
    except OSError as error:
        lacking.append(f"Landlock ({error.strerror})")
    try:
        _filter_system_calls(filters, network)
    except OSError as error:
        lacking.append(f"seccomp ({error.strerror})")
    return lacking


def confine_and_report(
    parent: socket.socket, most_file_bytes: int, readable: Collection[str] = (), network: bool = False
) -> None:
    """As `confine`, but send the result to the parent, which calls `report_of`. Exit if the process would stay root."""
    try:
        lacking = confine(most_file_bytes, readable, network)
    except RefusedError as refused:
        send(parent, _NO, str(refused))
        sys.exit(1)
    send(parent, _YES, *lacking)


def report_of(child: "Sandbox", seconds: float) -> list[str]:
    """Wait until a child is confined; return the measures that failed.

    Raises RefusedError if it would have stayed root and has exited, OSError if it does not start in time.
    """
    result, *measures = [printable(one) for one in child.receive(seconds)]
    if result != _YES:
        raise RefusedError(*measures)
    return measures


def send(parent: socket.socket, *parts: str) -> None:
    """Send one message to the parent.

    It starts with a zero byte, because an empty message would look like the end of the socket.
    """
    parent.send("".join(f"\0{one}" for one in parts).encode(errors="backslashreplace"))


def set_name(name: str) -> None:
    """Set the name of this process, as ps shows it."""
    ct.CDLL(None).prctl(_SET_NAME, name.encode())


def _become_nobody() -> None:
    calls = (
        ("setgroups", lambda: os.setgroups([])),
        ("setresgid", lambda: os.setresgid(_NOBODY, _NOBODY, _NOBODY)),
        ("setresuid", lambda: os.setresuid(_NOBODY, _NOBODY, _NOBODY)),
    )
    for name, call in calls:
        try:
            call()
        except OSError as error:
            raise RefusedError(f"{name}: {error.strerror}") from error


def _restrict_files(libc: ct.CDLL, readable: Collection[str], network: bool) -> None:
    """Restrict file access with Landlock (linux/landlock.h).

    Raises OSError if this kernel has no Landlock, or refuses.
    """
    version = _called(libc, _CREATE_RULESET, None, 0, _GET_VERSION)
    rights = (1 << next(count for since, count in _RIGHTS_ADDED if version >= since)) - 1
    words = [rights & ~(_READ_FILE | _READ_DIRECTORY) if network else rights]
    if version >= 4:
        words.append(0 if network else _TCP)
    if version >= 6:
        words.append(_SIGNALS if network else _SIGNALS | _ABSTRACT_SOCKETS)
    attributes = struct.pack(f"={len(words)}Q", *words)
    rules = _called(libc, _CREATE_RULESET, attributes, len(attributes), 0)
    for directory in (one for one in readable if Path(one).is_dir()):
        fd = os.open(directory, os.O_PATH | os.O_CLOEXEC)
        _called(libc, _ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", _READ_FILE, fd), 0)
        os.close(fd)
    _called(libc, _RESTRICT_SELF, rules, 0)
    os.close(rules)


def _called(libc: ct.CDLL, number: int, *arguments: int | bytes | None) -> int:
    words = [ct.c_size_t(one) if isinstance(one, int) else ct.c_char_p(one) for one in arguments]
    result: int = libc.syscall(ct.c_long(number), *words)
    if result < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return result


def _libseccomp() -> Any:
    """Load libseccomp, or return None if it is not installed."""
    try:
        lib = ct.CDLL("libseccomp.so.2")
    except OSError:
        return None
    lib.seccomp_init.restype = ct.c_void_p
    lib.seccomp_init.argtypes = [ct.c_uint32]
    lib.seccomp_syscall_resolve_name.argtypes = [ct.c_char_p]
    lib.seccomp_rule_add_array.argtypes = [ct.c_void_p, ct.c_uint32, ct.c_int, ct.c_uint, ct.POINTER(_Argument)]
    lib.seccomp_load.argtypes = [ct.c_void_p]
    return lib


def _filter_system_calls(lib: Any, network: bool) -> None:
    """Install the seccomp filter.

    libseccomp is used because it knows each machine's system call numbers. Raises OSError if libseccomp is not
    installed, or the kernel refuses.
    """
    if lib is None:
        raise OSError(errno.ENOENT, "libseccomp.so.2 is not installed")
    context = lib.seccomp_init(_ALLOW if network else _REFUSE)

    def rule(action: int, names: str, arguments: Sequence[_Argument] = ()) -> None:
        for name in names.split():
            number: int = lib.seccomp_syscall_resolve_name(name.encode())
            if number != -1:  # -1: newer than the library, and refused like all others
                failed = lib.seccomp_rule_add_array(
                    context, action, number, len(arguments), (_Argument * len(arguments))(*arguments)
                )
                if failed:
                    raise OSError(-failed, f"{name}: {os.strerror(-failed)}")

    rule(_KILL, _DANGEROUS)
    if not network:
        rule(_ALLOW, _NEEDED)
        rule(_ALLOW, "mmap mmap2 mprotect", [_Argument(2, _MASKED_EQUAL, _EXECUTABLE, 0)])
        rule(_ALLOW, "prctl", [_Argument(0, _MASKED_EQUAL, _ALL_BITS, _SET_NAME)])
        rule(_ALLOW, "open", [_Argument(1, _MASKED_EQUAL, _TO_WRITE, 0)])
        rule(_ALLOW, "openat", [_Argument(2, _MASKED_EQUAL, _TO_WRITE, 0)])
    if failed := lib.seccomp_load(context):
        raise OSError(-failed, os.strerror(-failed))
