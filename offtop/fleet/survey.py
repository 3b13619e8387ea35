"""Ask for all hosts, for trends of some, or for the programs of one.

The engine adds up: an answer has one number for each host and category, never the series of programs. If the recording
rules of `fleet/prometheus/rules.yml` are there, and the range is not shorter than theirs, even that sum is ready.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from offtop.errors import OfftopError
from offtop.fleet.client import Client, Sample, Series
from offtop.fleet.hosts import Fleet, FoldedSuspect, Host, HostId, names, with_outliers
from offtop.fleet.promql import Filter, Matcher, one_of, over, selected
from offtop.units import NS_PER_S

MINUTE_NS = 60 * NS_PER_S
RANGES_NS = tuple(minutes * MINUTE_NS for minutes in (1, 5, 15, 60, 6 * 60, 24 * 60))
"""Ranges to choose from, shortest first."""
_WAITS = "offtop_wait_seconds_total"
_CAUSES = "offtop_cause_wait_seconds_total"
_SUSPECTS = "offtop_suspect_threads"
_LAST_TICK = "offtop_agent_last_tick_timestamp_seconds"
_RULE, _RULE_NS = "instance_category:offtop_waiting_threads:rate5m", 5 * MINUTE_NS
_RULE_LABELS = frozenset({"job", "instance"})
_LEAST_THREADS = 0.01
"""Less is shown as nothing, and the engine leaves it out."""
_SILENT_NS = 2 * MINUTE_NS
"""A host is silent if its last tick is older than this, and than three scrapes."""
_GONE_NS = 60 * MINUTE_NS
"""A host that has been silent for longer is not shown."""
_SCRAPES_IN_RANGE = 4
"""How many scrapes a range has at least, if the person chose none: a rate needs two, and one may be late."""
_MOST_SUSPECTS = 10
_SINCE_NS, _SINCE_STEP_NS = 60 * MINUTE_NS, 30 * NS_PER_S
"""How far back, and how finely, the beginning of a suspect is looked for."""
_PAUSE_STEPS = 2
"""A suspect may be absent for so many steps, and counts as the same."""
_MOST_PROGRAMS, _MOST_CAUSES = 200, 200
_KNOWN_NS = 5 * MINUTE_NS
"""How long it is believed how often hosts are read, and whether there are rules."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the person wants to see."""

    range_ns: int = 0
    """0: the shortest range that has enough scrapes."""
    at_ns: int | None = None
    """End of the range (CLOCK_REALTIME); None: now."""
    filter: Filter = ()


class HeldSuspect(NamedTuple):
    """A suspect on one host. Texts are raw."""

    what: str
    who: str
    held_by: str
    """Program that must act; empty: unknown."""
    threads: float


class Program(NamedTuple):
    """A program on one host. Its name is raw."""

    name: str
    waiting: Mapping[str, float]
    """By category."""
    causes: Mapping[str, float]
    """By id of the cause rule, most first."""

    @property
    def total(self) -> float:
        return sum(self.waiting.values())


@dataclass(frozen=True, slots=True)
class Programs:
    """What waits on one host."""

    host: HostId
    at_ns: int
    range_ns: int
    programs: tuple[Program, ...]
    """Most waiting first."""
    suspects: tuple[HeldSuspect, ...]


class _Facts(NamedTuple):
    """What seldom changes."""

    asked_ns: int = 0
    filter: Filter = ()
    scrape_ns: int = 0
    """0: unknown."""
    range_ns: int = 0
    """The shortest range with enough scrapes."""
    hosts_in_rules: int = 0


class Survey:
    """Not thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._facts = _Facts()

    def fleet(self, question: Question) -> Fleet:
        """Return all hosts, and what they wait for. Raises ApiError."""
        ticks = self._last_ticks(question)
        at_ns = question.at_ns or max((one.at_ns for one in ticks), default=0)
        facts = self._learn(question, at_ns)
        silent = {
            _host_id(one): age_ns
            for one in ticks
            if (age_ns := at_ns - round(one.value * NS_PER_S)) > max(_SILENT_NS, 3 * facts.scrape_ns)
        }
        has_rules = _has_rules(question.filter, facts, len(ticks) - len(silent))
        range_ns = question.range_ns or (_RULE_NS if has_rules else facts.range_ns)
        from_rules = has_rules and range_ns >= _RULE_NS
        waiting: defaultdict[HostId, dict[str, float]] = defaultdict(dict)
        for one in self._client.query(_waits(question.filter, range_ns, from_rules), at_ns):
            waiting[_host_id(one)][_label(one, "category")] = one.value
        shown = names(map(_host_id, ticks))
        hosts = [Host(one, name, waiting.get(one, {}), silent.get(one, 0)) for one, name in shown.items()]
        suspects = self._suspects(question, at_ns)
        return Fleet(at_ns, range_ns, with_outliers(hosts), suspects, facts.scrape_ns, from_rules)

    def with_beginnings(self, fleet: Fleet, filter: Filter, most: int) -> Fleet:  # noqa: A002  # its name elsewhere
        """Return the fleet with the times at which its first `most` suspects began. Raises ApiError."""
        wanted = fleet.suspects[:most]
        if not wanted:
            return fleet
        matchers = [*filter, one_of("what", {one.what for one in wanted})]
        query = f"count by (what, who) ({_per_host(matchers)})"
        begin_ns = fleet.at_ns - _SINCE_NS
        began: dict[tuple[str, str], tuple[int, bool]] = {}
        for one in self._client.query_range(query, begin_ns, fleet.at_ns, _SINCE_STEP_NS):
            since_ns = fleet.at_ns
            for at_ns, _ in reversed(one.values):
                if since_ns - at_ns > (_PAUSE_STEPS + 1) * _SINCE_STEP_NS:
                    break
                since_ns = at_ns
            is_older = since_ns - begin_ns < _SINCE_STEP_NS
            began[_label(one, "what"), _label(one, "who")] = since_ns, is_older
        # One that is there now, and was at none of these times, is new: VictoriaMetrics leaves out the newest of them.
        new = fleet.at_ns, False
        times = (began.get((one.what, one.who), new) for one in wanted)
        known = (one._replace(since_ns=at[0], is_older=at[1]) for one, at in zip(wanted, times, strict=True))
        return replace(fleet, suspects=(*known, *fleet.suspects[most:]))

    def trends(
        self, fleet: Fleet, hosts: Sequence[HostId], category: str, cells: int
    ) -> dict[HostId, tuple[float | None, ...]]:
        """Return how much these hosts waited in `cells` parts of the range; `category`: empty for all.

        A part without numbers is None. Raises ApiError.
        """
        if not hosts or cells < 2:
            return {}
        step_ns = max(fleet.range_ns // cells, NS_PER_S)
        own = [one_of("instance", {one.instance for one in hosts}), one_of("job", {one.job for one in hosts})]
        own += [Matcher("category", "=", category)] if category else []
        if fleet.from_rules:
            each = selected(_RULE, own)
        else:  # a part of a day is long: the engine then reads some minutes at its end
            least_ns = _SCRAPES_IN_RANGE * (fleet.scrape_ns or MINUTE_NS)
            each = f"rate({selected(_WAITS, own)}{over(max(least_ns, min(step_ns, _RULE_NS)))})"
        query = f"sum by (job, instance) ({each})"
        begin_ns = fleet.at_ns - (cells - 1) * step_ns
        found: dict[HostId, tuple[float | None, ...]] = {}
        for one in self._client.query_range(query, begin_ns, fleet.at_ns, step_ns):
            parts: list[float | None] = [None] * cells
            for at_ns, value in one.values:
                if 0 <= (cell := round((at_ns - begin_ns) / step_ns)) < cells:
                    parts[cell] = value
            found[HostId(_label(one, "job"), _label(one, "instance"))] = tuple(parts)
        return found

    def programs(self, host: HostId, fleet: Fleet) -> Programs:
        """Return what waits on a host, at the same time as in `fleet`. Raises ApiError."""
        own = [Matcher("job", "=", host.job), Matcher("instance", "=", host.instance)]
        span, at_ns = over(fleet.range_ns), fleet.at_ns
        waiting: defaultdict[str, dict[str, float]] = defaultdict(dict)
        query = f"sum by (program, category) (rate({selected(_WAITS, own)}{span})) > {_LEAST_THREADS}"
        for one in self._client.query(f"topk({_MOST_PROGRAMS}, {query})", at_ns):
            waiting[_label(one, "program")][_label(one, "category")] = one.value
        causes: defaultdict[str, dict[str, float]] = defaultdict(dict)
        query = f"sum by (program, why) (rate({selected(_CAUSES, own)}{span})) > {_LEAST_THREADS}"
        for one in sorted(self._client.query(f"topk({_MOST_CAUSES}, {query})", at_ns), key=lambda one: -one.value):
            causes[_label(one, "program")][_label(one, "why")] = one.value
        query = f"topk({_MOST_SUSPECTS}, sum by (what, who, held_by) ({selected(_SUSPECTS, own)}) > 0)"
        suspects = sorted(
            (
                HeldSuspect(_label(one, "what"), _label(one, "who"), _label(one, "held_by"), one.value)
                for one in self._client.query(query, at_ns)
            ),
            key=lambda one: -one.threads,
        )
        programs = (Program(name, parts, causes.get(name, {})) for name, parts in waiting.items())
        return Programs(
            host, at_ns, fleet.range_ns, tuple(sorted(programs, key=lambda one: -one.total)), tuple(suspects)
        )

    def _last_ticks(self, question: Question) -> Sequence[Sample]:
        """Return the time of each host's last tick. Raises OfftopError if there is no host."""
        recent = f"last_over_time({selected(_LAST_TICK, question.filter)}{over(_GONE_NS)})"
        ticks = self._client.query(f"max by (job, instance) ({recent})", question.at_ns)
        if ticks or self._facts.range_ns:
            return ticks
        if question.filter:
            raise OfftopError(
                f"No host that runs offtop agent matches the filter at {self._client.url}. Change --filter"
            )
        raise OfftopError(
            f"{self._client.url} has no host that runs offtop agent. Have it scrape them: the page agent of the manual"
        )

    def _learn(self, question: Question, at_ns: int) -> _Facts:
        known = self._facts
        if known.filter == question.filter and abs(at_ns - known.asked_ns) < _KNOWN_NS and known.scrape_ns:
            return known
        short, long = (self._scrapes(question.filter, span_ns, at_ns) for span_ns in (MINUTE_NS, 5 * MINUTE_NS))
        rules = self._client.query(f"count(count by (job, instance) ({selected(_RULE, question.filter)}))", at_ns)
        if short >= _SCRAPES_IN_RANGE and long > short:
            scrape_ns, range_ns = round(MINUTE_NS / short), MINUTE_NS
        elif long > short:
            scrape_ns = round(5 * MINUTE_NS / long)
            range_ns = next((one for one in RANGES_NS if one >= _SCRAPES_IN_RANGE * scrape_ns), RANGES_NS[-1])
        else:  # the agents are new here
            scrape_ns, range_ns = 0, MINUTE_NS
        hosts_in_rules = round(rules[0].value) if rules else 0
        self._facts = _Facts(at_ns, question.filter, scrape_ns, range_ns, hosts_in_rules)
        return self._facts

    def _scrapes(self, matchers: Filter, span_ns: int, at_ns: int) -> float:
        """Return how often most hosts were read in the last `span_ns`."""
        counts = f"count_over_time({selected(_LAST_TICK, matchers)}{over(span_ns)})"
        found = self._client.query(f"quantile(0.5, {counts})", at_ns)
        return found[0].value if found else 0.0

    def _suspects(self, question: Question, at_ns: int) -> tuple[FoldedSuspect, ...]:
        each = _per_host(question.filter)
        query = f"topk({_MOST_SUSPECTS}, count by (what, who) ({each}))"
        found = [(_label(one, "what"), _label(one, "who"), one.value) for one in self._client.query(query, at_ns)]
        if not found:
            return ()
        matchers = [*question.filter, one_of("what", {what for what, _, _ in found})]
        sums = {
            (_label(one, "what"), _label(one, "who")): one.value
            for one in self._client.query(f"sum by (what, who) ({selected(_SUSPECTS, matchers)})", at_ns)
        }
        folded = (FoldedSuspect(what, who, round(hosts), sums.get((what, who), 0.0)) for what, who, hosts in found)
        return tuple(sorted(folded, key=lambda one: (-one.hosts, -one.threads)))


def _waits(matchers: Filter, range_ns: int, from_rules: bool) -> str:
    if from_rules:
        rule = selected(_RULE, matchers)
        made = rule if range_ns == _RULE_NS else f"avg_over_time({rule}{over(range_ns)})"
    else:
        made = f"sum by (job, instance, category) (rate({selected(_WAITS, matchers)}{over(range_ns)}))"
    return f"{made} > {_LEAST_THREADS}"


def _per_host(matchers: Sequence[Matcher]) -> str:
    return f"max by (job, instance, what, who) ({selected(_SUSPECTS, matchers)}) > 0"


def _has_rules(matchers: Filter, facts: _Facts, hosts: int) -> bool:
    """Whether the recording rules have the labels of the filter, and all hosts."""
    return {one.label for one in matchers} <= _RULE_LABELS and facts.hosts_in_rules >= max(hosts, 1)


def _host_id(sample: Sample) -> HostId:
    return HostId(_label(sample, "job"), _label(sample, "instance"))


def _label(one: Sample | Series, name: str) -> str:
    return one.labels.get(name, "")
