"""Test truncated, overwritten and misleading ELF files and perf maps.

Each is read or refused, in bounded time and memory.
"""

import itertools
import os
import struct
import time
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offtop.errors import UsageError
from offtop.kernel.binary import cpython_layout, dwfl, elf, functions, perf_map, reader, unwind_rules, x86
from offtop.kernel.binary.cfi import Unwinding
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.printable import printable
from tests.conftest import EXAMPLES
from tests.kernel import programs

_C = ("-g", "-fno-omit-frame-pointer")
SOURCE = r"""
static __attribute__((noinline)) int inner(int n) { __asm__ volatile(""); return n * 3; }
__attribute__((noinline)) int outer(int n) { return inner(n) + (n > 3 ? outer(n - 1) : 1); }
int main(int argc, char **argv) { return outer(argc) & 1; }
"""
ANY = settings(max_examples=2 * EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
EXTREMES = [b"\0", b"\xff", b"\x7f", b"\x80", b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", struct.pack("<Q", 1 << 40)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return programs.build(tmp_path_factory.mktemp("elf") / "whole", SOURCE, *_C).read_bytes()


@st.composite
def flaws(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    """Draw overwrites in the header, in what it points to, or anywhere."""
    one = st.tuples(
        st.sampled_from(["header", "segments", "sections", "anywhere"]),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(EXTREMES) | st.binary(min_size=1, max_size=8),
    )
    return draw(st.lists(one, min_size=1, max_size=6))


def spoilt(whole: bytes, some: list[tuple[str, float, bytes]], length: float) -> bytes:
    (segments, sections), counts = struct.unpack_from("<QQ", whole, 32), struct.unpack_from("<HHHH", whole, 54)
    places = {
        "header": (0, 64),
        "segments": (segments, counts[0] * counts[1]),
        "sections": (sections, counts[2] * counts[3]),
        "anywhere": (0, len(whole)),
    }
    made = bytearray(whole)
    for where, part, what in some:
        start, size_bytes = places[where]
        at = start + int(part * size_bytes)
        made[at : at + len(what)] = what
    return bytes(made[: max(1, int(length * len(whole)))])


@contextmanager
def file_of(content: bytes) -> Generator[int]:
    fd = os.memfd_create("hostile")
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)


@ANY
@given(flaws(), st.just(1.0) | st.floats(0, 1))
def test_a_broken_file_is_read_or_refused(whole: bytes, some: list[tuple[str, float, bytes]], length: float) -> None:
    reads: list[Callable[[int], object]] = [
        elf.sections,
        lambda fd: [*elf.symbol_entries(fd)],
        lambda fd: elf.symbols(fd, (b"outer", b"main")),
        lambda fd: elf.read_at(fd, 0x1000, 64),
        lambda fd: cpython_layout.interpreter(fd, "/usr/bin/python3.13"),
        dwfl.has_unwind_table,
    ]
    with file_of(spoilt(whole, some, length)) as fd:
        for read in reads:
            with suppress(ValueError, struct.error, OSError):
                read(fd)


@ANY
@given(flaws(), st.just(1.0) | st.floats(0, 1))
def test_a_function_of_a_broken_file_is_within_it_or_refused_in_one_sentence(
    whole: bytes, some: list[tuple[str, float, bytes]], length: float
) -> None:
    content = spoilt(whole, some, length)
    with file_of(content) as fd:
        for name in ("outer", "inner", "0x1139", "nosuch"):
            try:
                found = functions._Binary(fd, "/tmp/\x1b[2Jwhole").function(name)  # pyright: ignore[reportPrivateUsage]
            except UsageError as refused:
                assert printable(str(refused)) == str(refused)
            else:
                assert len(found.ends) <= 200


@ANY
@given(flaws(), st.just(1.0) | st.floats(0.1, 1), st.lists(st.integers(0, 1 << 16), min_size=1, max_size=8))
def test_rules_of_a_broken_file_are_valid(
    whole: bytes, some: list[tuple[str, float, bytes]], length: float, offsets: list[int]
) -> None:
    with file_of(spoilt(whole, some, length)) as fd:
        try:
            binary = dwfl.Binary(os.dup(fd), "whole")
        except OSError:
            return
        try:
            unwinding = Unwinding(binary)
            for offset in offsets:
                rule = unwinding.rule(offset)
                assert unwind_rules.parse(unwind_rules.serialize(rule)) == rule
        finally:
            binary.close()


@ANY
@given(st.text(max_size=60) | st.lists(st.integers().map(str), max_size=30).map(" ".join))
def test_any_reader_output_parses_to_a_rule_and_an_interpreter_or_none(output: str) -> None:
    assert isinstance(unwind_rules.parse(output), unwind_rules.Rule)
    cpython_layout.parse(output)


@ANY
@given(st.binary(max_size=64), st.integers(0, (1 << 64) - 1))
def test_any_bytes_are_instructions_or_a_valueerror(code: bytes, address: int) -> None:
    with suppress(ValueError):
        x86.exits(code, address)


def table_of_symbols(count: int, text: bytes) -> bytes:
    """Return an ELF file with so many symbols.

    Their names all start at the first letter of `text`.
    """
    rows = struct.pack("<IBBHQQ", 1, 2, 0, 1, 0x1000, 16) * count
    names = b"\0.symtab\0.strtab\0"
    text_at, rows_at = 64, 64 + len(text)
    names_at = rows_at + len(rows)
    row = struct.Struct("<IIQQQQIIQQ")
    sections = b"".join(
        (
            row.pack(1, 2, 0, 0, rows_at, len(rows), 1, 0, 8, 24),
            row.pack(9, 3, 0, 0, text_at, len(text), 0, 0, 1, 0),
            row.pack(0, 3, 0, 0, names_at, len(names), 0, 0, 1, 0),
        )
    )
    kind, sections_at = b"\x7fELF\x02\x01", names_at + len(names)
    head = struct.pack("<16sHHIQQQIHHHHHH", kind, 3, 62, 1, 0, 0, sections_at, 0, 64, 56, 0, 64, 3, 2)
    return head + text + rows + names + sections


def test_unterminated_names_take_little_time_and_memory() -> None:
    with file_of(table_of_symbols(2_000, b"\0" + b"x" * (32 << 20))) as fd:
        tracemalloc.start()
        began_s = time.process_time()
        assert [*itertools.islice(elf.symbol_entries(fd), 1)] == []
        took_s, peak_bytes = time.process_time() - began_s, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert took_s < 2
    assert peak_bytes < 80 << 20


@pytest.mark.variant
def test_a_huge_perf_map_is_read_in_bounded_time_and_memory() -> None:
    reads = GuardedReads().channel(60)
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    path.write_bytes(b"".join(b"%x 1 x\n" % (at * 7919 & 0xFFFF) for at in range(1 << 16)) * 46)
    try:
        began_s = time.process_time()
        perf_map.PerfMap(os.getpid()).read(reads)
        took_s = time.process_time() - began_s
        tracemalloc.start()  # makes it slower
        perf_map.PerfMap(os.getpid()).read(reads)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    finally:
        path.unlink()
    assert took_s < 5
    assert peak_bytes < 120 << 20


def test_a_hostile_name_fits_into_the_readers_message() -> None:
    names = [reader._cut("\x1b" * 100_000, 4000)]  # pyright: ignore[reportPrivateUsage]
    assert len(names[0].encode(errors="backslashreplace")) <= 4000
