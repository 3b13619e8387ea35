"""Recordings in a directory: delete the oldest, and find the one that was written to last."""

import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from offtop.errors import OfftopError, warn
from offtop.person import Person, as_person, person
from offtop.printable import printable
from offtop.units import NS_PER_S

SERVICE_DIRECTORIES = (Path("/var/lib/offtop-agent"), Path("/var/lib/offtop"))
"""Where offtop-agent.service and offtop-record.service write. The first belongs to the agent's user."""
LATEST = "latest"
"""In place of a file: the recording that was written to last."""
_NAME = re.compile(r"offtop-.*[0-9]{8}T[0-9]{6}\.offtop", re.ASCII)
"""Names that `offtop record` and the key `a` choose. A clip has more behind the time; someone chose to keep it."""
_IN_USE_NS = 120 * NS_PER_S
"""A recording that changed more recently is not deleted: it may still be written to. The longest --delay is 60 s."""


class _Found(NamedTuple):
    written_ns: int
    """Time of the last write, in ns since 1970."""
    path: Path
    size: int
    """Bytes, with the files beside it."""
    owner: int
    """UID."""


def delete_oldest(directory: Path, keep_ns: int, most_bytes: int, owner: Person, used: Path | None = None) -> None:
    """Delete recordings last written to longer than `keep_ns` ago, and the oldest above `most_bytes` in all.

    Only files of `owner` count. `used`: the recording in progress, which stays. Raises OfftopError if the directory
    cannot be read or a file cannot be deleted.
    """
    now_ns = time.time_ns()
    with as_person(owner):
        try:
            found = sorted(one for one in _recordings(directory) if one.owner == owner.uid)
            bytes_left = sum(one.size for one in found)
            for one in found:
                # Times in the future are from before the clock was set back.
                is_in_use = one.path == used or abs(now_ns - one.written_ns) < _IN_USE_NS
                if not is_in_use and (now_ns - one.written_ns > keep_ns or bytes_left > most_bytes):
                    for path in _with_beside(one.path):
                        path.unlink(missing_ok=True)
                    bytes_left -= one.size
        except OSError as error:
            where = printable(str(error.filename or directory))
            name = "Make it, or name" if isinstance(error, FileNotFoundError) else "Name"
            remedy = f"{name} a directory that {printable(owner.name)} can write to"
            raise OfftopError(f"--directory: {where}: {error.strerror}. {remedy}") from error


def named(file: str) -> Path:
    """Return the path of a recording; `latest` is the one in a service's or the current directory written to last.

    If several may be in progress, it is the one in the current directory, then the recorder's: otherwise the agent's
    would be the latest for a moment every few seconds. In the current directory only those of root and of the invoking
    user count, because others may write to it, too. Raises OfftopError if there is none.
    """
    if file != LATEST:
        return Path(file)
    found: list[tuple[int, int, _Found]] = []
    refused = ""
    in_use_ns = time.time_ns() - _IN_USE_NS
    for rank, directory in enumerate((*SERVICE_DIRECTORIES, Path())):
        try:  # absolute() fails if the current directory was removed
            owners = {0, person().uid}
            if directory in SERVICE_DIRECTORIES:
                owners.add(directory.stat().st_uid)
            for one in _recordings(directory.absolute()):
                if one.owner in owners:
                    found.append((min(one.written_ns, in_use_ns), rank, one))
        except FileNotFoundError:
            pass
        except OSError as error:
            refused = f"{printable(str(directory))} cannot be read ({error.strerror})"
    if not found:
        hint = f"{refused}. Try sudo" if refused else "Make one with sudo offtop record, or name a file"
        where = f"in {', '.join(map(str, SERVICE_DIRECTORIES))} or in the current directory"
        raise OfftopError(f"There is no recording {where} that is named offtop-HOST-TIME.offtop. {hint}")
    path = max(found)[-1].path
    warn(f"offtop: the latest recording is {printable(str(path))}{f'; {refused}' if refused else ''}")
    return path


def _recordings(directory: Path) -> Sequence[_Found]:
    """Return the recordings in a directory. Links are none."""
    found: list[_Found] = []
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    for name in names:
        states = [_status(path) for path in _with_beside(directory / name)]
        if states[0]:
            present = [one for one in states if one]
            written_ns = max(one.st_mtime_ns for one in present)
            size = sum(one.st_size for one in present)
            found.append(_Found(written_ns, directory / name, size, states[0].st_uid))
    return found


def _with_beside(path: Path) -> Sequence[Path]:
    """Return the paths of a recording and of what SQLite keeps beside it."""
    from offtop.recording.file_format import BESIDE  # not at the top, so that --help is fast

    return [path, *(Path(f"{path}{end}") for end in BESIDE)]


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a regular file; None for anything else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None
