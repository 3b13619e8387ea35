"""Which blockers ticks name for a thread, and children that block one."""

import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from offtop.model.values.blockers import Blocker
from offtop.model.values.catalog import ThreadKey
from tests.kernel.watch import Watch

SECONDS = 30.0
"""How long a busy machine may take."""


def found(live: Watch, key: ThreadKey, is_it: Callable[[tuple[Blocker, ...]], bool] = bool) -> tuple[Blocker, ...]:
    """Tick until the blockers of a thread are what a test waits for, and return them."""
    deadline = time.monotonic() + SECONDS
    while not is_it(blockers := live.last.blockers.get(key, ())):
        assert time.monotonic() < deadline, f"{blockers}"
        live.tick(0.2)
    return blockers


def check_owner(live: Watch, waiter: ThreadKey, owner: Blocker) -> None:
    """Tick until the owner of a mutex is named as it is given here, and check that nobody else is before.

    On a busy machine, a lookup may come too late for its tick: until the next one, the owner is only likely.
    """

    def is_it(blockers: tuple[Blocker, ...]) -> bool:
        assert not blockers or [one._replace(is_exact=owner.is_exact) for one in blockers] == [owner]
        return blockers == (owner,)

    found(live, waiter, is_it)


def never_found(live: Watch, *keys: ThreadKey, seconds: float = 3.0) -> None:
    """Check that for a while nobody is accused of holding up these threads."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        live.tick(0.2)
        for key in keys:
            assert key in live.last.waiting
            assert key not in live.last.blockers


@contextmanager
def child(*command: str | Path) -> Generator[subprocess.Popen[str]]:
    """Run a child; kill it at the end."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        if process.stdout:
            process.stdout.close()
