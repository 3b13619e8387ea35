"""What /proc/PID/status says of a process, which writes one of its lines itself: its name."""

import os
from collections.abc import Mapping
from pathlib import Path


def status_of(pid: int | str) -> Mapping[str, str]:
    """The fields by name, values raw. Raises OSError where there is no such process."""
    return fields_of(Path(f"/proc/{pid}/status").read_bytes())


def fields_of(content: bytes) -> Mapping[str, str]:
    """A newline alone ends a line: a name has none there, but may have all else that Python takes for an end, and
    then what passes for another field."""
    lines = [line.partition(":\t") for line in os.fsdecode(content).split("\n")]
    return {name: value for name, _, value in lines}
