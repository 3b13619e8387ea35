"""What the screen and batch mode say alike about hosts. Texts are escaped."""

from datetime import datetime

from offtop.fleet.hosts import Fleet, FoldedSuspect, Outlier
from offtop.fleet.survey import HeldSuspect
from offtop.printable import printable
from offtop.units import NS_PER_S, duration, few, span, threads


def suspect(one: FoldedSuspect, hosts: int, now_ns: int) -> str:
    """Return `the WAL flush: 14 of 40 hosts since 02:10, 52 threads of postgres wait`."""
    since = ""
    if one.since_ns is not None:
        since = f" since {'before ' if one.is_older else ''}{clock(one.since_ns, now_ns, seconds=False)}"
    waiting = f"{few(one.threads)} thread{'s' if few(one.threads) != '1' else ''}"
    of = f" of {printable(one.who)}" if one.who else ""
    return f"{printable(one.what)}: {one.hosts} of {hosts} hosts{since}, {waiting}{of} wait"


def held_suspect(one: HeldSuspect) -> str:
    held = f"; {printable(one.held_by)} must act" if one.held_by else ""
    return f"{few(one.threads)} threads of {printable(one.who)} wait for {printable(one.what)}{held}"


def outlier(one: Outlier) -> str:
    """Return `lock 12.40, usual 0.31`."""
    return f"{printable(one.category)} {threads(one.waiting)}, usual {threads(one.median)}"


def clock(at_ns: int, now_ns: int, seconds: bool = True) -> str:
    """Return a time of day, with its date if it is not of today."""
    at, now = (datetime.fromtimestamp(ns / NS_PER_S) for ns in (at_ns, now_ns))
    return f"{at:{'' if at.date() == now.date() else '%m-%d '}%H:%M{':%S' if seconds else ''}}"


def counted(fleet: Fleet) -> str:
    """Return `40 hosts, 2 silent`."""
    count = len(fleet.hosts)
    silent = f", {fleet.silent} silent" if fleet.silent else ""
    return f"{count} host{'' if count == 1 else 's'}{silent}"


def silent_for(silent_ns: int) -> str:
    return f"no numbers for {duration(silent_ns)}"


def range_of(range_ns: int) -> str:
    """Return `5m`, `6h`."""
    hours, rest = divmod(range_ns, 3600 * NS_PER_S)
    return f"{hours}h" if hours and not rest else span(range_ns)
