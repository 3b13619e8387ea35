"""The code that the kernel maps into processes of 32 bits: read out of one of them, unless it was written to there."""

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.kernel.binaries import Binaries
from offtop.kernel.files import VDSO_32, Files, Mapping
from offtop.kernel.rules import NO_RULE, read
from offtop.model.stackproblems import UNREADABLE
from tests.kernel.programs import Program, build, running
from tests.kernel.reads import READS

PROGRAM = r"""
#include <sys/auxv.h>
int main(int count, char **words) {
    tell("vdso", (void *)getauxval(33)); /* AT_SYSINFO_EHDR */
    next();
    return 0;
}
"""


@pytest.fixture
def child(tmp_path: Path) -> Generator[Program]:
    try:
        program = build(tmp_path / "narrow", PROGRAM, "-m32")
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("no gcc-multilib")
    with running([program]) as child:
        yield child


def mapping(child: Program) -> Mapping:
    line = next(row for row in Path(f"/proc/{child.pid}/maps").read_text().splitlines() if row.endswith("[vdso]"))
    start, end = (int(word, 16) for word in line.split()[0].split("-"))
    assert start == child.at["vdso"]
    return Mapping(child.pid, start, end)


def test_it_is_a_library_whose_functions_have_names_and_rules(child: Program, tmp_path: Path) -> None:
    file = Files().seen_vdso_32(mapping(child))
    assert file.label == VDSO_32
    found = file.open(READS)
    assert found
    fd = found.fd
    assert fd is not None
    code = os.pread(fd, 1 << 16, 0)
    os.close(fd)
    assert code[:4] == b"\x7fELF"
    binaries = Binaries(30)
    (tmp_path / "vdso").write_bytes(code)
    listed = subprocess.run(["readelf", "-sW", tmp_path / "vdso"], capture_output=True, text=True).stdout
    at = next(int(line.split()[1], 16) for line in listed.splitlines() if "__kernel_vsyscall" in line)
    assert binaries.names(file, [at]) == ["__kernel_vsyscall"]
    assert read(binaries.rules(file, [at])[0]) != NO_RULE
    binaries.end()


def test_it_is_one_file_for_all_processes_and_the_latest_is_read(child: Program) -> None:
    files = Files()
    gone = files.seen_vdso_32(Mapping(1 << 22, 0xF000_0000, 0xF000_2000))
    assert gone.open(READS) is None
    gone.unreadable = UNREADABLE
    file = files.seen_vdso_32(mapping(child))
    assert (file is gone, file.unreadable, files.get(VDSO_32) is file) == (True, "", True)
    found = file.open(READS)
    assert found
    fd = found.fd
    assert fd is not None
    os.close(fd)


def test_one_that_somebody_has_written_to_is_not_believed(child: Program) -> None:
    fd = os.open(f"/proc/{child.pid}/mem", os.O_RDWR)
    try:
        os.pwrite(fd, b"\0", child.at["vdso"] + 4000)
    except OSError:
        pytest.skip("this kernel lets nobody write there")
    finally:
        os.close(fd)
    assert Files().seen_vdso_32(mapping(child)).open(READS) is None
