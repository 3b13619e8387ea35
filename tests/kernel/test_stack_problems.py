"""Why real user stacks are broken: binaries without unwind information or symbols, code made at run time, and processes
that are gone at once."""

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
from offtop.model.windows.breakdown import ALL, Idle, Scope, by_site, shares
from tests.kernel import watch
from tests.kernel.chains import CHAINS, c, ran
from tests.kernel.programs import Program, build, running

pytestmark = [pytest.mark.kernel, pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")]

_BARE = ("-O2", "-fomit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-exceptions")
_NAMES_S = _PATIENCE_S = 20.0
_UNCHECKED = "(any)", LINKED


class Looker:
    """A live source of its own, and what it says of a process."""

    def __init__(self, source: LiveSource) -> None:
        self.live = watch.Watch(source)
        self._problems = Problems(source.names, source.why_nameless)

    def of(self, pid: int, after_s: float = 0.05) -> dict[tuple[str, str], Problem]:
        """What the stacks of its waits that ended lack, by binary and reason, since the last look."""
        window, source = self.live.tick(after_s), self.live.source
        mine = {site: totals for site, totals in window.each_site() if site.pid == pid and totals.waits}
        frames = {frame for site in mine for frame in window.book.stack(site.user).frames}
        source.wait_for_names(frames, _NAMES_S)
        every = shares(window, Idle())
        table = {row: part for row, part in by_site(every, Scope(ALL)).items() if row[3] == pid}
        told = self._problems.of(table, window.book)
        return {(one.label, one.reason): one for one in told.problems}


@contextmanager
def looking(way: str = "auto") -> Generator[Looker]:
    with closing(LiveSource(watch.rules(), Filters(), unwind=Unwind(way, cpu_pct=100.0))) as source:
        yield Looker(source)


def rounds(looker: Looker, child: Program) -> dict[tuple[str, str], Problem]:
    """Of a round of waits in which all were walked in time: in the first, offtop learns the code."""
    until_s = time.monotonic() + _PATIENCE_S
    found: dict[tuple[str, str], Problem] = {_UNCHECKED: Problem("", "", LINKED, 0, 0.0, "")}
    while _UNCHECKED in found:
        assert time.monotonic() < until_s
        child.go()
        found = looker.of(child.pid)
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without frame pointers, without .eh_frame, without symbols."""
    directory = tmp_path_factory.mktemp("bare")
    whole, program = directory / "whole", directory / "bare"
    c(*_BARE)(directory, whole)
    ran("objcopy", "--strip-all", "--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr", whole, program)
    return program


def test_a_binary_that_says_nothing_of_its_callers_is_named_with_what_mends_it(bare: Path) -> None:
    with looking("dwarf") as looker, running([bare]) as child:
        child.go()
        found = rounds(looker, child)
        assert {*found} == {("bare", NO_WAY), ("bare", STRIPPED)}
        assert found["bare", NO_WAY].share == found["bare", STRIPPED].share == 1.0
        assert "-fasynchronous-unwind-tables" in found["bare", NO_WAY].remedy
        assert "debug symbols" in found["bare", STRIPPED].remedy


def test_what_the_remedies_say_mends_it(bare: Path, tmp_path: Path) -> None:
    program = tmp_path / "mended"
    c("-O2", "-fomit-frame-pointer", "-fasynchronous-unwind-tables")(tmp_path, program)
    with looking("dwarf") as looker, running([program]) as child:
        child.go()
        assert rounds(looker, child) == {}


def test_callers_that_were_guessed_stand_under_the_binary_that_made_it_guess(bare: Path) -> None:
    with looking() as looker, running([bare]) as child:
        child.go()
        found = rounds(looker, child)
        assert ("bare", STRIPPED) in found
        assert {reason for label, reason in found if label == "bare"} & {GUESSED, NO_WAY}
        assert {label for label, _ in found} == {"bare"}


def test_frame_pointers_alone_are_nobodys_word(bare: Path) -> None:
    with looking("fp") as looker, running([bare]) as child:
        child.go()
        child.go()
        assert "--unwind fp" in looker.of(child.pid)[_UNCHECKED].remedy


def test_code_made_at_run_time_lacks_a_perf_map_until_there_is_one(tmp_path: Path) -> None:
    program = tmp_path / "jit"
    CHAINS["a JIT's code without"].make(tmp_path, program)
    with looking() as looker, running([program, "none"]) as child:
        child.go()
        found = rounds(looker, child)
        assert {*found} == {(f"{ANONYMOUS} of jit", NO_MAP), (f"{ANONYMOUS} of jit", GUESSED)}
        assert all(one.share == 1.0 for one in found.values())
        assert "/tmp/perf-PID.map" in found[f"{ANONYMOUS} of jit", NO_MAP].remedy
        told = Path(f"/tmp/perf-{child.pid}.map")
        told.write_text(f"{child.at['jit']:x} 40 made_at_run_time\n")
        try:
            until_s = time.monotonic() + _PATIENCE_S
            while (f"{ANONYMOUS} of jit", NO_MAP) in found:
                assert time.monotonic() < until_s
                child.go()
                found = looker.of(child.pid)
        finally:
            told.unlink()


def test_a_process_that_ends_at_once_is_said_to_be_gone(tmp_path: Path) -> None:
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
