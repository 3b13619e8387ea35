"""Files that the app writes for the user, and what writes them. The commands implement it."""

from pathlib import Path
from typing import Protocol

from offtop.errors import OfftopError
from offtop.feed import pace
from offtop.feed.source import Source
from offtop.model.viewmodel.view import View


class Recorder(pace.Recorder, Protocol):
    """Writes what is measured to a file."""

    @property
    def path(self) -> Path: ...

    @property
    def failure(self) -> str:
        """Why it stopped writing; empty if it did not."""
        ...

    @property
    def bytes_written(self) -> int: ...

    @property
    def is_complete(self) -> bool:
        """Whether the closed file contains everything that was added."""
        ...

    def close(self) -> str:
        """Finish the file, which may take seconds; return a message about the result."""
        ...


class Files(Protocol):
    """Writes what the user saves, owned by the user. All methods raise OfftopError."""

    def save_settings(self, view: View, theme: str, mouse: bool) -> str:
        """Write the settings to the config file; return a message that names the file."""
        ...

    def write(self, path: Path, text: str | bytes) -> str:
        """Write a file; return a message that names it."""
        ...

    def recorder(self, source: Source) -> Recorder:
        """Start a recording of `source`."""
        ...

    def clip(self, source: Source, what: str, taken_ns: int) -> Recorder:
        """Start a clip that ends at `taken_ns` (CLOCK_REALTIME).

        `what` becomes part of its file name.
        """
        ...


class NoFiles:
    """The Files of a screen that cannot write any. All methods raise OfftopError."""

    def save_settings(self, view: View, theme: str, mouse: bool) -> str:
        raise OfftopError("This screen has no config file to write to")

    def write(self, path: Path, text: str | bytes) -> str:
        raise OfftopError("This screen cannot write files")

    def recorder(self, source: Source) -> Recorder:
        raise OfftopError("This screen cannot write files")

    def clip(self, source: Source, what: str, taken_ns: int) -> Recorder:
        raise OfftopError("This screen cannot write files")
