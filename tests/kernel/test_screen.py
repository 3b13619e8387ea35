"""Test all of offtop on the real kernel in tmux.

Waiting threads appear by name, and Enter leads to the cause.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psutil
import pytest

from tests import command
from tests.kernel import programs

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]

THREADS = 192
"""Number of threads, all but one of which wait: more than others on a busy machine.

Each waits for a quarter of a second, because a wait has its user stack only once it has ended.
"""
CONVOY = r"""
#include <pthread.h>
#include <stdint.h>
#include <time.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* If libc has no frame pointers, its leaf's caller is missing from the stack: this function is that caller. */
static __attribute__((noinline)) void take(void) { pthread_mutex_lock(&mutex); __asm__ volatile(""); }
static __attribute__((noinline)) void hold_the_lock(unsigned *seed)
{
	take();
	*seed = *seed * 1103515245 + 12345;
	struct timespec held = {0, (2000 + *seed / 65536 % 4001) * 1000};
	nanosleep(&held, NULL);
	pthread_mutex_unlock(&mutex);
}
static void *in_line(void *number)
{
	unsigned seed = (uintptr_t)number;
	for (;;)
		hold_the_lock(&seed);
}
int main(void)
{
	pthread_t thread;
	next();
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&thread, NULL, in_line, (void *)i);
	next();
}
"""
_NAME = "convoy-4711"
_PATIENCE_S = 40.0
_WINDOW_NUMBER = count(1)


class Tmux:
    """A separate tmux server with one window that runs a shell command."""

    def __init__(self, width: int, height: int, line: str, config: Path) -> None:
        self._socket = f"offtop-test-{os.getpid()}-{next(_WINDOW_NUMBER)}"
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC", "XDG_CONFIG_HOME": str(config)}
        environment.pop("TMUX", None)
        size = ("-x", str(width), "-y", str(height))
        self("-u", "-f", "/dev/null", "new-session", "-d", *size, "sh", "-c", line, environment=environment)
        self.shell = int(self("display-message", "-p", "#{pane_pid}"))

    def __call__(self, *words: str, environment: dict[str, str] | None = None) -> str:
        run = ["tmux", "-L", self._socket, *words]
        return subprocess.run(run, check=True, capture_output=True, text=True, timeout=20, env=environment).stdout

    def end(self) -> None:
        self("kill-server")

    def press(self, *keys: str) -> None:
        self("send-keys", *keys)

    def screen(self) -> list[str]:
        return self("capture-pane", "-p").splitlines()

    def modes(self) -> str:
        """Return whether the alternate screen, mouse reporting and the cursor are on."""
        return self("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}").strip()

    def until(self, holds: Callable[[list[str]], object]) -> list[str]:
        """Return the first screen for which that holds."""
        end = time.monotonic() + _PATIENCE_S
        while not holds(screen := self.screen()):
            assert time.monotonic() < end, "\n".join(screen)
            time.sleep(0.05)
        return screen


@contextmanager
def tmux(width: int, height: int, line: str, config: Path) -> Generator[Tmux]:
    made = Tmux(width, height, line, config)
    try:
        yield made
    finally:
        made.end()


def clock(screen: list[str]) -> str:
    """Return the time of the tick that is shown, or nothing before the first."""
    found = re.search(r"\d\d:\d\d:\d\d", screen[0]) if screen and "LIVE" in screen[0] else None
    return found[0] if found else ""


def below(screen: list[str], head: str) -> str:
    """Return the line below the first one that has `head`, or nothing if there is none."""
    lines = iter(screen)
    return next((next(lines, "") for line in lines if head in line), "")


def first_category(screen: list[str]) -> str:
    """Return the name in the first row of categories below the total."""
    return below(screen, " all  ").lstrip("> ").partition(" ")[0]


def first_process(screen: list[str]) -> str:
    return below(screen, " PID COMMAND")


def in_crumb(screen: list[str], *words: str) -> bool:
    """Return whether exactly these were drilled into."""
    lines = [line for line in screen if line.startswith("All")]
    crumb = lines[0].partition("  ")[0].split(" > ") if lines else []
    return len(crumb) == len(words) and all(word in part for word, part in zip(words, crumb, strict=True))


@pytest.mark.parametrize(("width", "height"), [pytest.param(160, 50, marks=pytest.mark.variant), (80, 24)])
def test_a_mutex_convoy_is_on_top_by_name_and_three_enters_reach_its_stack(
    width: int, height: int, tmp_path: Path
) -> None:
    assert shutil.which("tmux"), "packaging/system.sh test installs tmux"
    flags = (f"-DTHREADS={THREADS}", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread")
    binary = programs.build(tmp_path / _NAME, CONVOY, *flags)
    log = tmp_path / "output"
    # On a machine that other tests keep busy, the budget would leave out the convoy's stacks for some ticks.
    offtop_line = f"{command.OFFTOP} --exact-stacks"
    line = f"exec 3>{log}; stty -g >&3; {offtop_line} 3>&-; echo $? >&3; stty -g >&3; exec sleep 600"
    with programs.running([binary]) as convoy, tmux(width, height, line, tmp_path) as shown:
        shown.until(clock)
        offtop = [pid for pid in command.family(shown.shell) if pid != shown.shell]
        loaded = command.programs_of(shown.shell)
        assert loaded

        def is_on_top(screen: list[str]) -> bool:
            ticks.add(clock(screen))
            row = first_process(screen)
            return first_category(screen) == "lock" and _NAME in row and str(convoy.pid) in row

        ticks = {"", clock(shown.screen())}
        convoy.go()
        seen = shown.until(is_on_top)
        assert len(ticks) - 2 <= 2, "\n".join(seen)

        shown.press("Down")
        shown.until(lambda screen: in_crumb(screen, "All", "lock") and _NAME in first_process(screen))
        shown.press("Enter")
        listed = shown.until(lambda screen: first_process(screen).startswith(">"))
        assert _NAME in first_process(listed)
        shown.press("Enter")
        shown.until(lambda screen: in_crumb(screen, "All", "lock", _NAME))
        shown.press("Enter")
        shown.until(lambda screen: in_crumb(screen, "All", "lock", f"{_NAME}({convoy.pid})", _NAME))
        tree = shown.until(lambda screen: any("hold_the_lock" in line for line in screen))
        assert any("stack tree: lock" in line for line in tree)

        shown.press("Escape")
        shown.until(lambda screen: in_crumb(screen, "All", "lock", _NAME))
        shown.press("Escape")
        shown.until(lambda screen: in_crumb(screen, "All", "lock") and first_process(screen).startswith(">"))
        shown.press("Escape")
        shown.until(lambda screen: in_crumb(screen, "All", "lock") and first_process(screen).startswith(" "))

        assert shown.modes()[0] == "1"
        shown.press("q")
        shown.until(lambda _: log.read_text().count("\n") == 3)
        settings_before, status, settings_after = log.read_text().splitlines()
        assert status == "0"
        assert settings_after == settings_before
        assert shown.modes() == "0 0 1"
        assert not command.still_loaded(loaded)
        assert not [pid for pid in offtop if Path(f"/proc/{pid}").exists()]


def test_a_shell_stops_resumes_and_ends_it_and_restores_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "output"
    with tmux(100, 30, "PS1='$ ' exec bash --norc --noprofile -i", tmp_path) as shown:

        def begin(line: str = f"{command.OFFTOP} --unwind off") -> int:
            shown.press(f"clear; stty -g >>{log}; {line}", "Enter")
            shown.until(clock)
            return next(pid for pid in command.family(shown.shell) if pid != shown.shell)

        def end_by(*keys: str) -> None:
            shown.press(*keys)
            shown.until(lambda _: not Path(f"/proc/{offtop}").exists())
            shown.until(lambda _: not command.still_loaded(loaded))
            assert shown.modes() == "0 0 1"
            shown.press("", "Enter", f"stty -g >>{log}", "Enter")
            shown.until(lambda _: log.read_text().endswith("\n") and log.read_text().count("\n") % 2 == 0)

        offtop = begin()
        loaded = command.programs_of(shown.shell)
        os.kill(offtop, signal.SIGSTOP)  # the screen stays, and the shell writes into it
        shown.until(lambda screen: any("Stopped" in line for line in screen))
        shown.press("bg", "Enter")
        shown.until(lambda screen: any("offtop --unwind off &" in line for line in screen))
        programs.until(lambda: psutil.Process(offtop).status() == psutil.STATUS_STOPPED)
        shown.press("fg", "Enter")
        shown.until(lambda screen: clock(screen) and not any("Stopped" in line for line in screen))
        was = clock(shown.screen())
        shown.until(lambda screen: clock(screen) not in ("", was))  # keys in its first moments are dropped
        end_by("q")

        offtop = begin(f"sh -c '{command.OFFTOP} --unwind off; true'")  # which stops before offtop does
        loaded = command.programs_of(shown.shell)
        shown.press("C-z")
        shown.until(lambda screen: any("Stopped" in line for line in screen))
        assert shown.modes() == "0 0 1"
        shown.press("fg", "Enter")
        shown.until(lambda screen: clock(screen) and shown.modes()[0] == "1")
        end_by("q")

        offtop = begin()
        loaded = command.programs_of(shown.shell)
        shown.press("C-z")
        shown.until(lambda screen: any("Stopped" in line for line in screen))
        assert shown.modes() == "0 0 1"
        end_by("kill %1", "Enter")
        shown.until(lambda screen: any("Exit 143" in line for line in screen))
        assert len({*log.read_text().splitlines()}) == 1
