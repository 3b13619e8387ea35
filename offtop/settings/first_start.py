"""Whether a user starts the screen for the first time, so that it can tell them the keys to begin with."""

import os
from collections.abc import Mapping
from pathlib import Path

from offtop.errors import OfftopError
from offtop.person import Person, read_theirs, write_theirs


def is_first_start(person: Person, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the user has no `offtop/started` below $XDG_STATE_HOME or ~/.local/state, and create that file.

    False if it can be neither read nor created: they would be told each time.
    """
    state = Path(environ.get("XDG_STATE_HOME", ""))
    mark = (state if state.is_absolute() else person.home / ".local/state") / "offtop" / "started"
    try:
        if read_theirs(mark, person) is not None:
            return False
        write_theirs(mark, person, "offtop has shown which keys to begin with. Remove this file to see them again.\n")
    except OfftopError:
        return False
    return True
