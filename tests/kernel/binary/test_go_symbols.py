"""Test that Go functions have names in binaries stripped of all symbols."""

import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offtop.kernel.binary.dwfl import Binary, Symbol
from offtop.kernel.binary.go_symbols import Functions
from tests.conftest import EXAMPLES
from tests.kernel.programs import build

SOURCE = r"""
package main

import "runtime"

type shop struct{ n int }

func inner(n int) int { return last(n) * 3 }

//go:noinline
func (s *shop) serve(n int) int { return inner(n) + s.n }

//go:noinline
func last(n int) int { return n + runtime.NumGoroutine() }

func main() { println((&shop{1}).serve(2) + last(3)) }
"""
pytestmark = pytest.mark.skipif(not shutil.which("go"), reason="no Go")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the program as built, and stripped."""
    made = tmp_path_factory.mktemp("go")
    (made / "main.go").write_text(SOURCE)
    environment = {**os.environ, "GOCACHE": str(made / "cache"), "GO111MODULE": "off", "CGO_ENABLED": "0"}
    for name, options in (
        ("whole", []),
        ("stripped", ["-ldflags=-s -w"]),
        ("pie", ["-ldflags=-s -w", "-buildmode=pie"]),
    ):
        subprocess.run(
            ["go", "build", *options, "-o", made / name, "main.go"], cwd=made, env=environment, check=True, timeout=200
        )
    return made


def opened(path: Path) -> Binary:
    return Binary(os.open(path, os.O_RDONLY), str(path))


@pytest.fixture
def stripped(directory: Path) -> Generator[Binary]:
    binary = opened(directory / "stripped")
    yield binary
    binary.close()


def functions(path: Path) -> list[Symbol]:
    """Return the functions as nm lists them.

    ABI suffixes of assembly are left out, and type names shortened.
    """
    listing = subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 3) for line in listing.splitlines()]
    return [
        Symbol(row[3].removesuffix(".abi0"), int(row[0], 16), int(row[1], 16))
        for row in rows
        if len(row) == 4 and row[2] in "tT" and int(row[1], 16) and not row[3].startswith("type")
    ]


@pytest.mark.variant
def test_each_function_is_named_from_its_first_byte_to_its_last(directory: Path, stripped: Binary) -> None:
    every = functions(directory / "whole")
    assert {"main.(*shop).serve", "main.last", "main.main"} <= {one.name for one in every}
    assert subprocess.run(["nm", directory / "stripped"], capture_output=True, text=True).stdout == ""
    for one in every:
        found = [stripped.symbol(address) for address in (one.start, one.start + one.size_bytes - 1)]
        assert [symbol and symbol.name for symbol in found] == [one.name, one.name]


def test_addresses_outside_functions_have_no_name(directory: Path, stripped: Binary) -> None:
    starts = [one.start for one in functions(directory / "whole")]
    for address in (0, min(starts) - 1, max(starts) + 100_000, 1 << 63, (1 << 64) - 1):
        assert stripped.symbol(address) is None


def test_position_independent_binaries_are_named(directory: Path) -> None:
    binary = opened(directory / "pie")
    named = {symbol.name for offset in range(0, 1 << 20, 16) if (symbol := binary.symbol(at(binary, offset)))}
    assert {"main.(*shop).serve", "main.last", "main.main"} <= named
    binary.close()


def at(binary: Binary, offset: int) -> int:
    return binary.address(offset) or 0


def test_inlined_functions_are_reported_with_debug_information(directory: Path) -> None:
    (serve,) = (one for one in functions(directory / "whole") if one.name == "main.(*shop).serve")
    binary = opened(directory / "whole")
    found = [binary.inlined(address) for address in range(serve.start, serve.start + serve.size_bytes)]
    assert [] in found
    assert any(names and names[-1] == "main.inner" for names in found)
    binary.close()


def patched(directory: Path, to: Path, *changes: tuple[int, bytes]) -> Path:
    content = bytearray((directory / "stripped").read_bytes())
    for offset, new in changes:
        content[offset : offset + len(new)] = new
    to.write_bytes(content)
    return to


def table_of(directory: Path) -> tuple[int, int]:
    """Return the offset and length of the function table in the stripped file."""
    text = subprocess.run(["readelf", "-SW", directory / "stripped"], capture_output=True, text=True, check=True).stdout
    (row,) = (line.split(".gopclntab")[1].split() for line in text.splitlines() if ".gopclntab" in line)
    return int(row[2], 16), int(row[3], 16)


def test_without_a_text_address_only_gos_own_linker_is_trusted(directory: Path, tmp_path: Path) -> None:
    """Go 1.26 leaves the address out."""
    (last,) = (one for one in functions(directory / "whole") if one.name == "main.last")
    no_address = (table_of(directory)[0] + 24, bytes(8))
    entry_elsewhere = (24, last.start.to_bytes(8, "little"))
    binary = opened(patched(directory, tmp_path / "a", no_address))
    assert (symbol := binary.symbol(last.start)) and symbol.name == "main.last"
    binary.close()
    binary = opened(patched(directory, tmp_path / "b", no_address, entry_elsewhere))
    assert binary.symbol(last.start) is None
    binary.close()


def test_a_non_go_binary_is_refused(tmp_path: Path) -> None:
    fd = os.open(build(tmp_path / "c", "int main(void) { return 0; }"), os.O_RDONLY)
    with pytest.raises(ValueError, match="not a Go binary"):
        Functions(fd)
    os.close(fd)


@settings(max_examples=2 * EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 127, 128, 255])), min_size=1, max_size=20))
def test_no_broken_table_makes_it_fail(directory: Path, tmp_path: Path, flaws: list[tuple[float, int]]) -> None:
    """Most flaws are in the table's header and in its list of functions."""
    start, size_bytes = table_of(directory)
    changes = [(start + round(where**4 * (size_bytes - 1)), bytes([value])) for where, value in flaws]
    binary = opened(patched(directory, tmp_path / "broken", *changes))
    for address in (0, 0x401000, 0x441235, 0x480000, (1 << 64) - 1):
        symbol = binary.symbol(address)
        assert symbol is None or symbol.start <= address < symbol.start + symbol.size_bytes
    binary.close()
