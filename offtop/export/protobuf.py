"""Encodes the few protobuf field types that exports use; a library would be ten times as large."""

from collections.abc import Iterable

_VARINT, _FIXED, _BYTES = 0, 1, 2
"""Wire types."""


def varint(number: int) -> bytes:
    """Encode a number of 64 bits; a negative one as its two's complement, which takes ten bytes."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3 | _VARINT) + varint(value)


def fixed(field: int, value: int) -> bytes:
    """Encode a fixed64 field."""
    return varint(field << 3 | _FIXED) + value.to_bytes(8, "little")


def message(field: int, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    return message(field, value.encode())


def numbers(field: int, values: Iterable[int]) -> bytes:
    """Encode a packed repeated field."""
    return message(field, *map(varint, values))
