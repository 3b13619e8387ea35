"""After a kill or on a full disk, everything that was written can be replayed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from offtop.model.values.catalog import Catalog
from offtop.model.values.outlier import Outlier
from offtop.model.windows.window import between
from offtop.person import person
from offtop.recording import tick_encoder
from offtop.recording.reader import Recording
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.units import NS_PER_S
from tests.recording.test_outliers import LOCK, outlier
from tests.recording.test_recording import in_json
from tests.ui.scripted import SHOP, ScriptedSource

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
_KILLS = 8
_TICK_S = 0.025
_RECORDS = """
import os, sqlite3, sys, time
from pathlib import Path
from offtop.person import person
from offtop.recording.writer import Recorder
from tests.ui.scripted import SHOP, ScriptedSource
source, pause = ScriptedSource(SHOP, ticks=100_000), float(sys.argv[1])
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        path = Path(line.strip())
        recorder = Recorder(path, source, person(), leave_bytes=0, whole_ns=7_000_000_000)
        reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        for number in range(100_000):
            recorder.add(source.after(number))
            time.sleep(pause)
            while reader.execute("SELECT count(*) FROM ticks").fetchone() != (number + 1,):
                time.sleep(pause)
            os.write(1, f"{number + 1}\\n".encode())
    os.write(1, f"pid {child}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
"""


def test_each_killed_recording_has_all_but_the_last_tick(tmp_path: Path) -> None:
    chance = random.Random(11)
    with subprocess.Popen(
        [sys.executable, "-c", _RECORDS, str(_TICK_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdin and process.stdout
        for number in range(_KILLS):
            path = tmp_path / f"{number}.offtop"
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            lines, pid, ticks = chance.randrange(2, 15), 0, 0
            while not pid or ticks < lines:
                word = process.stdout.readline()
                if word.startswith("pid "):
                    pid = int(word[4:])
                else:
                    ticks = int(word)
            time.sleep(chance.random() * 2 * _TICK_S)
            os.kill(pid, signal.SIGKILL)
            while (word := process.stdout.readline()) != "ended\n":
                ticks = int(word)
            recording = Recording(path)
            assert ticks <= recording.last <= ticks + 1, number
            recording.close()
            whole = in_json(ScriptedSource(SHOP, ticks=recording.last - 1, ends=True))
            assert in_json(RecordedSource(path)) == whole
        process.stdin.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(recorder: Recorder, source: ScriptedSource, ticks: int) -> int:
    """Record up to `ticks` seconds, until the recorder fails; return their number."""
    for second in range(ticks):
        if recorder.failure:
            return second
        recorder.add(source.after(second))
        while recorder._queue and not recorder.failure:  # pyright: ignore[reportPrivateUsage]
            time.sleep(0.001)
    return ticks


@needs_root
def test_full_disk_ends_a_recording_with_an_error_and_the_file_can_be_replayed(small_disk: Path) -> None:
    path, source = small_disk / "it.offtop", ScriptedSource(SHOP, ticks=10_000)
    (small_disk / "another").write_bytes(bytes(600 << 10))
    recorder = Recorder(path, source, person(), leave_bytes=0, whole_ns=NS_PER_S)
    assert fill(recorder, source, 5_000) < 5_000
    assert recorder.failure == f"recording stopped: database or disk is full: {path}"
    recorder.add(source.after(6_000))
    assert recorder.close() == recorder.failure
    played = in_json(RecordedSource(path))
    assert len(played) > 50
    assert played == in_json(ScriptedSource(SHOP, ticks=len(played), ends=True))


@needs_root
def test_recording_stops_before_the_disk_is_full(small_disk: Path) -> None:
    path, source = small_disk / "it.offtop", ScriptedSource(SHOP, ticks=10_000)
    recorder = Recorder(path, source, person(), leave_bytes=512 << 10)
    assert fill(recorder, source, 5_000) < 5_000
    assert recorder.failure.startswith("recording stopped: 5")
    assert recorder.failure.endswith(f"KB left on {small_disk} (limit 512KB): {path}")
    assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize > 400 << 10


@needs_root
def test_disk_that_becomes_read_only_ends_a_recording(tmp_path: Path) -> None:
    if not shutil.which("mkfs.ext4"):
        pytest.skip("there is no mkfs.ext4 here")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, place], check=False)
    if mounted.returncode:
        pytest.skip("this kernel has no loop device")
    try:
        device = subprocess.run(
            ["findmnt", "-no", "SOURCE", place], check=True, capture_output=True, text=True
        ).stdout.strip()
        source = ScriptedSource(SHOP, ticks=10_000)
        recorder = Recorder(place / "it.offtop", source, person(), leave_bytes=0)
        assert fill(recorder, source, 10) == 10
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1")
        assert fill(recorder, source, 5_000) < 5_000
        assert recorder.close().startswith("recording stopped: ")
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def with_own_stack(one: Outlier, kernel: int) -> Outlier:
    """Return an outlier with a kernel stack that only its own catalog still has."""
    assert one.wait
    catalog = Catalog(stacks={**one.catalog.stacks, kernel: LOCK}, wakes=one.catalog.wakes)
    return one._replace(wait=one.wait._replace(site=one.wait.site._replace(kernel=kernel)), catalog=catalog)


def test_ticks_skipped_by_a_slow_disk_are_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, source = tmp_path / "it.offtop", ScriptedSource(SHOP, ticks=300)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    recorder.add(source.after(0))
    while recorder._queue:  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.001)
    write = Recorder._write  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(tick_encoder, "_MOST_OUTLIERS", 10)

    answers = threading.Event()

    def slow(*arguments: object) -> None:
        answers.wait(30)
        write(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Recorder, "_write", slow)
    for second in range(1, 200):
        one = source.after(second)
        if second == 160:
            sites = {key: totals._replace(max_ns=5 * NS_PER_S) for key, totals in one.sites.items()}
            one = replace(one, sites=sites)
        if second >= 150:
            one = replace(one, outliers=[with_own_stack(outlier(), kernel=second)])
        recorder.add(one)
    monkeypatch.undo()
    answers.set()
    while recorder._queue:  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.001)
    recorder.add(source.after(200))
    assert f"({recorder.skipped} skipped: the disk was too slow)" in recorder.close()
    assert recorder.skipped > 50
    recording = RecordedSource(path)
    assert [one.wait and one.wait.site.kernel for one in recording.outliers()] == [*range(190, 200)]
    assert all(one.catalog.stack(one.wait.site.kernel) == LOCK for one in recording.outliers() if one.wait)
    snapshots = [*iter(recording.read, None)]
    assert [len(one.outliers) for one in snapshots] == [0] * (len(snapshots) - 1) + [10]
    assert {totals.max_ns for totals in between(snapshots[-2], snapshots[-1]).sites.values() if totals.waits} == {
        5 * NS_PER_S
    }
    played = in_json(RecordedSource(path))
    lost = {"unrecorded": recorder.skipped, "outliers": 40}
    assert [tick["lost"] for tick in played if tick["lost"]] == [lost]
    assert sum(int(str(tick["span_ns"])) for tick in played) == 200 * NS_PER_S
