"""Outliers are counted, and the user's command runs with their details."""

import os
import time
from pathlib import Path

import pytest

from offtop import paths
from offtop.errors import UsageError
from offtop.feed import outlier_actions
from offtop.feed.outlier_actions import Alarm, environment
from offtop.model.classify import categories
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.outlier import APART_NS, AUTO, LongWait, Outlier, SlowIo
from offtop.person import person
from offtop.units import NS_PER_S

RULES = categories.parse(paths.categories().read_text(encoding="utf-8"))
MS = 1_000_000


def outlier(
    at_s: int = 10, comm: str = "worker", category: str = "lock", more: int = 0, reported: bool = False
) -> Outlier:
    at_ns = at_s * NS_PER_S
    wait = LongWait(SiteKey(10, 11, 20, 21), at_ns - 1500 * MS, at_ns)
    catalog = Catalog(comms={ThreadKey(10, 11): comm})
    return Outlier(
        at_ns,
        at_ns,
        AUTO,
        "max",
        category,
        "shop",
        1.5e9,
        1e9,
        7,
        wait,
        was_reported=reported,
        more=more,
        catalog=catalog,
    )


def until(alarm: Alarm, path: Path, lines: int) -> list[str]:
    """Add empty ticks until the command has written `lines` lines, and return them.

    The next command starts at a tick after the previous one has finished.
    """
    found: list[str] = []
    for _ in range(500):
        found = path.read_text().splitlines() if path.exists() else []
        if len(found) >= lines:
            return found
        alarm.add([])
        time.sleep(0.02)
    raise AssertionError(f"{path} has {found} only")


def test_each_outlier_is_counted_once() -> None:
    alarm = Alarm("", person())
    alarm.add([])
    alarm.add([outlier(more=4), outlier(11), outlier(12, reported=True)])
    assert alarm.count == 6


def test_a_command_is_told_which_file_operation_was_slow() -> None:
    slow = outlier()._replace(wait=None, io=SlowIo("file", "fsync /db/\x1blog"))
    assert environment(slow, person())["OFFTOP_WHAT"] == "fsync /db/\\x1blog"


def test_a_command_gets_the_sentence_of_a_suspect() -> None:
    new = outlier()._replace(wait=None, rule="suspect", says="3 flock wait for \x1bjob.lock")
    assert environment(new, person())["OFFTOP_WHAT"] == "3 flock wait for \\x1bjob.lock"


def test_command_is_rate_limited_per_category_and_gets_the_outlier(tmp_path: Path) -> None:
    out = tmp_path / "out"
    alarm = Alarm(f'echo "$OFFTOP_CATEGORY $OFFTOP_TID $OFFTOP_LENGTH_NS" >>{out}', person())
    alarm.add([outlier(10), outlier(11)])
    assert until(alarm, out, 1) == ["lock 11 1500000000"]
    alarm.add([outlier(12)])
    alarm.add([outlier(10 + APART_NS // NS_PER_S, category="lock")])
    assert until(alarm, out, 2)[1:] == ["lock 11 1500000000"]
    alarm.add([outlier(13, category="fsync")])
    assert until(alarm, out, 3)[2] == "fsync 11 1500000000"
    assert alarm.failure == ""


def test_one_command_runs_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    alarm = Alarm(f"echo once >>{out}; read gone <{tmp_path}/fifo", person())
    os.mkfifo(tmp_path / "fifo")
    alarm.add([outlier(10)])
    until(alarm, out, 1)
    alarm.add([outlier(11, category="fsync")])
    with (tmp_path / "fifo").open("w") as fifo:
        fifo.write("\n")
    time.sleep(0.1)
    assert out.read_text() == "once\n"


def test_names_are_passed_escaped_and_only_in_the_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    alarm = Alarm(f'printf "%s\\n" "$OFFTOP_COMM" >>{out}', person())
    alarm.add([outlier(comm="$(reboot)`\x1b[2J'\"")])
    assert until(alarm, out, 1) == ["$(reboot)`\\x1b[2J'\""]


def test_outlier_of_a_whole_tick_has_no_thread() -> None:
    variables = environment(Outlier(1, 2, "lock.p99 > 1ms", "p99", "lock", "shop", 2e6, 1e6), person())
    assert (variables["OFFTOP_TID"], variables["OFFTOP_RULE"], variables["OFFTOP_PROCESS"]) == (
        "",
        "lock.p99 > 1ms",
        "shop",
    )
    assert variables["HOME"] == str(person().home)
    assert "SUDO_UID" not in variables


def test_command_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(outlier_actions.subprocess, "Popen", refused)
    alarm = Alarm("true", person())
    alarm.add([outlier()])
    assert alarm.failure == "--on-trigger cannot be run (Cannot allocate memory)"


def test_off_means_no_triggers() -> None:
    assert outlier_actions.triggers(["off"], RULES, MS, "x") == []
    assert [one and one.text for one in outlier_actions.triggers(["auto", "net.max > 1s"], RULES, MS, "x")] == [
        None,
        "net.max > 1s",
    ]
    with pytest.raises(UsageError, match=r"^here: 'off' is not a trigger"):
        outlier_actions.triggers(["auto", "off"], RULES, MS, "here")


def test_trigger_for_single_waits_below_the_minimum_is_refused() -> None:
    with pytest.raises(UsageError, match=r"below the minimum of 5.0ms are only counted. Use a longer time"):
        outlier_actions.triggers(["lock.max > 2ms"], RULES, 5 * MS, "x")
    assert outlier_actions.triggers(["lock.p99 > 2ms"], RULES, 5 * MS, "x")
