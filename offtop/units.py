"""Format and parse durations, counts and sizes. Only this module converts nanoseconds to other units."""

from datetime import datetime, time, timedelta

NS_PER_S = 1_000_000_000
_LONGEST_NS = 100 * 365 * 86400 * NS_PER_S
"""A hundred years: fits the BPF programs' 64-bit nanoseconds, and is longer than any wait."""
_SHORT_UNITS = ((1, "ns"), (1_000, "us"), (1_000_000, "ms"))
_LONG_UNITS = ((60, "min"), (3600, "h"), (86400, "d"))


def duration(ns: int) -> str:
    """Format a duration in at most 6 characters; empty for 0.

    `840ns`, `4.1us`, `31ms`, `1.84s`, `12min`, `3.5h`, `2.1d`
    """
    if ns <= 0:
        return ""
    for unit_ns, word in _SHORT_UNITS:
        if ns < unit_ns * 999.5:
            value = ns / unit_ns
            return f"{value:.1f}{word}" if value < 9.95 and unit_ns > 1 else f"{value:.0f}{word}"
    seconds = ns / NS_PER_S
    if seconds < 59.95:
        return f"{seconds:.2f}s" if seconds < 9.995 else f"{seconds:.1f}s"
    unit_s, word = next(((unit_s, word) for unit_s, word in _LONG_UNITS if seconds / unit_s < 59.5), _LONG_UNITS[-1])
    if word == "h" and seconds / unit_s >= 23.95:
        unit_s, word = _LONG_UNITS[-1]
    value = seconds / unit_s
    return f"{value:.1f}{word}" if value < 9.95 else f"{value:.0f}{word}"


def span(ns: int) -> str:
    """Format a time that a user chose, without trailing zeros.

    `200us`, `1ms`, `1s`, `2.5s`, `10s`, `5m`; `0` for 0.
    """
    if ns < NS_PER_S:
        unit_ns, word = next(
            ((unit_ns, word) for unit_ns, word in _SHORT_UNITS if ns < 1000 * unit_ns), _SHORT_UNITS[-1]
        )
        return f"{ns / unit_ns:.3g}{word}" if ns else "0"
    seconds = ns / NS_PER_S
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:.0f}m"
    return f"{seconds:.3g}s" if seconds < 999.5 else f"{seconds:.0f}s"


def threads(value: float) -> str:
    """Format average waiting threads, with two decimals up to 999: `0.88`, `212.60`, `2048`."""
    return f"{value:.2f}" if abs(value) < 999.995 else f"{value:.0f}"


def few(value: float) -> str:
    """Format average waiting threads in at most 4 characters: `0.20`, `5`, `5.3`, `11`, `2.1k`."""
    if value < 0.995:
        return f"{value:.2f}"
    return f"{value:.1f}".removesuffix(".0") if value < 9.95 else count(value)


def signed(value: float) -> str:
    """Format a change of average waiting threads: `+1.84`, `-0.20`.

    A change that rounds to 0 is `+0.00`.
    """
    text = threads(abs(value))
    return f"{'-' if value < 0 and text != '0.00' else '+'}{text}"


def times(factor: float) -> str:
    """Format a factor: `x3.1`, `x0.25`, `x1.2k`; empty for 0. At most 5 wide."""
    if factor <= 0:
        return ""
    if factor >= 9.95:
        return f"x{count(factor)}"
    if factor >= 0.95:
        return f"x{factor:.1f}".removesuffix(".0")
    return f"x{factor:.2f}" if factor >= 0.01 else "x<.01"


def three(value: float) -> str:
    """Format with three significant digits, without an exponent: `0.05`, `31.2`, `2048`."""
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def count(n: float) -> str:
    """Format a count or a rate: `812`, `9.1k`, `52k`, `1.2M`. At most 4 wide."""
    for step, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= step * 0.9995:
            scaled = n / step
            return f"{scaled:.1f}{word}" if scaled < 9.95 else f"{scaled:.0f}{word}"
    return f"{n:.0f}" if n >= 9.95 or n == int(n) else f"{n:.1f}"


def byte_rate(bytes_per_s: float) -> str:
    """Format a rate in powers of 1000, as the columns MB/S have it: `62MB/s`."""
    return f"{size(round(bytes_per_s), 1000)}/s"


def size(n: int, step: int = 1024) -> str:
    """Format a number of bytes in powers of `step`: `62MB`."""
    value = float(n)
    for word in ("B", "KB", "MB", "GB"):
        if value < 1000 or word == "GB":
            return f"{value:.0f}{word}" if value >= 9.95 or word == "B" else f"{value:.1f}{word}"
        value /= step
    return ""


def average(part_ns: int, span_ns: int) -> float:
    """Return `part_ns` of thread time as average threads over `span_ns`; 0 for no span."""
    return part_ns / span_ns if span_ns else 0.0


def percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def parse_duration(text: str, bare_ns: int) -> int:
    """Parse a duration to ns: `1ms`, `200us`, `1.5s`, `10m` or `10min`.

    `bare_ns`: unit of a bare number. Raises ValueError.
    """
    units_ns = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": NS_PER_S, "h": 3600 * NS_PER_S}
    units_ns |= dict.fromkeys(("m", "min"), 60 * NS_PER_S)
    for word in sorted(units_ns, key=len, reverse=True):
        if text.endswith(word):
            number, unit_ns = text[: -len(word)], units_ns[word]
            break
    else:
        number, unit_ns = text, bare_ns
    value = float(number)
    if not 0 <= value * unit_ns < _LONGEST_NS:
        raise ValueError(text)
    return round(value * unit_ns)


def parse_size(text: str) -> int:
    """Parse a size of at least 1M to bytes: `500M`, `2G`, or a bare number of bytes.

    Units are powers of 1024. Raises ValueError.
    """
    number, word = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    powers = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
    if word not in powers:
        raise ValueError(text)
    value = float(number) * 1024 ** powers[word]
    if not 1 << 20 <= value < 1 << 60:
        raise ValueError(text)
    return round(value)


def parse_moment(text: str, shown_ns: int, newest_ns: int) -> int:
    """Parse a point in time: `02:10`, `02:10:55`, `2026-11-21T02:10`, `-5m` or `+30s`.

    Returns CLOCK_REALTIME in ns. `-5m` and `+30s` are relative to `shown_ns`. A time of day is its latest occurrence up
    to `newest_ns`, in local time. Raises ValueError.
    """
    text = text.strip()
    if text[:1] in ("+", "-"):
        offset_ns = parse_duration(text[1:], NS_PER_S)
        return shown_ns + offset_ns if text[0] == "+" else shown_ns - offset_ns
    try:
        time_of_day = time.fromisoformat(text)
    except ValueError:
        when = datetime.fromisoformat(text)
    else:
        if time_of_day.tzinfo:
            raise ValueError(text)
        newest = datetime.fromtimestamp(newest_ns // NS_PER_S)
        when = datetime.combine(newest.date(), time_of_day)
        if when > newest:
            when -= timedelta(days=1)
    try:
        return round(when.timestamp()) * NS_PER_S
    except (OverflowError, OSError):
        raise ValueError(text) from None
