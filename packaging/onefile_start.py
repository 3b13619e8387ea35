"""Start of offtop in one file: unpack the archive once, then run from the unpacked copy.

Shared libraries cannot be loaded from an archive. The copy is in a directory that only its user can write, because root
runs what is in it. This file must also run on a Python that is too old for offtop.
"""

import contextlib
import errno
import fcntl
import os
import pwd
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

BUILD = "BUILD"
"""Member of the archive that has its build id: the machine that it is for, `-`, and a hash of all other members."""
_OLDEST, _NEWEST = (3, 11), (3, 14)
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class WrongMachineError(Exception):
    """The archive is for the machine that this error names, which is not the one it runs on."""


def start(archive: str) -> None:
    """Run offtop from `archive`. Exits with status 4 and a sentence if that is impossible."""
    if not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        sys.exit(_failed(f"this is Python {sys.version_info[0]}.{sys.version_info[1]}, and it needs 3.11 to 3.14"))
    try:
        unpacked = copy_of(archive, parent())
    except WrongMachineError as error:
        sys.exit(_failed(f"{archive} is for {error}. Copy the file for {os.uname().machine}"))
    except OSError as error:
        where = error.filename or parent()
        sys.exit(_failed(f"cannot unpack itself to {where} ({error.strerror}). It needs 140 MB, without noexec"))
    except (zipfile.BadZipFile, zlib.error) as error:
        sys.exit(_failed(f"{archive} is damaged ({error}). Copy it again"))
    sys.path[0] = str(unpacked)
    sys.argv[0] = archive
    from offtop.start import main

    main()


def _failed(why: str) -> int:
    sys.stderr.write(f"offtop: {why}\n")
    return 4


def parent() -> Path:
    """Return the directory for copies. $HOME is not asked: under sudo it may be that of another user."""
    user = os.geteuid()
    if user == 0:
        return Path("/var/cache/offtop/onefile")
    try:
        return Path(pwd.getpwuid(user).pw_dir, ".cache/offtop/onefile")
    except KeyError:
        raise FileNotFoundError(2, "there is no such user", f"the home directory of user {user}") from None


def copy_of(archive: str, parent: Path) -> Path:
    """Return the directory of the unpacked copy, and make it if there is none.

    No other start removes it while this process lives. A new copy replaces those that no process uses. Raises
    PermissionError if another user can write to it or if programs cannot be run from there, and WrongMachineError.
    """
    with zipfile.ZipFile(archive) as members:
        build = members.read(BUILD).decode("ascii")
        machine = build.partition("-")[0]
        if machine != os.uname().machine:
            raise WrongMachineError(machine)
        _make_own(parent)
        _check_own(parent.parent)  # a user who can write there could replace `parent`
        if os.statvfs(parent).f_flag & os.ST_NOEXEC:
            raise PermissionError(errno.EACCES, "mounted noexec", str(parent))
        copy = parent / build
        if _keep(copy):
            return copy
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=str(parent)))
        try:
            _keep(new)
            members.extractall(new)
            with contextlib.suppress(OSError):  # another start was faster
                new.rename(copy)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    if not _keep(copy):
        raise FileNotFoundError(2, "it was removed", str(copy))
    for other in parent.iterdir():
        if other != copy:
            _remove_unused(other)
    return copy


def _keep(copy: Path) -> bool:
    """Lock a copy until this process exits, so that no other start removes it. Returns False if there is none."""
    try:
        _check_own(copy)
    except FileNotFoundError:
        return False
    directory = os.open(copy, os.O_RDONLY)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(directory, fcntl.LOCK_SH)  # waits for a removal that has begun
    return copy.is_dir()


def _remove_unused(copy: Path) -> None:
    """Remove a copy, or what is left of one, unless a process runs from it or unpacks it."""
    try:
        directory = os.open(copy, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # a link, or another start was faster
        return
    with contextlib.suppress(OSError):
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(copy, ignore_errors=True)
    os.close(directory)


def _make_own(path: Path) -> None:
    """Make the directory and those above it."""
    if not path.parent.is_dir():
        _make_own(path.parent)
    path.mkdir(0o700, exist_ok=True)
    _check_own(path)


def _check_own(path: Path) -> None:
    found = os.lstat(path)
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid())
    if not is_own or found.st_mode & _OTHERS_MAY_WRITE:
        raise PermissionError(1, "another user can write there: remove it", str(path))


if __name__ == "__main__":
    start(sys.argv[0])
