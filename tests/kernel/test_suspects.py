"""Suspects of a live source, on real children: through a kernel lock, a pipe and a child to what stands at the end."""

import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.feed.suspect_watch import SuspectWatch
from offtop.kernel.bpf import features, libbpf
from offtop.model.classify.categories import is_periodic
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Fixed
from offtop.model.classify.suspect import Suspect
from offtop.model.values.blockers import CHILD, FILE_LOCK, KERNEL_LOCK, PIPE
from offtop.model.values.catalog import ThreadKey
from offtop.model.windows.history import History
from tests.conftest import lacks
from tests.kernel import programs, watch
from tests.kernel.test_kernel_locks import HOLDS
from tests.kernel.watch import Watch
from tests.model.machine import RULES, WEIGHTS

pytestmark = pytest.mark.kernel

_SECONDS = 40.0


@contextmanager
def started(*command: str | Path) -> Generator[subprocess.Popen[bytes]]:
    """Run a session of processes; all of it is killed at the end of the block."""
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
        process.wait(10)


def suspect(live: Watch, program: str, end: str) -> Suspect:
    """Tick until one of the suspects has `program` in its chain and `end` at its end."""
    rules, causes = watch.rules(), CauseFinder(live.source.names, Fixed(RULES))
    finder = SuspectWatch(live.source, WEIGHTS, Fixed(RULES))
    history = History(rules.idle, is_periodic, idle_by_rule=causes.idle_by_rule, standing=finder.standing)
    deadline = time.monotonic() + _SECONDS
    seen: list[list[tuple[str, str]]] = []
    while time.monotonic() < deadline:
        live.tick(0.5)
        kept = history.add(live.last)
        found = finder.tick(history).suspects if kept else ()
        for one in found:
            if one.end.program == end and program in {hop.program for hop in one.hops}:
                return one
        seen.append([(hop.program, hop.state) for one in found for hop in one.hops])
    raise AssertionError(seen)


def test_writer_of_a_full_pipe_waits_for_the_reader_that_sleeps(live: Watch) -> None:
    with started("sh", "-c", "yes | sleep 600"):
        one = suspect(live, "yes", "sleep")
        assert [(hop.program, hop.state, hop.via) for hop in one.hops] == [
            ("yes", "pipe", PIPE),
            ("sleep", "sleep", ""),
        ]
        assert not one.is_likely


def test_parents_wait_behind_the_lock_that_their_child_waits_for(live: Watch, tmp_path: Path) -> None:
    lock = tmp_path / "job.lock"
    waits = f"import subprocess; subprocess.run(['flock', '{lock}', 'true'])"
    with started("flock", lock, "sleep", "600"), started("/usr/bin/python3", "-c", waits):
        one = suspect(live, "python3", "sleep")
        chain = [(hop.program, hop.via, hop.what) for hop in one.hops]
        assert chain[:2] == [("python3", CHILD, ""), ("flock", FILE_LOCK, "job.lock")]
        assert one.end.program == "sleep"


def test_two_waiters_for_a_kernel_lock_wait_behind_its_holder(live: Watch, tmp_path: Path) -> None:
    if not features.detect(libbpf.KernelTypes()).locks:
        lacks("task_struct.blocker")
    binary = programs.build(tmp_path / "keeper", HOLDS, "-pthread", "-w")
    with programs.running([binary, "inode", tmp_path / "file"]) as child:
        child.go()
        one = suspect(live, "keeper", "keeper")
        waiters, holder = one.hops
        assert (waiters.threads, waiters.state, waiters.via, waiters.is_exact) == (2, "kernel-lock", KERNEL_LOCK, True)
        assert holder.key == ThreadKey(child.pid, child.at["holder"])
        child.go()
