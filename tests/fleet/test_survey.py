"""Hosts, suspects, programs and trends from what the API answers; the engine adds up."""

import pytest

from offtop.errors import OfftopError
from offtop.fleet.access import Access
from offtop.fleet.client import Client
from offtop.fleet.hosts import STANDS_OUT, HostId, ordered
from offtop.fleet.promql import parse_filter
from offtop.fleet.survey import MINUTE_NS, Question, Survey
from offtop.units import NS_PER_S
from tests.fleet.api import AT_S, FORTY, Api, Machine, fleet, matrix, serving

AT_NS = round(AT_S) * NS_PER_S
DB40 = HostId("db", "db40:9877")


def survey(api: Api) -> Survey:
    return Survey(Client(api.url, Access()))


def queries(api: Api) -> str:
    return "\n".join(one.query for one in api.requests)


def test_planted_host_is_first_and_its_suspect_folded() -> None:
    with serving(fleet(FORTY)) as api:
        found = survey(api).fleet(Question())
        assert (found.at_ns, len(found.hosts), found.silent) == (AT_NS, 40, 0)
        first = ordered(found.hosts, STANDS_OUT)[0]
        assert (first.id, first.name, first.total) == (DB40, "db40", 12.9)
        assert [one.category for one in first.outliers] == ["lock"]
        (suspect,) = found.suspects
        assert (suspect.what, suspect.who, suspect.hosts, suspect.threads) == ("the WAL flush", "postgres", 1, 12.0)
        assert all(
            "sum by" in one or "max by" in one or "quantile" in one or "count" in one
            for one in queries(api).splitlines()
        )


def test_beginning_of_a_suspect_is_found() -> None:
    with serving(fleet(FORTY)) as api:
        one = survey(api)
        (suspect,) = one.with_beginnings(one.fleet(Question()), (), 5).suspects
        assert suspect.since_ns == AT_NS - 1200 * NS_PER_S
        assert not suspect.is_older


def test_suspect_that_was_not_there_before_begins_now() -> None:
    answers = fleet(FORTY)
    with serving(lambda request: matrix() if request.path.endswith("query_range") else answers(request)) as api:
        one = survey(api)
        (suspect,) = one.with_beginnings(one.fleet(Question()), (), 5).suspects
        assert (suspect.since_ns, suspect.is_older) == (AT_NS, False)


@pytest.mark.parametrize(
    ("scrapes", "expected_ns", "scrape_ns"),
    [
        ((6, 30), MINUTE_NS, 10 * NS_PER_S),
        ((2, 10), 5 * MINUTE_NS, 30 * NS_PER_S),
        ((1, 5), 5 * MINUTE_NS, 60 * NS_PER_S),
        ((0, 1), 60 * MINUTE_NS, 300 * NS_PER_S),
        ((3, 3), MINUTE_NS, 0),
    ],
)
def test_range_has_four_scrapes(scrapes: tuple[float, float], expected_ns: int, scrape_ns: int) -> None:
    with serving(fleet(FORTY, scrapes)) as api:
        found = survey(api).fleet(Question())
        assert (found.range_ns, found.scrape_ns) == (expected_ns, scrape_ns)


def test_recording_rules_are_used_if_they_have_all_hosts() -> None:
    with serving(fleet(FORTY, hosts_in_rules=40)) as api:
        found = survey(api).fleet(Question())
        assert (found.from_rules, found.range_ns) == (True, 5 * MINUTE_NS)
        assert "rate(offtop_wait" not in queries(api)
        api.requests.clear()
        assert not survey(api).fleet(Question(MINUTE_NS)).from_rules
        assert not survey(api).fleet(Question(filter=parse_filter("env=prod"))).from_rules
        api.requests.clear()
        assert survey(api).fleet(Question(60 * MINUTE_NS, filter=parse_filter("job=db"))).from_rules
        assert 'avg_over_time(instance_category:offtop_waiting_threads:rate5m{job="db"}[3600s])' in queries(api)
    with serving(fleet(FORTY, hosts_in_rules=39)) as api:
        assert not survey(api).fleet(Question()).from_rules


def test_filter_and_time_are_in_each_query() -> None:
    with serving(fleet(FORTY)) as api:
        survey(api).fleet(Question(MINUTE_NS, AT_NS - MINUTE_NS, parse_filter("env=prod")))
        assert len(api.requests) > 4
        for request in api.requests:
            assert 'env="prod"' in request.query or "the WAL" in request.query
            assert float(request.form["time"]) == AT_S - 60


def test_host_without_a_recent_tick_is_silent() -> None:
    with serving(fleet([*FORTY, Machine("db41:9877", age_s=600)])) as api:
        found = survey(api).fleet(Question())
        assert [one.name for one in found.hosts if one.silent_ns] == ["db41"]
        assert found.hosts[-1].silent_ns == 600 * NS_PER_S


def test_no_hosts_are_an_error_with_a_remedy_but_not_later() -> None:
    with serving(fleet([])) as api:
        with pytest.raises(OfftopError, match=r"has no host that runs offtop agent\. Have it scrape them"):
            survey(api).fleet(Question())
        with pytest.raises(OfftopError, match="matches the filter"):
            survey(api).fleet(Question(filter=parse_filter("a=b")))
        one = survey(api)
        api.answers = fleet(FORTY)
        assert len(one.fleet(Question()).hosts) == 40
        api.answers = fleet([])
        assert one.fleet(Question()).hosts == ()


def test_programs_of_a_host_have_categories_causes_and_suspects() -> None:
    with serving(fleet(FORTY)) as api:
        one = survey(api)
        found = one.programs(DB40, one.fleet(Question()))
        assert [(program.name, program.total) for program in found.programs] == [("postgres", 11.5), ("sshd", 0.5)]
        assert found.programs[0].causes == {"postgres-row-lock": 11.0}
        assert [(held.what, held.held_by) for held in found.suspects] == [("the WAL flush", "postgres")]
        assert all('instance="db40:9877"' in one.query for one in api.requests[-3:])


def test_trends_have_a_value_for_each_cell() -> None:
    with serving(fleet(FORTY)) as api:
        one = survey(api)
        found = one.trends(one.fleet(Question()), [DB40], "lock", 10)
        assert found[DB40] == (1.0,) * 10
        assert 'category="lock"' in api.requests[-1].query and r"db40:9877" in api.requests[-1].query
        assert one.trends(one.fleet(Question()), [], "lock", 10) == {}


def test_labels_of_strangers_are_taken_as_they_are() -> None:
    odd = Machine("\x1b[31m[bold]:9877", {"lo\nck": 1.0, "": 2.0}, job='"}')

    with serving(fleet([odd])) as api:
        one = survey(api)
        found = one.fleet(Question())
        assert found.hosts[0].name == "\x1b[31m[bold]"
        assert found.hosts[0].waiting == {"lo\nck": 1.0, "": 2.0}
        one.programs(found.hosts[0].id, found)
        assert r'job="\"}",instance="\x1b[31m[bold]:9877"' in api.requests[-1].query
