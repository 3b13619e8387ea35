"""Finds the exits of an x86-64 function: its returns, and its jumps to other code.

The code is decoded with capstone. It is from an untrusted binary, and a probe in the middle of an instruction corrupts
the process that runs it. So a function is refused if any part of it cannot be decoded, or may be decoded wrongly:

- capstone 5 stops at APX (EVEX map 4, REX2), AVX512-FP16 and anything else that it does not know.
- It returns a wrong length for the instructions in `_WRONG_LENGTH`, and for some branches and returns with an
  operand-size prefix (its issues 776, 3037 and 3038). AMD's and Intel's processors disagree about such branches, too.
- A jump or call within the function must lead to the first byte of an instruction, and the last instruction must end
  where the function does. This detects data among the instructions, because the code after it is reached by a jump.

Data that decodes as instructions is not detected if only a jump table leads to the code after it. `make exits`
compares the lengths of all encodings, and all functions of some large programs, with objdump.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple, Protocol, cast

from capstone import CS_ARCH_X86, CS_MODE_64, Cs, x86_const  # pyright: ignore[reportMissingTypeStubs]

_ADD, _CALL, _JUMP, _RETURN = (
    x86_const.X86_INS_ADD,
    x86_const.X86_INS_CALL,
    x86_const.X86_INS_JMP,
    x86_const.X86_INS_RET,
)
_BRANCH = x86_const.X86_GRP_BRANCH_RELATIVE
"""Jumps, calls, loops and XBEGIN with a relative target."""
_WRONG_LENGTH = frozenset(
    {x86_const.X86_INS_UD0, x86_const.X86_INS_UD1, x86_const.X86_INS_LWPINS, x86_const.X86_INS_LWPVAL}
)
_NO_TRACK, _OPERAND_SIZE = 0x3E, 0x66
_WIDE = 8
"""REX.W, which overrides the operand-size prefix: compilers pad calls to __tls_get_addr with both."""
_SCALE_OF_TABLE = 8
_LONGEST, _AT_ONCE = 15, 1000
"""Maximum length of an instruction in bytes; how many instructions are decoded at once, each of which takes 2 KB."""


class Jump(NamedTuple):
    """A jump to an address outside the function."""

    at: int
    to: int | None
    """None if the target is in a register or in memory."""
    always: bool
    """Whether it is unconditional."""


class Exits(NamedTuple):
    """Instructions that leave a function, by address."""

    returns: tuple[int, ...]
    jumps: tuple[Jump, ...]
    jumps_to_start: bool = False
    """Whether it jumps to its own first instruction."""
    starts: frozenset[int] = frozenset()
    """Addresses of all its instructions."""


class _Memory(Protocol):
    base: int
    scale: int


class _Operand(Protocol):
    type: int
    reg: int
    imm: int
    mem: _Memory


class _Instruction(Protocol):
    """capstone's CsInsn."""

    address: int
    size: int
    id: int
    rex: int
    prefix: Sequence[int]
    """Lock or repeat, segment, operand size and address size prefix; 0 if absent."""
    operands: Sequence[_Operand]

    def group(self, group_id: int) -> bool: ...


class _Decoder(Protocol):
    detail: bool

    def disasm(self, code: bytes, offset: int, count: int) -> Iterator[_Instruction]: ...


def exits(code: bytes, address: int) -> Exits:
    """Find the exits of the function at `address`, whose bytes are `code`.

    Raises ValueError if it must be refused.
    """
    end = address + len(code)
    returns: list[int] = []
    jumps: list[Jump] = []
    starts: set[int] = set()
    targets: set[int] = set()
    jumps_to_start = False
    previous: _Instruction | None = None
    for one in _instructions(code, address):
        starts.add(one.address)
        if one.id == _RETURN:
            returns.append(one.address)
        elif one.group(_BRANCH):
            to = one.operands[0].imm
            if address <= to < end:
                targets.add(to)
                jumps_to_start |= to == address and one.id != _CALL
            elif one.id != _CALL:
                jumps.append(Jump(one.address, to, one.id == _JUMP))
        elif one.id == _JUMP and not _is_switch(one, previous):
            jumps.append(Jump(one.address, None, True))
        previous = one
    if not targets <= starts:
        raise ValueError("a jump leads into the middle of an instruction")
    return Exits(tuple(returns), tuple(jumps), jumps_to_start, frozenset(starts))


def _is_switch(jump: _Instruction, previous: _Instruction | None) -> bool:
    """Whether an indirect jump stays within the function because it uses a jump table.

    Such a jump goes through an array at a fixed address, or to a register to which the previous instruction added, or
    it is marked NOTRACK, which compilers use for nothing else (-fcf-protection).
    """
    to = jump.operands[0]
    if to.type == x86_const.X86_OP_MEM:
        is_by_table = not to.mem.base and to.mem.scale == _SCALE_OF_TABLE
    else:
        is_by_table = previous is not None and previous.id == _ADD and previous.operands[0].reg == to.reg
    return is_by_table or _NO_TRACK in jump.prefix


def _instructions(code: bytes, address: int) -> Iterator[_Instruction]:
    """Decode all instructions.

    Raises ValueError if one is not decoded, or may be decoded wrongly.
    """
    at = 0
    while at < len(code):
        few = [*_decoder().disasm(code[at : at + _LONGEST * _AT_ONCE], address + at, _AT_ONCE)]
        if not few:
            raise ValueError(f"{code[at : at + _LONGEST].hex()} is not decoded")
        for one in few:
            if one.id in _WRONG_LENGTH or _is_ambiguous(one):
                raise ValueError(f"{code[at : at + one.size].hex()} may be decoded wrongly")
            at += one.size
            yield one


def _is_ambiguous(one: _Instruction) -> bool:
    return (
        (one.id == _RETURN or one.group(_BRANCH))
        and _OPERAND_SIZE in one.prefix
        and not (one.id == _CALL and one.rex & _WIDE)
    )


@cache
def _decoder() -> _Decoder:
    decoder = cast(_Decoder, Cs(CS_ARCH_X86, CS_MODE_64))
    decoder.detail = True
    return decoder
