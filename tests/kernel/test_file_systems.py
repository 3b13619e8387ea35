"""On file systems of several kinds, counts and bytes of file operations and requests are exact, as are their names."""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from tests.kernel import programs, test_disks, test_files, waits
from tests.kernel.watch import Watch, watching_kernel_stacks

pytestmark = pytest.mark.kernel

ON_DISKS = ("ext4", "xfs", "btrfs")
FUSE = "fuse2fs"


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("caller") / "caller", test_files.CHILD, "-Wno-unused-result")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(
        tmp_path_factory.mktemp("reader") / "reader", test_disks.CHILD, "-D_GNU_SOURCE", "-Wno-unused-result"
    )


@pytest.fixture(scope="module")
def counting() -> Generator[Watch]:
    with watching_kernel_stacks(counted=(FILE, DISK)) as watched:
        yield watched


@contextmanager
def mounted(kind: str, directory: Path) -> Generator[Path]:
    """Mount a new file system; skip the test if this machine has none of that kind."""
    try:
        with waits.mounted(kind, directory) as place:
            yield place
    except waits.UnavailableError as error:
        pytest.skip(str(error))


@contextmanager
def mounted_by_fuse(directory: Path) -> Generator[Path]:
    """Mount an ext4 that a process serves."""
    image, place = directory / "image", directory / "mounted"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    for command in (["mkfs.ext4", "-q", image], [FUSE, image, place]):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system of the kind FUSE: {error}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True, timeout=30)


@pytest.mark.parametrize("kind", [*ON_DISKS, FUSE])
def test_file_operations_are_exact(counting: Watch, caller: Path, tmp_path: Path, kind: str) -> None:
    with (
        mounted_by_fuse(tmp_path) if kind == FUSE else mounted(kind, tmp_path) as place,
        programs.running([caller, place / "data"]) as program,
        counting.only(program.pid),  # of a tick, only so many rows are kept
    ):
        path = place / "data"
        counting.begin()
        program.go()
        window = counting.tick()
        status = path.stat()
    assert window.files
    found = test_files.by_operation(window.files, program.pid, str(path))
    assert test_files.counts(found) == test_files.COUNTS
    (file,) = {
        key.file for key in window.files.totals if key.pid == program.pid and window.files.name(key.file) == str(path)
    }
    assert file.inode == status.st_ino
    if kind != "btrfs":  # whose stat() has the device of the subvolume
        assert file.device_text == f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


@pytest.mark.parametrize("kind", ON_DISKS)
def test_requests_are_exact(counting: Watch, reader: Path, tmp_path: Path, kind: str) -> None:
    with mounted(kind, tmp_path) as place:
        path = place / "data"
        path.write_bytes(os.urandom(4 << 20))
        os.sync()
        source = subprocess.run(["findmnt", "-no", "SOURCE", place], check=True, capture_output=True, text=True)
        disk = Path(source.stdout.strip()).name
        with programs.running([reader, path]) as program, counting.only(program.pid):
            program.go()  # btrfs reads through the page cache if the program's memory is not there yet
            counting.begin()
            program.go()
            window = counting.tick()
    found = window.disks
    assert found
    mine = {
        key.operation: totals
        for key, totals in found.totals.items()
        if key.pid == program.pid and found.name(key.device) == disk
    }
    reads, writes = mine["read"], mine["sync-write"]
    assert test_disks.READS - found.lost <= reads.requests <= test_disks.READS
    assert test_disks.WRITES - found.lost <= writes.requests <= test_disks.WRITES
    assert (reads.bytes, writes.bytes) == (4096 * reads.requests, 8192 * writes.requests)
