"""What people type for a moment: a time of day, a date with it, or how far from what they see."""

from datetime import datetime, time, timedelta

from offtop.units import NS_PER_S, parse_duration


def moment(text: str, shown_ns: int, newest_ns: int) -> int:
    """`02:10`, `02:10:55`, `2026-11-21T02:10`, or `-5m` and `+30s` from `shown_ns`, in ns of CLOCK_REALTIME.

    A time of day is the last one up to `newest_ns`, on the clock of whoever looks. Raises ValueError.
    """
    text = text.strip()
    if text[:1] in ("+", "-"):
        apart_ns = parse_duration(text[1:], NS_PER_S)
        return shown_ns + apart_ns if text[0] == "+" else shown_ns - apart_ns
    try:
        of_day = time.fromisoformat(text)
    except ValueError:
        when = datetime.fromisoformat(text)
    else:
        if of_day.tzinfo:
            raise ValueError(text)
        newest = datetime.fromtimestamp(newest_ns // NS_PER_S)
        when = datetime.combine(newest.date(), of_day)
        if when > newest:
            when -= timedelta(days=1)
    try:
        return round(when.timestamp()) * NS_PER_S
    except (OverflowError, OSError):
        raise ValueError(text) from None
