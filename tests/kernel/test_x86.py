"""Where functions of x86-64 are left."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from offtop.kernel import elf, x86

_FUNCTION = 2
_ADDRESS = 0x1000


@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="no objdump of x86-64 here")
def test_the_ways_out_of_libc_are_those_that_objdump_reads() -> None:
    libc = next(line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line)
    command = ["objdump", "-d", "--no-show-raw-insn", "-w", libc]
    said = subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout
    lines = [line.split(":\t") for line in said.splitlines() if line.startswith(" ")]
    returns = {int(at, 16) for at, *told in lines if {"ret", "retq"} & {*told[-1].split()}}
    fd = os.open(libc, os.O_RDONLY)
    try:
        every = {one.address: one for one in elf.named(fd) if one.kind == _FUNCTION and one.is_here and one.size_bytes}
        assert len(every) > 1000
        for one in every.values():
            found = x86.exits(elf.at(fd, one.address, one.size_bytes), one.address).returns
            assert {*found} == returns.intersection(range(one.address, one.address + one.size_bytes)), one.name
    finally:
        os.close(fd)


def test_jumps_to_elsewhere_are_told_from_switches() -> None:
    nothing = x86.exits(b"", _ADDRESS)
    assert nothing == ((), (), False)
    code = {
        b"\xc3": ((_ADDRESS,), ()),
        b"\xf3\xc3": ((_ADDRESS,), ()),
        b"\xeb\x00\xc3": ((_ADDRESS + 2,), ()),
        b"\xe9\x00\x01\x00\x00": ((), ((_ADDRESS, _ADDRESS + 0x105, True),)),
        b"\x74\x7f\xc3": ((_ADDRESS + 2,), ((_ADDRESS, _ADDRESS + 0x81, False),)),
        b"\xff\xe0": ((), ((_ADDRESS, None, True),)),
        b"\xff\x25\x00\x00\x00\x00": ((), ((_ADDRESS, None, True),)),
        b"\x3e\xff\xe0": ((), ()),
        b"\x48\x01\xd0\xff\xe0": ((), ()),
        b"\xff\x24\xc5\x00\x00\x00\x00": ((), ()),
    }
    assert {one: x86.exits(one, _ADDRESS)[:2] for one in code} == code


def test_a_jump_to_the_first_instruction_is_told() -> None:
    assert x86.exits(b"\x90\x75\xfd\xc3", _ADDRESS) == ((_ADDRESS + 3,), (), True)
    assert not x86.exits(b"\x90\x90\x75\xfd\xc3", _ADDRESS).begins_anew


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (b"\x06", "begins with 0x6"),
        (b"\xe8\x00", "cut off"),
        (b"\x48\x48\x90", "begins with 0x48"),
        (b"\xeb\x01\xb8\xc3\x00\x00\x00\xc3", "something else"),
    ],
)
def test_what_cannot_be_read_is_an_error(code: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        x86.exits(code, _ADDRESS)
