"""Test hostile names of threads, files, functions and cgroups.

Whatever they contain, they reach no terminal and no file raw, and markup in them is not interpreted.
"""

import re
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offtop.model.aggregate.filter import NOTHING
from offtop.model.aggregate.stack_problems import Problems
from offtop.model.classify.categories import is_periodic
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values.snapshot import Filters
from offtop.model.windows.history import History
from offtop.reports import tick_text
from offtop.reports.tick import passing
from offtop.reports.tick_json import tick_object
from offtop.reports.tick_rows import waiters
from offtop.reports.wanted import Wanted
from tests.kernel import programs, watch

pytestmark = pytest.mark.kernel

EVIL = "\x1b[6n[red]\x07"
"""Asks a terminal for its cursor position, and rings its bell.

Nothing that offtop draws does that.
"""
SAFE = r"\x1b[6n[red]\x07"
NAMES = (
    EVIL,
    "\x1b]0;x\x07[/]",
    "\x9b6n\x85\x90",
    "\x1bc[b]\\",
    "[@click=quit]q",
    "a\nb\r\tc\x08\x7f",
    "\u202eevil\u200b",
    "%s{0}$(id)`'\"",
    "[link=x]&<i>",
)
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u200b]")
_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-g")
NAPPING = r"""
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
static const struct timespec ten_ms = {0, 10000000};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noinline)) void hidden(void)
{
	syscall(SYS_nanosleep, &ten_ms, 0);
	__asm__ volatile("");
}
static char newest[16];
static volatile int wants_a_name;
static void rename_one(const char *name)
{
	memcpy(newest, name, 16);
	wants_a_name = 1;
	while (wants_a_name)
		hidden();
}
static void *napping(void *name)
{
	prctl(PR_SET_NAME, name);
	for (;;) {
		pthread_mutex_lock(&mutex);
		hidden();
		if (wants_a_name) {
			prctl(PR_SET_NAME, newest);
			wants_a_name = 0;
		}
		pthread_mutex_unlock(&mutex);
		hidden();
	}
}
int main(int argc, char **argv)
{
	pthread_t thread;
	for (int i = 1; i < argc; i++)
		pthread_create(&thread, 0, napping, argv[i]);
	prctl(PR_SET_NAME, argv[1]);
	puts("ready");
	fflush(stdout);
	for (char name[16]; fread(name, 16, 1, stdin) == 1;) {
		rename_one(name);
		hidden();
	}
}
"""
_CGROUPS = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")


@contextmanager
def napping(directory: Path, names: Sequence[str]) -> Generator[programs.Program]:
    """Run a process with a thread of each name.

    Its file, its function and its cgroup have hostile names too.
    """
    plain, path = directory / "plain", directory / EVIL
    programs.build(plain, NAPPING, *_C)
    subprocess.run(["objcopy", f"--redefine-sym=hidden={EVIL}", str(plain), str(path)], check=True)
    with programs.running([path, *names]) as child, in_cgroup(child.pid):
        yield child


@contextmanager
def in_cgroup(pid: int) -> Generator[None]:
    place = next((Path(one) for one in _CGROUPS if Path(one, "cgroup.controllers").exists()), None)
    if place is None:
        yield
        return
    group = place / f"offtop-{EVIL}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (place / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def test_a_thread_may_have_any_name(tmp_path: Path) -> None:
    """Any 16 bytes, as the kernel stores them."""
    with napping(tmp_path, ["x"] * 8) as child, watch.watching(Filters(pids=(child.pid,))) as live:
        cause_finder = CauseFinder(live.source.names, WITHOUT_RULES)
        problems = Problems(live.source.names, live.source.why_nameless)
        history = History(watch.rules().idle, is_periodic, idle_by_rule=cause_finder.idle_by_rule)
        history.add(live.last)

        @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=4))
        def check(names: list[bytes]) -> None:
            child.write(b"".join(names))
            live.tick(0.02 + 0.02 * len(names))
            kept = history.add(live.last)
            assert kept
            for threads in (False, True):
                wanted = Wanted(idle_shown=True, threads=threads, stuck=True)
                tick = passing(kept, NOTHING, cause_finder, history.stuck(kept), accounted=True)
                text = tick_text.tick_text(
                    tick, waiters(tick, wanted), live.source.names, 0, wanted, cause_finder, problems
                )
                assert not CONTROL.search(text), text
            every = msgspec.json.encode(tick_object(tick, live.source.names, cause_finder, problems=problems)).decode()
            assert not CONTROL.search(every), every

        check()
