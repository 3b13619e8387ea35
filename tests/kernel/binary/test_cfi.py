"""Test the unwind rules of real binaries against readelf, and what only debuggers know."""

import os
import re
import shutil
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.kernel.binary import cfi, dwfl, unwind_rules
from offtop.kernel.binary.cfi import Unwinding
from offtop.kernel.binary.unwind_rules import AARCH64, CFA, NO_RULE, UNDEFINED, X86_64, Machine, Rule, Value
from offtop.kernel.bpf import layout
from tests.kernel.programs import build

_LIBC = next((path for path in Path("/lib").glob("x86_64-linux-gnu/libc.so.6")), Path("/lib64/libc.so.6"))
_LIBC_ARM = next((path for at in ("lib", "usr") for path in Path("/", at).glob("aarch64-linux-gnu/**/libc.so.6")), None)
"""This machine's own libc, or the one that a cross compiler builds for."""
_RESTORER = bytes.fromhex("48c7c00f0000000f05")
_NAMES = {X86_64: {"rsp": 7, "rbp": 6}}
_MOST_ROWS = 4000

ALLOCA = r"""
#include <alloca.h>
#include <string.h>
int __attribute__((noinline)) grow(int n) { char *room = alloca(n); memset(room, n, n); return room[n / 2] + next(); }
int main(int count, char **words) { return grow(count * 100); }
"""

pytestmark = pytest.mark.skipif(not shutil.which("gcc") or not shutil.which("readelf"), reason="no gcc")


@contextmanager
def opened(path: Path) -> Generator[tuple[dwfl.Binary, Unwinding]]:
    binary = dwfl.Binary(os.open(path, os.O_RDONLY), str(path))
    yield binary, Unwinding(binary)
    binary.close()


def offset_of(binary: dwfl.Binary, address: int) -> int:
    return next(
        address - one.address + one.offset
        for one in binary._code  # pyright: ignore[reportPrivateUsage]
        if one.address <= address < one.address + one.size_bytes
    )


def rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the address and columns of each row of readelf's unwind tables."""
    listed = subprocess.run(["readelf", "-wF", path], capture_output=True, text=True, timeout=60).stdout
    head: list[str] = []
    for line in listed.splitlines():
        words = line.split()
        if words[:2] == ["LOC", "CFA"]:
            head = words[1:]
        elif re.fullmatch("[0-9a-f]{8,16}", words[0] if words else "") and head and len(words) == len(head) + 1:
            yield int(words[0], 16), dict(zip(head, words[1:], strict=True))
        else:
            head = []


def saved(text: str, number: int) -> Value:
    """Parse a readelf value such as `u`, `s` or `c-16`."""
    return Value(CFA, int(text[1:]), True) if text.startswith("c") else Value(number)


def check(path: Path, machine: Machine) -> int:
    """Return how many rows agree."""
    every = [row for row in rows(path) if row[0] and re.fullmatch(r"[er][sb]p\+\d+", row[1]["CFA"])]
    count = 0
    with opened(path) as (binary, unwinding):
        for address, row in every[:: max(1, len(every) // _MOST_ROWS)]:
            name, offset = row["CFA"].split("+")
            rule = unwinding.rule(offset_of(binary, address))
            bp = row.get("rbp" if machine == X86_64 else "ebp", "s")
            if "exp" in row.values():
                continue
            assert rule.cfa == Value(_NAMES[machine][name], int(offset)), hex(address)
            assert rule.ip == (Value(UNDEFINED) if row["ra"] == "u" else saved(row["ra"], -1)), hex(address)
            assert rule.bp == saved(bp, machine.bp), hex(address)
            assert rule.sp == Value(CFA), hex(address)
            count += 1
    return count


def test_rules_of_libc_match_readelf() -> None:
    assert check(_LIBC, X86_64) > 1000


@pytest.mark.parametrize("flags", [("-O2",), ("-O0", "-fno-pie", "-no-pie"), ("-O2", "-static"), ("-O2", "-s")])
def test_rules_of_a_program_match_readelf(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert check(build(tmp_path / "program", ALLOCA, *flags), X86_64) > 5


def test_arm64_rules_match_readelf_with_leaf_return_addresses_in_lr() -> None:
    if _LIBC_ARM is None:
        pytest.skip("no libc6-dev-arm64-cross")
    every = [
        (address, row) for address, row in rows(_LIBC_ARM) if address and re.fullmatch(r"(sp|x29)\+\d+", row["CFA"])
    ]
    leaves = callers = 0
    with opened(_LIBC_ARM) as (binary, unwinding):
        for address, row in every[:: max(1, len(every) // _MOST_ROWS)]:
            name, offset = row["CFA"].split("+")
            rule = unwinding.rule(offset_of(binary, address))
            ip, bp = row.get("ra", "u"), row.get("x29", "u")
            assert rule.cfa == Value({"sp": 31, "x29": 29}[name], int(offset)), hex(address)
            assert rule.ip == saved(ip, 30) or (ip, rule.ip) == ("u", Value(UNDEFINED)), hex(address)
            assert rule.bp == saved(bp, 29), hex(address)
            assert rule.sp == Value(CFA), hex(address)
            leaves += rule.ip == Value(30)
            callers += rule.ip.is_at
    assert leaves > 500 < callers


def test_an_arm64_signal_trampoline_is_recognized_by_its_code(tmp_path: Path) -> None:
    """As in the vDSO of arm64, whose own rule leads past the frame that was interrupted."""
    if not shutil.which("aarch64-linux-gnu-as"):
        pytest.skip("no binutils-aarch64-linux-gnu")
    code = (
        *(".globl _start", "_start:", ".cfi_startproc", ".cfi_signal_frame", ".cfi_def_cfa x29, 0"),
        *(".cfi_offset x29, 0", ".cfi_offset x30, 8", "nop", "mov x8, #139", "svc #0", ".cfi_endproc", ""),
    )
    program, part = tmp_path / "restorer", tmp_path / "restorer.o"
    subprocess.run(["aarch64-linux-gnu-as", "-o", part], input="\n".join(code).encode(), check=True, timeout=60)
    subprocess.run(["aarch64-linux-gnu-ld", "--eh-frame-hdr", "-o", program, part], check=True, timeout=60)
    at = program.read_bytes().index(bytes.fromhex("681180d2010000d4"))
    with opened(program) as (_, unwinding):
        before, first, behind = (unwinding.rule(at + step) for step in (-1, 0, 4))
    assert before == first
    assert layout.RULE.unpack(unwind_rules.pack(first, AARCH64))[2] == layout.CFA_SIGNAL
    assert (behind.is_signal, behind.cfa) == (True, Value(29))


def test_plt_entries_push_a_word_from_their_second_half_on(tmp_path: Path) -> None:
    program = build(tmp_path / "program", ALLOCA, "-fcf-protection=none", "-Wl,-z,lazy")
    listed = subprocess.run(["readelf", "-SW", program], capture_output=True, text=True, check=True).stdout
    found = re.search(r" \.plt +PROGBITS +([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)", listed)
    assert found
    offset = int(found[2], 16)
    with opened(program) as (_, unwinding):
        sizes = {at: unwinding.rule(offset + 16 + at).cfa for at in (0, 6, 10, 11, 15)}
    assert sizes == {at: Value(7, 16 if at >= 11 else 8) for at in sizes}


def test_a_signal_trampoline_has_its_registers_in_its_own_frame() -> None:
    found = _LIBC.read_bytes().index(_RESTORER)
    with opened(_LIBC) as (_, unwinding):
        rule = unwinding.rule(found - 1)
    assert rule.is_signal
    assert layout.RULE.unpack(unwind_rules.pack(rule, X86_64))[2] == layout.CFA_SIGNAL


def test_a_signal_trampoline_without_a_rule_is_recognized_by_its_code() -> None:
    musl = next(Path("/lib").glob("ld-musl-x86_64.so.1"), None)
    if musl is None:
        pytest.skip("no musl")
    with opened(_LIBC) as (_, unwinding):
        known = unwinding.rule(_LIBC.read_bytes().index(_RESTORER) - 1)
    with opened(musl) as (_, unwinding):
        assert unwinding.rule(musl.read_bytes().index(_RESTORER) - 1) == known


def test_non_code_and_binaries_without_rules_have_no_rule(tmp_path: Path) -> None:
    bare = build(tmp_path / "bare", ALLOCA, "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
    with opened(bare) as (binary, unwinding):
        listed = subprocess.run(["nm", bare], capture_output=True, text=True, check=True).stdout
        main = next(int(line.split()[0], 16) for line in listed.splitlines() if line.endswith(" main"))
        assert unwinding.rule(offset_of(binary, main)) == NO_RULE
        assert unwinding.rule(0) == unwinding.rule(1 << 40) == unwinding.rule((1 << 64) - 1) == NO_RULE


def ops(*words: tuple[int, int] | int) -> list[cfi._Op]:  # pyright: ignore[reportPrivateUsage]
    return [cfi._Op(*(word if isinstance(word, tuple) else (word, 0))) for word in words]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (ops((0x77, 8)), Value(7, 8)),  # breg7 8
        (ops((0x76, (1 << 64) - 8), 0x06), Value(6, -8, True)),  # breg6 -8; deref
        (ops((0x77, 8), (0x23, 16)), Value(7, 24)),  # plus_uconst
        (ops((0x77, 0), 0x34, 0x33, 0x24, 0x22), Value(7, 32)),  # lit4 << lit3; plus
        (ops(0x9C, (0x23, 8)), Value(CFA, 8)),  # call_frame_cfa
        *((ops(*words), None) for words in ((), (0x34,), (0x22,), (0x34, 0x06), (0x06,), ((0x77, 0), (0x76, 0), 0x22))),
        *(
            (ops(*words), None)
            for words in (((0x77, 0), 0x34, 0x24), ((0x77, 0), 0x06, 0x06), ((0x77, 0), 0x06, (0x23, 8)))
        ),
        *((ops(*words), None) for words in (((0xFF, 0),), ((0x77, 0), 0x31, 0xE0))),
    ],
)
def test_an_expression_is_a_register_plus_offset_or_unsupported(
    expression: list[cfi._Op],  # pyright: ignore[reportPrivateUsage]
    value: Value | None,
) -> None:
    if value is None:
        with pytest.raises(cfi._UnrepresentableError):  # pyright: ignore[reportPrivateUsage]
            cfi._evaluate(expression, 0)  # pyright: ignore[reportPrivateUsage]
    else:
        assert cfi._evaluate(expression, 0) == value  # pyright: ignore[reportPrivateUsage]


def test_huge_shift_counts_take_no_memory() -> None:
    huge = ops((0x77, 0), 0x31, (0x0E, (1 << 63) - 1), 0x24, 0x22)
    assert cfi._evaluate(huge, 0).base == 7  # pyright: ignore[reportPrivateUsage]


def test_repeated_multiplication_does_not_grow_numbers() -> None:
    many = ops((0x77, 0), (0x0E, (1 << 63) - 1), *2000 * ((0x0E, (1 << 63) - 1), 0x1E), 0x22)
    assert len(unwind_rules.serialize(Rule(cfi._evaluate(many, 0), Value(0), Value(0), ()))) < 200  # pyright: ignore[reportPrivateUsage]
