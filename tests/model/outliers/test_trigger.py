"""Triggers that can be given, and the errors of invalid ones."""

import pytest

from offtop.model.outliers.trigger import EVENTS, HARM, MAX, NOW, WAITING, TriggerError, io_modes, parse, value_text
from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from offtop.units import NS_PER_S

IDS = ("lock", "disk-read", "fsync", "run-queue", "poll")
GROUPS = {"disk": ("disk-read", "fsync")}
MS = 1_000_000


def said(text: str) -> str:
    with pytest.raises(TriggerError) as wrong:
        parse(text, IDS, GROUPS)
    sentence = str(wrong.value)
    assert sentence.isprintable()
    return sentence


def test_auto_is_not_a_trigger_of_its_own() -> None:
    assert parse(" auto ", IDS, GROUPS) is None


def test_examples_of_the_help_mean_what_they_say() -> None:
    one = parse("lock.max > 500ms", IDS, GROUPS)
    assert one
    assert (one.categories, one.metric, one.value, one.program) == (frozenset({"lock"}), MAX, 500 * MS, "")
    assert one.is_of_waits
    two = parse("comm:mysqld   disk.p99>50ms for 3s", IDS, GROUPS)
    assert two
    assert (two.program, two.categories) == ("mysqld", frozenset({"disk-read", "fsync"}))
    assert (two.percent, two.value, two.for_ns) == (99.0, 50 * MS, 3 * NS_PER_S)
    assert two.text == "comm:mysqld disk.p99>50ms for 3s"
    assert not two.is_of_waits
    three = parse("any.now > 5s", IDS, GROUPS)
    assert three
    assert (three.categories, three.metric, three.value) == (None, NOW, 5 * NS_PER_S)
    four = parse("runq.waiting >= 4", IDS, GROUPS)
    assert four
    assert (four.categories, four.metric, four.value) == (frozenset({"run-queue"}), WAITING, 4.0)


def test_triggers_judge_file_operations_and_requests() -> None:
    one = parse("comm:db file.max > 100ms", IDS, GROUPS)
    assert one
    assert (one.io, one.program, one.is_of_waits) == (FILE, "db", False)
    assert io_modes(["auto", "file.max > 1s", "request.p99>1ms for 3s", "lock.max > 1s", "file"]) == {FILE, DISK}
    assert "only waits have that metric" in said("file.waiting > 3")


def test_suspect_is_a_trigger_without_a_value() -> None:
    one = parse(" suspect ", IDS, GROUPS)
    assert one
    assert (one.text, one.metric, one.is_of_waits) == ("suspect", HARM, False)
    assert "unknown metric harm" in said("lock.harm > 3")
    assert value_text(HARM, 3.2) == "3.20 threads"


@pytest.mark.parametrize(("word", "metric"), [("blocked", WAITING), ("ev/s", EVENTS), ("p99.9", "p999")])
def test_aliases_are_accepted(word: str, metric: str) -> None:
    one = parse(f"lock.{word} > 5{'ms' if metric == 'p999' else ''}", IDS, GROUPS)
    assert one
    assert one.metric == metric


def test_trigger_covers_programs_and_categories() -> None:
    one = parse("comm:my* lock.max > 1s", IDS, GROUPS)
    assert one
    assert one.is_about("mysqld", "lock")
    assert not one.is_about("mysqld", "fsync")
    assert not one.is_about("redis", "lock")
    every = parse("any.max > 1s", IDS, GROUPS)
    assert every
    assert every.is_about("redis", "fsync")
    assert every.with_idle is False
    assert one.with_idle is True


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a trigger. Try 'lock.max > 500ms'"),
        ("lock > 500ms", "is not a trigger"),
        ("lock.max < 500ms", "is not a trigger"),
        ("lock.long > 500ms", "unknown metric long. Known: max, now, p50"),
        ("luck.max > 500ms", "unknown category luck. Known: any, disk, disk-read"),
        ("lock.max > 500", "500 needs a unit, such as 500ms"),
        ("lock.max > 5ks", "is not a duration. Try 500ms, 3s or 2m"),
        ("lock.max > 10ns", "waits are at least 1us long"),
        ("lock.max > 1s for 3s", "each wait is judged by itself"),
        ("lock.waiting > 5ms", "waiting is a number, such as waiting > 4"),
        ("lock.max > 5ms\x1b[2J", "is not a trigger"),
        (f"lock.max > {'9' * 300}ms", "is not a trigger"),
    ],
)
def test_invalid_trigger_is_rejected_with_a_remedy(text: str, sentence: str) -> None:
    assert sentence in said(text)


def test_values_are_shown_in_their_units() -> None:
    assert value_text(MAX, 1_840_000_000.0) == "1.84s"
    assert value_text("p99", 0.0) == "0"
    assert value_text(WAITING, 12.04) == "12.0 threads"
    assert value_text(EVENTS, 950.0) == "950/s"
