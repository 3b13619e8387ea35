"""Hosts that wait far more than the others of their job stand out; all are sorted and named."""

from collections.abc import Mapping

import pytest

from offtop.fleet.hosts import (
    HOST,
    STANDS_OUT,
    WAITING,
    Fleet,
    Host,
    HostId,
    in_order,
    names,
    ordered,
    ranked_categories,
    split_port,
    with_outliers,
)


def host(name: str, waiting: Mapping[str, float], job: str = "db", silent_ns: int = 0) -> Host:
    return Host(HostId(job, f"{name}:9877"), name, waiting, silent_ns)


def test_one_of_ten_stands_out_by_median_and_deviation() -> None:
    """The median of 1 to 9 and 30 is 5.5, and that of the deviations is 2.5."""
    hosts = with_outliers([*(host(f"db{n}", {"lock": float(n)}) for n in range(1, 10)), host("db10", {"lock": 30.0})])
    assert [one.name for one in hosts if one.outliers] == ["db10"]
    (found,) = hosts[-1].outliers
    assert (found.category, found.waiting, found.median) == ("lock", 30.0, 5.5)
    assert found.score == pytest.approx(24.5 / (1.4826 * 2.5))


def test_hosts_are_compared_with_those_of_their_job() -> None:
    busy = [host(f"db{n}", {"lock": 10.0}) for n in range(6)]
    idle = [host(f"web{n}", {}, "web") for n in range(5)]
    assert not any(one.outliers for one in with_outliers([*busy, *idle]))
    hosts = with_outliers([*busy, *idle, host("web5", {"lock": 10.0}, "web")])
    assert [one.name for one in hosts if one.outliers] == ["web5"]


def test_equal_hosts_few_hosts_and_small_numbers_do_not_stand_out() -> None:
    assert not any(one.outliers for one in with_outliers([host(f"db{n}", {"lock": 3.0}) for n in range(9)]))
    few = [host(f"db{n}", {}) for n in range(3)]
    assert not any(one.outliers for one in with_outliers([*few, host("db9", {"lock": 50.0})]))
    many = [host(f"db{n}", {}) for n in range(9)]
    assert not any(one.outliers for one in with_outliers([*many, host("db9", {"lock": 0.49})]))
    assert with_outliers([]) == ()


def test_silent_host_is_neither_outlier_nor_peer_and_comes_last() -> None:
    hosts = with_outliers([*(host(f"db{n}", {}) for n in range(5)), host("db9", {"lock": 50.0}, silent_ns=1)])
    assert not any(one.outliers for one in hosts)
    assert [one.name for one in ordered(hosts, WAITING)][-1] == "db9"


def test_hosts_are_sorted_by_what_was_chosen() -> None:
    hosts = [host("db10", {"lock": 2.0}), host("db2", {"lock": 1.0, "disk-read": 9.0}), host("db1", {})]
    assert [one.name for one in ordered(hosts, HOST)] == ["db1", "db2", "db10"]
    assert [one.name for one in ordered(hosts, WAITING)] == ["db2", "db10", "db1"]
    assert [one.name for one in ordered(hosts, "lock")] == ["db10", "db2", "db1"]
    assert [one.name for one in ordered(hosts, "lock", is_reversed=True)] == ["db1", "db2", "db10"]
    with_one = with_outliers([host(f"a{n}", {"net-recv": 9.0}) for n in range(6)] + [host("z", {"lock": 2.0})])
    assert ordered(with_one, STANDS_OUT)[0].name == "z"


def test_ports_are_cut_if_all_are_the_same() -> None:
    first, second, other = HostId("a", "db1:9877"), HostId("a", "[::1]:9877"), HostId("b", "db1:9878")
    assert names([first, second]) == {first: "db1", second: "::1"}
    assert names([first, other]) == {first: "db1:9877", other: "db1:9878"}
    assert names([]) == {}
    assert split_port("db7") == ("db7", "")
    assert split_port("::1") == ("::1", "")
    assert split_port("a:b") == ("a:b", "")


def test_hosts_of_two_jobs_on_one_machine_keep_apart() -> None:
    one, two = HostId("a", "db1:9877"), HostId("b", "db1:9877")
    assert names([one, two]) == {one: "db1", two: "db1"}


def test_columns_have_the_category_that_stands_out_and_the_usual_order() -> None:
    hosts = with_outliers(
        [host(f"db{n}", {"net-recv": 5.0, "lock": 3.0}) for n in range(6)] + [host("z", {"swap": 2.0})]
    )
    ranked = ranked_categories(Fleet(0, 0, hosts))
    assert ranked == ["swap", "net-recv", "lock"]
    assert in_order(ranked, ("lock", "net-recv")) == ["lock", "net-recv", "swap"]
