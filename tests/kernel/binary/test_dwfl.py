"""Test what libdw reports about a binary.

Its nearest match must never be used as the answer.
"""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offtop.kernel.binary.cfi import Unwinding
from offtop.kernel.binary.dwfl import Binary, Symbol
from tests.conftest import EXAMPLES
from tests.kernel.programs import build

SOURCE = r"""
#include <sys/syscall.h>
int first(int a) { return a + getpid(); }
__attribute__((noinline)) static int hidden(int a) { return write(2, "", 0) + a; }
int last(int a) { return hidden(a) + 1; }
char table[4096] = {1};
__asm__(".text\n.globl sizeless\nsizeless: nop\nnop\nnop\nret\n");
int main(void) { next(); syscall(SYS_pause); return first(1) + last(2); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        tmp_path_factory.mktemp("dwfl") / "program",
        SOURCE,
        "-rdynamic",
        "-fno-omit-frame-pointer",
        "-fno-toplevel-reorder",
    )


def opened(path: Path) -> Binary:
    return Binary(os.open(path, os.O_RDONLY), str(path))


def listed(path: Path) -> dict[str, Symbol]:
    """Return the symbols as readelf lists them."""
    text = subprocess.run(["readelf", "-sW", str(path)], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in text.splitlines()]
    return {
        row[7]: Symbol(row[7], int(row[1], 16), int(row[2], 0)) for row in rows if len(row) == 8 and row[3] != "Type"
    }


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_function_is_named_from_its_first_byte_to_its_last(program: Path) -> None:
    binary, hidden = opened(program), listed(program)["hidden"]
    for address in (hidden.start, hidden.start + hidden.size_bytes - 1):
        assert binary.symbol(address) == hidden
    assert binary.symbol(hidden.start + hidden.size_bytes) != hidden
    assert binary.symbol(hidden.start - 1) != hidden
    binary.close()


def test_sizeless_symbols_and_data_name_nothing(program: Path) -> None:
    binary, symbols = opened(program), listed(program)
    assert symbols["sizeless"].size_bytes == 0
    assert symbols["table"].size_bytes == 4096
    assert [binary.symbol(symbols[name].start + 1) for name in ("sizeless", "table")] == [None, None]
    assert [binary.symbol(address) for address in (0, 1 << 40, (1 << 64) - 1)] == [None, None, None]
    binary.close()


def test_a_function_without_a_symbol_does_not_get_its_neighbors_name(program: Path, tmp_path: Path) -> None:
    symbols = listed(program)
    subprocess.run(["strip", "-o", str(tmp_path / "stripped"), str(program)], check=True)
    binary = opened(tmp_path / "stripped")
    assert "hidden" not in listed(tmp_path / "stripped")
    assert symbols["first"].start < symbols["hidden"].start < symbols["last"].start
    named = [binary.symbol(symbols[name].start + 4) for name in ("first", "hidden", "last")]
    assert named == [symbols["first"], None, symbols["last"]]
    assert [binary.has_symbols(), opened(program).has_symbols()] == [False, True]
    binary.close()


def test_a_debug_file_beside_the_binary_is_read(program: Path, tmp_path: Path) -> None:
    stripped, debug = tmp_path / "stripped", tmp_path / "stripped.debug"
    subprocess.run(["objcopy", "--only-keep-debug", str(program), str(debug)], check=True)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", str(program), str(stripped)], check=True)
    binary, hidden = opened(stripped), listed(program)["hidden"]
    assert binary.symbol(hidden.start + 4) == hidden
    assert binary.has_symbols()
    binary.close()


def test_compressed_symbols_in_the_binary_are_read(program: Path, tmp_path: Path) -> None:
    """As on Fedora and RHEL: symbols only, xz-compressed, in section .gnu_debugdata."""
    stripped, small = tmp_path / "stripped", tmp_path / "small"
    subprocess.run(
        ["objcopy", "-S", "--remove-section=.gnu_debuglink", "--keep-symbol=hidden", str(program), str(small)],
        check=True,
    )
    subprocess.run(["xz", "-f", str(small)], check=True)
    add = f"--add-section=.gnu_debugdata={small}.xz"
    subprocess.run(["objcopy", "--strip-all", add, str(program), str(stripped)], check=True)
    binary, hidden = opened(stripped), listed(program)["hidden"]
    assert binary.symbol(hidden.start + 4) == hidden
    assert binary.has_symbols()
    binary.close()


def test_a_code_offset_maps_to_its_load_address(tmp_path: Path) -> None:
    path = build(tmp_path / "program", SOURCE, "-no-pie")
    binary, first = opened(path), listed(path)["first"]
    text = subprocess.run(["readelf", "-lW", str(path)], capture_output=True, text=True, check=True).stdout
    (code,) = (line.split() for line in text.splitlines() if " LOAD " in line and " R E " in line)
    offset, address, _, size_bytes = (int(word, 16) for word in code[1:5])
    assert address - offset == 0x400000
    assert binary.address(first.start - 0x400000) == first.start
    around = [offset - 1, offset, offset + size_bytes - 1, offset + size_bytes]
    assert [binary.address(at) for at in around] == [None, address, address + size_bytes - 1, None]
    binary.close()


def test_a_file_that_is_not_elf_is_refused_and_closed(tmp_path: Path) -> None:
    before = descriptors()
    for content in (b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + 100 * b"\xff"):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(OSError, match=r"ELF|libdw"):
            opened(tmp_path / "file")
    assert descriptors() == before


def test_closing_twice_leaves_no_descriptor_open(program: Path) -> None:
    before = descriptors()
    binary = opened(program)
    binary.symbol(0)
    binary.close()
    binary.close()
    assert descriptors() == before


@settings(max_examples=3 * EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 2400), st.sampled_from([0, 1, 127, 128, 255])), min_size=1, max_size=12),
    st.integers(0, 20_000),
)
def test_no_broken_file_makes_it_fail(program: Path, tmp_path: Path, flaws: list[tuple[int, int]], length: int) -> None:
    """Flaws are in the first 400 bytes (the headers) or the last 2000 (the section table)."""
    content = bytearray(program.read_bytes())
    for at, value in flaws:
        content[at if at < 400 else 400 - at] = value
    (tmp_path / "broken").write_bytes(content[:length] if length > 64 else content)
    try:
        binary = opened(tmp_path / "broken")
    except OSError:
        return
    for offset in (0, 0x1139, 0x1180, length):
        for address in {offset, binary.address(offset) or 0, (1 << 64) - 1}:
            symbol = binary.symbol(address)
            assert symbol is None or symbol.start <= address < symbol.start + symbol.size_bytes
        Unwinding(binary).rule(offset)
    binary.close()
