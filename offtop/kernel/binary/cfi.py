"""Unwind rules of one binary, read from its .eh_frame (or .debug_frame) by libdw.

Used only in the symbol reader, a child process.
"""

import ctypes as ct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from offtop.kernel.binary import dwfl
from offtop.kernel.binary.unwind_rules import AARCH64, CFA, NO_RULE, UNDEFINED, X86_64, Machine, Rule, Value

_Pointer = ct.c_void_p
_MACHINES = {62: X86_64, 183: AARCH64}
"""ELF's e_machine → registers of that machine."""
_RESTORER = bytes.fromhex("48c7c00f0000000f05")
"""mov $15,%rax; syscall: rt_sigreturn(2). Debuggers recognize it, too, if there is no rule for it (musl, Go)."""
_RT_SIGNAL = Rule(
    Value(7, 160, True),
    Value(7, 168, True),
    Value(7, 120, True),
    (Value(7, 128, True), *(Value(7, 72 + 8 * n, True) for n in range(4))),
    Value(7, 160, True),
    True,
)
"""Where the kernel saves registers on x86-64: struct ucontext, relative to the restorer's stack pointer. r8 to r15 come
first, then rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip."""
_RESTORER_ARM = bytes.fromhex("681180d2010000d4")
"""mov x8, #139; svc #0: the same call on arm64. The rule in the kernel's vDSO for it skips the interrupted frame."""
_RT_SIGNAL_ARM = Rule(
    Value(AARCH64.sp, 560, True),
    Value(AARCH64.sp, 568, True),
    Value(AARCH64.sp, 544, True),
    tuple(Value(AARCH64.sp, 312 + 8 * number, True) for number in AARCH64.callee_saved),
    Value(AARCH64.sp, 560, True),
    True,
)
"""The same for arm64 (struct sigcontext): x0 to x30, then sp and pc."""

_ADDR, _DEREF = 0x03, 0x06
_CONSTANTS = range(0x08, 0x12)
_AND, _MINUS, _MUL, _OR, _PLUS, _PLUS_UCONST, _SHL, _SHR = 0x1A, 0x1C, 0x1E, 0x21, 0x22, 0x23, 0x24, 0x25
_EQ, _GE, _GT, _LE, _LT, _NE = range(0x29, 0x2F)
_LITERALS = range(0x30, 0x50)
_REGISTERS = range(0x50, 0x70)
_BASED = range(0x70, 0x90)
_REGX, _BREGX, _CALL_FRAME_CFA, _STACK_VALUE = 0x90, 0x92, 0x9C, 0x9F
"""DW_OP_* (DWARF 5, 7.7.1)."""
_CONSTANT = 102
"""Base of a plain number while an expression is evaluated."""


class _Op(ct.Structure):
    """Dwarf_Op of elfutils/libdw.h: one operation of a DWARF expression."""

    _fields_ = (("atom", ct.c_uint8), ("number", ct.c_uint64), ("number2", ct.c_uint64), ("offset", ct.c_uint64))
    atom: int
    number: int
    number2: int


class _Item(NamedTuple):
    """base + offset, or the word at that address (if `is_at`), plus `more`."""

    base: int
    offset: int = 0
    is_at: bool = False
    more: int = 0


class _UnrepresentableError(Exception):
    """An expression that no Value can represent."""


@cache
def library() -> ct.CDLL:
    """libdw, with the functions declared that are used here."""
    dw = dwfl.library()
    for name in ("dwfl_module_eh_cfi", "dwfl_module_dwarf_cfi"):
        getattr(dw, name).restype = _Pointer
        getattr(dw, name).argtypes = [_Pointer, ct.POINTER(ct.c_uint64)]
    dw.dwarf_cfi_addrframe.argtypes = [_Pointer, ct.c_uint64, ct.POINTER(_Pointer)]
    dw.dwarf_frame_cfa.argtypes = [_Pointer, ct.POINTER(ct.POINTER(_Op)), ct.POINTER(ct.c_size_t)]
    dw.dwarf_frame_register.argtypes = [
        *(_Pointer, ct.c_int, ct.POINTER(_Op), ct.POINTER(ct.POINTER(_Op)), ct.POINTER(ct.c_size_t))
    ]
    dw.dwarf_frame_info.argtypes = [_Pointer, *[ct.POINTER(ct.c_uint64)] * 2, ct.POINTER(ct.c_bool)]
    return dw


@cache
def _libc() -> ct.CDLL:
    libc = ct.CDLL(None)
    libc.free.restype = None
    libc.free.argtypes = [_Pointer]
    return libc


class Unwinding:
    """Unwind information of an open binary. For use by one thread, while the binary is open."""

    def __init__(self, binary: dwfl.Binary) -> None:
        self._binary = binary
        self._machine = _MACHINES.get(binary.machine)
        self._tables: dict[str, tuple[int, int]] = {}

    def rule(self, offset: int) -> Rule:
        """Return the rule of the byte of code at `offset` in the file, or NO_RULE if it has none."""
        address = self._binary.address(offset)
        if address is None or self._machine is None:
            return NO_RULE
        if self._machine == AARCH64 and _RESTORER_ARM in self._binary.code(offset, len(_RESTORER_ARM) + 4):
            return _RT_SIGNAL_ARM
        for name in ("dwfl_module_eh_cfi", "dwfl_module_dwarf_cfi"):
            table, bias = self._table(name)
            frame = _Pointer()
            if not table or library().dwarf_cfi_addrframe(table, address - bias, ct.byref(frame)):
                continue
            try:
                return _rule(frame, self._machine, address)
            except _UnrepresentableError:
                return NO_RULE
            finally:
                _libc().free(frame)
        if self._machine == X86_64 and _RESTORER in self._binary.code(offset, len(_RESTORER) + 1):
            return _RT_SIGNAL
        return NO_RULE

    def _table(self, name: str) -> tuple[int, int]:
        if name not in self._tables:
            bias = ct.c_uint64()
            table = getattr(library(), name)(self._binary.module, ct.byref(bias)) or 0
            self._tables[name] = table, bias.value
        return self._tables[name]


def _rule(frame: ct.c_void_p, machine: Machine, address: int) -> Rule:
    dw = library()
    ops, count = ct.POINTER(_Op)(), ct.c_size_t()
    signal = ct.c_bool()
    ip = dw.dwarf_frame_info(frame, None, None, ct.byref(signal))
    if ip < 0 or dw.dwarf_frame_cfa(frame, ct.byref(ops), ct.byref(count)) or not count.value:
        return NO_RULE
    cfa = _evaluate(ops[: count.value], address)
    sp = _register(frame, machine.sp, address)
    return Rule(
        cfa,
        _register(frame, ip, address),
        _callee_saved(frame, machine.bp, address),
        tuple(_callee_saved(frame, number, address) for number in machine.callee_saved),
        Value(CFA) if sp.base in (machine.sp, UNDEFINED) and not sp.is_at else sp,
        signal.value,
    )


def _callee_saved(frame: ct.c_void_p, number: int, address: int) -> Value:
    """Return the value of a callee-saved register.

    It is unchanged if the binary does not mention it. libdw knows that itself, except for rbx.
    """
    value = _register(frame, number, address)
    return Value(number) if value.base == UNDEFINED else value


def _register(frame: ct.c_void_p, number: int, address: int) -> Value:
    memory = (_Op * 3)()
    ops, count = ct.POINTER(_Op)(), ct.c_size_t()
    if library().dwarf_frame_register(frame, number, memory, ct.byref(ops), ct.byref(count)):
        return Value(UNDEFINED)
    if not count.value:  # a null pointer means unchanged
        return Value(UNDEFINED) if ops else Value(number)
    last = ops[count.value - 1].atom
    if last == _STACK_VALUE:
        return _evaluate(ops[: count.value - 1], address)
    if count.value == 1 and last in _REGISTERS:
        return Value(last - _REGISTERS.start)
    if count.value == 1 and last == _REGX:
        return Value(ops[0].number)
    place = _evaluate(ops[: count.value], address)
    if place.is_at:
        raise _UnrepresentableError
    return Value(place.base, place.offset, True)


def _evaluate(ops: Sequence[_Op], address: int) -> Value:
    """Evaluate an expression, as far as that is possible without the registers' values.

    At one address, a rule depends on one register, even if it computes with the address first (as in the PLT).
    Raises _UnrepresentableError if no Value can represent the result.
    """
    stack: list[_Item] = []
    for op in ops:
        atom, number, signed = op.atom, op.number, _signed(op.number)
        if atom in _LITERALS:
            stack.append(_Item(_CONSTANT, atom - _LITERALS.start))
        elif atom in _CONSTANTS or atom == _ADDR:
            stack.append(_Item(_CONSTANT, signed))
        elif atom in _BASED or atom == _BREGX:
            register, offset = (number, _signed(op.number2)) if atom == _BREGX else (atom - _BASED.start, signed)
            is_ip = register == X86_64.ip
            stack.append(_Item(_CONSTANT, address + offset) if is_ip else _Item(register, offset))
        elif atom == _CALL_FRAME_CFA:
            stack.append(_Item(CFA))
        elif atom == _PLUS_UCONST and stack:
            stack.append(_sum(stack.pop(), _Item(_CONSTANT, signed)))  # unsigned in DWARF; the sum wraps
        elif atom == _DEREF and stack and not stack[-1].is_at and stack[-1].base != _CONSTANT:
            stack.append(stack.pop()._replace(is_at=True))
        elif len(stack) >= 2:
            right, left = stack.pop(), stack.pop()
            stack.append(_sum(left, right) if atom == _PLUS else _Item(_CONSTANT, _compute(atom, left, right)))
        else:
            raise _UnrepresentableError
    if not stack or stack[-1].more or stack[-1].base == _CONSTANT:  # libdw pushes the CFA before a register rule
        raise _UnrepresentableError
    return Value(*stack[-1][:3])


def _sum(left: _Item, right: _Item) -> _Item:
    if left.base == _CONSTANT:
        left, right = right, left
    if right.base != _CONSTANT:
        raise _UnrepresentableError
    if left.is_at:
        return left._replace(more=_wrap(left.more + right.offset))
    return left._replace(offset=_wrap(left.offset + right.offset))


def _compute(atom: int, left: _Item, right: _Item) -> int:
    if (left.base, right.base) != (_CONSTANT, _CONSTANT):
        raise _UnrepresentableError
    a, b = left.offset, right.offset
    results = {
        _AND: a & b,
        _OR: a | b,
        _MINUS: a - b,
        _MUL: a * b,
        _SHL: a << min(b, 64) if b >= 0 else 0,
        _SHR: a >> min(b, 64) if b >= 0 else 0,
        _EQ: a == b,
        _GE: a >= b,
        _GT: a > b,
        _LE: a <= b,
        _LT: a < b,
        _NE: a != b,
    }
    if atom not in results:
        raise _UnrepresentableError
    return _wrap(int(results[atom]))


def _wrap(number: int) -> int:
    """Wrap a number to 64 bits, signed."""
    return _signed(number & (1 << 64) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
