"""What `go tool pprof`, Pyroscope, Parca and Perfetto open: a gzipped Profile message.

Source of the form: https://github.com/google/pprof/blob/main/proto/profile.proto. Its few kinds of fields are written
here by hand: a library for protobuf would be ten times the size of what it writes.
"""

import gzip
from collections.abc import Iterable, Sequence

from offtop.export.profile import Profile
from offtop.model.printable import printable

_VARINT, _BYTES = 0, 2
"""Wire types."""
(_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING, _TIME, _DURATION, _PERIOD_TYPE, _PERIOD, _DEFAULT) = (
    *(1, 2, 4, 5, 6, 9, 10, 11, 12),
    14,
)
"""Fields of Profile."""


def packed(profile: Profile) -> bytes:
    """Two values a sample: how often somebody waited (contentions, as Go's own profiles have it), and for how long in
    ns. Labels: comm, thread, category; pid and tid as numbers."""
    strings: dict[str, int] = {"": 0}
    functions: dict[str, int] = {}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings))

    def value_type(kind: str, unit: str) -> bytes:
        return _number(1, string(kind)) + _number(2, string(unit))

    def label(key: str, text: str) -> bytes:
        return _message(3, _number(1, string(key)) + _number(2, string(printable(text))))

    def of_number(key: str, number: int) -> bytes:
        return _message(3, _number(1, string(key)) + _number(3, number))

    types = [value_type("contentions", "count"), value_type("off_cpu", "nanoseconds")]
    samples: list[bytes] = []
    for one in profile.samples:
        places = [functions.setdefault(printable(step.name), len(functions) + 1) for step in one.path[::-1]]
        labels = label("comm", one.process), label("thread", one.thread), label("category", one.category)
        ids = of_number("pid", one.pid), of_number("tid", one.tid)
        samples.append(b"".join((_packed(1, places), _packed(2, (one.waits, one.total_ns)), *labels, *ids)))
    locations = [_number(1, number) + _message(4, _number(1, number)) for number in functions.values()]
    named = [_number(1, number) + _number(2, string(name)) for name, number in functions.items()]
    default, period = string("off_cpu"), value_type("off_cpu", "nanoseconds")
    parts = [
        *(_message(_SAMPLE_TYPE, one) for one in types),
        *(_message(_SAMPLE, one) for one in samples),
        *(_message(_LOCATION, one) for one in locations),
        *(_message(_FUNCTION, one) for one in named),
        *(_message(_STRING, text.encode()) for text in strings),
        _number(_TIME, max(0, profile.began_ns)),
        _number(_DURATION, profile.span_ns),
        _message(_PERIOD_TYPE, period),
        _number(_PERIOD, 1),
        _number(_DEFAULT, default),
    ]
    return gzip.compress(b"".join(parts), mtime=0)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(number)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _packed(field: int, numbers: Sequence[int] | Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, numbers)))
