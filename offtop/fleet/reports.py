"""Hosts as text tables and as JSON."""

from collections.abc import Sequence

from msgspec import Struct

from offtop import __version__
from offtop.fleet import texts
from offtop.fleet.hosts import STANDS_OUT, Fleet, Host, in_order, ordered, ranked_categories
from offtop.printable import printable
from offtop.units import threads

_HOST_WIDTH, _CELL_WIDTH, _MOST_COLUMNS = 24, 13, 6


class OutlierObject(Struct, frozen=True, kw_only=True):
    """A category in which a host waits far more than the others of its job."""

    category: str
    waiting: float
    median: float
    """Of the hosts of its job."""
    score: float
    """Deviations above the median, by the median absolute deviation."""


class HostObject(Struct, frozen=True, kw_only=True):
    instance: str
    job: str
    waiting: float
    """Average waiting threads, without idle ones."""
    categories: dict[str, float]
    """The same by category; less than 0.01 is left out."""
    outliers: list[OutlierObject]
    silent_ns: int
    """Time since its last tick, if that is long ago; 0: it measures."""


class SuspectObject(Struct, frozen=True, kw_only=True):
    what: str
    who: str
    hosts: int
    """On how many hosts threads wait for it."""
    threads: float
    since_ns: int | None
    """CLOCK_REALTIME when it began; null: unknown."""
    since_before: bool
    """It began earlier than since_ns, where the search ended."""


class FleetObject(Struct, frozen=True, kw_only=True):
    """All hosts, one object a refresh."""

    version: str
    """offtop's version."""
    url: str
    taken_ns: int
    """CLOCK_REALTIME of the end of the range, by the clock of the API."""
    span_ns: int
    """Length of the range that the numbers are averages over."""
    filter: str | None
    hosts: list[HostObject]
    suspects: list[SuspectObject]


def as_object(fleet: Fleet, url: str, filter_text: str, sort: str) -> FleetObject:
    return FleetObject(
        version=__version__,
        url=url,
        taken_ns=fleet.at_ns,
        span_ns=fleet.range_ns,
        filter=filter_text or None,
        hosts=[_host(one) for one in ordered(fleet.hosts, sort)],
        suspects=[
            SuspectObject(
                what=one.what,
                who=one.who,
                hosts=one.hosts,
                threads=one.threads,
                since_ns=one.since_ns,
                since_before=one.is_older,
            )
            for one in fleet.suspects
        ],
    )


def _host(host: Host) -> HostObject:
    return HostObject(
        instance=host.id.instance,
        job=host.id.job,
        waiting=host.total,
        categories=dict(host.waiting),
        outliers=[OutlierObject(**one._asdict()) for one in host.outliers],
        silent_ns=host.silent_ns,
    )


def as_text(fleet: Fleet, url: str, order: Sequence[str], sort: str = STANDS_OUT, width: int = 0) -> str:
    """Return a table. `order`: all categories, as their columns are ordered. `width`: 0 does not truncate lines."""
    shown = in_order(ranked_categories(fleet)[:_MOST_COLUMNS], order)
    clock = texts.clock(fleet.at_ns, 0)
    head = f"offtop fleet - {clock} {url} {texts.counted(fleet)}, range {texts.range_of(fleet.range_ns)}"
    lines = [head, *(f"! {texts.suspect(one, len(fleet.hosts), fleet.at_ns)}" for one in fleet.suspects), ""]
    lines.append(_line("", "HOST", ["WAITING", *map(printable, shown)], ""))
    for host in ordered(fleet.hosts, sort):
        if host.silent_ns:
            lines.append(_line("", host.name, [""] * (len(shown) + 1), texts.silent_for(host.silent_ns)))
            continue
        cells = [threads(host.total), *(_threads(host.waiting.get(category)) for category in shown)]
        marks = ", ".join(map(texts.outlier, host.outliers))
        lines.append(_line("!" if host.outliers else "", host.name, cells, marks))
    return "".join(f"{(line[:width] if width else line).rstrip()}\n" for line in lines)


def _threads(value: float | None) -> str:
    return "" if value is None else threads(value)


def _line(mark: str, name: str, cells: Sequence[str], rest: str) -> str:
    numbers = "".join(f" {cell:>{_CELL_WIDTH}}" for cell in cells)
    return f"{mark:1} {printable(name):{_HOST_WIDTH}}{numbers}  {rest}"
