"""Test cached unwind rules: a failed request is not remembered as an answer."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.kernel.binary import binaries as binaries_module
from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.files import File, Files
from offtop.kernel.binary.unwind_rules import NO_RULE, X86_64, Value
from offtop.kernel.symbols.mappings import Processes
from offtop.kernel.unwind import rule_cache as rule_cache_module
from offtop.kernel.unwind.rule_cache import RuleCache
from tests.kernel.programs import build, running


@pytest.fixture
def function(tmp_path: Path) -> Generator[tuple[File, int]]:
    """Yield a running program's function: its file, and its offset there."""
    program = build(tmp_path / "app", 'int main(void) { tell("main", main); next(); return 0; }')
    files = Files()
    with running([program]) as app:
        (frame,) = Processes(files).frames(app.pid, [app.at["main"]])
        file = files.get(frame.file)
        assert file
        yield file, frame.offset


def test_a_rule_is_requested_once(function: tuple[File, int]) -> None:
    binaries = Binaries(30)
    rules = RuleCache(binaries)
    rules.begin_stack()
    rule = rules.rule_at(*function)
    assert rule.cfa == Value(X86_64.sp, 8)
    binaries.end()
    assert (rules.rule_at(*function), binaries.pid, rules.is_uncertain) == (rule, 0, False)
    assert [*rules.counts.values()] == [(0, 1, 0)]


def test_a_failed_request_is_not_cached_and_leaves_the_stack_in_doubt(
    function: tuple[File, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries_module, "_BEGIN_S", 0.2)
    binaries = Binaries(0.2)
    rules = RuleCache(binaries)
    rules.begin_stack()
    os.kill(binaries.start().pid, signal.SIGSTOP)
    assert (rules.rule_at(*function), rules.is_uncertain, binaries.failures) == (NO_RULE, True, 1)
    rules.begin_stack()
    assert not rules.is_uncertain
    assert (rules.rule_at(*function), rules.is_uncertain) == (NO_RULE, True)  # not retried for a while
    assert not rules.counts
    binaries.end()


def test_a_stack_that_took_too_long_requests_no_more_rules(
    function: tuple[File, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = Binaries(30)
    rules = RuleCache(binaries)
    monkeypatch.setattr(rule_cache_module, "_LONGEST_S", -1.0)
    rules.begin_stack()
    assert (rules.rule_at(*function), rules.is_uncertain, binaries.pid) == (NO_RULE, True, 0)
