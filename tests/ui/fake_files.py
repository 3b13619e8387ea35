"""Recorders and files for the screen that keep what they would write."""

from pathlib import Path

from offtop.feed.source import Source
from offtop.model.values.snapshot import Snapshot
from offtop.model.viewmodel.view import View


class FakeRecorder:
    """A recorder that keeps what it was given and writes nothing."""

    path = Path("shop.offtop")
    failure = ""
    bytes_written = 2 << 20

    def __init__(self) -> None:
        self.taken: list[Snapshot] = []

    def add(self, snapshot: Snapshot) -> None:
        self.taken.append(snapshot)

    def close(self) -> str:
        return f"recorded {len(self.taken)} ticks: shop.offtop"


class FakeFiles:
    """Files that keep what would be written and write nothing."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def save_settings(self, view: View, theme: str, mouse: bool) -> str:
        self.written.append(f"{view.sort} {theme} {mouse}")
        return "written to config.toml"

    def write(self, path: Path, text: str | bytes) -> str:
        self.written.append(str(text))
        return f"written to {path}"

    def recorder(self, source: Source) -> FakeRecorder:
        return FakeRecorder()

    def clip(self, source: Source, what: str, taken_ns: int) -> FakeRecorder:
        self.written.append(what)
        return FakeRecorder()
