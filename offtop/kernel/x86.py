"""Where a function of x86-64 is left: its returns, and its jumps to elsewhere.

The length of each instruction is all that is read of most of them (Intel's manual, volume 2, appendix A). The code is a
stranger's: what cannot be read is an error, never a guess, for a probe in the midst of an instruction breaks a program.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_INVALID = frozenset(
    [*b"\x06\x07\x0e\x16\x17\x1e\x1f\x27\x2f\x37\x3f\x60\x61\x82\x9a\xce\xd4\xd5\xd6\xea", *range(0x40, 0x50)]
)
_MODRM = frozenset(
    [op for op in range(0x40) if op & 7 < 4]
    + [0x63, 0x69, 0x6B, *range(0x80, 0x90), 0xC0, 0xC1, 0xC6, 0xC7, *range(0xD0, 0xD4), *range(0xD8, 0xE0)]
    + [0xF6, 0xF7, 0xFE, 0xFF]
)
_BYTES = frozenset(
    [op for op in range(0x40) if op & 7 == 4]
    + [0x6A, 0x6B, *range(0x70, 0x81), 0x83, 0xA8, *range(0xB0, 0xB8), 0xC0, 0xC1, 0xC6, 0xCD]
    + [*range(0xE0, 0xE8), 0xEB]
)
_LONGS = frozenset([op for op in range(0x40) if op & 7 == 5] + [0x68, 0x69, 0x81, 0xA9, 0xC7])
_NO_MODRM_0F = frozenset(
    [
        *b"\x05\x06\x07\x08\x09\x0b\x77\xa0\xa1\xa2\xa8\xa9\xaa",
        *(*range(0x30, 0x38), *range(0x80, 0x90), *range(0xC8, 0xD0)),
    ]
)
_BYTES_0F = frozenset([0x0F, *range(0x70, 0x74), 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6])
_RETURNS = frozenset(b"\xc2\xc3")
_ADDS = frozenset(b"\x01\x03")
_JUMP_NEAR, _JUMP_SHORT, _GROUP_5 = 0xE9, 0xEB, 0xFF
MACHINE = 62
"""EM_X86_64, in the head of ELF files."""
_INDIRECT = 4
"""Of group 5: JMP to where a register or a word of memory says."""


class Jump(NamedTuple):
    """To elsewhere than the function."""

    at: int
    to: int | None
    """None: where a register or a word of memory says."""
    always: bool


class Exits(NamedTuple):
    """Addresses at which a function is left."""

    returns: tuple[int, ...]
    jumps: tuple[Jump, ...]
    begins_anew: bool = False
    """Whether it jumps to where it begins."""


class _Instruction(NamedTuple):
    at: int
    code: bytes
    opcode: int
    """0x0F00 and what follows, for those of two bytes; -1: of a longer map."""
    prefixes: bytes
    modrm: int


def exits(code: bytes, address: int) -> Exits:
    """Of a function whose code it is, and which is at `address`. Raises ValueError for what is no code of x86-64."""
    end = address + len(code)
    returns: list[int] = []
    jumps: list[Jump] = []
    before: _Instruction | None = None
    begins: set[int] = set()
    targets: set[int] = set()
    for one in _instructions(code, address):
        after = one.at + len(one.code)
        begins.add(one.at)
        if one.opcode in _RETURNS:
            returns.append(one.at)
        elif (offset := _jump(one)) is not None:
            if address <= after + offset < end:
                targets.add(after + offset)
            else:
                jumps.append(Jump(one.at, after + offset, one.opcode in (_JUMP_NEAR, _JUMP_SHORT)))
        elif one.opcode == _GROUP_5 and one.modrm >> 3 & 7 == _INDIRECT and not _is_switch(one, before):
            jumps.append(Jump(one.at, None, True))
        before = one
    if not targets <= begins:
        raise ValueError("there is something else among the instructions")
    return Exits(tuple(returns), tuple(jumps), address in targets)


def _jump(one: _Instruction) -> int | None:
    """How far a direct jump goes from its end; None for anything else."""
    if 0x70 <= one.opcode < 0x80 or 0xE0 <= one.opcode < 0xE4 or one.opcode == _JUMP_SHORT:
        return struct.unpack("<b", one.code[-1:])[0]
    if 0x0F80 <= one.opcode < 0x0F90 or one.opcode == _JUMP_NEAR:
        return struct.unpack("<i", one.code[-4:])[0]
    return None


def _is_switch(one: _Instruction, before: _Instruction | None) -> bool:
    """Whether a jump goes by a table of this function's own: through a word of an array, by what was just added to
    its address, or marked by compilers that mark what it may lead to (-fcf-protection)."""
    is_array = one.modrm & 0xC7 == 4 and len(one.code) >= 7 and one.code[-5] & 0xC7 == 0xC5
    is_sum = one.modrm >> 6 == 3 and before is not None and before.opcode in _ADDS
    return is_array or is_sum or b"\x3e" in one.prefixes


def _instructions(code: bytes, address: int) -> Iterator[_Instruction]:
    at = 0
    try:
        while at < len(code):
            size, opcode, prefixes, modrm = _read(code, at)
            if at + size > len(code):
                raise IndexError
            yield _Instruction(address + at, code[at : at + size], opcode, prefixes, modrm)
            at += size
    except IndexError:
        raise ValueError("an instruction is cut off") from None


def _read(code: bytes, begin: int) -> tuple[int, int, bytes, int]:
    """Size, opcode, prefixes and ModRM byte of the instruction there. Raises ValueError, IndexError."""
    at = begin
    while code[at] in _PREFIXES:
        at += 1
    prefixes = code[begin:at]
    rex = code[at] if code[at] >> 4 == 4 else 0
    at += bool(rex)
    op = code[at]
    at += 1
    if op in (0xC4, 0xC5, 0x62):
        return _read_vector(code, begin, at, op, prefixes)
    short = 2 if b"\x66" in prefixes and not rex & 8 else 4
    if op == 0x0F:
        op = code[at]
        at += 1
        if op in (0x38, 0x3A):
            size, modrm = _operand(code, at + 1)
            return at + 1 + size + (op == 0x3A) - begin, -1, prefixes, modrm
        size, modrm = (0, 0) if op in _NO_MODRM_0F else _operand(code, at)
        more = 4 if 0x80 <= op < 0x90 else int(op in _BYTES_0F)
        return at + size + more - begin, 0x0F00 | op, prefixes, modrm
    if op in _INVALID:
        raise ValueError(f"no instruction of x86-64 begins with {op:#x}")
    size, modrm = _operand(code, at) if op in _MODRM else (0, 0)
    if op == 0x8F and modrm >> 3 & 7:
        raise ValueError("an instruction of AMD's XOP")
    return at + size + _immediate(op, modrm, rex, short, prefixes) - begin, op, prefixes, modrm


def _immediate(op: int, modrm: int, rex: int, short: int, prefixes: bytes) -> int:
    if op in (0xF6, 0xF7):
        return 0 if modrm >> 3 & 7 > 1 else 1 if op == 0xF6 else short
    if 0xB8 <= op < 0xC0:
        return 8 if rex & 8 else short
    if 0xA0 <= op < 0xA4:
        return 4 if b"\x67" in prefixes else 8
    if op in (0xE8, 0xE9):
        return 4
    if op in (0xC2, 0xCA):
        return 2
    if op == 0xC8:
        return 3
    return short if op in _LONGS else int(op in _BYTES)


def _read_vector(code: bytes, begin: int, at: int, op: int, prefixes: bytes) -> tuple[int, int, bytes, int]:
    """Of AVX (VEX) and AVX-512 (EVEX)."""
    if op == 0xC5:
        table, at = 1, at + 1
    else:
        table, at = code[at] & (0x1F if op == 0xC4 else 7), at + (2 if op == 0xC4 else 3)
    if not 1 <= table <= 6:
        raise ValueError("an instruction of no known map")
    inner = code[at]
    if op != 0x62 and table == 1 and inner == 0x77:  # vzeroupper
        return at + 1 - begin, -1, prefixes, 0
    size, modrm = _operand(code, at + 1)
    more = table == 3 or (table == 1 and inner in _BYTES_0F)
    return at + 1 + size + more - begin, -1, prefixes, modrm


def _operand(code: bytes, at: int) -> tuple[int, int]:
    """Bytes of ModRM, SIB and displacement; ModRM itself."""
    modrm = code[at]
    mode, register = modrm >> 6, modrm & 7
    if mode == 3:
        return 1, modrm
    size, base = (2, code[at + 1] & 7) if register == 4 else (1, register)
    if mode == 0:
        return size + (4 if base == 5 else 0), modrm
    return size + (1 if mode == 1 else 4), modrm
