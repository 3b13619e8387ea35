"""Test system call names of this machine and others.

Those of this one are checked against its headers and processes.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from offtop.kernel.accounting.scanned_waits import calls_in
from offtop.kernel.bpf.scan_rows import REGISTERS_ROW
from offtop.kernel.procfs.syscalls import name_of
from offtop.model.values.calls import call_text
from offtop.model.values.catalog import CALL_32_BIT, Catalog

REMOVED = {
    "_sysctl",
    "afs_syscall",
    "create_module",
    "get_kernel_syms",
    "getpmsg",
    "nfsservctl",
    "putpmsg",
    "query_module",
    "security",
    "tuxcall",
    "uselib",
    "vserver",
}
"""Calls that headers still number, but no kernel in use has."""


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {"read": 0, "poll": 7, "futex": 202, "epoll_wait": 232, "io_uring_enter": 426, "futex_waitv": 449}),
        ("aarch64", {"read": 63, "ppoll": 73, "futex": 98, "epoll_pwait": 22, "io_uring_enter": 426}),
        ("i386", {"read": 3, "futex": 240, "futex_time64": 422}),
        ("i686", {"read": 3}),
        ("armv7l", {"read": 3, "futex": 240}),
        ("riscv64", {"read": 63, "futex": 98}),
        ("ppc64le", {"read": 3, "futex": 221}),
        ("s390x", {"read": 3, "futex": 238}),
    ],
)
def test_each_machine_has_its_own_numbers(machine: str, numbers: dict[str, int]) -> None:
    assert {name_of(number, machine): number for number in numbers.values()} == numbers


def test_minus_1_is_no_call_in_any_width() -> None:
    assert [name_of(number) for number in (-1, (1 << 32) - 1, (1 << 64) - 1)] == ["", "", ""]


def test_an_unknown_call_keeps_its_number() -> None:
    assert [name_of(999), name_of(0, "pdp11"), name_of((1 << 64) - 2)] == ["", "", ""]
    catalog = Catalog(calls={202: "futex", CALL_32_BIT | 240: "futex"})
    names = [catalog.call(number) for number in (202, 999, CALL_32_BIT | 240, CALL_32_BIT | 999)]
    assert names == ["futex", "syscall 999", "futex", "syscall 999"]


def test_only_calls_with_a_name_are_kept() -> None:
    catalog, native, low = Catalog(), 1 << 46, 1 << 30
    numbers = [*range(3_000), (1 << 29) - 1]
    registers = np.zeros(len(numbers), REGISTERS_ROW)
    registers["call"], registers["ip"] = numbers, 1 << 20
    for sp, flag in ((native, 0), (low, CALL_32_BIT)):
        registers["sp"] = sp
        calls, has_arguments = calls_in(registers, catalog)
        assert calls.tolist() == [number | flag for number in numbers]
        assert has_arguments.all() == (flag == 0)
    assert 600 < len(catalog.calls) < 1_200
    assert not any(name.startswith("syscall ") for name in catalog.calls.values())
    assert catalog.call(2_999) == catalog.call(CALL_32_BIT | 2_999) == "syscall 2999"


def test_names_match_this_machines_header() -> None:
    compiled = subprocess.run(
        ["gcc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", os.devnull], capture_output=True, text=True
    )
    numbers = re.findall(r"^#define __NR_(\w+) (\d+)$", compiled.stdout, re.MULTILINE)
    if not numbers:
        pytest.skip("no gcc or no headers: sudo apt install gcc libc6-dev")
    assert len(numbers) > 250
    wrong = {name: name_of(int(number)) for name, number in numbers if name_of(int(number)) != name}
    assert set(wrong) <= REMOVED


def test_a_child_in_read_shows_read() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import os; os.read(0, 1)"], stdin=subprocess.PIPE)
    try:
        while (text := Path(f"/proc/{child.pid}/syscall").read_text()) == "running\n" or in_words(text) != "read(0)":
            assert child.poll() is None
    finally:
        child.kill()
        child.wait(10)
        assert child.stdin
        child.stdin.close()


def in_words(text: str) -> str:
    """Return the call in /proc/PID/syscall of a thread that is off CPU."""
    number, *args = (int(word, 0) for word in text.split())
    return call_text(name_of(number), args[:6])
