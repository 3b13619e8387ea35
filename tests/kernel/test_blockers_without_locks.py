"""Test what must act to end a wait for no lock: a child, a server, a debugger, a control group or a disk."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offtop.kernel.procfs.cgroups import mounted
from offtop.kernel.resolve.blockers import BlockersWorker
from offtop.model.values.blockers import (
    CHILD,
    CPU_QUOTA,
    DISK,
    ELSEWHERE,
    FILE_SYSTEM,
    FROZEN_BY,
    MEMORY_LIMIT,
    STOPPED_BY,
    Blocker,
    limit_text,
    quota_of,
)
from offtop.model.values.catalog import Catalog, ThreadKey
from tests.conftest import lacks
from tests.kernel import programs, waits
from tests.kernel.blockers import SECONDS, child, found
from tests.kernel.hangs import fuse
from tests.kernel.procfs.test_cgroups import remove
from tests.kernel.watch import Watch

pytestmark = pytest.mark.kernel

PARENT = "import os; sleep = lambda: os.spawnvp(os.P_NOWAIT, 'sleep', ['sleep', '1000'])"
TITLED = r"""
#include <string.h>
int main(int count, char **words)
{
	memset(words[0], 0, words[count - 1] + strlen(words[count - 1]) - words[0]);
	strcpy(words[0], "titled: idle");
	next();
}
"""


def test_blocker_that_filters_leave_out_has_its_newest_name_as_long_as_it_is_one() -> None:
    catalog, named = Catalog(), set[int]()
    worker: Any = SimpleNamespace(_catalog=catalog, _named=named)
    name = partial(BlockersWorker._name, worker)  # pyright: ignore[reportPrivateUsage]
    with child("sh", "-c", "echo ready; sleep 1; exec sleep 60") as one:
        assert one.stdout and one.stdout.readline()
        name({one.pid})
        assert catalog.processes == {one.pid: "sh"}
        programs.until(lambda: Path(f"/proc/{one.pid}/comm").read_bytes() == b"sleep\n")
        name({one.pid})
        assert catalog.processes == {one.pid: "sleep"}
        name(set())
        assert catalog.processes == {}
        name({one.pid})
        catalog.comms[ThreadKey(one.pid, one.pid + 1)] = "worker"
        name(set())
        assert catalog.processes == {one.pid: "sleep"}, "it is measured by now"


def test_awaited_child_or_each_of_several_is_named(live: Watch) -> None:
    with ExitStack() as stack:
        made: list[tuple[int, list[int]]] = []
        for children, call in (
            ("child := sleep()", "os.waitpid(child, 0)"),
            ("child := sleep()", "os.waitid(os.P_PID, child, os.WEXITED)"),
            ("sleep()", "os.wait()"),
            ("sleep(), sleep()", "os.wait()"),
        ):
            program = f"{PARENT}; print({children}, flush=True); {call}"
            parent = stack.enter_context(child(sys.executable, "-c", program))
            assert parent.stdout
            pids = [int(word) for word in parent.stdout.readline().split()]
            for pid in pids:
                stack.callback(os.kill, pid, 9)
            made.append((parent.pid, pids))
        for parent_pid, pids in made:
            blockers = found(live, ThreadKey(parent_pid, parent_pid))

            assert {*blockers} == {Blocker(pid, 0, CHILD, len(pids) == 1) for pid in pids}


def test_title_of_a_process_that_waits_is_read(live: Watch, tmp_path: Path) -> None:
    with programs.running([programs.build(tmp_path / "titled", TITLED), "room for a title"]) as program:
        deadline = time.monotonic() + SECONDS
        while live.last.titles.get(program.pid) != "titled: idle":
            assert time.monotonic() < deadline
            live.tick(0.2)


ASKS_BY_DESCRIPTOR = (
    "import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); print(flush=True); input(); os.fstatvfs(fd)"
)


def test_server_of_a_fuse_file_system_is_named(live: Watch, tmp_path: Path) -> None:
    with fuse(tmp_path, Path("/bin/true")) as mounted:
        by_descriptor = [sys.executable, "-c", ASKS_BY_DESCRIPTOR, str(mounted.mounted)]
        reader = subprocess.Popen(
            by_descriptor, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert reader.stdin
        assert reader.stdout
        reader.stdout.readline()
        mounted.stop_answering()
        reader.stdin.write(b"\n")
        reader.stdin.flush()
        by_path = subprocess.Popen(["cat", str(mounted.program)], stderr=subprocess.DEVNULL)
        blockers = [found(live, ThreadKey(one.pid, one.pid)) for one in (reader, by_path)]
    for one in (reader, by_path):
        one.communicate()

    assert blockers == [(Blocker(mounted.pid, 0, FILE_SYSTEM, is_exact),) for is_exact in (True, False)]


def test_debugger_that_has_stopped_a_thread_is_named(live: Watch) -> None:
    attach, detach = 16, 17  # PTRACE_ATTACH, PTRACE_DETACH
    libc = ctypes.CDLL(None, use_errno=True)
    with child("sleep", "1000") as stopped:
        time.sleep(0.2)
        assert libc.ptrace(attach, stopped.pid, 0, 0) == 0
        os.waitpid(stopped.pid, os.WUNTRACED)
        try:
            blockers = found(live, ThreadKey(stopped.pid, stopped.pid))
        finally:
            libc.ptrace(detach, stopped.pid, 0, 0)

    assert blockers == (Blocker(os.getpid(), threading.get_native_id(), STOPPED_BY, True),)


def test_cpu_quota_is_named_by_its_size_and_cgroup(live: Watch) -> None:
    with waits.running("throttle", times=100, each_ms=90) as child:
        child.go()
        (one,) = found(live, ThreadKey(child.pid, 0))
    assert one[:3] == (child.pid, 0, CPU_QUOTA)
    cpus, cgroup = quota_of(one.what)
    assert (cpus, cgroup.rpartition("/")[2]) == (0.1, f"waits-{child.pid}")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_frozen_cgroup_is_named_by_the_file_that_keeps_it_frozen(live: Watch, version: str) -> None:
    is_v2 = version == "v2"
    top = next((one.point for one in mounted() if one.is_v2 is is_v2 and (is_v2 or "freezer" in one.controllers)), None)
    if top is None:
        lacks(f"a freezer of control groups of version {version[1]}, mounted")
    group = Path(top, f"offtop-{os.getpid()}-frozen")
    file, frozen, thawed = ("cgroup.freeze", "1", "0") if is_v2 else ("freezer.state", "FROZEN", "THAWED")
    with ExitStack() as stack:
        (group / "inner").mkdir(parents=True)
        stack.callback(remove, group)
        stack.callback(remove, group / "inner")
        one = stack.enter_context(child("sleep", "1000"))
        (group / "inner/cgroup.procs").write_text(str(one.pid))
        (group / file).write_text(frozen)
        stack.callback((group / file).write_text, thawed)
        blockers = found(live, ThreadKey(one.pid, one.pid))
        assert blockers == (Blocker(ELSEWHERE, 0, FROZEN_BY, True, str(group / file)),)


HOGS = """
import os, sys
with open(f"{sys.argv[1]}/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
hog = bytearray(b"x") * (64 << 20)
"""


def test_memory_limit_is_named_by_its_file_and_size(live: Watch) -> None:
    """Without an OOM killer, a thread waits until somebody raises the limit."""
    top = next((one.point for one in mounted() if "memory" in one.controllers), None)
    if top is None:
        lacks("a memory controller of control groups of version 1, mounted")
    group = Path(top, f"offtop-{os.getpid()}-full")
    with ExitStack() as stack:
        group.mkdir()
        stack.callback(remove, group)
        (group / "memory.limit_in_bytes").write_text(str(20 << 20))
        (group / "memory.oom_control").write_text("1")
        hog = stack.enter_context(child(sys.executable, "-c", HOGS, group))
        blockers = found(live, ThreadKey(hog.pid, hog.pid))
        limit = limit_text(20 << 20, str(group / "memory.limit_in_bytes"))
        assert blockers == (Blocker(ELSEWHERE, 0, MEMORY_LIMIT, True, limit),)


@pytest.mark.parametrize("kind", ["read-direct", "fsync"])
def test_wait_for_a_disk_names_the_disk_of_the_file(live: Watch, kind: str) -> None:
    with waits.running(kind, times=40, each_ms=500) as child:
        disk = Path("/sys/dev/block", waits.disk_of(Path("/var/tmp"))).resolve().name
        child.go()
        blockers = found(live, ThreadKey(child.pid, child.tid))
        assert blockers == (Blocker(ELSEWHERE, 0, DISK, True, disk),)
