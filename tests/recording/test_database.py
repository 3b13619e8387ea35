"""Reading the database of a crafted recording ends, and signals are not lost meanwhile."""

import os
import signal
import sqlite3
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from offtop.errors import OfftopError
from offtop.recording import database, file_format
from offtop.recording.reader import Recording

_PAGE, _LEVELS, _CHILDREN = 4096, 8, 300
_INTERIOR, _FIRST_HEADER = 5, 100
"""Type of an interior page of a table, and where the header of the first page begins (sqlite.org/fileformat2.html)."""


def _interior(child: int, at: int, children: int) -> bytes:
    """Return a page whose children, from the header at `at` on, are all the same page."""
    page, ends = bytearray(_PAGE), list[int]()
    for key in range(children):
        cell = struct.pack(">IB", child, min(127, key + 1))
        ends.append((ends[-1] if ends else _PAGE) - len(cell))
        page[ends[-1] : ends[-1] + len(cell)] = cell
    page[at : at + 12] = struct.pack(">BHHHBI", _INTERIOR, 0, children, ends[-1], 0, child)
    page[at + 12 : at + 12 + 2 * children] = struct.pack(f">{children}H", *ends)
    return bytes(page)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A recording whose list of tables is repeated 300^8 times."""
    path = tmp_path / "endless.offtop"
    made = sqlite3.connect(path, isolation_level=None)
    for statement in (
        f"PRAGMA page_size = {_PAGE}",
        f"PRAGMA application_id = {file_format.APPLICATION_ID}",
        f"PRAGMA user_version = {file_format.FORMAT}",
        *file_format.TABLES.values(),
    ):
        made.execute(statement)
    made.close()
    raw = path.read_bytes()
    first, pages = raw[:_PAGE], [raw[_PAGE:]]
    number = len(raw) // _PAGE + 1
    cells, content = struct.unpack(">HH", first[_FIRST_HEADER + 3 : _FIRST_HEADER + 7])
    header = first[_FIRST_HEADER : _FIRST_HEADER + 8 + 2 * cells]
    pages.append(header.ljust(content, b"\0") + first[content:])
    for _ in range(_LEVELS):
        pages.append(_interior(number, 0, _CHILDREN))
        number += 1
    root = _interior(number, _FIRST_HEADER, 2)
    head = bytearray(first[:_FIRST_HEADER])
    head[28:32] = struct.pack(">I", number)
    path.write_bytes(head + root[_FIRST_HEADER:] + b"".join(pages))
    return path


def test_statement_that_would_never_end_is_given_up(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_STATEMENT_S", 0.2)
    with pytest.raises(OfftopError, match=r"endless\.offtop takes too long to read"):
        Recording(endless)


def _exit(*_: object) -> None:
    raise SystemExit(143)


@pytest.mark.parametrize(("handler", "raised"), [(signal.default_int_handler, KeyboardInterrupt), (_exit, SystemExit)])
def test_signal_ends_a_statement(endless: Path, handler: Callable[..., object], raised: type[BaseException]) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    sender.start()
    try:
        with pytest.raises(raised):
            Recording(endless)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_schema_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.offtop"
    made = sqlite3.connect(path, isolation_level=None)
    made.execute(f"CREATE VIEW large AS SELECT '{'x' * 40_000_000}'")
    made.close()
    with pytest.raises(OfftopError, match="is damaged"):
        Recording(path)
