"""Test reads that hang.

Each misses its deadline, blocks only its own subject, and recovers.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.kernel.binary import perf_map as perfmap
from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.files import File, Files, MappedFile, Mapping, OpenedFile
from offtop.kernel.binary.perf_map import PerfMap, PerfMaps
from offtop.kernel.procfs import guarded_reads
from offtop.kernel.procfs.guarded_reads import Channel, GuardedReads
from offtop.kernel.procfs.processes import reading
from offtop.kernel.symbols import mappings
from offtop.kernel.symbols.mappings import Processes
from offtop.model.aggregate.stack_problems import TOO_SLOW
from offtop.model.values.stack import Frame
from tests.kernel import hangs
from tests.kernel.programs import build, running, until

UNREAD = (Frame("[not read]", 0),)
NAPS = r"""
#include <time.h>
static __attribute__((noinline)) void nap(void) { struct timespec ms = {0, 3000000}; nanosleep(&ms, 0); __asm__(""); }
int main(void) { tell("nap", nap); next(); for (;;) nap(); }
"""
MANY_MAPPINGS = r"""
#include <sys/mman.h>
int main(void)
{
	long n, pages = 30000;
	char *at = mmap(0, pages * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (n = 0; n < pages; n += 2)  /* every second page: none can be merged with the next one */
		mprotect(at + n * 4096, 4096, PROT_NONE);
	tell("next", next);
	next();
}
"""
_SOON_S = 0.3
_STUCK = """
import sys, time
from offtop.kernel.procfs.guarded_reads import GuardedReads
channel = GuardedReads().channel(10)
channel.start()
impatient = channel._reads.channel(0.2)
try:
    impatient.ask("it", "opened", sys.argv[1], 0) if sys.argv[2:] else impatient.ask("it", "contents", [sys.argv[1]], 9)
except TimeoutError:
    print("missed", flush=True)
"""


@pytest.fixture
def reads() -> Generator[GuardedReads]:
    made = GuardedReads()
    made.channel(10).start()
    yield made
    made.close()


@pytest.fixture
def channel(reads: GuardedReads) -> Channel:
    return reads.channel(_SOON_S)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Return a FIFO whose open hangs until it is written to."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def content(channel: Channel, subject: str, path: Path) -> list[bytes]:
    return channel.ask(subject, "contents", [str(path)], 100)


def let_go(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY))


def test_a_read_is_not_timed_out_while_the_child_gets_no_cpu(reads: GuardedReads, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"here")
    channel = reads.channel(0.05, 0.05)
    os.kill(reads.pid, signal.SIGSTOP)
    threading.Timer(0.4, os.kill, (reads.pid, signal.SIGCONT)).start()
    assert content(channel, "starved", tmp_path / "file") == [b"here"]


def test_a_child_without_a_cpu_delays_a_tick_by_a_second_at_most(reads: GuardedReads, tmp_path: Path) -> None:
    channel = reads.channel(0.05, 0.05)
    channel.refill()
    os.kill(reads.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    for subject in "abcdefgh":
        with pytest.raises(TimeoutError):
            content(channel, subject, tmp_path)
    assert 1.0 <= time.monotonic() - began_s < 2.5
    os.kill(reads.pid, signal.SIGCONT)


def test_a_hanging_read_blocks_only_its_own_subject(channel: Channel, fifo: Path) -> None:
    other = fifo.with_name("other")
    other.write_bytes(b"here")
    with pytest.raises(TimeoutError):
        content(channel, "hangs", fifo)
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):  # without waiting a second time
        content(channel, "hangs", other)
    assert time.monotonic() - began_s < _SOON_S / 2
    assert content(channel, "other", other) == [b"here"]
    assert channel.hung == {"hangs"}


def test_a_subject_is_read_again_after_its_late_answer(channel: Channel, fifo: Path) -> None:
    with pytest.raises(TimeoutError):
        content(channel, "hangs", fifo)
    let_go(fifo)

    def is_heard() -> bool:
        channel.refill()
        return not channel.hung

    until(is_heard)
    fifo.unlink()
    fifo.write_bytes(b"anew")
    assert content(channel, "hangs", fifo) == [b"anew"]


def test_late_descriptors_are_closed(channel: Channel, reads: GuardedReads, tmp_path: Path, fifo: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (_, inode, size, written_ns), fd = channel.open("file", str(path))
    assert (inode, size, written_ns) == (path.stat().st_ino, 5, path.stat().st_mtime_ns)
    assert os.pread(fd, 9, 0) == b"12345"
    os.close(fd)
    status, handle, fd = channel.keep_open("file", str(path), inode)
    os.close(fd)
    assert status[1:] == [inode, 5, written_ns]
    assert channel.ask("file", "mtime_of_handle_ns", *handle) == written_ns
    channel.ask("file", "release", *handle)
    for known in (handle, (1, handle[1])):
        with pytest.raises(OSError, match="Bad file descriptor"):
            channel.ask("file", "mtime_of_handle_ns", *known)
    with pytest.raises(FileNotFoundError):
        channel.open("file", str(path), inode + 1)
    with pytest.raises(FileNotFoundError):
        channel.open("file", str(fifo))
    before = len([*Path("/proc/self/fd").iterdir()])
    impatient = reads.channel(0)
    impatient.start()

    os.kill(reads.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, reads.pid, os.WSTOPPED | os.WNOWAIT)  # until then it may still answer
    with pytest.raises(TimeoutError):
        impatient.open("late", str(path))
    os.kill(reads.pid, signal.SIGCONT)
    until(lambda: impatient.refill() is None and not impatient.hung)
    assert len([*Path("/proc/self/fd").iterdir()]) <= before + 1


def test_no_read_starts_once_too_many_hang(
    channel: Channel, reads: GuardedReads, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_reads, "MOST_HUNG", 3)
    for subject in "abc":
        assert not reads.is_full
        with pytest.raises(TimeoutError):
            content(channel, subject, fifo)
    assert reads.is_full
    with pytest.raises(TimeoutError):
        content(channel, "d", Path("/proc/self/stat"))
    assert reads.hung == {"a", "b", "c"}
    assert content(reads.channel(10), "d", Path("/proc/self/comm"))[0]  # another kind of read goes on


def test_all_hanging_reads_share_the_allowance_of_a_tick(reads: GuardedReads, fifo: Path) -> None:
    channel = reads.channel(0.1, 0.2)
    channel.start()
    began_s = time.monotonic()
    for subject in range(20):
        with pytest.raises(TimeoutError):
            channel.ask(subject, "contents", [str(fifo)], 100)
    assert time.monotonic() - began_s < 0.2 + 20 * 0.005 + 0.5


def test_a_dead_child_is_replaced_and_its_hung_reads_are_retried(
    channel: Channel, reads: GuardedReads, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_reads, "_AGAIN_S", 0)
    with pytest.raises(TimeoutError):
        content(channel, "hangs", fifo)
    before = reads.pid
    os.kill(before, signal.SIGKILL)

    def answers() -> bool:
        try:
            return content(channel, "hangs", Path("/proc/self/comm")) != [b""]
        except TimeoutError:
            return False

    until(answers)
    assert reads.pid not in (0, before)


def test_a_large_answer_arrives_complete(channel: Channel, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 4096)
    (whole,) = channel.ask("it", "contents", [str(path)], 1 << 21)
    assert whole == path.read_bytes()


def test_a_process_with_hanging_reads_still_exits(fifo: Path) -> None:
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _STUCK, fifo], capture_output=True, timeout=60, check=True, text=True)
    assert (done.stdout, done.stderr) == ("missed\n", "")
    assert time.monotonic() - began_s < 30


@pytest.mark.kernel
def test_a_process_with_a_held_mmap_lock_is_skipped_and_others_are_read(
    reads: GuardedReads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mappings, "_CHECKED_NS", 0)
    naps = build(tmp_path / "naps", NAPS)
    files = Files(reads)
    processes = Processes(files, reads.channel(_SOON_S))
    with running([naps]) as other, hangs.stuck(tmp_path) as child:
        assert hangs.hangs(Path(f"/proc/{child.pid}/maps"))
        assert processes.frames(child.pid, [child.at["nap"]]) == UNREAD
        assert processes.unread == 1
        with pytest.raises(TimeoutError):
            processes.check(child.pid)
        assert processes.frames(other.pid, [other.at["nap"]])[0].file == str(naps)
        found = reading(reads.channel(_SOON_S), child.pid)
        assert found is not None and found.details.cmdline == "[not read]"
        hangs.thaw(tmp_path / "frozen")

        def is_read() -> bool:
            return processes.frames(child.pid, [child.at["nap"]]) != UNREAD

        until(is_read)
        assert processes.frames(child.pid, [child.at["nap"]])[0].file == str(tmp_path / "frozen" / "stuck")
        hangs.freeze(tmp_path / "frozen")


@pytest.mark.kernel
def test_files_on_a_hanging_file_system_are_skipped(reads: GuardedReads, tmp_path: Path) -> None:
    naps = build(tmp_path / "naps", NAPS)
    binaries = Binaries(10, reads=reads)
    binaries._reads = reads.channel(_SOON_S)  # pyright: ignore[reportPrivateUsage]
    with hangs.fuse(tmp_path, naps) as fuse, running([fuse.program]) as child:
        files = Files(reads)
        (frame,) = Processes(files, reads.channel(_SOON_S)).frames(child.pid, [child.at["nap"]])
        file = files.get(frame.file)
        assert file
        assert binaries.names(file, [frame.offset]) == ["nap"]
        fuse.stop_answering()
        began_s = time.monotonic()
        assert binaries.names(file, [frame.offset]) == [""]
        other = File("other", file.path, file.device, file.inode, Mapping(child.pid, 0, 0))
        assert binaries.names(other, [frame.offset]) == [""]
        assert (file.unreadable, other.unreadable) == (TOO_SLOW, TOO_SLOW)
        assert time.monotonic() - began_s < 5
        began_s = time.monotonic()
        command = [sys.executable, "-c", _STUCK, str(fuse.program), "open"]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True, text=True)
        assert (done.stdout, done.stderr) == ("missed\n", "")
        assert time.monotonic() - began_s < 30
        perf_map = PerfMap(child.pid)
        perf_map._paths = [str(fuse.program)]  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(TimeoutError):
            perf_map.read(reads.channel(_SOON_S))
    binaries.end()


def test_perf_maps_share_one_allowance_and_are_read_by_another_thread(
    reads: GuardedReads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfmap, "_SAVED_S", 0.01)
    path = tmp_path / "perf.map"
    path.write_bytes(b"".join(b"%x 1 x\n" % at for at in range(400_000)))  # over 0.1 s, uses up 5 s of allowance
    maps = PerfMaps(reads)
    many = [maps.of(os.getpid(), (b"%d" % n,)) for n in range(40)]
    own_s = time.thread_time()
    for one in many:
        one._paths = [str(path)]  # pyright: ignore[reportPrivateUsage]
        maps.name(one, 1)
    assert time.thread_time() - own_s < 0.2
    until(lambda: many[0].is_read)
    time.sleep(2)
    assert [one.is_read for one in many] == [True] + [False] * 39
    maps.close()
    assert maps.name(many[0], 1) == "x"


def descriptors(reads: GuardedReads) -> int:
    """Number of files that the read child has open."""
    return len([*Path(f"/proc/{reads.pid}/fd").iterdir()])


def test_a_device_in_place_of_a_perf_map_is_not_opened(reads: GuardedReads, channel: Channel, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can mount")
    master, slave = os.openpty()
    path = tmp_path / "perf-1.map"
    path.touch()
    subprocess.run(["mount", "--bind", os.ttyname(slave), path], check=True)
    try:
        assert channel.ask("it", "appended", [str(path)], [path.stat().st_uid], 0, b"", 0, 99) == (0, False, b"")
        fields = Path(f"/proc/{reads.pid}/stat").read_text().rpartition(")")[2].split()
        assert fields[4] == "0"  # tty_nr: a session leader that opens a terminal would take it over
    finally:
        subprocess.run(["umount", path], check=True)
        os.close(master)
        os.close(slave)


def test_a_process_with_thousands_of_files_is_read_in_parts(reads: GuardedReads, channel: Channel) -> None:
    mapped = [MappedFile(f"/x/{n}", "fe:01", n + 1, Mapping(os.getpid(), n << 12, n + 1 << 12)) for n in range(1500)]
    assert len(Files(reads).seen(mapped, channel)) == 1500
    assert channel.hung == frozenset()


def test_labels_of_many_files_with_one_path_take_linear_time(reads: GuardedReads, channel: Channel) -> None:
    def took_s(count: int) -> float:
        mapped = [MappedFile("/x", "00:99", n + 1, Mapping(os.getpid(), n << 12, n + 1 << 12)) for n in range(count)]
        files, began_s = Files(reads), time.thread_time()
        labels = {file.label for file in files.seen(mapped, channel)}
        assert {"/x", "/x (2)", f"/x ({count})"} <= labels and len(labels) == count
        return time.thread_time() - began_s

    # The least of three: a pass of the garbage collector may fall into one. In quadratic time it would be 16 times.
    assert min(took_s(6000) for _ in range(3)) < 10 * min(took_s(1500) for _ in range(3))


def test_a_file_kept_too_late_is_closed_in_the_child(reads: GuardedReads, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    impatient = reads.channel(0)
    impatient.start()
    before = descriptors(reads)
    os.kill(reads.pid, signal.SIGSTOP)
    until(lambda: " T " in Path(f"/proc/{reads.pid}/stat").read_text())  # it may still run on another CPU
    with pytest.raises(TimeoutError):
        impatient.keep_open("late", str(tmp_path / "file"), 0)
    os.kill(reads.pid, signal.SIGCONT)
    until(lambda: impatient.refill() is None and not impatient.hung and descriptors(reads) == before)


def test_a_kept_file_is_closed_while_its_device_hangs(reads: GuardedReads, channel: Channel, fifo: Path) -> None:
    other = fifo.with_name("file")
    other.touch()
    channel.start()
    before = descriptors(reads)
    _, handle, fd = channel.keep_open("device", str(other), 0)
    os.close(fd)
    with pytest.raises(TimeoutError):
        content(channel, "device", fifo)
    OpenedFile(fd, "device", handle).release(channel)
    until(lambda: descriptors(reads) == before)
    let_go(fifo)


def test_without_free_descriptors_a_process_is_unread_not_gone(reads: GuardedReads, channel: Channel) -> None:
    channel.start()
    limits = resource.prlimit(reads.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(reads.pid, resource.RLIMIT_NOFILE, (1, limits[1]))
    with pytest.raises(TimeoutError):
        channel.ask(os.getpid(), "code_of", os.getpid())
    resource.prlimit(reads.pid, resource.RLIMIT_NOFILE, limits)
    assert channel.hung == frozenset()
    assert b"r-xp" in channel.ask(os.getpid(), "code_of", os.getpid())


def test_the_child_keeps_nothing_of_large_files(reads: GuardedReads, channel: Channel, tmp_path: Path) -> None:
    def memory_kb() -> int:
        rollup = Path(f"/proc/{reads.pid}/smaps_rollup").read_text()
        return int(rollup.partition("\nPss:")[2].split()[0])

    def read() -> None:
        assert b"r-xp" in channel.ask(many.pid, "code_of", many.pid)
        assert channel.ask(many.pid, "mapping_of", many.pid, many.at["next"]).count(b"r-xp") == 1

    with running([build(tmp_path / "many", MANY_MAPPINGS)]) as many:
        text = Path(f"/proc/{many.pid}/maps").read_bytes()
        assert len(text) > 1 << 20
        channel.ask(os.getpid(), "code_of", os.getpid())
        before_kb = memory_kb()
        for _ in range(5):
            read()
        grown_kb = memory_kb() - before_kb
        assert grown_kb < len(text) >> 11


def test_a_closed_channel_leaves_no_thread_in_the_child(reads: GuardedReads) -> None:
    def threads() -> int:
        return len([*Path(f"/proc/{reads.pid}/task").iterdir()])

    before = threads()
    closed = reads.channel(10)
    closed.start()
    assert threads() > before
    closed.close()
    until(lambda: threads() == before)
    with pytest.raises(TimeoutError):
        closed.ask("it", "contents", [], 0)


def test_a_full_socket_is_not_taken_for_a_dead_child(reads: GuardedReads, channel: Channel, fifo: Path) -> None:
    with pytest.raises(TimeoutError):
        content(channel, "hangs", fifo)
    os.kill(reads.pid, signal.SIGSTOP)
    until(lambda: "T (stopped)" in Path(f"/proc/{reads.pid}/status").read_text())
    for _ in range(50):
        channel.post("contents", ["x" * 30_000], 0)
    with pytest.raises(TimeoutError):
        content(channel, "other", Path("/proc/self/comm"))
    os.kill(reads.pid, signal.SIGCONT)
    assert channel.hung == {"hangs"}
    let_go(fifo)
