"""Test the names of user frames of real programs, and that no name is wrong."""

import ctypes
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from offtop.kernel.binary import binaries as binaries_module
from offtop.kernel.binary import files as files_module
from offtop.kernel.binary.files import Files
from offtop.kernel.symbols import names as names_module
from offtop.kernel.symbols.mappings import Processes
from offtop.kernel.symbols.names import NameWorker
from offtop.model.aggregate.stack_problems import FILE_GONE, NO_ELF, NO_SYMBOL, NOT_KNOWN, OVERWRITTEN, STRIPPED
from offtop.model.values.stack import GONE, Frame, nameless
from tests.kernel.programs import build, make_readable_by_all, running

PYTHON = "/usr/bin/python3"
SOURCE = r"""
#include <dlfcn.h>
int NAME(int a) { return a + getpid(); }
__attribute__((noinline)) static int hidden(int a) { return write(2, "", 0) + a; }
int last(int a) { return hidden(a) + 1; }
int main(int count, char **words) {
    tell("function", NAME); tell("hidden", hidden); tell("last", last);
    if (count > 1) tell("plugin", dlsym(dlopen(words[1], RTLD_NOW), "plugin"));
    next();
    return NAME(1) + last(2);
}
"""
BOX = r"""
namespace shop {
template <typename T> struct Box { __attribute__((noinline)) int wait(T n) { return getpid() + n; } };
}
int main() {
    int (shop::Box<int>::*wait)(int) = &shop::Box<int>::wait;
    tell("wait", *(void **)&wait);
    next();
    return shop::Box<int>().wait(1);
}
"""
RUST = r"""
use std::io::{Read, Write};
mod till {
    pub struct Box<T>(pub T);
    pub trait Wait { fn wait(&self) -> u32; }
    impl Wait for Box<u32> { #[inline(never)] fn wait(&self) -> u32 { std::process::id() + self.0 } }
}
use till::Wait;
fn main() {
    println!("wait {:x}\nready", <till::Box<u32> as Wait>::wait as *const () as usize);
    std::io::stdout().flush().unwrap();
    std::io::stdin().read(&mut [0]).unwrap();
    println!("{}", till::Box(1).wait());
}
"""


class Namer:
    """Processes and a worker that names their frames, as a source has them."""

    def __init__(self) -> None:
        self.files = Files()
        self.processes = Processes(self.files)
        self.worker = NameWorker(self.files)

    def frame(self, pid: int, address: int) -> Frame:
        (frame,) = self.processes.frames(pid, [address])
        return frame

    def name(self, pid: int, address: int) -> str:
        """Return the best name there is."""
        return self.best(self.frame(pid, address))

    def best(self, frame: Frame) -> str:
        assert self.worker.wait({frame}, 30)
        assert bool(self.why(frame)) == (self.worker.of(frame) == nameless(frame))
        return self.worker.of(frame)

    def why(self, frame: Frame) -> str:
        """Return the reason why a frame that was looked up has no name."""
        return self.worker.why_nameless(frame)


@pytest.fixture
def namer() -> Generator[Namer]:
    made = Namer()
    yield made
    made.worker.close()


def program(path: Path, name: str = "function", *options: str) -> Path:
    """Build a program whose first function is called `name`."""
    return build(path, SOURCE, f"-DNAME={name}", "-rdynamic", "-fno-toplevel-reorder", *options)


def stripped(path: Path, name: str = "function") -> Path:
    program(path, name)
    subprocess.run(["strip", str(path)], check=True)
    return path


def rewrite(path: Path, other: Path) -> None:
    """Write the content of `other` into the file `path`, which keeps its inode."""
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=(1, 1))


def opened() -> list[str]:
    """Return the files that this process has open."""
    found: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.append(str(link.readlink()))
    return found


def test_no_frames_need_no_waiting(namer: Namer) -> None:
    assert namer.worker.wait(set(), 0)


def test_a_name_is_requested_at_once_and_arrives_in_the_end(namer: Namer, tmp_path: Path) -> None:
    with running([program(tmp_path / "app")]) as app:
        frame = namer.frame(app.pid, app.at["function"])
        assert namer.worker.of(frame) in (f"app+0x{frame.offset:x}", "function")
        assert namer.best(frame) == "function"
        assert namer.name(app.pid, app.at["hidden"]) == "hidden"


def test_a_stripped_binary_names_only_its_exports(namer: Namer, tmp_path: Path) -> None:
    with running([stripped(tmp_path / "app")]) as app:
        hidden = namer.frame(app.pid, app.at["hidden"])
        assert app.at["function"] < app.at["hidden"] < app.at["last"]
        assert namer.name(app.pid, app.at["function"]) == "function"
        assert namer.why(hidden) == ""
        version = namer.worker.version
        assert namer.best(hidden) == f"app+0x{hidden.offset:x}"
        assert namer.why(hidden) == STRIPPED
        assert namer.worker.version == version  # its name has not changed
        assert namer.name(app.pid, app.at["last"]) == "last"
        assert namer.worker.version > version


def test_code_outside_all_symbols_is_not_called_stripped(namer: Namer, tmp_path: Path) -> None:
    source = '__asm__(".text; sizeless: nop; nop; ret"); extern int sizeless(void);'
    path = build(tmp_path / "app", f'{source} int main(void) {{ tell("sizeless", sizeless); return next(); }}')
    with running([path]) as app:
        frame = namer.frame(app.pid, app.at["sizeless"] + 1)
        assert namer.best(frame) == f"app+0x{frame.offset:x}"
        assert namer.why(frame) == NO_SYMBOL


def test_a_nameless_frame_is_its_file_offset_in_every_process(namer: Namer, tmp_path: Path) -> None:
    path = program(tmp_path / "app")
    text = subprocess.run(["readelf", "-sW", str(path)], capture_output=True, text=True, check=True).stdout
    (address,) = (int(line.split()[1], 16) for line in text.splitlines() if line.endswith(" hidden"))
    text = subprocess.run(["readelf", "-lW", str(path)], capture_output=True, text=True, check=True).stdout
    (code,) = (line.split() for line in text.splitlines() if " LOAD " in line and " R E " in line)
    offset = address - int(code[2], 16) + int(code[1], 16)
    subprocess.run(["strip", str(path)], check=True)
    seen: set[int] = set()
    for _ in range(3):
        with running([path]) as app:
            seen.add(app.at["hidden"])
            assert namer.name(app.pid, app.at["hidden"]) == f"app+0x{offset:x}"
    assert len(seen) > 1  # loaded elsewhere each time


def away(path: Path, name: str) -> Path:
    """Move the program's symbols into another file, and leave a debug link to it."""
    debug = path.with_name(name)
    subprocess.run(["objcopy", "--only-keep-debug", str(path), str(debug)], check=True)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", str(path)], check=True)
    make_readable_by_all(debug)
    return debug


def test_symbols_in_a_file_beside_the_program_are_used(namer: Namer, tmp_path: Path) -> None:
    path = program(tmp_path / "app")
    away(path, "app.debug")
    with running([path]) as app:
        assert namer.name(app.pid, app.at["hidden"]) == "hidden"


@pytest.mark.kernel
def test_unreadable_symbols_name_nothing(namer: Namer, tmp_path: Path) -> None:
    path = program(tmp_path / "app")
    away(path, "app.debug").chmod(0o600)
    with running([path]) as app:
        hidden = namer.frame(app.pid, app.at["hidden"])
        assert namer.best(hidden) == f"app+0x{hidden.offset:x}"
        assert namer.why(hidden) == STRIPPED
        assert namer.name(app.pid, app.at["last"]) == "last"  # which it exports


def test_an_unreadable_program_is_named(namer: Namer, tmp_path: Path) -> None:
    path = program(tmp_path / "app")
    path.chmod(0o700)
    with running([path]) as app:
        assert namer.name(app.pid, app.at["hidden"]) == "hidden"


def test_compressed_symbols_are_used(namer: Namer, tmp_path: Path) -> None:
    """As on Fedora and RHEL: in section .gnu_debugdata."""
    path, small = program(tmp_path / "app"), tmp_path / "small"
    subprocess.run(["objcopy", "-S", "--keep-symbol=hidden", str(path), str(small)], check=True)
    subprocess.run(["xz", str(small)], check=True)
    subprocess.run(
        ["objcopy", "--strip-all", f"--add-section=.gnu_debugdata={small}.xz", str(path)],
        check=True,
    )
    with running([path]) as app:
        assert namer.name(app.pid, app.at["hidden"]) == "hidden"


@pytest.mark.skipif(not shutil.which("rustc"), reason="no rustc")
def test_rust_functions_have_their_source_names(namer: Namer, tmp_path: Path) -> None:
    """The compiler may use either of the two manglings."""
    source, path = tmp_path / "shop.rs", tmp_path / "shop"
    source.write_text(RUST)
    subprocess.run(["rustc", "-O", "-o", path, source], check=True, timeout=100)
    with running([path]) as shop:
        assert namer.name(shop.pid, shop.at["wait"]) == "<shop::till::Box<u32> as shop::till::Wait>::wait"


def test_cxx_functions_have_their_source_names(namer: Namer, tmp_path: Path) -> None:
    with running([build(tmp_path / "box", BOX, language="c++")]) as box:
        assert namer.name(box.pid, box.at["wait"]) == "shop::Box<int>::wait(int)"


def test_a_dlopened_library_is_named(namer: Namer, tmp_path: Path) -> None:
    library = build(tmp_path / "plugin.so", "int plugin(void) { return getpid(); }", "-shared", "-fPIC")
    with running([program(tmp_path / "app"), library]) as app:
        assert namer.name(app.pid, app.at["plugin"]) == "plugin"


@pytest.mark.kernel
def test_a_deleted_program_and_its_successor_have_their_own_names(namer: Namer, tmp_path: Path) -> None:
    path = program(tmp_path / "app", "old_one")
    with running([path]) as old:
        path.unlink()
        with running([program(path, "new_one")]) as new:
            old_frame, new_frame = namer.frame(old.pid, old.at["function"]), namer.frame(new.pid, new.at["function"])
            assert old_frame.offset == new_frame.offset
            assert (namer.best(old_frame), namer.best(new_frame)) == ("old_one", "new_one")


def test_an_exited_program_does_not_get_its_successors_names(namer: Namer, tmp_path: Path) -> None:
    path = program(tmp_path / "app", "old_one")
    with running([path]) as old:
        frame = namer.frame(old.pid, old.at["function"])
        path.rename(tmp_path / "kept")  # so that its inode is not given to the next one
        program(path, "new_one")
        shutil.copystat(tmp_path / "kept", path)
    assert namer.best(frame) == f"app+0x{frame.offset:x}"
    assert namer.why(frame) == FILE_GONE


def test_an_exited_program_is_named_from_its_file(namer: Namer, tmp_path: Path) -> None:
    with running([program(tmp_path / "app")]) as app:
        frame = namer.frame(app.pid, app.at["function"])
    assert namer.best(frame) == "function"


@pytest.mark.parametrize("remote", [False, True])
def test_a_program_rewritten_in_place_keeps_its_names_to_itself(
    namer: Namer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    monkeypatch.setattr(files_module, "_MTIME_VALID_NS", -1)
    if remote:  # there, the mtime is not checked until the file is opened
        monkeypatch.setattr(files_module, "_is_local", lambda _device, _pid, _reads: False)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    path, other = program(tmp_path / "app", "old_one"), program(tmp_path / "other", "new_one")
    with running([path]) as old:
        frame, unasked = namer.frame(old.pid, old.at["function"]), namer.frame(old.pid, old.at["last"])
        assert namer.best(frame) == "old_one"
    rewrite(path, other)
    assert namer.best(unasked) == f"app+0x{unasked.offset:x}"
    assert namer.why(unasked) == OVERWRITTEN
    with running([path]) as new:
        assert namer.name(new.pid, new.at["function"]) == "new_one"
    assert namer.best(frame) == "old_one"


@pytest.mark.kernel
def test_a_program_rewritten_before_it_was_opened_has_no_names(namer: Namer, tmp_path: Path) -> None:
    path, other = program(tmp_path / "app", "old_one"), program(tmp_path / "other", "new_one")
    with running([path]) as old:
        frame = namer.frame(old.pid, old.at["function"])
    rewrite(path, other)
    assert namer.best(frame) == f"app+0x{frame.offset:x}"


@pytest.mark.kernel
def test_a_deleted_library_is_named_while_mapped(namer: Namer, tmp_path: Path) -> None:
    library = build(tmp_path / "plugin.so", "int plugin(void) { return getpid(); }", "-shared", "-fPIC")
    with running([program(tmp_path / "app"), library]) as app:
        library.unlink()
        assert namer.name(app.pid, app.at["plugin"]) == "plugin"


def test_a_file_that_failed_to_open_is_retried_at_its_next_mapping(namer: Namer, tmp_path: Path) -> None:
    path = program(tmp_path / "app")
    with running([path]) as first:
        frame = namer.frame(first.pid, first.at["function"])
        path.rename(tmp_path / "away")
    assert namer.best(frame) == f"app+0x{frame.offset:x}"
    (tmp_path / "away").rename(path)
    with running([path]) as second:
        assert namer.frame(second.pid, second.at["function"]) == frame
        assert namer.best(frame) == "function"


@pytest.mark.kernel
def test_one_path_in_another_mount_namespace_is_another_file(namer: Namer, tmp_path: Path) -> None:
    on_host, in_container = program(tmp_path / "app", "of_the_host"), program(tmp_path / "other", "of_the_container")
    enter = ["unshare", "-m", "sh", "-c", f"mount --bind {in_container} {on_host} && exec {on_host}"]
    with running([on_host]) as host, running(enter) as container:
        frames = [namer.frame(app.pid, app.at["function"]) for app in (host, container)]
        assert frames[0].file == str(on_host)
        assert frames[0].offset == frames[1].offset
        assert [namer.best(frame) for frame in frames] == ["of_the_host", "of_the_container"]


def test_the_interpreters_own_functions_are_named(namer: Namer) -> None:
    code = """if True:
        import ctypes, sys
        print("PyEval_EvalCode %x" % ctypes.cast(ctypes.pythonapi.PyEval_EvalCode, ctypes.c_void_p).value)
        print("ready", flush=True)
        sys.stdin.read(1)
    """
    with running([PYTHON, "-c", code]) as python:
        assert namer.name(python.pid, python.at["PyEval_EvalCode"]) == "PyEval_EvalCode"


def test_the_vdso_is_named(namer: Namer) -> None:
    frames = {Frame("[vdso]", offset) for offset in range(0, 0x2000, 8)}
    assert namer.worker.wait(frames, 30)
    names = {namer.worker.of(frame) for frame in frames}
    assert any(re.fullmatch(r"__(vdso|kernel)_clock_gettime", name) for name in names)
    assert namer.worker.of(Frame("[vdso]", 0)) == "[vdso]"


def test_hostile_symbols_cannot_write_to_the_terminal(namer: Namer, tmp_path: Path) -> None:
    path, evil = program(tmp_path / "app"), "\x1b[2J\u202e"
    subprocess.run(["objcopy", f"--redefine-sym=hidden={evil}{5000 * 'x'}", str(path)], check=True)
    with running([path]) as app:
        assert namer.name(app.pid, app.at["hidden"]) == r"\x1b[2J\u202e" + 995 * "x" + "…"


def test_a_file_that_is_not_elf_leaves_its_frames_unnamed(namer: Namer, tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_bytes(4096 * b"\xc3")
    fd = os.open(path, os.O_RDONLY)
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(4096), 5, 2, fd, ctypes.c_long(0))
    os.close(fd)
    frame = namer.frame(os.getpid(), address + 16)
    assert (namer.best(frame), namer.why(frame)) == ("code+0x10", NO_ELF)
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(4096))


def test_frames_in_no_file_are_named_at_once(namer: Namer) -> None:
    frames = [Frame(GONE, 0), Frame("[anon]", 0x7F00), Frame("[jit]", 16, "Main::loop"), Frame("/never/seen.so", 0x20)]
    assert namer.worker.wait(set(frames), 0)
    assert [namer.worker.of(frame) for frame in frames] == ["[gone]", "[anon]+0x7f00", "Main::loop", "seen.so+0x20"]
    assert [namer.why(frame) for frame in frames] == [NOT_KNOWN, NOT_KNOWN, "", NOT_KNOWN]
    assert namer.worker.of(Frame("/never/\x1b[2J", 0, "")) == r"\x1b[2J"


def test_many_threads_may_request_the_same_names(namer: Namer, tmp_path: Path) -> None:
    with running([program(tmp_path / "app")]) as app:
        frames = {namer.frame(app.pid, app.at["function"] + n) for n in range(-200, 200)}
        found: list[bool] = []
        askers = [threading.Thread(target=lambda: found.append(namer.worker.wait(frames, 30))) for _ in range(4)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(60)
    assert found == [True] * 4


def test_names_are_evicted_when_there_are_too_many(
    namer: Namer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "_MOST_NAMES", 10)
    with running([program(tmp_path / "app")]) as app:
        for n in range(50):
            assert namer.name(app.pid, app.at["function"] + n)
            file = namer.files.get(str(tmp_path / "app"))
            assert file
            assert len(file.names) <= 11
        assert namer.name(app.pid, app.at["function"]) == "function"


def test_names_beyond_the_queue_are_requested_again(
    namer: Namer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "_MOST_QUEUED", 3)
    with running([program(tmp_path / "app")]) as app:
        frames = {namer.frame(app.pid, app.at["function"] + n) for n in range(100)}
        assert namer.worker.wait(frames, 30)


def test_idle_workers_hold_no_file_open(namer: Namer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries_module, "_UNUSED_S", 0.01)
    path = program(tmp_path / "app")
    with running([path]) as app:
        assert namer.name(app.pid, app.at["function"]) == "function"
        deadline = time.monotonic() + 30
        while str(path) in opened() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert str(path) not in opened()
        assert namer.name(app.pid, app.at["last"]) == "last"


def test_closing_ends_the_thread_and_keeps_known_names(tmp_path: Path) -> None:
    before = {*threading.enumerate()}  # some of them may still exit
    namer = Namer()
    assert len({*threading.enumerate()} - before) == 1
    with running([program(tmp_path / "app")]) as app:
        known, unknown = namer.frame(app.pid, app.at["function"]), namer.frame(app.pid, app.at["last"])
        assert namer.best(known) == "function"
        namer.worker.close()
        namer.worker.close()
        assert not {*threading.enumerate()} - before
        assert namer.worker.of(known) == "function"
        assert namer.worker.of(unknown) == f"app+0x{unknown.offset:x}"
        assert not namer.worker.wait({unknown}, 30)


def test_without_libdw_the_error_says_what_to_install() -> None:
    code = """if True:
        import ctypes
        from offtop.errors import KernelError
        def missing(name): raise OSError(name)
        ctypes.CDLL = missing
        from offtop.kernel.binary import dwfl
        try:
            dwfl.library()
        except KernelError as error:
            print(error)
    """
    python = shutil.which("python3")
    assert python
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3]
    )
    assert "apt install libdw1" in done.stdout, done.stderr
