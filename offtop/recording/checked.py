"""Checks the JSON and numbers in a recording, which is untrusted input.

Each function raises ValueError if the value is invalid.
"""

import json
import re
import zlib
from collections.abc import Container
from typing import Any, cast

from offtop.model.values.table import Ints

_MOST_BYTES = 64 << 20
"""Largest tick, decompressed."""
MOST_ID = (1 << 31) - 1
MOST_NS = 1 << 61
"""Seventy years."""
MOST_NAME = 8192
"""Longest name of an object, in characters: a path has up to 4,096, and the kernel may append a word."""
_MOST_SHORT_NAME = 64
"""Longest name of a disk or a thread, in characters: the kernel has at most 63 bytes, for a kernel worker."""
_MOST_VALUES = 3 << 20
"""Most JSON values in a tick: 220,000 processes that are all new need that many."""
_MOST_KEYS = 1_000
_CHEAP = 1 << 20
"""JSON of up to this many characters is cheap to parse, whatever it contains."""
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_WORD = re.compile("[A-Za-z0-9_-]{0,32}")


def check_range(values: Ints, least: int, most: int) -> None:
    if values.size and not (least <= values.min() and values.max() <= most):
        raise ValueError("a number is out of range")


def decompressed(blob: object, most_bytes: int = _MOST_BYTES) -> bytes:
    if not isinstance(blob, bytes):
        raise ValueError("not the bytes of a tick")
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(blob, most_bytes)
    except zlib.error as error:
        raise ValueError(f"a tick is damaged ({error})") from None
    if not unpacker.eof:
        raise ValueError("a tick is cut off, or far too large")
    return raw


def json_object(raw: bytes) -> dict[str, object]:
    text = raw.decode()
    if len(text) > _CHEAP:
        _check_size(text)
    try:
        return object_of(json.loads(text))
    except RecursionError:
        raise ValueError("a tick is not JSON that offtop writes") from None


def _check_size(text: str) -> None:
    """Raise ValueError if the JSON has so many values that parsing it would take too much memory.

    A value of two characters takes some 100 bytes.
    """
    strings = values = keys = at = 0
    for string in _STRING.finditer(text):
        begin, end = string.span()
        strings, values, keys = strings + 1, values + text.count(",", at, begin), keys + text.count(":", at, begin)
        if strings > _MOST_VALUES or values > _MOST_VALUES or keys > _MOST_KEYS:
            break
        at = end
    else:
        values, keys = values + text.count(",", at), keys + text.count(":", at)
    if strings > _MOST_VALUES or values > _MOST_VALUES or keys > _MOST_KEYS:
        raise ValueError("a tick has too many values")


def object_of(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return cast(dict[str, object], value)


def array(value: object, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(cast(list[object], value)) != length):
        raise ValueError("not an array of that length")
    return cast(list[Any], value)


def arrays(value: object, length: int) -> list[list[Any]]:
    return [array(one, length) for one in array(value)]


def number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -(2.0**63) < value < 2.0**63:
        raise ValueError("not a number")
    return value


def integer(value: object) -> int:
    found = number(value)
    if not isinstance(found, int):
        raise ValueError("not an integer")
    return found


def word(value: object) -> str:
    """Return a word that offtop itself writes. Callers show it unescaped."""
    if not _WORD.fullmatch(found := text(value)):
        raise ValueError("not a word that offtop writes")
    return found


def identity(value: object) -> int:
    found = integer(value)
    if not 0 <= found <= MOST_ID:
        raise ValueError("a number is out of range")
    return found


def time(value: object) -> int:
    """Return a point in time or a duration, in ns."""
    found = integer(value)
    if not 0 <= found <= MOST_NS:
        raise ValueError("a time is out of range")
    return found


def name(value: object) -> str:
    found = text(value)
    if len(found) > MOST_NAME:
        raise ValueError("a name is too long")
    return found


def short_name(value: object) -> str:
    found = name(value)
    if len(found) > _MOST_SHORT_NAME:
        raise ValueError("a name is too long")
    return found


def short_names(value: object, ids: Container[int]) -> dict[int, str]:
    """Return the names from pairs of id and name, without those of ids that are not in `ids`."""
    pairs = [(identity(one), short_name(found)) for one, found in arrays(value, 2)]
    return {one: found for one, found in pairs if one in ids}


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    return value
