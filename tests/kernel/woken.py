"""Who woke the threads of a child, as ticks count it."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from offtop.model.values.snapshot import Filters, SiteTotals
from offtop.model.values.wake import DEFAULT_DEPTH, WAKEUP, Wake
from offtop.model.windows.window import Window
from tests.kernel import wakings, watch
from tests.kernel.programs import Program
from tests.kernel.watch import MS, Watch

TIMES = 23


def of(child: Program, min_ns: int = MS) -> Filters:
    return Filters(min_ns=min_ns, pids=(child.pid,))


@contextmanager
def watched() -> Generator[Watch]:
    """Watch one process in wakeup mode, with the unwind rules of the program that all tests here run.

    If it watched all processes, theirs could use up the number of stacks that are copied a second.
    """
    with wakings.running("futex", 10_000, 5) as child, watch.watching(of(child), mode=WAKEUP) as live:
        child.go_on_alone()
        live.load_unwind_rules(child.at["sleeper"], "syscall", "wait_futex", "sleeper")
        yield live


def asked(live: Watch, child: Program, mode: str, depth: int = DEFAULT_DEPTH, min_ns: int = MS) -> Watch:
    """Select only the child from here on, in that mode."""
    live.source.set_filters(of(child, min_ns))
    live.source.set_mode(mode, depth)
    live.tick()
    return live


def wakes_of(window: Window, tid: int) -> dict[Wake, SiteTotals]:
    """Return the wakes of a thread's ended waits in `window`, but for waits for a CPU only."""
    found: dict[Wake, SiteTotals] = {}
    for key, totals in watch.sites_of(window, tid).items():
        wake = window.catalog.wake(key.wake)
        if totals.waits and wake.has_waker:
            found[wake] = found.get(wake, SiteTotals()).plus(totals)
    return found


def waits(found: Iterable[SiteTotals]) -> int:
    return sum(totals.waits for totals in found)


def kernel(window: Window, stack: int) -> list[str]:
    """Return the names of all frames, leaf first."""
    return [frame.name for frame in window.catalog.stack(stack).frames]


def user(live: Watch, window: Window, stack: int) -> list[str]:
    frames = window.catalog.stack(stack).frames
    live.source.wait_for_names({*frames}, 30)
    return [live.source.names.of(frame) for frame in frames]


def holds(names: Sequence[str], *wanted: str) -> bool:
    """Return whether all of `wanted` are there, in that order."""
    rest = iter(names)
    return all(name in rest for name in wanted)


def has(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether functions with these in their names are there, in that order."""
    rest = iter(names)
    return all(any(part in name for name in rest) for part in parts)
