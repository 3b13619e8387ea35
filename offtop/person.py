"""The user who typed sudo. Their files are opened with their rights, not with root's.

Root would follow any link that this user, or somebody else, placed at the path. So the thread that opens such a
file switches to the user's fsuid, fsgid and supplementary groups, which the kernel keeps per thread.
"""

import contextlib
import ctypes
import os
import pwd
import re
import stat
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from offtop.errors import OfftopError, PrivilegeError
from offtop.printable import printable
from offtop.units import size

LIMIT_BYTES = 64 * 1024
"""Largest settings file that is read."""
_NOBODY = 0xFFFFFFFF
"""An invalid id: with it, setfsuid and setfsgid change nothing and return the current id."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SETGROUPS = {
    "x86_64": 116,
    "aarch64": 159,
    "riscv64": 159,
    "loongarch64": 159,
    "ppc64": 81,
    "ppc64le": 81,
    "s390x": 206,
}
"""System call number by machine. libc's setgroups() would change every thread (nptl(7))."""
NO_USER = "a user: this machine has no user of that name, and it is not a number"
"""Ends the error message `… is not` if `is_user` returned False."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.setfsuid.argtypes = _LIBC.setfsgid.argtypes = [ctypes.c_uint32]
_LIBC.setfsuid.restype = _LIBC.setfsgid.restype = ctypes.c_uint32
_LIBC.syscall.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
_LIBC.syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Person:
    uid: int
    gid: int
    home: Path
    """Absolute; it may not exist."""
    name: str


class _Rights(NamedTuple):
    """The ids of one thread that decide which files it may open."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """Sorted, without duplicates."""


def person(environ: Mapping[str, str] = os.environ) -> Person:
    """Return the user who typed sudo if this process runs under sudo, else the effective one.

    Of sudo's variables only $SUDO_UID is used, and only if the user exists: name, group and home come from the
    user database.
    """
    uid = os.geteuid()
    sudo_uid = environ.get("SUDO_UID", "")
    if uid == 0 and re.fullmatch("[0-9]{1,10}", sudo_uid):
        with contextlib.suppress(KeyError):
            return _known(int(sudo_uid))
    try:
        return _known(uid)
    except KeyError:  # as in a container that runs under a uid without a passwd entry
        return Person(uid, os.getegid(), Path("/", environ.get("HOME", "")), str(uid))


def is_user(text: str) -> bool:
    """Return whether `text` is the name of an existing user, or a uid, which need not exist."""
    if text.isascii() and text.isdecimal():
        return True
    try:
        pwd.getpwnam(text)
    except KeyError:
        return False
    return True


def _known(uid: int) -> Person:
    """Look up a user by uid. Raises KeyError if it does not exist."""
    entry = pwd.getpwuid(uid)
    return Person(entry.pw_uid, entry.pw_gid, Path("/", entry.pw_dir), entry.pw_name)


@contextlib.contextmanager
def as_person(person: Person) -> Generator[None]:
    """In this block, let the calling thread access files with that user's rights.

    Other threads are not affected. Do not start threads in the block: they would inherit these rights and keep them.
    While the fsuid is not 0, the kernel drops root's file capabilities, and restores them afterwards. Does nothing
    if `person` is the effective user. Raises PrivilegeError if this process may not change its ids.
    """
    # Each change also clears the process's dumpable flag and the thread's PR_SET_PDEATHSIG (commit_creds() in
    # kernel/cred.c). Set PR_SET_PDEATHSIG after this block, not before.
    if person.uid == os.geteuid():
        yield
        return
    groups = os.getgrouplist(person.name, person.gid)
    before = _rights()
    try:
        _set_rights(_Rights(person.uid, person.gid, tuple(sorted(set(groups)))), person)
        yield
    finally:
        _set_rights(before, person)


def _rights() -> _Rights:
    return _Rights(_LIBC.setfsuid(_NOBODY), _LIBC.setfsgid(_NOBODY), tuple(sorted(set(os.getgroups()))))


def _set_rights(rights: _Rights, person: Person) -> None:
    if rights.groups != _rights().groups and (number := _SETGROUPS.get(os.uname().machine)):
        groups = (ctypes.c_uint32 * len(rights.groups))(*rights.groups)
        _LIBC.syscall(number, len(groups), groups)
    _LIBC.setfsgid(rights.gid)
    _LIBC.setfsuid(rights.uid)
    if _rights() != rights:  # neither call reports a failure
        raise PrivilegeError(
            f"Opening files as {printable(person.name)}, who typed sudo, needs CAP_SETUID and CAP_SETGID. "
            "Try: sudo offtop, or unset $SUDO_UID"
        )


def is_roots(path: Path) -> bool:
    """Return whether only root can have written the file at `path`.

    The file and every directory above it must be owned by root, writable only by root, and not a link. Such a file
    may be read with root's rights.
    """
    try:
        steps = [step.lstat() for step in (path.absolute(), *path.absolute().parents)]
    except OSError:
        return False
    return all(step.st_uid == 0 and not step.st_mode & _WRITABLE_BY_OTHERS for step in steps)  # a link has mode 0777


def read_theirs(path: Path, person: Person, limit_bytes: int = LIMIT_BYTES) -> bytes | None:
    """Read a file with the user's rights.

    Returns None if it does not exist or the user cannot see it. Links are followed: with the user's rights they lead
    nowhere that the user could not go. Raises OfftopError if the file is not a regular file, belongs to neither the
    user nor root, or is larger than the limit.
    """
    shown = printable(str(path))
    with _os_errors(path, person, "read"), as_person(person):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)  # a FIFO cannot hang us
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            if not _is_visible(path):
                return None
            raise
        try:
            _check_owner(shown, os.fstat(fd), person)
            with os.fdopen(fd, "rb", closefd=False) as file:
                content = file.read(limit_bytes + 1)
        finally:
            os.close(fd)
    if len(content) > limit_bytes:
        raise OfftopError(
            f"{shown} is larger than {size(limit_bytes)}, so it is not read. Make it smaller, or name another file"
        )
    return content


def _check_owner(shown: str, found: os.stat_result, person: Person) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OfftopError(f"{shown} is not a regular file. Name another file")
    if found.st_uid not in (person.uid, 0):
        raise OfftopError(
            f"{shown} belongs to neither {printable(person.name)} nor root, so its owner could change it at any time. "
            "Name another file, or change its owner with chown"
        )


def _is_visible(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError:
        return False
    return True


def write_theirs(path: Path, person: Person, text: str | bytes) -> None:
    """Write `text` to a file, as `writing_theirs` does. Raises OfftopError."""
    content = text.encode() if isinstance(text, str) else text
    with _os_errors(path, person, "written"), as_person(person), writing_theirs(path, person) as file:
        file.write(content)


@contextlib.contextmanager
def writing_theirs(path: Path, person: Person) -> Generator[BinaryIO]:
    """Open a file for writing; it appears at `path` only if the block ends without error.

    The file (mode 0600) and any missing directories (0700) belong to the user. Raises OfftopError and changes
    nothing if the file cannot be written, or if `path` is a link or anything else but a regular file.
    """
    temporary_name = f".offtop-{os.urandom(8).hex()}"
    with contextlib.ExitStack() as opened:
        with _os_errors(path, person, "written"), as_person(person):
            _make_directories(path.parent)
            # Everything below is relative to this descriptor, so nobody can swap the directory.
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, directory)
            _check_regular_file(path, directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            # Before the file exists: a signal may come at any time.
            opened.callback(_remove_left_over, temporary_name, directory, person)
            fd = os.open(temporary_name, flags, mode=0o600, dir_fd=directory)
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(fd)
        with _os_errors(path, person, "written"), as_person(person):
            os.replace(temporary_name, path.name, src_dir_fd=directory, dst_dir_fd=directory)


def _remove_left_over(name: str, directory: int, person: Person) -> None:
    with contextlib.suppress(OSError), as_person(person):
        os.unlink(name, dir_fd=directory)


def _make_directories(directory: Path) -> None:
    if not directory.exists():
        _make_directories(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def _check_regular_file(path: Path, directory: int) -> None:
    try:
        mode = os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        what = "a link, which offtop does not write through" if stat.S_ISLNK(mode) else "not a regular file"
        raise OfftopError(f"{printable(str(path))} is {what}. Remove it, or name another file")


@contextlib.contextmanager
def _os_errors(path: Path, person: Person, done: str) -> Generator[None]:
    """Convert an OSError raised in this block to an OfftopError."""
    try:
        yield
    except OSError as error:
        raise OfftopError(
            f"{printable(str(path))} cannot be {done} by {printable(person.name)} ({error.strerror}). "
            "Fix that, or name another file"
        ) from error
