"""Metrics of the demo: their sums are those of --json, they follow Prometheus's format, and labels are harmless."""

import json
import re
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from offtop import __version__
from offtop.agent.counters import label_value
from offtop.model.values import histogram as log2
from tests.agent.serving import Got, Samples, demo_agent, get, samples_of, serving, sums, unzipped
from tests.command import call


@pytest.fixture(scope="module")
def got() -> Generator[Got]:
    with demo_agent() as agent, serving(agent.pages) as server:
        agent.run()
        yield get(server, "/metrics")


@pytest.fixture(scope="module")
def samples(got: Got) -> Samples:
    return samples_of(got.body)


@pytest.fixture(scope="module")
def every() -> list[dict[str, Any]]:
    return [json.loads(line) for line in call("demo", "--json").out.splitlines()]


@pytest.fixture(scope="module")
def ticks(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All ticks of the demo that are counted: the last one is not yet."""
    return every[:-1]


def test_waits_and_idle_waits_of_each_category_add_up_to_those_of_json(
    samples: Samples, ticks: list[dict[str, Any]]
) -> None:
    total_ns, idle_ns = Counter[str](), Counter[str]()
    for one in (category for tick in ticks for category in tick["categories"]):
        total_ns[one["name"]] += one["total_ns"]
        idle_ns[one["name"]] += one["idle_ns"] + one["standing_ns"]
    waits = sums(samples, "offtop_wait_seconds_total", "category")
    idle = sums(samples, "offtop_idle_wait_seconds_total", "category")
    assert idle == pytest.approx({name: ns / 1e9 for name, ns in idle_ns.items() if ns})
    assert waits == pytest.approx(
        {name: (ns - idle_ns[name]) / 1e9 for name, ns in total_ns.items() if ns > idle_ns[name]}
    )
    assert {"lock", "run-queue", "fsync", "poll"} <= waits.keys()


def test_waits_of_each_program_add_up_to_those_of_json(samples: Samples, ticks: list[dict[str, Any]]) -> None:
    ns = Counter[str]()
    for one in (program for tick in ticks for program in tick["programs"]):
        ns[one["name"]] += one["total_ns"] - one["idle_ns"] - one["standing_ns"]
    waits = sums(samples, "offtop_wait_seconds_total", "program")
    assert waits == pytest.approx({name: one / 1e9 for name, one in ns.items() if one})


def test_causes_add_up_to_those_of_json(samples: Samples, ticks: list[dict[str, Any]]) -> None:
    ns = Counter[str]()
    for one in (cause for tick in ticks for cause in tick["diagnoses"] if not cause["idle"]):
        ns[one["id"]] += one["total_ns"]
    causes = sums(samples, "offtop_cause_wait_seconds_total", "why")
    for name in ("postgres-row-lock", "postgres-wal", "gil"):
        assert causes[name] == pytest.approx(ns[name] / 1e9)


def test_histogram_has_each_wait_that_ended_once(samples: Samples, ticks: list[dict[str, Any]]) -> None:
    """No wait of the demo's locks is idle."""
    by_low = Counter[int]()
    for one in (one for tick in ticks for one in tick["categories"] if one["name"] == "lock" and not one["idle_ns"]):
        by_low.update(dict(one["histogram"]))
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in samples.items()
        if name == "offtop_wait_duration_seconds_bucket" and dict(labels)["category"] == "lock"
    }
    assert buckets["+Inf"] == sum(by_low.values()) > 100
    for lane in range(9, 31):
        shorter = sum(count for low, count in by_low.items() if low < log2.high_ns(lane))
        assert buckets[str(log2.high_ns(lane) / 1e9)] == shorter
    assert [*buckets.values()] == sorted(buckets.values())


def test_sums_of_the_machine_do_not_depend_on_names(samples: Samples) -> None:
    waits = sums(samples, "offtop_wait_seconds_total", "category")
    assert samples["offtop_run_queue_seconds_total", ()] == pytest.approx(waits["run-queue"])
    assert 0 < samples["offtop_preempted_seconds_total", ()] < samples["offtop_run_queue_seconds_total", ()]
    assert samples["offtop_throttled_seconds_total", ()] == 0
    assert samples["offtop_lost_records_total", (("kind", "wakings"),)] == 0
    assert samples["offtop_cpus", ()] == 2
    assert samples["offtop_agent_cpu_seconds_total", ()] > 1
    assert samples["offtop_agent_info", (("mode", "chain"), ("probe", "exit"), ("version", __version__))] == 1


def test_suspects_are_those_of_json_and_named_by_what_is_waited_for(every: list[dict[str, Any]]) -> None:
    with demo_agent() as agent, serving(agent.pages) as server:
        listed: list[list[dict[str, Any]]] = []
        seen: list[bytes] = []

        def look(_: object) -> None:
            listed.append(json.loads(get(server, "/suspects").body))
            if len(listed) % 5 == 0:
                seen.append(get(server, "/metrics").body)

        agent.run(look)
        assert listed == [tick["suspects"] for tick in every]
        waiting = {
            (of["what"], of["who"], of["held_by"]): value
            for body in seen
            for (name, labels), value in samples_of(body).items()
            if name == "offtop_suspect_threads" and (of := dict(labels))
        }
        assert ("a row or table lock", "postgres", "postgres") in waiting
        assert all(value > 0 for value in waiting.values())


def test_conventions_of_prometheus(got: Got) -> None:
    """What promtool checks too, in `make fleet`: help for each, base units, counters that end in _total."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", got.text, re.M))
    helped = dict(re.findall(r"^# HELP (\S+) (.+)$", got.text, re.M))
    assert kinds.keys() == helped.keys()
    for name, kind in kinds.items():
        assert re.fullmatch(r"offtop_[a-z_]+", name)
        assert (kind == "counter") == name.endswith("_total")
        assert not re.search(r"_(ns|ms|us|percent|pct|counter|gauge)(_|$)", name)
        assert helped[name].endswith(".")
    assert got.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.variant
def test_limit_of_series_holds_and_the_rest_is_other() -> None:
    with demo_agent(most_series=8) as agent, serving(agent.pages) as server:
        agent.run()
        few = samples_of(get(server, "/metrics").body)
    with demo_agent() as agent, serving(agent.pages) as server:
        agent.run()
        every = samples_of(get(server, "/metrics").body)
    named = [
        key
        for key in few
        if key[0] in ("offtop_wait_seconds_total", "offtop_cause_wait_seconds_total")
        and dict(key[1])["program"] != "other"
    ]
    assert len(named) == few["offtop_agent_program_series", ()] <= few["offtop_agent_program_series_limit", ()] == 8
    assert few["offtop_agent_folded_programs", ()] > 0 == every["offtop_agent_folded_programs", ()]
    by_category = sums(every, "offtop_wait_seconds_total", "category")
    assert sums(few, "offtop_wait_seconds_total", "category") == pytest.approx(by_category)


def test_metrics_are_compressed_for_those_who_ask_and_rendered_once_a_tick() -> None:
    with demo_agent() as agent, serving(agent.pages) as server:
        assert get(server, "/metrics").status == 503  # there is no tick yet
        agent.run()
        plain = get(server, "/metrics")
        packed = get(server, "/metrics", {"Accept-Encoding": "deflate, gzip;q=0.5"})
        assert "Content-Encoding" not in plain.headers
        assert packed.headers["Content-Encoding"] == "gzip"
        assert unzipped(packed.body) == plain.body
        assert get(server, "/metrics", method="HEAD").body == b""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("postgres", "postgres"),
        ('a"b\\c', 'a"b\\c'),
        ("a\nb\x1b[31m", "a\\x0ab\\x1b[31m"),
        ("\udcff", "\\udcff"),
        ("‮evil", "\\u202eevil"),
        ("é" * 100, "é" * 64),
    ],
)
def test_label_values_are_printable_and_short(text: str, expected: str) -> None:
    assert label_value(text) == expected
