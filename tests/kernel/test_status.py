"""Test process names that look like other lines of /proc/PID/status."""

import os
import pwd
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.kernel.binary.perf_map import PerfMap
from offtop.kernel.procfs.process_details import read_details
from offtop.kernel.procfs.processes import reading
from offtop.kernel.procfs.threads import fields_of, status_of
from tests.kernel.reads import READS

_CALL_ONESELF = """
import os, sys
name = bytes.fromhex(sys.argv[1])
with open("/proc/self/comm", "wb") as comm:
    comm.write(name)
os.setuid(65534)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def process_of_nobody(name: bytes) -> Generator[int]:
    """Run a process of nobody with that name, and yield its PID."""
    command = [sys.executable, "-c", _CALL_ONESELF, name.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin and child.stdout
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.stdin.close()
            child.wait(10)


def test_only_a_newline_ends_a_line() -> None:
    assert fields_of(b"Name:\tx\rUid:\t0\x0bUid:\t0\x85\x1c\nUid:\t7\t8\t9\t10\nNSpid:\t5\t1\n") == {
        "Name": "x\rUid:\t0\x0bUid:\t0\udc85\x1c",
        "Uid": "7\t8\t9\t10",
        "NSpid": "5\t1",
        "": "",
    }


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become nobody")
@pytest.mark.parametrize(
    "name",
    [b"x\rUid:\t0 0 0 0", b"x\rUid: 0 0 0", b"x\rUid:", b"x\rUid: z", b"x\rNSpid:\t1 a", b"x\x0bUid:\t0 0 0"],
)
def test_a_name_is_never_parsed_as_a_line(name: bytes) -> None:
    nobody = 65534
    with process_of_nobody(name) as pid:
        assert status_of(pid)["Uid"].split() == [str(nobody)] * 4
        found = reading(READS, pid)
        assert found is not None and found.details.uid == nobody
        assert dict(read_details(pid, READS))["user"] == f"{pwd.getpwuid(nobody).pw_name}, uid {nobody}"
        assert name_in_map(pid, nobody) == "mine"


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become nobody")
def test_a_name_does_not_make_another_user_the_owner_of_perf_maps() -> None:
    with process_of_nobody(b"x\rUid:\t54321") as pid:
        assert name_in_map(pid, 54321) == ""


def name_in_map(pid: int, uid: int) -> str:
    """Return a function's name from a perf map owned by `uid`."""
    path = Path(f"/tmp/perf-{pid}.map")
    path.write_text("1000 10 mine\n")
    try:
        os.chown(path, uid, uid)
        found = PerfMap(pid)
        found.read(READS)
        return found.lookup(0x1008)
    finally:
        path.unlink()
