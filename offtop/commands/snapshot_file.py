"""Where a snapshot is written: in the directory that the person named, else in this one, else below /var/tmp.

By the person's own rights, in a file that was not there before, and never through a link.
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

_ELSEWHERE = Path("/var/tmp")
"""Outlives a reboot, and everybody may write there."""
_LONGEST_WHAT = 40


def named(directory: str, whose: Person) -> Path | None:
    """The directory that a person means; None: none was named. Raises UsageError where they cannot write there."""
    if not directory:
        return None
    path = whose.home / directory.removeprefix("~/") if directory.startswith("~/") else Path(directory)
    try:
        with as_person(whose), tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        shown, who = printable(str(path)), printable(whose.name)
        raise UsageError(
            f"snapshot directory {shown}: {who} cannot write there ({error.strerror}). Make it, or name another"
        ) from None
    return path


def begin(
    source: Source, whose: Person, directory: Path | None, what: str, taken_ns: int, *, cmdlines: bool = False
) -> Recorder:
    """What records the past of `source` up to `taken_ns` into a new file, `what` it is about being in its name. Raises
    OfftopError where none can be made."""
    host = re.sub("[^A-Za-z0-9.-]", "_", source.host)
    taken = datetime.fromtimestamp(taken_ns // NS_PER_S)
    name = f"offtop-{host}-{taken:%Y%m%dT%H%M%S}-{_plain(what)}"

    def made(place: Path) -> Recorder:
        return Recorder(_free(place / name), source, whose, cmdlines=cmdlines, past=True)

    if directory is not None:
        return made(directory)
    try:
        return made(Path())
    except OfftopError:
        return made(_elsewhere(whose))


def _plain(what: str) -> str:
    return re.sub("[^A-Za-z0-9.]+", "-", what)[:_LONGEST_WHAT].strip("-.") or "all"


def _free(path: Path) -> Path:
    """With an ending, and a number where that is taken."""
    numbers = itertools.chain([""], map("-{}".format, itertools.count(2)))
    names = (path.with_name(f"{path.name}{number}.offtop") for number in numbers)
    return next(name for name in names if not os.path.lexists(name))


def _elsewhere(whose: Person) -> Path:
    """A directory of the person's alone."""
    path = _ELSEWHERE / f"offtop-{whose.uid}"
    try:
        with as_person(whose):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            found = path.lstat()
    except OSError as error:
        raise OfftopError(f"{path} cannot be made ({error.strerror}). Name a place: --snapshot-dir DIR") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != whose.uid or found.st_mode & 0o077:
        raise OfftopError(
            f"{path} is not {printable(whose.name)}'s alone. Remove it, or name a place: --snapshot-dir DIR"
        )
    return path
