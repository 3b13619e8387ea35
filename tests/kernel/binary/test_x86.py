"""Test finding the exits of x86-64 functions."""

import platform
import shutil
from itertools import islice
from pathlib import Path

import pytest

from offtop.kernel.binary import x86
from tests.kernel import objdump

_ADDRESS = 0x1000


@pytest.mark.variant
@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="no objdump of x86-64 here")
def test_exits_and_returns_match_objdump() -> None:
    """Check every ninth function of libc.

    `make exits` compares all of them, and those of other programs.
    """
    libc = next(line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line)
    compared = objdump.compare(Path(libc), islice(objdump.functions(Path(libc)).items(), 0, None, 9))
    assert not compared.mismatches
    assert compared.functions > 200
    assert compared.exits > compared.functions
    assert compared.refused <= compared.functions // 100


@pytest.mark.parametrize(
    "code",
    [
        "660f78c0c301 c3",  # extrq of SSE4a, whose two immediates look like a return
        "f20f78c801c3 c3",  # insertq
        "0f0fc30d c3",  # pi2fd of 3DNow!, whose opcode comes last
        "8fe8788ec1c3 c3",  # vpmacssdd of XOP
        "8fea7810c0c3000000 c3",  # bextr of XOP
        "66f7c0c3c3 c3",  # an immediate of two bytes
        "66666648e8c3c3c3c3 c3",  # a call to __tls_get_addr
        "f30f1efa c3",  # endbr64
        "c5fb70c0c3 c3",  # vpshuflw
        "62f17c48c2c0c3 c3",  # vcmpps of AVX-512
    ],
)
def test_an_immediate_is_no_return(code: str) -> None:
    whole = bytes.fromhex(code)
    assert x86.exits(whole, _ADDRESS)[:2] == ((_ADDRESS + len(whole) - 1,), ())


def test_a_table_jump_is_not_a_tail_jump() -> None:
    assert x86.exits(b"", _ADDRESS) == x86.Exits((), ())
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
        b"\x48\x01\xc4\xff\xe0": ((), ((_ADDRESS + 3, None, True),)),  # it adds to the stack pointer
        b"\x41\xff\x24\xc6": ((), ((_ADDRESS, None, True),)),
    }
    assert {one: x86.exits(one, _ADDRESS)[:2] for one in code} == code


def test_a_jump_to_the_first_instruction_is_reported_and_a_call_is_not() -> None:
    assert x86.exits(b"\x90\x75\xfd\xc3", _ADDRESS)[:3] == ((_ADDRESS + 3,), (), True)
    assert not x86.exits(b"\x90\x90\x75\xfd\xc3", _ADDRESS).jumps_to_start
    assert not x86.exits(b"\x90\xe8\xfa\xff\xff\xff\xc3", _ADDRESS).jumps_to_start


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("06 c3", "06c3 is not decoded"),
        ("90 e800", "e800 is not decoded"),  # it ends beyond the function
        ("62f47c0811c0 c3", "is not decoded"),  # EVEX map 4 of APX
        ("62f4fc1883c0c3 c3", "is not decoded"),  # the same with an immediate
        ("d5104890 c3", "is not decoded"),  # REX2 of APX
        ("62f57c4858c0 c3", "is not decoded"),  # vaddph of AVX512-FP16
        ("66e900000000 c3", "66e900000000 may be decoded wrongly"),  # AMD processors read four bytes of it
        ("660f8000000000 c3", "660f800000 may be decoded wrongly"),  # capstone reads five
        ("664ac2c39906 00 c3", "may be decoded wrongly"),  # a return of five bytes, of which capstone reads seven
        ("0fb9c3 c3", "may be decoded wrongly"),  # ud1, of which capstone leaves out ModRM
        ("0fffc3 c3", "may be decoded wrongly"),  # ud0
        ("668fea7812c0c3000000 c3", "may be decoded wrongly"),  # lwpins, of which capstone reads eight bytes
        ("eb01 b8c3000000 c3", "middle of an instruction"),
        ("e801000000 b8c3000000 c3", "middle of an instruction"),
    ],
)
def test_a_function_that_may_be_misread_is_refused(code: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        x86.exits(bytes.fromhex(code), _ADDRESS)


def test_a_long_function_is_decoded_to_its_end() -> None:
    code = b"\x66\x90\x90" * 5_000 + b"\xc3"
    found = x86.exits(code, _ADDRESS)
    assert (found.returns, len(found.starts)) == ((_ADDRESS + 15_000,), 10_001)
