"""Function exits of some large programs, and instruction lengths of all encodings, match objdump.

`make exits` runs these tests and prints how many functions are refused. They need the packages that
packaging/packages.txt lists for `exits`.
"""

from collections.abc import Iterator
from itertools import islice, pairwise, product
from pathlib import Path

import numpy as np
import pytest

from offtop.kernel.binary import x86
from tests.kernel import objdump

pytestmark = [pytest.mark.exits, pytest.mark.timeout(1200)]

_PROGRAMS = {
    "libc": ("lib/x86_64-linux-gnu/libc.so.6", "lib64/libc.so.6"),
    "libpython": ("usr/lib/x86_64-linux-gnu/libpython3.*.so.1.0", "usr/lib64/libpython3.*.so.1.0"),
    "postgres": ("usr/lib/postgresql/*/bin/postgres", "usr/bin/postgres"),
    "mariadbd": ("usr/sbin/mariadbd", "usr/libexec/mariadbd"),
    "nginx": ("usr/sbin/nginx",),
    "openblas": (f"{Path(np.__file__).parents[1]}/numpy.libs/*openblas*.so".lstrip("/"),),
    "libavcodec": ("usr/lib/x86_64-linux-gnu/libavcodec.so.*.*.*", "usr/lib64/libavcodec.so.*.*.*"),
}
_MOST_REFUSED = 0.01
"""Share of a program's functions that may be refused. With capstone 5.0.9 it is at most 0.1 %."""
_SLOT = 16
"""Bytes per encoding. An instruction has at most 15 bytes, so each slot starts with an instruction."""
_PREFIXES = frozenset([0x26, 0x2E, 0x36, 0x3E, *range(0x40, 0x50), *range(0x64, 0x68), 0xF0, 0xF2, 0xF3])
_WAIT = 0x9B
"""Opcode of WAIT, which objdump lists together with the following instruction."""


@pytest.mark.parametrize("program", _PROGRAMS)
def test_exits_match_the_instructions_of_objdump(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = [path for pattern in _PROGRAMS[program] for path in Path("/").glob(pattern)]
    assert found, f"{program} is not here: packaging/system.sh exits"
    compared = objdump.compare(found[0], objdump.functions(found[0]).items())
    with capsys.disabled():
        print(f"\n{program}: {compared}")
    assert not compared.mismatches
    assert compared.functions > 1000
    assert compared.refused <= _MOST_REFUSED * compared.functions


def test_instruction_lengths_match_objdump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encodings, compared, differences = _encodings(), 0, list[str]()
    while batch := [one.ljust(_SLOT, b"\x90") for one in islice(encodings, 100_000)]:
        image = tmp_path / "encodings"
        image.write_bytes(b"".join(batch))
        texts = dict(objdump.instructions("-D", "-b", "binary", "-m", "i386:x86-64", image))
        following = dict(pairwise(texts))
        for at, code in zip(range(0, _SLOT * len(batch), _SLOT), batch, strict=True):
            if "(bad)" in texts[at]:
                continue
            try:
                starts = sorted(x86.exits(code, at).starts)
            except ValueError:
                continue
            compared += 1
            if starts[1] != following[at]:
                differences.append(f"{code.hex()} {texts[at]}")
    with capsys.disabled():
        print(f"\nencodings: {compared:,} compared, {len(differences)} differ")
    assert not differences
    assert compared > 90_000


def _encodings() -> Iterator[bytes]:
    """Yield prefixes, opcode and ModRM of every possible instruction."""
    modrms = [mode << 6 | register << 3 | 1 for mode in (0, 3) for register in range(8)]
    prefixes = ("", "66", "f2", "f3", "67", "f0", "48", "6648", "f248", "f348", "66f2", "66f3", "3e")
    for prefix, table, opcode, modrm in product(prefixes, ("", "0f", "0f38", "0f3a"), range(256), modrms):
        if table or opcode not in {*_PREFIXES, _WAIT}:
            yield bytes.fromhex(prefix + table) + bytes([opcode, modrm])
    for table, simd, is_wide, is_long, opcode, modrm in product(
        range(1, 4), range(4), (0, 1), (0, 1), range(256), modrms
    ):
        yield bytes([0xC4, 0xE0 | table, is_wide << 7 | 0x78 | is_long << 2 | simd, opcode, modrm])
    for table, is_wide, is_long, opcode, modrm in product(range(8, 11), (0, 1), (0, 1), range(256), modrms):
        yield bytes([0x8F, 0xE0 | table, is_wide << 7 | 0x78 | is_long << 2, opcode, modrm])
    for table, simd, is_wide, length, opcode, modrm in product(
        range(1, 8), range(4), (0, 1), (0, 2), range(256), modrms[::4]
    ):
        yield bytes([0x62, 0xF0 | table, is_wide << 7 | 0x7C | simd, 0x08 | length << 5, opcode, modrm])
