"""Find a moment in a recording, and check which lists it has."""

from datetime import datetime
from typing import TYPE_CHECKING

from offtop.errors import UsageError
from offtop.feed.source import Recorded, Source
from offtop.model.values.disks import LIST_MODES, LIST_NOUNS
from offtop.printable import printable
from offtop.units import NS_PER_S, parse_moment

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.settings.config import Loaded


def parse_time(text: str, recorded: Recorded, option: str = "--begin") -> int:
    """Return the moment that an option names, in ns since 1970. Raises UsageError if it is not in the recording."""
    began_ns, ended_ns = recorded.began_ns, recorded.ended_ns
    try:
        at_ns = parse_moment(text, began_ns if text.strip().startswith("+") else ended_ns, ended_ns)
        if not began_ns - NS_PER_S < at_ns <= ended_ns + NS_PER_S:
            first, last = (
                datetime.fromtimestamp(ns // NS_PER_S).strftime("%Y-%m-%dT%H:%M:%S") for ns in (began_ns, ended_ns)
            )
            raise UsageError(f"{option}: the recording is from {first} to {last}. Give a time within it")
        return at_ns
    except ValueError:
        raise UsageError(
            f"{option}: '{printable(text)}' is not a time. Try 02:10:55, 2026-11-21T02:10, +5m, or -5m (before the end)"
        ) from None


def listed_mode(loaded: "Loaded", recorded: Recorded | None = None) -> str:
    """Return the mode if its list is not about waits, and not missing in the recording; empty otherwise."""
    mode = loaded.settings.mode
    return mode if mode in LIST_MODES and (recorded is None or mode in recorded.lists) else ""


def check_lists(source: Source, mode: str | None) -> None:
    """Raise UsageError if `mode` is one of LIST_MODES, and the source is a recording without what it lists."""
    if mode in LIST_MODES and source.recorded and mode not in source.recorded.lists:
        missing, remedy = LIST_NOUNS[mode], f"offtop record --mode {mode}"
        raise UsageError(f"There are no {missing} in this recording. Record them with: {remedy}")
