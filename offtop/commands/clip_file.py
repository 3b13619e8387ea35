"""Choose the file of a clip: in the directory that the user gave, else the current one, else below /var/tmp.

The file is created with the user's rights, under a name that does not exist yet, and never through a link.
"""

import contextlib
import itertools
import os
import re
import stat
import tempfile
from datetime import datetime
from pathlib import Path

from offtop.errors import OfftopError, UsageError
from offtop.feed.source import Source
from offtop.person import Person, as_person
from offtop.printable import printable
from offtop.recording.writer import Recorder
from offtop.units import NS_PER_S

_FALLBACK = Path("/var/tmp")
"""Survives a reboot, and is writable for all users."""
_LONGEST_WHAT = 40


def clip_directory(directory: str, owner: Person) -> Path | None:
    """Return the directory of clips; None: none is set.

    Raises UsageError if the user cannot write there.
    """
    if not directory:
        return None
    path = owner.home / directory.removeprefix("~/") if directory.startswith("~/") else Path(directory)
    try:
        with as_person(owner), tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        shown, who = printable(str(path)), printable(owner.name)
        raise UsageError(
            f"snapshot directory {shown}: {who} cannot write there ({error.strerror}). Create it, or name another"
        ) from None
    return path


def new_clip(
    source: Source, owner: Person, directory: Path | None, what: str, taken_ns: int, *, cmdlines: bool = False
) -> Recorder:
    """Return a recorder that writes the past of `source` to a new file.

    `taken_ns`: end of the clip (CLOCK_REALTIME). `what`: becomes part of the file name. Raises OfftopError if no file
    can be created.
    """
    host = re.sub("[^A-Za-z0-9.-]", "_", source.host)
    taken = datetime.fromtimestamp(taken_ns // NS_PER_S)
    name = f"offtop-{host}-{taken:%Y%m%dT%H%M%S}-{_file_name_part(what)}"

    def recorder_in(place: Path) -> Recorder:
        return Recorder(_free(place / name), source, owner, cmdlines=cmdlines, past=True)

    if directory is not None:
        return recorder_in(directory)
    try:
        return recorder_in(Path())
    except OfftopError:
        return recorder_in(_private_directory(owner))


def _file_name_part(what: str) -> str:
    return re.sub("[^A-Za-z0-9.]+", "-", what)[:_LONGEST_WHAT].strip("-.") or "all"


def _free(path: Path) -> Path:
    """Add `.offtop`, and a number if that file exists."""
    numbers = itertools.chain([""], map("-{}".format, itertools.count(2)))
    names = (path.with_name(f"{path.name}{number}.offtop") for number in numbers)
    return next(name for name in names if not os.path.lexists(name))


def _private_directory(owner: Person) -> Path:
    """Return a directory below /var/tmp that only the user can access. Raises OfftopError."""
    path = _FALLBACK / f"offtop-{owner.uid}"
    try:
        with as_person(owner):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            found = path.lstat()
    except OSError as error:
        raise OfftopError(
            f"{path} cannot be created ({error.strerror}). Name another directory: --snapshot-dir DIR"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner.uid or found.st_mode & 0o077:
        raise OfftopError(
            f"{path} is not private to {printable(owner.name)}. Remove it, or use another directory: --snapshot-dir DIR"
        )
    return path
