"""Hosts and how much their threads wait; which of them stand out among the hosts of their job."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

_LEAST_PEERS = 5
"""With fewer hosts of a job, there is no usual number."""
_LEAST_SCORE, _LEAST_EXCESS, _LEAST_FACTOR = 5.0, 0.5, 2.0
"""How far above the median a host must be to stand out: in deviations, in threads, and as a multiple of the median."""
_MAD_OF_NORMAL = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""
_LEAST_DEVIATION, _LEAST_RELATIVE = 0.05, 0.1
"""Deviations are at least this, in threads, and this part of the median: hosts that are all alike differ by chance."""

STANDS_OUT, WAITING, HOST = "OUTLIER", "WAITING", "HOST"
"""Names of sort orders. The others are categories."""


class HostId(NamedTuple):
    job: str
    instance: str


class Outlier(NamedTuple):
    """A category in which a host waits far more than the others of its job."""

    category: str
    waiting: float
    median: float
    """Of the hosts of the job."""
    score: float
    """Robust z-score: how many deviations above the median, by the median absolute deviation."""


@dataclass(frozen=True, slots=True)
class Host:
    """Numbers are average waiting threads. Names are raw: escape them before they are shown."""

    id: HostId
    name: str
    """The instance, without its port if all hosts have the same."""
    waiting: Mapping[str, float]
    """By category; what is almost nothing is left out."""
    silent_ns: int = 0
    """Time since its last tick, if that is long ago; 0: it measures."""
    outliers: tuple[Outlier, ...] = ()
    """Highest score first."""

    @property
    def total(self) -> float:
        return sum(self.waiting.values())


class FoldedSuspect(NamedTuple):
    """What threads wait for, on several hosts. Texts are raw."""

    what: str
    who: str
    """Program that waits."""
    hosts: int
    threads: float
    since_ns: int | None = None
    """CLOCK_REALTIME when the first of the hosts had it, without a long pause since; None: not known yet."""
    is_older: bool = False
    """Whether it began before `since_ns`, where the search ended."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All hosts over a range of time."""

    at_ns: int
    """End of the range, by the clock of the API (CLOCK_REALTIME)."""
    range_ns: int
    hosts: tuple[Host, ...]
    suspects: tuple[FoldedSuspect, ...] = ()
    """Most hosts first."""
    scrape_ns: int = 0
    """How often the numbers are read from hosts; 0: unknown."""
    from_rules: bool = False
    """Whether the numbers come from recording rules."""

    @property
    def totals(self) -> dict[str, float]:
        """Waiting threads of all hosts by category, most first."""
        sums: defaultdict[str, float] = defaultdict(float)
        for host in self.hosts:
            for category, threads in host.waiting.items():
                sums[category] += threads
        return dict(sorted(sums.items(), key=lambda one: -one[1]))

    @property
    def silent(self) -> int:
        return sum(host.silent_ns > 0 for host in self.hosts)


def with_outliers(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts with their outliers. A silent host has none, and does not count for the others."""
    by_job: defaultdict[str, list[Host]] = defaultdict(list)
    for host in hosts:
        if not host.silent_ns:
            by_job[host.id.job].append(host)
    found: defaultdict[HostId, list[Outlier]] = defaultdict(list)
    for peers in by_job.values():
        if len(peers) >= _LEAST_PEERS:
            for category in {category for host in peers for category in host.waiting}:
                for host, outlier in _outliers(peers, category):
                    found[host.id].append(outlier)
    return tuple(
        Host(
            host.id, host.name, host.waiting, host.silent_ns, tuple(sorted(found[host.id], key=lambda one: -one.score))
        )
        for host in hosts
    )


def _outliers(peers: Sequence[Host], category: str) -> Iterable[tuple[Host, Outlier]]:
    values = [host.waiting.get(category, 0.0) for host in peers]
    usual = median(values)
    deviation = _MAD_OF_NORMAL * median(abs(value - usual) for value in values)
    scale = max(deviation, _LEAST_DEVIATION, _LEAST_RELATIVE * usual)
    for host, value in zip(peers, values, strict=True):
        score = (value - usual) / scale
        if score >= _LEAST_SCORE and value - usual >= _LEAST_EXCESS and value >= _LEAST_FACTOR * usual:
            yield host, Outlier(category, value, usual, score)


def names(ids: Iterable[HostId]) -> dict[HostId, str]:
    """Return what each host is called: its instance, without the port if it is the same everywhere."""
    ids = [*ids]
    split = {one: split_port(one.instance) for one in ids}
    if len({port for _, port in split.values()}) == 1 and all(name for name, _ in split.values()):
        return {one: name for one, (name, _) in split.items()}
    return {one: one.instance for one in ids}


def split_port(instance: str) -> tuple[str, str]:
    """Split `db7:9877` and `[::1]:9877` into address and port; the port is empty if there is none."""
    name, colon, port = instance.rpartition(":")
    if not colon or not port.isdecimal() or (":" in name and not name.endswith("]")):
        return instance, ""
    return (name[1:-1] if name.startswith("[") and name.endswith("]") else name), port


def ordered(hosts: Iterable[Host], sort: str, is_reversed: bool = False) -> list[Host]:
    """Sort hosts: by STANDS_OUT, WAITING, HOST, or a category. Silent hosts come last, except by name."""
    if sort == HOST:
        return sorted(hosts, key=lambda host: (_natural(host.name), host.id), reverse=is_reversed)

    def value(host: Host) -> tuple[float, float]:
        if sort == STANDS_OUT:
            return max((one.score for one in host.outliers), default=0.0), host.total
        return (host.total if sort == WAITING else host.waiting.get(sort, 0.0)), 0.0

    in_order = sorted(sorted(hosts, key=lambda host: _natural(host.name)), key=value, reverse=not is_reversed)
    return sorted(in_order, key=lambda host: host.silent_ns > 0)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts db7 before db10."""
    parts: list[tuple[int, int, str]] = []
    digits = text = ""
    for one in f"{name}\0":
        if one.isascii() and one.isdigit():
            digits += one
            if text:
                parts.append((1, 0, text))
                text = ""
        else:
            if digits:
                parts.append((0, int(digits[:18]), digits))
                digits = ""
            text += one
    return [*parts, (1, 0, text)]


def ranked_categories(fleet: Fleet) -> list[str]:
    """Return all categories: first those in which a host stands out, then those with most time."""
    totals = fleet.totals
    marked = {one.category for host in fleet.hosts for one in host.outliers[:1]}
    return sorted(totals, key=lambda category: (category not in marked, -totals[category]))


def in_order(categories: Iterable[str], order: Sequence[str]) -> list[str]:
    """Sort categories as in `order`; those that are not in it come last."""
    place = {category: number for number, category in enumerate(order)}
    return sorted(categories, key=lambda category: (place.get(category, len(place)), category))
