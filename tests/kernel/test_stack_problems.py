"""Test why real user stacks are broken.

Causes are binaries without unwind information or symbols, generated code, and processes that exit at once.
"""

import shutil
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from offtop.kernel.bpf.program import Unwind
from offtop.kernel.live import LiveSource
from offtop.model.aggregate.stack_problems import GUESSED, NO_MAP, STRIPPED, Problem, Problems
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import ANONYMOUS, ENDED, GONE, LINKED, NO_WAY
from offtop.model.windows.breakdown import Idle, Scope, by_site, shares
from tests.kernel import watch
from tests.kernel.chains import CHAINS, c, ran
from tests.kernel.programs import Program, build, running

pytestmark = [pytest.mark.kernel, pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")]

_BARE = ("-O2", "-fomit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-exceptions")
_NAMES_S = _PATIENCE_S = 20.0
_UNCHECKED = "(any)", LINKED
_SLEEP = "sleep"
"""The category of what the programs do; other waits, such as preemptions, have no such stacks."""


class SeparateSource:
    """A separate live source, and what it reports about a process."""

    def __init__(self, source: LiveSource) -> None:
        self.live = watch.Watch(source)
        self._problems = Problems(source.names, source.why_nameless)

    def of(self, pid: int, after_s: float = 0.05) -> dict[tuple[str, str], Problem]:
        """Return problems of its ended sleeps since the last call, by binary and reason."""
        window, source = self.live.tick(after_s), self.live.source
        mine = {site: totals for site, totals in window.each_site() if site.pid == pid and totals.waits}
        frames = {frame for site in mine for frame in window.catalog.stack(site.user).frames}
        source.wait_for_names(frames, _NAMES_S)
        every = shares(window, Idle())
        table = {row: part for row, part in by_site(every, Scope(_SLEEP)).items() if row[3] == pid}
        found = self._problems.of(table, window.catalog)
        return {(one.label, one.reason): one for one in found.problems}


@contextmanager
def looking(way: str = "auto") -> Generator[SeparateSource]:
    with closing(LiveSource(watch.rules(), Filters(), unwind=Unwind(way, cpu_pct=100.0))) as source:
        yield SeparateSource(source)


def rounds(looker: SeparateSource, child: Program) -> dict[tuple[str, str], Problem]:
    """Return problems of a round in which all waits were unwound in time.

    In the first round, offtop learns the code.
    """
    until_s = time.monotonic() + _PATIENCE_S
    found: dict[tuple[str, str], Problem] = {_UNCHECKED: Problem("", "", LINKED, 0, 0.0, "")}
    while _UNCHECKED in found:
        assert time.monotonic() < until_s
        child.go()
        found = looker.of(child.pid)
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a program without frame pointers, .eh_frame and symbols."""
    directory = tmp_path_factory.mktemp("bare")
    whole, program = directory / "whole", directory / "bare"
    c(*_BARE)(directory, whole)
    ran("objcopy", "--strip-all", "--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr", whole, program)
    return program


def test_a_binary_without_unwind_information_is_named_with_the_fix(bare: Path) -> None:
    with looking("dwarf") as looker, running([bare]) as child:
        child.go()
        found = rounds(looker, child)
        assert {*found} == {("bare", NO_WAY), ("bare", STRIPPED)}
        assert found["bare", NO_WAY].share == found["bare", STRIPPED].share == 1.0
        assert "-fasynchronous-unwind-tables" in found["bare", NO_WAY].remedy
        assert "debug symbols" in found["bare", STRIPPED].remedy


def test_the_remedies_fix_it(bare: Path, tmp_path: Path) -> None:
    program = tmp_path / "mended"
    c("-O2", "-fomit-frame-pointer", "-fasynchronous-unwind-tables")(tmp_path, program)
    with looking("dwarf") as looker, running([program]) as child:
        child.go()
        assert rounds(looker, child) == {}


@pytest.mark.variant
def test_guessed_callers_are_blamed_on_the_binary_without_rules(bare: Path) -> None:
    with looking() as looker, running([bare]) as child:
        child.go()
        found = rounds(looker, child)
        assert ("bare", STRIPPED) in found
        assert {reason for label, reason in found if label == "bare"} & {GUESSED, NO_WAY}
        assert {label for label, _ in found} == {"bare"}


@pytest.mark.variant
def test_frame_pointers_alone_are_reported_as_unchecked(bare: Path) -> None:
    with looking("fp") as looker, running([bare]) as child:
        child.go()
        child.go()
        assert "--unwind fp" in looker.of(child.pid)[_UNCHECKED].remedy


@pytest.mark.variant
def test_generated_code_needs_a_perf_map(tmp_path: Path) -> None:
    program = tmp_path / "jit"
    CHAINS["a JIT's code without"].make(tmp_path, program)
    with looking() as looker, running([program, "none"]) as child:
        child.go()
        found = rounds(looker, child)
        assert {*found} == {(f"{ANONYMOUS} of jit", NO_MAP), (f"{ANONYMOUS} of jit", GUESSED)}
        assert all(one.share == 1.0 for one in found.values())
        assert f"/tmp/perf-{child.pid}.map" in found[f"{ANONYMOUS} of jit", NO_MAP].remedy
        perf_map = Path(f"/tmp/perf-{child.pid}.map")
        perf_map.write_text(f"{child.at['jit']:x} 40 made_at_run_time\n")
        try:
            until_s = time.monotonic() + _PATIENCE_S
            while (f"{ANONYMOUS} of jit", NO_MAP) in found:
                assert time.monotonic() < until_s
                child.go()
                found = looker.of(child.pid)
        finally:
            perf_map.unlink()


def test_a_process_that_exits_at_once_is_reported_as_gone(tmp_path: Path) -> None:
    source = r"""
#include <sys/wait.h>
#include <time.h>
int main(void) {
    struct timespec time = {0, 4000000};
    while (next()) {
        pid_t child = fork();
        if (!child) { nanosleep(&time, 0); _exit(0); }
        waitpid(child, 0, 0);
        tell("child", (void *)(long)child);
    }
    return 0;
}
"""
    program = build(tmp_path / "brief", source)
    with looking() as looker, running([program]) as parent:
        looker.live.tick()
        parent.go()
        time.sleep(0.2)
        found = looker.of(parent.at["child"])
        assert {*found} == {(f"{GONE} of brief", ENDED)}
        assert found[f"{GONE} of brief", ENDED].remedy == ""
