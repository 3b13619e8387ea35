"""The person who typed sudo: files are theirs, and are read and written with their rights, not with root's.

Root would follow any link that they, or somebody else, have put in the way. So the thread that opens such a
file takes their place meanwhile: user, group and groups, which the kernel keeps for each thread.
"""

import contextlib
import ctypes
import os
import pwd
import re
import secrets
import stat
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from offtop.errors import OfftopError, PrivilegeError
from offtop.printable import printable
from offtop.units import size

LIMIT_BYTES = 64 * 1024
"""As much as a person's settings may take."""
_NOBODY = 0xFFFFFFFF
"""No user and no group: asked for it, setfsuid and setfsgid change nothing and say who it is at present."""
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
"""By machine, the number of the system call. libc's own setgroups would change every thread (nptl(7))."""
NO_USER = "a user: this machine knows no such name, nor is it a number"
"""What is said of a text that `is_user` says no to."""
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
    """Absolute; it need not be there."""
    name: str


class _Rights(NamedTuple):
    """Of one thread, as far as they decide what files it may open."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """In order, each once."""


def person(environ: Mapping[str, str] = os.environ) -> Person:
    """Who typed sudo, when we are root by it; else who we are.

    Of sudo's variables only $SUDO_UID is believed, and only as a user that this machine knows: name, group
    and home are what the machine says.
    """
    uid = os.geteuid()
    sudo_uid = environ.get("SUDO_UID", "")
    if uid == 0 and re.fullmatch("[0-9]{1,10}", sudo_uid):
        with contextlib.suppress(KeyError):
            return _known(int(sudo_uid))
    try:
        return _known(uid)
    except KeyError:  # as in a container that runs under a bare number
        return Person(uid, os.getegid(), Path("/", environ.get("HOME", "")), str(uid))


def is_user(text: str) -> bool:
    """Whether it can be a user: a name that this machine knows, or an id, which need not be known."""
    if text.isascii() and text.isdecimal():
        return True
    try:
        pwd.getpwnam(text)
    except KeyError:
        return False
    return True


def _known(uid: int) -> Person:
    """Raises KeyError for a user that the machine does not know."""
    entry = pwd.getpwuid(uid)
    return Person(entry.pw_uid, entry.pw_gid, Path("/", entry.pw_dir), entry.pw_name)


@contextlib.contextmanager
def as_person(person: Person) -> Generator[None]:
    """In this block, this thread opens, makes and removes files with that person's rights; no other thread does.

    None but those that it starts meanwhile, which are born with them and never lose them: start none.
    With the user, the kernel takes away root's rights over all files, and gives them back after. Nothing to
    do for who we are anyway. Raises PrivilegeError where we may not take that person's place.
    """
    # Each change also makes the process undumpable and drops the thread's PR_SET_PDEATHSIG (commit_creds in
    # kernel/cred.c): set that one after.
    if person.uid == os.geteuid():
        yield
        return
    groups = os.getgrouplist(person.name, person.gid)
    before = _rights()
    try:
        _take(_Rights(person.uid, person.gid, tuple(sorted(set(groups)))), person)
        yield
    finally:
        _take(before, person)


def _rights() -> _Rights:
    return _Rights(_LIBC.setfsuid(_NOBODY), _LIBC.setfsgid(_NOBODY), tuple(sorted(set(os.getgroups()))))


def _take(rights: _Rights, person: Person) -> None:
    if rights.groups != _rights().groups and (number := _SETGROUPS.get(os.uname().machine)):
        groups = (ctypes.c_uint32 * len(rights.groups))(*rights.groups)
        _LIBC.syscall(number, len(groups), groups)
    _LIBC.setfsgid(rights.gid)
    _LIBC.setfsuid(rights.uid)
    if _rights() != rights:  # neither call says that it was refused
        raise PrivilegeError(
            f"offtop may not take the place of {printable(person.name)}, who typed sudo, to open their files: "
            "that takes CAP_SETUID and CAP_SETGID. Try: sudo offtop, or leave $SUDO_UID unset"
        )


def is_roots(path: Path) -> bool:
    """Whether nobody but root can have put there what is at `path`.

    The file and every directory above are root's, writable by root only, and none of them is a link. Such a
    file may be read with root's rights, and may say what root is to do.
    """
    try:
        steps = [step.lstat() for step in (path.absolute(), *path.absolute().parents)]
    except OSError:
        return False
    return all(step.st_uid == 0 and not step.st_mode & _WRITABLE_BY_OTHERS for step in steps)  # a link has mode 0777


def read_theirs(path: Path, person: Person, limit_bytes: int = LIMIT_BYTES) -> bytes | None:
    """What is in that file, by the person's rights; None where there is none that they can see.

    A link is followed: with their rights it leads nowhere that they could not go. Raises OfftopError for what
    is not a regular file, belongs to somebody who is neither they nor root, or is larger than the limit.
    """
    shown = printable(str(path))
    with _told(path, person, "read"), as_person(person):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)  # a FIFO cannot hang us
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            if not _seen(path):
                return None
            raise
        try:
            _refuse_what_is_not_theirs(shown, os.fstat(fd), person)
            with os.fdopen(fd, "rb", closefd=False) as file:
                content = file.read(limit_bytes + 1)
        finally:
            os.close(fd)
    if len(content) > limit_bytes:
        raise OfftopError(
            f"{shown} is larger than {size(limit_bytes)}, so it is not read. Make it smaller, or name another"
        )
    return content


def _refuse_what_is_not_theirs(shown: str, found: os.stat_result, person: Person) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OfftopError(f"{shown} is not a regular file. Put one there, or name another")
    if found.st_uid not in (person.uid, 0):
        raise OfftopError(
            f"{shown} is neither {printable(person.name)}'s nor root's, so its owner could change it at will. "
            "Name another file, or take it over with chown"
        )


def _seen(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError:
        return False
    return True


def write_theirs(path: Path, person: Person, text: str | bytes) -> None:
    """Put `text` into that file, as `writing_theirs` does. Raises OfftopError."""
    content = text.encode() if isinstance(text, str) else text
    with _told(path, person, "written"), as_person(person), writing_theirs(path, person) as file:
        file.write(content)


@contextlib.contextmanager
def writing_theirs(path: Path, person: Person) -> Generator[BinaryIO]:
    """What is written in this block is that file at its end, whole or not at all; file (0600) and missing directories
    (0700) are the person's.

    Raises OfftopError, and leaves everything as it was, also where a link or anything else that is no regular
    file has that name.
    """
    new = f".offtop-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as opened:
        with _told(path, person, "written"), as_person(person):
            _make(path.parent)
            # And nowhere else from here on.
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, directory)
            _refuse_what_is_no_file(path, directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(new, flags, mode=0o600, dir_fd=directory)
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
                file.flush()
                os.fsync(fd)
            with _told(path, person, "written"), as_person(person):
                os.replace(new, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError), as_person(person):
                os.unlink(new, dir_fd=directory)
            raise


def _make(directory: Path) -> None:
    if not directory.exists():
        _make(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def _refuse_what_is_no_file(path: Path, directory: int) -> None:
    try:
        mode = os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        what = "a link, through which offtop does not write" if stat.S_ISLNK(mode) else "not a regular file"
        raise OfftopError(f"{printable(str(path))} is {what}. Remove it, or name another file")


@contextlib.contextmanager
def _told(path: Path, person: Person, done: str) -> Generator[None]:
    """What the system refuses in this block is told as OfftopError."""
    try:
        yield
    except OSError as error:
        raise OfftopError(
            f"{printable(str(path))} cannot be {done} by {printable(person.name)} ({error.strerror}). "
            "Put that right, or name another file"
        ) from error
