"""The pprof format, for `go tool pprof`, Pyroscope, Parca and Perfetto: a gzipped Profile message.

Source: https://github.com/google/pprof/blob/main/proto/profile.proto.
"""

import gzip

from offtop.export.profile import Profile
from offtop.export.protobuf import message, number, numbers, text
from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from offtop.printable import printable

_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING = 1, 2, 4, 5, 6
_TIME, _DURATION, _PERIOD_TYPE, _PERIOD, _COMMENT, _DEFAULT = 9, 10, 11, 12, 13, 14
"""Field numbers of Profile."""
_VALUES = {FILE: ("calls", "call_time"), DISK: ("requests", "request_time")}
"""Names of count and time in modes file and disk, which have bytes, too."""


def packed(profile: Profile) -> bytes:
    """Encode a profile. A sample has two values: number of waits (named contentions, as in Go's profiles) and ns.

    In modes file and disk it has three: number of calls or requests, ns, and bytes.
    Labels: comm, thread and category; pid and tid as numbers. Comments (`go tool pprof -comments`) say what was lost.
    """
    strings: dict[str, int] = {"": 0}
    functions: dict[str, int] = {}

    def string(one: str) -> int:
        return strings.setdefault(one, len(strings))

    def value_type(kind: str, unit: str) -> bytes:
        return number(1, string(kind)) + number(2, string(unit))

    def label(key: str, value: str) -> bytes:
        return message(3, number(1, string(key)), number(2, string(printable(value))))

    def numeric_label(key: str, value: int) -> bytes:
        return message(3, number(1, string(key)), number(3, value))

    counted, timed = _VALUES.get(profile.mode, ("contentions", "off_cpu"))
    types = [value_type(counted, "count"), value_type(timed, "nanoseconds")]
    has_bytes = profile.mode in _VALUES
    types += [value_type("bytes", "bytes")] * has_bytes
    samples: list[bytes] = []
    for one in profile.samples:
        locations_of_stack = [functions.setdefault(printable(step.name), len(functions) + 1) for step in one.path[::-1]]
        labels = label("comm", one.process), label("thread", one.thread), label("category", one.category)
        ids = numeric_label("pid", one.pid), numeric_label("tid", one.tid)
        values = (one.waits, one.total_ns, *([one.bytes] * has_bytes))
        samples.append(b"".join((numbers(1, locations_of_stack), numbers(2, values), *labels, *ids)))
    locations = [number(1, one) + message(4, number(1, one)) for one in functions.values()]
    named = [number(1, one) + number(2, string(name)) for name, one in functions.items()]
    comments = [string(printable(caveat)) for caveat in profile.caveats]
    default, period = string(timed), value_type(timed, "nanoseconds")
    parts = [
        *(message(_SAMPLE_TYPE, one) for one in types),
        *(message(_SAMPLE, one) for one in samples),
        *(message(_LOCATION, one) for one in locations),
        *(message(_FUNCTION, one) for one in named),
        *(text(_STRING, one) for one in strings),
        number(_TIME, max(0, profile.began_ns)),
        number(_DURATION, profile.span_ns),
        message(_PERIOD_TYPE, period),
        number(_PERIOD, 1),
        *(number(_COMMENT, one) for one in comments),
        number(_DEFAULT, default),
    ]
    return gzip.compress(b"".join(parts), mtime=0)
