"""Filters become matchers of PromQL, and no value leaves its quotes."""

import re

import pytest

from offtop.fleet.promql import Matcher, one_of, over, parse_filter, quoted, selected
from offtop.units import NS_PER_S


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "up"),
        ("job=db", 'up{job="db"}'),
        ("env!=test rack=r?", 'up{env!="test",rack=~"r."}'),
        ("job!=db*", 'up{job!~"db.*"}'),
        ("db*", 'up{instance=~".*db.*.*"}'),
        ("'rack=row 1'", 'up{rack="row 1"}'),
        ("instance=db7", 'up{instance=~"db7(:[0-9]+)?"}'),
        ("instance!=db7", 'up{instance!~"db7(:[0-9]+)?"}'),
        ("instance=db7:9877", 'up{instance="db7:9877"}'),
        ("rack=", 'up{rack=""}'),
        ("a.b", 'up{instance=~".*a\\\\.b.*"}'),
        ("rack=é", 'up{rack="é"}'),
    ],
)
def test_filter_is_a_selector(text: str, expected: str) -> None:
    assert selected("up", parse_filter(text)) == expected


@pytest.mark.parametrize("text", ["ra-ck=a", "=a", "'", "category=lock", "program=x", "1a=b", "rack=\udc80"])
def test_what_is_no_filter_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"job=db"):
        parse_filter(text)


@pytest.mark.parametrize("value", ['"', "\\", '\\"', "\n", "\x1b[31m", '"} or up{a="', "\\n"])
def test_no_value_leaves_its_quotes(value: str) -> None:
    text = quoted(value)
    assert re.fullmatch(r'"([^"\\\x00-\x1f]|\\["\\]|\\x[0-9a-f]{2})*"', text)
    assert text[1:-1].encode().decode("unicode_escape") == value


def test_one_of_several_is_literal() -> None:
    assert str(one_of("instance", ["a.b:1", "c|d"])) == 'instance=~"a\\\\.b:1|c\\\\|d"'
    assert selected("up", [Matcher("a", "=", "b"), Matcher("c", "!=", "")]) == 'up{a="b",c!=""}'


def test_a_range_is_in_seconds_and_not_zero() -> None:
    assert (over(300 * NS_PER_S), over(0)) == ("[300s]", "[1s]")
