"""Counters as text in Prometheus's format. Names and units follow its conventions (`promtool check metrics`).

A histogram has no `_sum`: how long all waits that ended were is not counted, only how much time passed in waits.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from offtop import __version__
from offtop.agent.counters import STUCK_NS, Counters
from offtop.model.values import histogram as log2
from offtop.model.windows.breakdown import RUN_QUEUE, THROTTLE
from offtop.units import NS_PER_S

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_LANE, _LAST_LANE = 9, 30
"""Lanes that are buckets: from 262 us, since waits below the minimum are not in it, up to 9 minutes."""
_LOSSES = ("wakings", "stacks", "threads", "sites", "events", "missed_runs", "unread", "blockers", "memos")
"""Kinds of losses that are shown even while there are none."""


class Recording(NamedTuple):
    """State of the recording that the agent keeps."""

    works: bool
    bytes_written: int


class _Families:
    """A collector of these metrics."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def text(counters: Counters, series_limit: int, recording: Recording | None) -> bytes:
    """Return all metrics. `recording`: None if there is none."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families([*_waits(counters), *_machine(counters), *_agent(counters, series_limit, recording)]))
    return generate_latest(registry)


def _waits(counters: Counters) -> Iterator[Metric]:
    by_category = CounterMetricFamily(
        "offtop_wait_seconds",
        "Time that threads waited, without idle waits. Its rate is the average number of waiting threads.",
        labels=("category", "program", "unit"),
    )
    by_cause = CounterMetricFamily(
        "offtop_cause_wait_seconds",
        "The part of offtop_wait_seconds_total that a cause rule explains, by the rule.",
        labels=("why", "program", "unit"),
    )
    for (program, unit), part, ns in counters.programs:
        family, kind = (by_cause, part.why) if part.why else (by_category, part.category)
        family.add_metric((kind, program, unit), _seconds(ns))
    yield by_category
    yield by_cause
    yield _counters("offtop_idle_wait_seconds", "Time in idle waits, of all programs.", "category", counters.idle)
    yield _histogram(counters)


def _histogram(counters: Counters) -> Metric:
    family = HistogramMetricFamily(
        "offtop_wait_duration_seconds",
        "Waits that ended and reached the minimum, without idle ones. There is no sum.",
        labels=("category",),
    )
    by_category: dict[str, list[int]] = {}
    for (category, lane), count in counters.ended:
        by_category.setdefault(category, [0] * log2.LANES)[lane] = count
    for category, lanes in sorted(by_category.items()):
        buckets = [
            (str(_seconds(log2.high_ns(lane))), float(sum(lanes[: lane + 1])))
            for lane in range(_FIRST_LANE, _LAST_LANE + 1)
        ]
        family.add_metric((category,), [*buckets, ("+Inf", float(sum(lanes)))], None)
    return family


def _machine(counters: Counters) -> Iterator[Metric]:
    now, whole = counters.now, counters.whole
    yield _counter("offtop_run_queue_seconds", "Time that threads that could run waited for a CPU.", whole[RUN_QUEUE])
    yield _counter("offtop_preempted_seconds", "The part of it after a thread was preempted.", whole["preempted"])
    yield _counter(
        "offtop_throttled_seconds",
        "Time that threads waited because their cgroup had used up its CPU quota (Linux 6.18 or later).",
        whole[THROTTLE],
    )
    if now.cpus:
        yield GaugeMetricFamily("offtop_cpus", "CPUs online.", now.cpus)
    stuck = GaugeMetricFamily(
        "offtop_stuck_threads",
        f"Threads in a wait that has lasted {STUCK_NS // NS_PER_S} s or longer and is not idle.",
        labels=("category",),
    )
    oldest = GaugeMetricFamily(
        "offtop_stuck_oldest_seconds", "Age of the oldest wait in offtop_stuck_threads.", labels=("category",)
    )
    for category, one in sorted(now.stuck.items()):
        stuck.add_metric((category,), one.threads)
        oldest.add_metric((category,), _seconds(one.oldest_ns))
    yield stuck
    yield oldest
    suspects = GaugeMetricFamily(
        "offtop_suspect_threads",
        "Average number of threads that wait for a suspect, directly or through others, in the newest tick.",
        labels=("what", "who", "held_by"),
    )
    for labels, waiting in sorted(now.suspects.items()):
        suspects.add_metric(labels, waiting)
    yield suspects
    yield GaugeMetricFamily(
        "offtop_standing_waits", "Long waits that are normal without work; their time is idle.", now.standing
    )
    if "switches" in whole:
        yield _counter("offtop_context_switches", "Context switches of the machine.", whole["switches"], in_ns=False)
    lost = dict.fromkeys(_LOSSES, 0) | dict(counters.lost)
    yield _counters("offtop_lost_records", "What the BPF programs could not record.", "kind", lost.items(), in_ns=False)


def _agent(counters: Counters, series_limit: int, recording: Recording | None) -> Iterator[Metric]:
    now, whole, cost = counters.now, counters.whole, counters.now.cost
    thinned = cost.thinned
    info = GaugeMetricFamily(
        "offtop_agent_info", "What measures, and what it measures.", labels=("version", "probe", "mode")
    )
    info.add_metric((__version__, now.probe, now.mode), 1)
    yield info
    yield _counter("offtop_agent_ticks", "How often the agent has read the kernel.", now.ticks, in_ns=False)
    yield GaugeMetricFamily(
        "offtop_agent_last_tick_timestamp_seconds", "When it read the kernel last.", _seconds(now.taken_ns)
    )
    if "cpu" in whole:
        yield _counter("offtop_agent_cpu_seconds", "CPU time of the agent's processes.", whole["cpu"])
    if "bpf" in whole:  # reading it needs CAP_SYS_ADMIN
        yield _counter("offtop_agent_bpf_seconds", "CPU time of its BPF programs.", whole["bpf"])
    if cost.rss_bytes >= 0:
        yield GaugeMetricFamily("offtop_agent_memory_bytes", "Resident memory of the agent.", cost.rss_bytes)
    yield GaugeMetricFamily(
        "offtop_agent_sampled",
        "1 if threads are polled because BPF is not available: waits are upper bounds.",
        int(now.sampled),
    )
    yield GaugeMetricFamily(
        "offtop_agent_detail_level", "0 to 4: how much detail is left out to keep to --cpu-budget.", thinned.level
    )
    yield GaugeMetricFamily(
        "offtop_agent_over_budget", "1 if the agent uses more than --cpu-budget all the same.", int(thinned.is_over)
    )
    yield _counter(
        "offtop_agent_thinned_waits", "Waits without a stack, to keep to --cpu-budget.", whole["thinned_waits"], False
    )
    yield _counter("offtop_agent_thinned_seconds", "Their time, which counts as category short.", whole["thinned"])
    programs = counters.programs
    yield GaugeMetricFamily("offtop_agent_program_series", "Series with the name of a program.", programs.series)
    yield GaugeMetricFamily("offtop_agent_program_series_limit", "Most series of that kind (--series).", series_limit)
    yield GaugeMetricFamily(
        "offtop_agent_folded_programs", "Programs of the newest tick that count as other.", len(programs.folded)
    )
    if recording:
        yield GaugeMetricFamily("offtop_agent_recording", "1 while the recording is written.", int(recording.works))
        yield GaugeMetricFamily("offtop_agent_recording_bytes", "Size of the recording.", recording.bytes_written)


def _counter(name: str, meaning: str, value: int, in_ns: bool = True) -> Metric:
    return CounterMetricFamily(name, meaning, _seconds(value) if in_ns else value)


def _counters(name: str, meaning: str, label: str, values: Iterable[tuple[str, int]], in_ns: bool = True) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=(label,))
    for kind, value in sorted(values):
        family.add_metric((kind,), _seconds(value) if in_ns else value)
    return family


def _seconds(ns: int) -> float:
    return ns / NS_PER_S
