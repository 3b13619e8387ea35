"""The stream of ticks to another machine: what a recording would hold, as messages.

A first line says which version of the stream follows. Each message is a letter, the length of its body, and the body.
Numbers of frames and stacks are those of the sender; it sends each once, and lists those that it has forgotten.
"""

import json
import re
import struct
import sys
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from offtop.model.aggregate.stack_problems import REASONS
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import FIRST_STACK, Frame, Stack
from offtop.printable import printable
from offtop.recording import checked, file_format, stack_rows, tick_rows
from offtop.recording.tick_encoder import Rows, TickRows

VERSION = 1
"""Changes if an older reader would misread a stream. What it does not know, it ignores."""
HELLO, TICK, NAMES, ANSWER, END = b"H", b"T", b"N", b"A", b"E"
_FIRST_LINE = re.compile(rb"(?:^|\n)offtop-stream ([0-9]{1,9})\n")
_HEADER = struct.Struct("<cI")
_LENGTH = struct.Struct("<I")
_LEVEL = 4
_MOST_BYTES = 32 << 20
"""Largest message; a tick of 100,000 threads takes 5 MB."""
_MOST_BEFORE = 64 << 10
"""Most bytes before the first line: what a login script prints."""
_MOST_FRAMES, _MOST_STACKS = 1 << 18, 1 << 18
_MOST_REFERENCES = 1 << 23
"""Most frames in all stacks together."""
_MOST_TEXT = 64 << 20
"""Most characters of names and files of frames."""
_MOST_ABOUT, _MOST_OUTLIERS = 100, 5_000
_PERMITTED = b"HTNAE"


class Hello(NamedTuple):
    """The sender, and what it measures. Comes before the first tick."""

    offtop: str
    """Version of the sender's offtop."""
    host: str
    boot: str
    """Differs after each boot of the host."""
    filters: Filters
    about: tuple[tuple[str, str], ...] = ()
    notices: tuple[str, ...] = ()


class Message(NamedTuple):
    kind: bytes
    body: bytes


class NotAStreamError(ValueError):
    """The bytes are not a stream of offtop. `sent`: the first of them."""

    def __init__(self, sent: bytes) -> None:
        super().__init__("not a stream of offtop")
        self.sent = sent


class VersionError(ValueError):
    """The stream has another version."""

    def __init__(self, version: int) -> None:
        super().__init__(f"stream version {version}")
        self.version = version


@dataclass(frozen=True, slots=True)
class StreamTick:
    """One tick of a stream: its rows as they came, and the stacks that the sender had sent by then."""

    change: bytes
    stacks: Mapping[int, Stack]
    """The new ones."""
    dropped: Sequence[int] = ()
    """Stacks that the sender has forgotten."""
    files: bytes = b""
    disks: bytes = b""
    outliers: Sequence[bytes] = ()
    size: int = 0
    """Bytes that arrived, with stacks and names unpacked."""


def first_line() -> bytes:
    return b"offtop-stream %d\n" % VERSION


def encode(kind: bytes, body: bytes) -> bytes:
    return _HEADER.pack(kind, len(body)) + body


def encode_object(kind: bytes, fields: Mapping[str, object]) -> bytes:
    return encode(kind, json.dumps(fields, separators=(",", ":")).encode())


def encode_hello(hello: Hello) -> bytes:
    fields = {
        "offtop": hello.offtop,
        "host": hello.host,
        "boot": hello.boot,
        "about": hello.about,
        "notices": hello.notices,
        **tick_rows.encode_filters(hello.filters),
    }
    return encode_object(HELLO, fields)


def encode_tick(rows: TickRows, dropped_frames: Collection[int], dropped_stacks: Collection[int]) -> bytes:
    blobs = [rows.tick[3], *(blob for _, blob in (*rows.files, *rows.disks, *rows.outliers))]
    guessed = {number: _name_of(file) for number, file in rows.guessed}
    fields = {
        "frames": [
            [number, *map(_name_of, (file, raw_name, name)), file_format.unsigned(offset)]
            for number, file, offset, raw_name, name, _ in rows.frames
        ],
        "stacks": [
            [number, list(stack_rows.decode_frames(frames)), tail, entry, category, guessed.get(number, "")]
            for number, frames, tail, entry, category, _ in rows.stacks
        ],
        "dropped_frames": sorted(dropped_frames),
        "dropped_stacks": sorted(dropped_stacks),
        "files": len(rows.files),
        "disks": len(rows.disks),
        "sizes": [len(blob) for blob in blobs],
        **_names(rows.names, ()),
    }
    packed = zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), _LEVEL)
    return encode(TICK, b"".join((_LENGTH.pack(len(packed)), packed, *blobs)))


def encode_names(names: Rows, reasons: Rows) -> bytes:
    return encode_object(NAMES, _names(names, reasons))


def _names(names: Rows, reasons: Rows) -> dict[str, object]:
    return {
        "names": [[number, _name_of(name)] for name, number in names],
        "reasons": [[_name_of(file), reason] for file, reason in reasons],
    }


def _name_of(raw: object) -> str:
    """Return a name no longer than the reader takes it."""
    return file_format.text_of(raw)[: checked.MOST_NAME]


class Splitter:
    """Splits bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._has_begun = False

    def feed(self, raw: bytes) -> list[Message]:
        """Return the messages that are complete.

        Raises NotAStreamError, VersionError, or ValueError for a message of an impossible size.
        """
        buffer = self._buffer
        buffer += raw
        if not self._has_begun and not self._begin():
            return []
        found: list[Message] = []
        while len(buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(buffer)
            if kind not in _PERMITTED or length > _MOST_BYTES:
                raise ValueError("a message is damaged, or far too large")
            end = _HEADER.size + length
            if len(buffer) < end:
                break
            found.append(Message(kind, bytes(buffer[_HEADER.size : end])))
            del buffer[:end]
        return found

    def _begin(self) -> bool:
        """Look for the first line; what comes before is not ours."""
        line = _FIRST_LINE.search(self._buffer)
        if line is None:
            if len(self._buffer) > _MOST_BEFORE:
                raise NotAStreamError(bytes(self._buffer[:_MOST_BEFORE]))
            return False
        if (version := int(line[1])) != VERSION:
            raise VersionError(version)
        del self._buffer[: line.end()]
        self._has_begun = True
        return True

    @property
    def before(self) -> bytes:
        """What came so far, if that is not the beginning of a stream."""
        return b"" if self._has_begun else bytes(self._buffer)


def decode_hello(body: bytes) -> Hello:
    """Raises ValueError."""
    fields = checked.json_object(body)
    offtop, host, boot = (printable(checked.name(fields.get(name))) for name in ("offtop", "host", "boot"))
    about = checked.arrays(fields.get("about", []), 2)[:_MOST_ABOUT]
    notices = checked.array(fields.get("notices", []))[:_MOST_ABOUT]
    return Hello(
        offtop,
        host,
        boot,
        tick_rows.decode_filters(fields),
        tuple((printable(checked.name(what)), printable(checked.name(value))) for what, value in about),
        tuple(printable(checked.name(one)) for one in notices),
    )


def decode_object(body: bytes) -> dict[str, object]:
    """Raises ValueError."""
    return checked.json_object(body)


@dataclass(slots=True)
class NewNames:
    """Names of frames, and why files have none, that a message brought."""

    frames: dict[Frame, str] = field(default_factory=dict[Frame, str])
    reasons: dict[str, str] = field(default_factory=dict[str, str])


class StreamReader:
    """Decodes the ticks and names of one stream, which is untrusted input. Not thread-safe."""

    def __init__(self) -> None:
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[int, int] = {}
        """Stack → how many frames it has."""
        self._text = self._references = 0
        """How many characters the frames have, and how many frames the stacks."""

    def tick(self, body: bytes) -> tuple[StreamTick, NewNames]:
        """Raises ValueError for an invalid tick, or if the sender has more frames or stacks than can be."""
        if len(body) < _LENGTH.size:
            raise ValueError("a tick is cut off")
        end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        unpacked = checked.decompressed(body[_LENGTH.size : end])
        fields = checked.json_object(unpacked)
        sizes = [checked.identity(size) for size in checked.array(fields.get("sizes"))]
        if not sizes or len(sizes) > _MOST_OUTLIERS or end + sum(sizes) != len(body):
            raise ValueError("a tick is cut off")
        blobs: list[bytes] = []
        for size in sizes:
            blobs.append(body[end : end + size])
            end += size
        names = NewNames()
        for row in checked.arrays(fields.get("frames", []), 5):
            self._add_frame(row, names)
        stacks = dict(self._stack(row) for row in checked.arrays(fields.get("stacks", []), 6))
        self._add_names(fields, names)
        dropped = [checked.identity(number) for number in checked.array(fields.get("dropped_stacks", []))]
        self._drop(map(checked.identity, checked.array(fields.get("dropped_frames", []))), dropped)
        with_files, with_disks = checked.identity(fields.get("files", 0)), checked.identity(fields.get("disks", 0))
        if with_files > 1 or with_disks > 1 or with_files + with_disks >= len(blobs):
            raise ValueError("a tick has too few parts")
        change, *rest = blobs
        files, rest = (rest[0], rest[1:]) if with_files else (b"", rest)
        disks, rest = (rest[0], rest[1:]) if with_disks else (b"", rest)
        return StreamTick(change, stacks, dropped, files, disks, rest, len(body) + len(unpacked)), names

    def names(self, body: bytes) -> NewNames:
        """Decode names that came after their frames. Raises ValueError."""
        names = NewNames()
        self._add_names(checked.json_object(body), names)
        return names

    def _add_frame(self, row: Sequence[object], names: NewNames) -> None:
        number, file, raw_name, name, offset = row
        frame = Frame(sys.intern(checked.name(file)), checked.integer(offset), checked.name(raw_name))
        if not 0 <= frame.offset < 1 << 64:
            raise ValueError("not an offset")
        self._text += len(frame.file) + len(frame.name)
        self._frames[checked.identity(number)] = frame
        if len(self._frames) > _MOST_FRAMES or self._text > _MOST_TEXT:
            raise ValueError("too many frames")
        names.frames[frame] = printable(checked.name(name))

    def _stack(self, row: Sequence[object]) -> tuple[int, Stack]:
        number, numbers, tail, entry, category, guessed = row
        try:
            frames = [self._frames[checked.identity(one)] for one in checked.array(numbers)]
        except KeyError:
            raise ValueError("a frame is missing") from None
        made = stack_rows.stack_of(frames, tail, entry, category)
        if made.is_unsure and guessed:
            made = made._replace(guessed_in=checked.name(guessed))
        found = checked.identity(number)
        if found < FIRST_STACK:
            raise ValueError("a stack has a reserved number")
        self._references += len(frames) - self._stacks.get(found, 0)
        self._stacks[found] = len(frames)
        if len(self._stacks) > _MOST_STACKS or self._references > _MOST_REFERENCES:
            raise ValueError("too many stacks")
        return found, made

    def _add_names(self, fields: Mapping[str, object], names: NewNames) -> None:
        for number, name in checked.arrays(fields.get("names", []), 2):
            if frame := self._frames.get(checked.identity(number)):
                names.frames[frame] = printable(checked.name(name))
        for file, reason in checked.arrays(fields.get("reasons", []), 2):
            if (known := checked.text(reason)) in REASONS:
                names.reasons[checked.name(file)] = known

    def _drop(self, frames: Iterable[int], stacks: Sequence[int]) -> None:
        for number in frames:
            if frame := self._frames.pop(number, None):
                self._text -= len(frame.file) + len(frame.name)
        for number in stacks:
            self._references -= self._stacks.pop(number, 0)
