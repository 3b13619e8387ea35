"""Shared code of the fault tests.

It runs offtop on a terminal where ctrl-C is a signal, and checks what it must never print or leave behind.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from tests import command
from tests.kernel import programs
from tests.kernel.batch_output import check_laws
from tests.kernel.offtop_process import Run, Tick, Traces, read, started, wait_for
from tests.ui.terminal import Terminal, terminal

MS = 1_000_000
FAULT = re.compile(r"Traceback|Internal error in offtop|Exception ignored|Fatal Python error|RuntimeWarning")
"""Texts that must not appear, whatever happens."""
_GONE_S = 15.0


def check_said(text: str) -> None:
    assert not FAULT.search(text), text[-3000:]


def on_terminal(*arguments: str) -> list[str]:
    """Return the command in a shell with the terminal as its controlling one.

    Then ctrl-C is a signal until offtop takes keys.
    """
    return ["sh", "-c", 'exec 0<>"$(tty)" && exec "$@"', "sh", str(command.OFFTOP), *arguments]


@contextmanager
def shown(
    *arguments: str, width: int = 100, height: int = 30, environment: Mapping[str, str] = MappingProxyType({})
) -> Generator[Terminal]:
    """Run offtop on a terminal.

    Checks at the end that it reported no fault and left nothing behind.
    """
    with terminal(on_terminal(*arguments), width, height, **environment) as one:
        yield one
    check_said(one.drawn.decode(errors="replace"))


def wait_until_python_is_offtop(pid: int) -> None:
    """Return once offtop handles ctrl-C itself; until then Python answers it with a traceback.

    offtop's main takes over that first, and then loads ctypes.
    """
    wait_for(lambda: b"/_ctypes." in read(f"/proc/{pid}/maps"))


class Left:
    """Processes and BPF programs of a running offtop, none of which may outlive it."""

    def __init__(self, pid: int) -> None:
        self._pids = command.family(pid)
        self._programs = command.programs_of(pid)

    def check(self) -> None:
        """Check that nothing is left after its exit."""
        wait_for(lambda: not [pid for pid in self._pids if _is_running(pid)], _GONE_S)
        assert not command.still_loaded(self._programs, _GONE_S)

    @property
    def programs(self) -> int:
        return len(self._programs)


def _is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def until(what: Callable[[], object], shown: Terminal, seconds: float = 30) -> None:
    """Wait until `what` holds, reading what is drawn meanwhile."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, shown.text[-2000:]
        shown.read(0.05)


def ctrl_c(after_s: float, times: int = 1, environment: Mapping[str, str] = MappingProxyType({})) -> None:
    """Send ctrl-C so long after its own code has started."""
    traces = Traces()
    with shown(environment={**traces.environment, **environment}) as terminal:
        wait_until_python_is_offtop(terminal.pid)
        terminal.look_on(after_s)
        assert traces.processes()
        for _ in range(times):
            terminal.press(b"\x03")
            terminal.look_on(0.03)
        status = terminal.status()
        assert status in (0, 130, -signal.SIGINT), f"{status}: {terminal.text[-2000:]}"
        terminal.assert_sane()
        traces.assert_none()


def ticks_until(run: Run, ended_ns: int) -> list[Tick]:
    ticks = [run.tick()]
    while ticks[-1]["taken_ns"] < ended_ns:
        ticks.append(run.tick())
    return ticks


def check_whole(ticks: Sequence[Tick]) -> None:
    for tick in ticks:
        check_laws(tick)
        assert not tick["lost"], tick["lost"]


def sleeps(ticks: Sequence[Tick], tid: int) -> tuple[int, int]:
    """Return a thread's number of waits in `sleep`, and of preemptions.

    A preemption may split one sleep into two waits.
    """
    sites = [site for tick in ticks for site in tick["sites"] if site["tid"] == tid and site["category"] == "sleep"]
    put_aside = sum(one["involuntary"] for tick in ticks for one in tick["threads"] if one["tid"] == tid)
    return sum(site["waits"] for site in sites), put_aside


_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer")
SUCCESSOR = r"""
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
static char **self;
__attribute__((noinline)) void work(void)
{
	struct timespec rest = {0, 3000000};
	syscall(SYS_nanosleep, &rest, 0);
	__asm__ volatile("");
}
static void *become_the_next(void *unused)
{
	execv(self[0], self);
	_exit(1);
}
int main(int argc, char **argv)
{
	static char left[16];
	int lives = atoi(argv[1]);
	pthread_t thread;
	if (argc == 2)
		next();
	work();
	if (!lives)
		return 0;
	snprintf(left, sizeof(left), "%d", lives - 1);
	char *words[] = {argv[0], left, "on", 0};
	self = words;
	if (OTHERS && lives % 2) /* then another thread goes on, under the ID of this one */
		pthread_create(&thread, 0, become_the_next, 0);
	else
		become_the_next(0);
	pthread_join(thread, 0);
}
"""
"""Sleeps once in each of its lives, and then execs itself."""
LIVES = 60


def exec_repeatedly(directory: Path, by_others: int, within: bool) -> None:
    """Watch a process that keeps calling exec.

    `by_others` of the calls are from another thread than its main one.
    """
    binary = programs.build(directory / "successor", SUCCESSOR, *_C, f"-DOTHERS={by_others}")
    with programs.running([binary, str(LIVES)]) as child:
        options = ("--within", f"{binary}:work") if within else ()
        with started("--json", "-d", "0.1", "-p", str(child.pid), *options) as run:
            ticks = [run.tick()]
            child.go_on_alone()
            os.waitpid(child.pid, 0)
            ended = run.ended()
    ticks += [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.status, ended.err) == (0, "offtop: all measured processes have exited\n")
    counted, put_aside = sleeps(ticks, child.pid)
    # While a thread takes its main thread's TID, a wait of either may be missed on a machine without CPU to spare.
    assert LIVES + 1 - 2 * by_others <= counted <= LIVES + 1 + put_aside
    if not by_others:
        check_whole(ticks)
    if within:
        assert sum(tick["within"]["calls"] for tick in ticks) == LIVES + 1
