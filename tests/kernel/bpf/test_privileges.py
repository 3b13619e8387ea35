"""Test running with capabilities instead of root.

Four of them are enough for everything but the cost; the loss of each missing one is reported.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from offtop.kernel.bpf import cache
from offtop.kernel.symbols import kallsyms
from tests import command
from tests.kernel import programs
from tests.kernel.watch import MS

pytestmark = pytest.mark.kernel

Tick = dict[str, Any]
NOBODY = 65534
FOUR = ("bpf", "perfmon", "sys_ptrace", "syslog")
NAPS = r"""
#include <sys/syscall.h>
#include <time.h>
static const struct timespec ten_ms = {0, 10000000};
static __attribute__((noinline)) void nap(void)
{
	syscall(SYS_nanosleep, &ten_ms, 0);
	__asm__ volatile("");
}
int main(void)
{
	next();
	for (int i = 0; i < 23; i++)
		nap();
	next();
	return 0;
}
"""
"""Sleeps 23 times. Always runs as root, whoever runs offtop."""


@pytest.fixture(scope="module")
def naps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("privileges") / "naps"
    programs.build(program, NAPS, "-D_GNU_SOURCE", "-fno-omit-frame-pointer")
    programs.make_readable_by_all(program)
    return program


@pytest.fixture(autouse=True, scope="module")
def cache_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Let nobody load programs that root has compiled, which takes half the time.

    The doctor's tests compile with four capabilities.
    """
    theirs, ours = tmp_path_factory.mktemp("cache"), cache.cache_directory()
    programs.make_readable_by_all(theirs / "program")
    if ours and ours.is_dir():
        for path in ours.iterdir():
            with suppress(FileNotFoundError):  # another test's offtop may evict it
                shutil.copy2(path, theirs)
    for path in (theirs, *theirs.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OFFTOP_CACHE", str(theirs))
        yield


@pytest.fixture
def napping(naps: Path) -> Generator[programs.Program]:
    with programs.running([naps]) as program:
        yield program


def as_nobody(*capabilities: str) -> tuple[str, ...]:
    """Return the command prefix that runs offtop as nobody with exactly these capabilities."""
    held = "".join(f",+{name}" for name in capabilities)
    return (
        *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
        *(f"--inh-caps=-all{held}", f"--ambient-caps=-all{held}", f"--bounding-set=-all{held}"),
    )


def watched(napping: programs.Program, *capabilities: str) -> tuple[Tick, str]:
    """Return the tick with the 23 naps, and what offtop printed to stderr."""
    return second_tick(napping, as_nobody(*capabilities), "-p", str(napping.pid))


def second_tick(napping: programs.Program, before: Sequence[str], *line: str) -> tuple[Tick, str]:
    """Return the tick with the 23 naps, of an offtop run under the command `before`."""
    process = command.start("-b", "--json", "-n", "2", *line, before=before)
    try:
        assert process.stdout
        process.stdout.readline()
        napping.go_on_alone()
        ended = command.ended(process)
    finally:
        process.kill()
    assert ended.status == 0, ended.err
    return json.loads(ended.out), ended.err


def naps_in(tick: Tick) -> Tick:
    """Return the site of the naps.

    Asserts that all 23 were counted, and nothing but waits for a CPU beside them.
    """
    found = max(tick["sites"], key=lambda site: site["waits"])
    (thread,) = (one for one in tick["threads"] if (one["pid"], one["tid"]) == (found["pid"], found["tid"]))
    assert 23 <= found["waits"] <= 23 + thread["involuntary"]
    assert 230 * MS <= found["total_ns"] <= tick["span_ns"]
    return found


def test_four_capabilities_do_everything_but_cost(napping: programs.Program) -> None:
    tick, err = watched(napping, *FOUR)
    assert err == ""
    site = naps_in(tick)
    assert site["category"] == "sleep"
    assert "nap" in site["user"]
    assert tick["cost"]["bpf_ns_per_switch"] is None


@pytest.mark.variant
def test_without_cap_sys_ptrace_waits_count_and_the_loss_is_reported(napping: programs.Program) -> None:
    tick, err = watched(napping, "bpf", "perfmon", "syslog")
    assert err.startswith("offtop: Missing CAP_SYS_PTRACE (sudo offtop): no user stacks")
    assert err.count("\n") == 1
    site = naps_in(tick)
    assert site["category"] == "sleep"
    if "waits in progress" in err:  # this kernel lets CAP_PERFMON read mappings
        assert "nap" in site["user"]
    else:
        assert (*site["user"], site["user_end"]) == ("[not permitted]", "not-permitted")


@pytest.mark.parametrize("more", [(), ("dac_read_search",)], ids=["without", "with"])
@pytest.mark.variant
def test_without_cap_dac_read_search_waiting_callers_are_not_permitted(
    napping: programs.Program, more: tuple[str, ...]
) -> None:
    ended = command.run("-b", "--json", "-n", "1", "-p", str(napping.pid), before=as_nobody(*FOUR, *more))
    (held,) = json.loads(ended.out)["still_blocked"]
    assert ("main" in held["user"], held["user_end"] == "not-permitted") == ((True, False) if more else (False, True))
    assert (held["user"][-1] == "[not permitted]") == (not more)
    assert len(held["user"]) > 1


CLOSED = """
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.symbols.mappings import denied_access
reads = GuardedReads()
print(denied_access(reads.channel(5)) and 'closed', flush=True)
reads.close()
"""
ROOT_WITHOUT = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all")


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (ROOT_WITHOUT, "closed"),
        (("unshare", "--pid", "--fork", "--mount-proc", *ROOT_WITHOUT), ""),
    ],
)
def test_a_process_with_all_capabilities_lacks_nothing(before: Sequence[str], says: str) -> None:
    """With fewer capabilities even root's own processes are closed.

    A container may have no such process.
    """
    program = [*before, sys.executable, "-c", CLOSED]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (ended.stdout.strip(), ended.stderr) == (says, "")


@pytest.mark.variant
def test_hidepid_proc_reports_user_stacks_as_not_permitted(napping: programs.Program) -> None:
    before = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$0" "$@"')
    tick, err = second_tick(napping, (*before, *as_nobody("bpf", "perfmon", "syslog")))
    assert err.startswith("offtop: Missing CAP_SYS_PTRACE (sudo offtop): no user stacks and no open files of ")
    assert err.count("\n") == 1
    site = naps_in({**tick, "sites": [site for site in tick["sites"] if site["pid"] == napping.pid]})
    assert (*site["user"], site["user_end"]) == ("[not permitted]", "not-permitted")
    (problem,) = (one for one in tick["user_stack_problems"] if one["process"] == "naps")
    assert (problem["reason"], problem["remedy"]) == (
        "not-permitted",
        "run it with sudo, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
    )


def test_without_cap_syslog_waits_count_and_categories_are_unknown(napping: programs.Program) -> None:
    tick, err = watched(napping, "bpf", "perfmon", "sys_ptrace")
    assert err.startswith("offtop: Missing CAP_SYSLOG (sudo offtop): the kernel hides its addresses. Categories, wak")
    assert err.count("\n") == 1
    site = naps_in(tick)  # all kernel stacks are one, including those of preempted waits
    assert site["category"] == "other"
    assert site["kernel"] == [kallsyms.HIDDEN.name]
    assert "nap" in site["user"]


@pytest.mark.variant
def test_without_cap_syslog_wakers_are_refused() -> None:
    ended = command.run("-b", "-n", "1", "--mode", "wakeup", before=as_nobody("bpf", "perfmon", "sys_ptrace"))
    assert ended.sentence.startswith("Wakers need the names of kernel functions")
    assert ended.status == 4


@pytest.mark.parametrize("missing", ["bpf", "perfmon"])
def test_the_missing_bpf_capability_is_named(missing: str) -> None:
    ended = command.run(
        "-b", "-n", "1", "--source", "bpf", before=as_nobody(*(name for name in FOUR if name != missing))
    )
    assert ended.sentence.startswith(f"offtop lacks CAP_{missing.upper()}, which tracing the kernel needs")
    assert ended.status == 3


def test_root_of_a_user_namespace_is_told_to_run_outside() -> None:
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=("unshare", "--user", "--map-root-user"))
    assert ended.sentence.endswith("Start it outside: sudo offtop")
    assert ended.status == 3


def test_another_users_process_is_refused_without_root() -> None:
    ended = command.run("-b", "-n", "1", "-p", "2", before=as_nobody())
    assert ended.status == 2
    assert ended.sentence.startswith("Process 2 is not yours") and ended.sentence.endswith("sudo offtop -p 2")
