"""Test mapping addresses to (file, offset), against the memory of real processes."""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.binary import files
from offtop.kernel.binary import perf_map as perfmap
from offtop.kernel.binary.files import Files
from offtop.kernel.procfs.guarded_reads import Channel, GuardedReads
from offtop.kernel.symbols import mappings
from offtop.kernel.symbols.mappings import Processes
from offtop.model.values.stack import Frame
from offtop.printable import printable
from tests.kernel.programs import Program, build, running
from tests.kernel.reads import READS

ONE = r"""
__attribute__((noinline)) int one(int a) { return getpid() + a; }
int main(int count, char **words) {
    int on_stack = 0;
    tell("one", one); tell("two", (char *)one + 5); tell("stack", &on_stack); tell("data", &stdout);
    next();
    if (count > 1) execl(words[1], words[1], (char *)0);
    return one(count) < 0;
}
"""
LOADER = r"""
#include <dlfcn.h>
int main(int count, char **words) {
    next();
    void *library = dlopen(words[count - 1], RTLD_NOW);
    tell("plugin", dlsym(library, "plugin"));
    next();
    return 0;
}
"""
JIT = r"""
#include <sys/mman.h>
int main(void) {
    char *code = mmap(0, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tell("code", code);
    next();
    return 0;
}
"""
LEADERLESS = r"""
#include <pthread.h>
static void *stay(void *nothing) { next(); return nothing; }
int main(void) {
    pthread_t thread;
    tell("stay", stay);
    pthread_create(&thread, 0, stay, 0);
    pthread_exit(0);
}
"""


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again at once what is otherwise read again only now and then."""
    monkeypatch.setattr(mappings, "_PAUSE_FACTOR", 0)
    monkeypatch.setattr(perfmap, "_PATIENCE_S", 10)
    monkeypatch.setattr(files, "_MTIME_VALID_NS", -1)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("one") / "one", ONE)


@pytest.fixture
def processes() -> Processes:
    return Processes(Files())


@pytest.fixture
def jit(tmp_path: Path) -> Generator[tuple[Program, Path]]:
    """Run a program that generates code, and yield it with the path of its perf map."""
    with running([build(tmp_path / "jit", JIT)]) as program:
        perf_map = Path(f"/tmp/perf-{program.pid}.map")
        yield program, perf_map
        perf_map.unlink(missing_ok=True)


def memory(pid: int, address: int) -> bytes:
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return os.pread(fd, 16, address)
    finally:
        os.close(fd)


def bytes_at(frame: Frame) -> bytes:
    return Path(frame.file).read_bytes()[frame.offset : frame.offset + 16]


def test_an_empty_stack_has_no_frames_and_reads_no_process(processes: Processes) -> None:
    assert processes.frames(1 << 30, []) == ()
    assert processes.exited == 0


def test_the_file_at_the_offset_matches_the_memory_at_the_address(one: Path, processes: Processes) -> None:
    with running([one]) as program:
        (frame,) = processes.frames(program.pid, [program.at["one"]])
        assert frame == Frame(str(one), frame.offset)
        assert bytes_at(frame) == memory(program.pid, program.at["one"])


def test_all_but_the_leaf_are_return_addresses(one: Path, processes: Processes) -> None:
    with running([one]) as program:
        leaf, caller, _ = processes.frames(program.pid, [program.at["one"]] + 2 * [program.at["two"]])
        assert (caller.file, caller.offset - leaf.offset) == (leaf.file, 4)  # 5 bytes on and 1 back: the call


def test_addresses_that_are_no_code_are_unknown(one: Path, processes: Processes) -> None:
    with running([one]) as program:
        wrong = [program.at["stack"], program.at["data"], 8, (1 << 47) - 8, (1 << 64) - 1]
        assert processes.frames(program.pid, wrong) == 5 * (Frame("[unknown]", 0),)


def test_vdso_offsets_start_at_its_beginning(one: Path, processes: Processes) -> None:
    with running([one]) as program:
        maps = Path(f"/proc/{program.pid}/maps").read_text().splitlines()
        start = next(int(line.split("-")[0], 16) for line in maps if line.endswith("[vdso]"))
        assert processes.frames(program.pid, [start + 0x123]) == (Frame("[vdso]", 0x123),)


def test_a_process_that_exited_before_it_was_read_is_counted(processes: Processes) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait(10)
    assert processes.frames(ended.pid, [0x401000, 0x402000]) == (Frame("[gone]", 0),)
    assert processes.exited == 1


def test_a_zombie_has_no_mappings(processes: Processes) -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert processes.frames(ended.pid, [0x401000]) == (Frame("[gone]", 0),)
    ended.wait(10)


def test_mappings_outlive_their_process_until_forgotten(one: Path, processes: Processes) -> None:
    with running([one]) as program:
        address = program.at["one"]
        before = processes.frames(program.pid, [address])
        os.kill(program.pid, 9)
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert processes.frames(program.pid, [address]) == before  # a zombie
    assert processes.frames(program.pid, [address, address + 1]) == before + before  # gone
    processes.forget(program.pid)
    assert processes.frames(program.pid, [address]) == (Frame("[gone]", 0),)


def test_exec_drops_the_old_mappings(tmp_path: Path, processes: Processes) -> None:
    one, other = (build(tmp_path / name, ONE, "-no-pie") for name in ("one", "other"))
    with running([one, other]) as program:
        address = program.at["one"]
        assert processes.frames(program.pid, [address])[0].file == str(one)
        program.go()
        assert program.at["one"] == address
        assert processes.frames(program.pid, [address])[0].file == str(other)


def test_a_library_loaded_later_is_found(tmp_path: Path, processes: Processes) -> None:
    library = build(tmp_path / "plugin.so", "int plugin(void) { return getpid(); }", "-shared", "-fPIC")
    with running([build(tmp_path / "loader", LOADER), library]) as program:
        processes.frames(program.pid, [0x1000])
        program.go()
        (frame,) = processes.frames(program.pid, [program.at["plugin"]])
        assert frame.file == str(library)
        assert bytes_at(frame) == memory(program.pid, program.at["plugin"])


def test_other_threads_stay_readable_after_the_main_thread_exits(tmp_path: Path, processes: Processes) -> None:
    with running([build(tmp_path / "leaderless", LEADERLESS)]) as program:
        while "Z" not in Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0]:
            time.sleep(0.01)
        (frame,) = processes.frames(program.pid, [program.at["stay"]])
        assert frame.file == str(tmp_path / "leaderless")


def test_two_programs_at_one_path_are_two_files(
    one: Path, tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mappings, "_LIFETIME_NS", 0)
    path = tmp_path / "app"
    shutil.copy(one, path)
    with running([path]) as first:
        before = processes.frames(first.pid, [first.at["one"]])
        path.unlink()  # its path is "app (deleted)" from here on, but it is still the same file
        assert processes.frames(first.pid, [first.at["one"]]) == before
        shutil.copy(one, path)
        with running([path]) as second, running([path]) as third:
            after = [processes.frames(p.pid, [p.at["one"]])[0].file for p in (first, second, third)]
    assert after == [str(path), f"{path} (2)", f"{path} (2)"]


def test_a_deleted_program_read_late_is_marked_deleted(one: Path, tmp_path: Path, processes: Processes) -> None:
    path = tmp_path / "app"
    shutil.copy(one, path)
    with running([path]) as program:
        path.unlink()
        assert processes.frames(program.pid, [program.at["one"]])[0].file == f"{path} (deleted)"


@pytest.mark.kernel
def test_a_program_rewritten_in_place_is_another_file(one: Path, tmp_path: Path, processes: Processes) -> None:
    path = tmp_path / "app"
    shutil.copy(one, path)
    with running([path]) as program:
        assert processes.frames(program.pid, [program.at["one"]])[0].file == str(path)
    with path.open("r+b") as file:
        file.write(b"\x7f")
    os.utime(path, ns=(1, 1))
    with running([path]) as program:
        assert processes.frames(program.pid, [program.at["one"]])[0].file == f"{path} (2)"


def test_a_hostile_path_cannot_write_to_the_terminal(one: Path, tmp_path: Path, processes: Processes) -> None:
    path = tmp_path / "a\x1b[31m\u202eb"
    shutil.copy(one, path)
    with running([path]) as program:
        (frame,) = processes.frames(program.pid, [program.at["one"]])
    assert frame.file == str(tmp_path / r"a\x1b[31m\u202eb")


def named(processes: Processes, program: Program, addresses: list[int], count: int) -> tuple[Frame, ...]:
    """Return the frames once the perf map names so many of them."""
    deadline = time.monotonic() + 30
    while True:
        frames = processes.frames(program.pid, addresses)
        if sum(frame.file == "[jit]" for frame in frames) == count or time.monotonic() > deadline:
            return frames
        time.sleep(0.005)


def test_jit_code_is_named_by_the_perf_map(jit: tuple[Program, Path], processes: Processes) -> None:
    program, perf_map = jit
    code = program.at["code"]
    assert processes.frames(program.pid, [code + 4]) == (Frame("[anon]", code + 4),)
    perf_map.write_text(f"{code:x} 10 Main::loop()\n0x{code + 16:x} 0x8 evil\x1b[31m name\n")
    frames = named(processes, program, [code + 15, code + 17, code + 24, code + 25], 3)
    assert frames == (
        Frame("[jit]", code + 15, "Main::loop()"),
        Frame("[jit]", code + 16, r"evil\x1b[31m name"),  # for a return address, the byte before it
        Frame("[jit]", code + 23, r"evil\x1b[31m name"),
        Frame("[anon]", code + 24),
    )


def test_a_growing_perf_map_is_read_on_and_its_newest_entry_wins(
    jit: tuple[Program, Path], processes: Processes
) -> None:
    program, perf_map = jit
    code = program.at["code"]
    perf_map.write_text(f"{code:x} 100 old\n{code + 256:x} 10 unfini")
    assert processes.frames(program.pid, [code]) == (Frame("[jit]", code, "old"),)
    with perf_map.open("a") as file:
        file.write(f"shed\n{code + 512:x} 10 other\n{code:x} 20 new\n")
    named(processes, program, [code + 256], 1)
    frames = processes.frames(program.pid, [code + 256, code + 1, code + 0x41])
    assert [frame.name for frame in frames] == ["unfinished", "new", "old"]


def test_new_code_over_old_code_has_the_new_name(jit: tuple[Program, Path], processes: Processes) -> None:
    program, perf_map = jit
    code = program.at["code"]
    perf_map.write_text(f"{code + 16:x} 8 old\n{code:x} 20 new\n{code + 24:x} 8 newest\n")
    frames = [processes.frames(program.pid, [code + at])[0] for at in (15, 17, 25)]
    assert [frame.name for frame in frames] == ["new", "new", "newest"]


def test_a_rewritten_perf_map_is_read_again(jit: tuple[Program, Path], processes: Processes) -> None:
    program, perf_map = jit
    code = program.at["code"]
    perf_map.write_text(f"{code:x} 10 one\n")
    processes.frames(program.pid, [code])
    perf_map.write_text(f"{code + 16:x} 10 two\n{code + 32:x} 10 three\n")
    named(processes, program, [code + 16], 1)
    frames = processes.frames(program.pid, [code + 16, code + 33, code + 1])
    assert [(frame.file, frame.name) for frame in frames] == [("[jit]", "two"), ("[jit]", "three"), ("[anon]", "")]


@pytest.mark.kernel
def test_a_perf_map_of_another_user_is_ignored(jit: tuple[Program, Path], processes: Processes) -> None:
    program, perf_map = jit
    perf_map.write_text(f"{program.at['code']:x} 10 lie\n")
    os.chown(perf_map, 12345, 12345)
    assert processes.frames(program.pid, [program.at["code"]])[0].file == "[anon]"


def test_a_perf_map_that_is_a_fifo_or_a_link_blocks_nothing(jit: tuple[Program, Path], processes: Processes) -> None:
    program, perf_map = jit
    os.mkfifo(perf_map)
    assert processes.frames(program.pid, [program.at["code"]])[0].file == "[anon]"
    perf_map.unlink()
    perf_map.symlink_to("/dev/zero")
    assert processes.frames(program.pid, [program.at["code"]])[0].file == "[anon]"


def test_perf_maps_of_all_processes_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfmap, "_MOST_OF_ALL_BYTES", 8_500)
    perf_map = Path(f"/tmp/perf-{os.getpid()}.map")
    perf_map.write_bytes(b"1000 10 x\n" * 100)
    with contextlib.closing(perfmap.PerfMaps(GuardedReads())) as maps:
        some = [maps.of(os.getpid(), (b"%d" % number,)) for number in range(3)]
        try:
            for one in some:
                maps.refresh(one)
                until_s = time.monotonic() + 20
                while not one.is_read:
                    assert time.monotonic() < until_s
                    time.sleep(0.01)
        finally:
            perf_map.unlink()
    assert [one.size_bytes for one in some] == [1_000, 500, 0]


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"7f00", b" 10 ", b"ffffffffffffffff", b"\n", b"0x"])))
def test_no_perf_map_makes_it_fail(parts: list[bytes]) -> None:
    perf_map = Path(f"/tmp/perf-{os.getpid()}.map")
    perf_map.write_bytes(b"".join(parts))
    try:
        found = perfmap.PerfMap(os.getpid())
        found.read(READS)
        for address in (0, 0x7F00, (1 << 64) - 1):
            assert printable(found.lookup(address)) == found.lookup(address)
    finally:
        perf_map.unlink()


MAPS = [
    b"400000-401000 r-xp 00000000 08:01 12 /bin/a\n",
    b"7f0000000000-7f0000001000",
    b" r-xp ",
    b" rwxp ",
    b"ffffffffffffffff",
    b"-0",
    b"00000000 00:00 0 ",
    b"/x (deleted)",
    b"[vdso]",
    b"//anon",
    b"\xff\x1b\n",
]


@given(st.lists(st.sampled_from(MAPS) | st.binary(max_size=8)), st.lists(st.integers(0, (1 << 64) - 1), max_size=4))
def test_no_maps_make_it_fail(parts: list[bytes], addresses: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mappings, "_maps", lambda _reads, _pid: b"".join(parts))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        frames = Processes(Files()).frames(os.getpid(), [0x400010, 0x7F0000000010, *addresses])
    assert len(frames) in (1, 2 + len(addresses))
    assert all(printable(frame.file) == frame.file for frame in frames)


def test_invalid_addresses_do_not_reread_the_maps(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "_PAUSE_FACTOR", 1_000_000)
    read, readings = mappings._maps, itertools.count()  # pyright: ignore[reportPrivateUsage]

    def counted(reads: Channel, pid: int) -> bytes:
        next(readings)
        return read(reads, pid)

    monkeypatch.setattr(mappings, "_maps", counted)
    processes = Processes(Files())
    with running([one]) as program:
        for address in range(0x1000, 0x9000, 0x1000):
            assert processes.frames(program.pid, [address]) == (Frame("[unknown]", 0),)
    assert next(readings) == 1


def test_old_mappings_are_read_again(one: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "_LIFETIME_NS", 0)
    text = b"400000-401000 r-xp 00000000 08:01 12 /bin/%s\n"
    with running([one]) as program:
        for name in (b"before", b"after"):
            monkeypatch.setattr(mappings, "_maps", lambda _reads, _pid, name=name: text % name)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
            assert processes.frames(program.pid, [0x400123]) == (Frame(f"/bin/{name.decode()}", 0x123),)


def test_cached_processes_are_bounded(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "_MOST_IMAGES", 1)
    processes = Processes(Files())
    with running([one]) as first, running([one]) as second:
        for program in (first, second, first):
            assert processes.frames(program.pid, [program.at["one"]])[0].file == str(one)
    assert processes.frames(first.pid, [first.at["one"]])[0].file == str(one)  # kept, because it was used last
    assert processes.frames(second.pid, [second.at["one"]]) == (Frame("[gone]", 0),)


def test_mappings_of_this_interpreter_are_correct(processes: Processes) -> None:
    maps = Path("/proc/self/maps").read_text().splitlines()
    code = [line.split() for line in maps if " r-xp " in line and line.split()[-1].startswith("/")]
    starts = [int(fields[0].split("-")[0], 16) for fields in code]
    frames = [processes.frames(os.getpid(), [start])[0] for start in starts]
    assert [(frame.file, frame.offset) for frame in frames] == [(fields[5], int(fields[2], 16)) for fields in code]
    assert any("python" in frame.file for frame in frames), sys.executable
