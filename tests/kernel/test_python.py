"""Test Python functions in user stacks, for every installed CPython.

They are in order, with C's in between.
"""

import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from offtop.kernel.binary import cpython_layout
from offtop.kernel.binary.cpython_layout import Interpreter
from offtop.kernel.bpf import features, layout
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.libbpf import KernelTypes, Map
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.procfs.memory import Memory
from offtop.kernel.symbols.mappings import Image
from offtop.kernel.unwind.cpython_frames import CPythonFrames
from offtop.model.values.catalog import SiteKey
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import Frame
from offtop.model.values.wake import WAKEUP
from offtop.model.windows.window import Window
from tests.kernel import watch
from tests.kernel.programs import Program, interpreters, running

APP = r"""
import functools, os, re, sys, threading, time
wait_s = float(sys.argv[1])
lock = threading.Lock()
lock.acquire()
here, there = os.pipe()
class Server:
    def handle(self):
        self.inner()
    def inner(self):
        time.sleep(wait_s)
def sleeper():
    Server().handle()
def by_regex():
    def callback(found):
        time.sleep(wait_s)
        return ""
    re.sub("a", callback, "xax")
def by_sort():
    sorted([1], key=lambda one: time.sleep(wait_s) or one)
def numbers():
    time.sleep(wait_s)
    yield 1
def more_numbers():
    yield from numbers()
def generator():
    for one in more_numbers():
        pass
def locked():
    lock.acquire(timeout=wait_s)
def cache():
    @functools.lru_cache(None)
    def cached(key):
        time.sleep(wait_s)
    cached(1)
def reader():
    os.read(here, 1)
def deep(left=100):
    deep(left - 1) if left else time.sleep(wait_s)
def größe():
    time.sleep(wait_s)
def giver():
    def give():
        time.sleep(wait_s)
        os.write(there, b"x")
    give()
def again_and_again(function):
    sys.stdout.write(f"{function.__name__} {threading.get_native_id():x}\n")
    sys.stdout.flush()
    barrier.wait()
    while True:
        function()
every = [sleeper, by_regex, by_sort, generator, locked, cache, reader, deep, größe, giver]
barrier = threading.Barrier(len(every) + 1)
for function in every:
    threading.Thread(target=again_and_again, args=(function,), daemon=True).start()
barrier.wait()
print("ready", flush=True)
sys.stdin.read()
"""
ORDER = {
    "sleeper": ["inner", "handle", "sleeper"],
    "by_regex": ["callback", "by_regex"],
    "by_sort": ["<lambda>", "by_sort"],
    "generator": ["numbers", "more_numbers", "generator"],
    "locked": ["locked"],
    "cache": ["cached", "cache"],
    "reader": ["reader"],
    "größe": ["größe"],
    "giver": ["give", "giver"],
}
"""Each thread's functions in app.py, leaf first, above again_and_again."""
BY_C = {"by_regex": ("callback", "sub"), "by_sort": ("<lambda>", "by_sort"), "cache": ("cached", "cache")}
"""Two functions of each thread with C code in between."""
SHORT_THREADS = r"""
import sys, threading, time
def brief():
    time.sleep(0.02)
print("ready", flush=True)
for _ in iter(lambda: sys.stdin.read(1), ""):
    threads = [threading.Thread(target=brief) for _ in range(20)]
    for thread in threads: thread.start()
    tids = [thread.native_id for thread in threads]
    for thread in threads: thread.join()
    for tid in tids: print(f"brief-{tid} {tid:x}")
    print("ready", flush=True)
"""
EXECS = r"""
import os, sys, time
def before():
    time.sleep(0.05)
def after():
    time.sleep(0.05)
function = after if sys.argv[2:] else before
print("ready", flush=True)
for word in iter(lambda: sys.stdin.read(1), ""):
    if word == "x":
        os.execv(sys.executable, [sys.executable, *sys.argv, "anew"])
    function()
    print("ready", flush=True)
"""
FORKS = r"""
import ctypes, os, signal, sys, time
def child():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
    for _ in range(4):
        time.sleep(0.02)
    signal.pause()
pids = []
print("ready", flush=True)
for _ in iter(lambda: sys.stdin.read(1), ""):
    for pid in pids:
        os.kill(pid, 9)
    pids.clear()
    for _ in range(5):
        pid = os.fork()
        if not pid:
            child()
        pids.append(pid)
        print(f"child-{pid} {pid:x}", flush=True)
    time.sleep(0.5)
    print("ready", flush=True)
"""


HERE = interpreters()
OWN = HERE.get(f"{sys.version_info[0]}.{sys.version_info[1]}") or Path(sys.executable).resolve()


def _marked(version: str) -> object:
    """Leave all CPythons here out of `make test` but the newest and the tests' own."""
    newest = max(HERE, key=lambda one: [*map(int, one.split("."))])
    is_variant = version != newest and HERE[version] != OWN
    return pytest.param(version, marks=[pytest.mark.variant] if is_variant else [])


@pytest.fixture(scope="module", params=[*map(_marked, HERE)])
def python(request: pytest.FixtureRequest) -> Path:
    return HERE[request.param]


@contextmanager
def script(directory: Path, text: str, python: Path, *words: str) -> Generator[Program]:
    app = directory / "app.py"
    app.write_text(text)
    with running([python, app, *words]) as child:
        yield child


def bare(name: str) -> str:
    """Return the function of `Server.handle (app.py:12)`, or nothing if it is not Python's."""
    return name.rpartition(" (")[0].rpartition(".")[2] if ".py:" in name else ""


def of_app(names: Sequence[str]) -> list[str]:
    return [bare(name) for name in names if "(app.py:" in name]


def check(names: Sequence[str], thread: str) -> None:
    expected = [*ORDER[thread], "again_and_again"]
    assert of_app(names) == expected, names
    assert not [name for name in names if name.startswith("_PyEval_EvalFrameDefault")], names
    every = [bare(name) for name in names]
    assert [name for name in every[every.index("again_and_again") :] if name] == [
        *("again_and_again", "run", "_bootstrap_inner", "_bootstrap")
    ]
    if thread in BY_C:
        inner, outer = BY_C[thread]
        between = every[every.index(inner) + 1 : every.index(outer)]
        assert between, f"nothing of C between {inner} and {outer}"
        assert not any(between), between


def by_thread(live: watch.Watch, child: Program) -> dict[str, list[tuple[str, ...]]]:
    """Return each thread's stacks of voluntary waits in the last of some ticks.

    Stacks that are still unknown are left out.
    """
    for _ in range(4):
        live.tick(0.3)
    window = live.tick(0.4)
    found: dict[str, list[tuple[str, ...]]] = {}
    for name, tid in child.at.items():
        by_itself = [
            key for key in watch.sites_of(window, tid) if category(window, key) not in ("run-queue", "page-fault")
        ]
        frames = [window.catalog.stack(key.user).frames for key in by_itself]
        live.source.wait_for_names({frame for stack in frames for frame in stack}, 30)
        found[name] = [tuple(live.source.names.of(frame) for frame in stack) for stack in frames if stack]
    return found


def category(window: Window, key: SiteKey) -> str:
    return window.catalog.stack(key.kernel).category


@pytest.mark.kernel
@pytest.mark.parametrize("wait_s", [0.03, 100], ids=["ended", "in-progress"])
def test_each_wait_has_its_python_functions_in_order(python: Path, wait_s: float, tmp_path: Path) -> None:
    with script(tmp_path, APP, python, str(wait_s)) as child, watch.watching(Filters(pids=(child.pid,))) as live:
        every = by_thread(live, child)
        assert len(every) == len(ORDER) + 1
        deep = every.pop("deep")
        for thread, stacks in every.items():
            assert stacks, thread
            for stack in stacks:
                check(stack, thread)
        for stack in deep:
            assert of_app(stack) == ["deep"] * (layout.PYTHON_FRAMES - 1)
            assert "(more functions of Python)" in stack


@pytest.mark.kernel
@pytest.mark.parametrize(
    "python",
    [pytest.param(one, marks=[] if HERE[one] == OWN else [pytest.mark.variant]) for one in sorted(HERE)],
    indirect=True,
)
def test_python_functions_are_found_along_frame_pointers(python: Path, tmp_path: Path) -> None:
    with (
        script(tmp_path, APP, python, "0.03") as child,
        watch.watching(Filters(pids=(child.pid,)), unwind=Unwind("fp", cpu_pct=200)) as live,
    ):
        for thread, stacks in by_thread(live, child).items():
            for stack in stacks:
                if thread != "deep":
                    assert of_app(stack) == [*ORDER[thread], "again_and_again"], stack


@pytest.mark.kernel
@pytest.mark.parametrize("python", [*map(_marked, sorted(HERE.keys() - {"3.9", "3.10"}))], indirect=True)
@pytest.mark.parametrize(
    "wait_s", [pytest.param(0.03, id="ended"), pytest.param(100, id="in-progress", marks=pytest.mark.variant)]
)
def test_the_thread_is_found_by_id_if_not_by_its_tls(
    python: Path, wait_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on arm64: by native_thread_id, which comes right after thread_id from 3.11 on."""
    find, learn = features.detect, CPythonFrames.add_interpreter

    def without_fs_base(types: KernelTypes) -> Features:
        own_id = features._own_id(types)  # pyright: ignore[reportPrivateUsage]
        assert own_id
        return replace(find(types), fs_base=None, own_id=own_id)

    def learn_native(self: CPythonFrames, label: str, found: Interpreter | None) -> None:
        if found:
            at = found.layout.thread_id + 8
            found = found._replace(layout=found.layout._replace(thread_id=at))
        learn(self, label, found)

    if features.detect(KernelTypes()).fs_base is not None:
        monkeypatch.setattr(features, "detect", without_fs_base)
        monkeypatch.setattr(CPythonFrames, "add_interpreter", learn_native)
    with script(tmp_path, APP, python, str(wait_s)) as child, watch.watching(Filters(pids=(child.pid,))) as live:
        for thread, stacks in by_thread(live, child).items():
            assert stacks, thread
            for stack in stacks:
                if thread != "deep":
                    check(stack, thread)


@pytest.mark.kernel
def test_a_frame_has_its_source_and_the_functions_first_line(tmp_path: Path) -> None:
    with (
        script(tmp_path, APP, OWN, "0.03") as child,
        watch.watching(Filters(pids=(child.pid,))) as live,
    ):
        by_thread(live, child)
        window = live.tick(0.3)
        stacks = [window.catalog.stack(key.user) for key in watch.sites_of(window, child.at["sleeper"])]
        line = APP[: APP.index("def handle")].count("\n") + 1
        whole = [stack for stack in stacks if stack.frames]
        assert whole
        for stack in whole:
            assert Frame(str(tmp_path / "app.py"), line, f"Server.handle (app.py:{line})") in stack.frames
            assert not stack.is_guessed


@pytest.mark.kernel
def test_a_waker_has_its_python_functions(tmp_path: Path) -> None:
    with (
        script(tmp_path, APP, OWN, "0.03") as child,
        watch.watching(Filters(pids=(child.pid,)), mode=WAKEUP) as live,
    ):
        by_thread(live, child)
        window = live.tick(0.3)
        wakers = {window.catalog.wake(key.wake).waker for key in watch.sites_of(window, child.at["reader"])}
        by_waker = [of_app([frame.name for frame in window.catalog.stack(waker.user).frames]) for waker in wakers]
        assert ["give", "giver", "again_and_again"] in by_waker


def once_known(child: Program, live: watch.Watch, rounds: int) -> Window:
    """Return a window with one more round, after enough rounds to recognize Python."""
    for _ in range(rounds):
        child.go()
        live.tick()
    child.at.clear()
    live.tick()
    child.go()
    return live.tick(0.1)  # the last thread may still be exiting, and its waits arrive with its exit


@pytest.mark.kernel
def test_threads_that_live_within_a_tick_have_python_functions(tmp_path: Path) -> None:
    with (
        script(tmp_path, SHORT_THREADS, OWN) as child,
        watch.watching(Filters(pids=(child.pid,))) as live,
    ):
        window = once_known(child, live, 3)
        assert len(child.at) == 20
        for tid in child.at.values():
            sleeps = [stack for stack in live.user_stacks(window, tid) if "brief" in of_app(stack)]
            assert sleeps, live.user_stacks(window, tid)


@pytest.mark.kernel
def test_children_have_python_functions_from_their_first_wait_on(tmp_path: Path) -> None:
    with script(tmp_path, FORKS, OWN) as child, watch.watching() as live:
        window = once_known(child, live, 2)
        assert len(child.at) == 5
        for pid in child.at.values():
            waits = {stack: totals.waits for stack, totals in live.user_stacks(window, pid, "sleep").items()}
            assert sum(n for stack, n in waits.items() if of_app(stack) == ["child", "<module>"]) == 4, waits


@pytest.mark.kernel
def test_after_exec_the_new_programs_functions_are_shown(tmp_path: Path) -> None:
    with (
        script(tmp_path, EXECS, OWN, "first") as child,
        watch.watching(Filters(pids=(child.pid,))) as live,
    ):
        rounds: list[list[str]] = []
        for number in range(12):
            if number == 6:
                child.write(b"x")
            child.go()
            window = live.tick()
            stacks = live.user_stacks(window, child.pid)
            rounds.append([name for stack in stacks for name in of_app(stack) if name in ("before", "after")])
        assert "before" in rounds[5]
        assert "after" in rounds[11]
        assert "before" not in [name for names in rounds[7:] for name in names]


class Table(Map):
    """A map that keeps the last update."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}

    def update(self, key: bytes, value: bytes) -> None:
        self.entries[key] = value


class MemoryWords(Memory):
    """Memory with some known words."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}

    def put(self, address: int, raw: bytes) -> None:
        self.bytes.update(enumerate(raw, address))

    def words(self, address: int, *words: int) -> None:
        self.put(address, b"".join(word.to_bytes(8, "little") for word in words))

    def code(self, address: int, size_bytes: int) -> bytes:
        found = bytearray()
        while len(found) < size_bytes and address + len(found) in self.bytes:
            found.append(self.bytes[address + len(found)])
        return bytes(found)


LIB = "/usr/lib/libpython3.12.so.1.0"
BASE = 0x7F0000000000
RUNTIME, CODE_TYPE, EVAL = 0x900, 0x800, 0x2000
KNOWN = Interpreter((3, 12), RUNTIME, CODE_TYPE, EVAL, EVAL + 0x100, cpython_layout.LAYOUTS[3, 12])
IN_EVAL, IN_LIB, IN_LIBC = Frame(LIB, EVAL + 8), Frame(LIB, 0x5000), Frame("/lib/libc.so.6", 0x100)
START = Frame("/lib/libc.so.6", 0x900)


class Process:
    """A process that runs CPython 3.12, and what is known of it."""

    def __init__(self) -> None:
        self.memory, self.table = MemoryWords(), Table()
        self.cpython_frames = CPythonFrames(self.table)
        image = Image((b"1",))
        image.starts.append(BASE + 0x1000)
        image.ends.append(BASE + 0x9000)
        image.offsets.append(0x1000)
        image.labels.append(LIB)
        image.space = 1
        assert self.cpython_frames.unexamined_binary(image) == LIB
        self.cpython_frames.add_interpreter(LIB, KNOWN)
        assert self.cpython_frames.load(7, image)
        self.at = 0x1000

    def string(self, text: str, kind: int = 1) -> int:
        self.at += 0x10000
        is_ascii = text.isascii()
        state = kind << 2 | 1 << 5 | is_ascii << 6
        self.memory.words(self.at, 1, 0x9999, len(text), 0, state)
        codec = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind]
        self.memory.put(self.at + (40 if is_ascii else 56), text.encode(codec, errors="surrogatepass"))
        return self.at

    def function(self, name: str, file: str = "/srv/app.py", line: int = 3, kind: int = 1) -> int:
        file_at, name_at = self.string(file), self.string(name, kind)
        self.at += 0x10000
        self.memory.words(self.at, 1, BASE + CODE_TYPE)
        self.memory.put(self.at + 68, line.to_bytes(4, "little", signed=True))
        self.memory.words(self.at + 112, file_at, 0, name_at)
        return self.at

    def mixed(self, frames: Sequence[Frame], words: Sequence[int], is_whole: bool = True) -> tuple[list[str], bool]:
        """Return frame names, with C's as `lib` and so on, and whether they are certain."""
        self.cpython_frames.read(
            7, [word & layout.PYTHON_ADDRESS for word in words if word & layout.PYTHON_ADDRESS], self.memory
        )
        found = self.cpython_frames.merge(7, tuple(frames), words, is_whole)
        assert not found.unnamed
        plain = {IN_EVAL: "eval", IN_LIB: "lib", IN_LIBC: "libc", START: "start"}
        return [plain.get(frame) or frame.name for frame in found.frames], not found.unsure


SHIM = layout.PYTHON | layout.PYTHON_ENTRY


def test_two_interpreter_calls_each_have_their_functions() -> None:
    process = Process()
    f, g, h = (layout.PYTHON | process.function(name) for name in "fgh")
    frames = [IN_LIBC, IN_EVAL, IN_LIB, IN_EVAL, START]
    assert process.mixed(frames, [f, g, SHIM, h, SHIM]) == (
        ["libc", "f (app.py:3)", "g (app.py:3)", "lib", "h (app.py:3)", "start"],
        True,
    )
    assert process.mixed(frames, [f, g, SHIM, h, SHIM, SHIM])[1], "3.14 has one more at the start of a thread"
    assert process.mixed(frames, [SHIM, h, SHIM]) == (["libc", "eval", "lib", "h (app.py:3)", "start"], True)


def test_functions_without_an_interpreter_call_are_kept_and_marked() -> None:
    process = Process()
    f, g = (layout.PYTHON | process.function(name) for name in "fg")
    assert process.mixed([IN_LIBC, IN_EVAL, IN_LIB, START], [f, SHIM, g, SHIM]) == (
        ["libc", "f (app.py:3)", "g (app.py:3)", "lib", "start"],
        False,
    )
    assert process.mixed([IN_LIBC, IN_LIB, START], [f, SHIM, g, SHIM]) == (
        ["libc", "f (app.py:3)", "g (app.py:3)", "lib", "start"],
        False,
    )
    assert process.mixed([IN_LIBC, IN_EVAL], [f, SHIM, g, SHIM], is_whole=False) == (
        ["libc", "f (app.py:3)", "g (app.py:3)"],
        True,
    )
    assert process.mixed([], [f, SHIM], is_whole=False) == (["f (app.py:3)"], True)


def test_interpreter_calls_without_functions_stay_and_gaps_are_marked() -> None:
    process = Process()
    f = layout.PYTHON | process.function("f")
    frames = [IN_LIBC, IN_EVAL, IN_LIB, IN_EVAL, START]
    assert process.mixed(frames, []) == (["libc", "eval", "lib", "eval", "start"], True)
    assert process.mixed(frames, [f, SHIM]) == (["libc", "f (app.py:3)", "lib", "eval", "start"], False)
    assert process.mixed(frames, [f, layout.PYTHON]) == (
        ["libc", "f (app.py:3)", "(more functions of Python)", "lib", "eval", "start"],
        True,
    )
    assert process.mixed(frames, [layout.PYTHON]) == (["libc", "eval", "lib", "eval", "start"], True)


def test_function_names_are_untrusted_text() -> None:
    process = Process()
    odd = [
        process.function("größe"),
        process.function("имя", kind=2),
        process.function("\U0001f600", kind=4),
        process.function("a\x1b[31m\n"),
        process.function("x" * 5000, "/" + "y" * 5000 + "/z.py", 2**31 - 1),
        process.function("f", "", -1),
    ]
    names, _ = process.mixed([IN_EVAL], [layout.PYTHON | one for one in odd] + [SHIM])
    assert names == [
        *("größe (app.py:3)", "имя (app.py:3)", "\U0001f600 (app.py:3)", "a\\x1b[31m\\x0a (app.py:3)"),
        *("x" * 200 + f" (z.py:{2**31 - 1})", "f"),
    ]


def test_an_invalid_code_object_has_no_name() -> None:
    process = Process()
    f, nothing = process.function("f"), 0x6660001
    process.memory.words(f + 8, 0x1234)
    torn = process.function("g")
    del process.memory.bytes[torn + 130]
    frames = [layout.PYTHON | one for one in (f, nothing, torn)]
    process.cpython_frames.read(7, [f, nothing, torn], process.memory)
    found = process.cpython_frames.merge(7, (IN_EVAL,), [*frames, SHIM], True)
    assert found.frames == (Frame("[python]", 0),) * 3


def test_frames_of_an_unknown_process_stay_as_they_are() -> None:
    process = Process()
    assert process.cpython_frames.merge(8, (IN_EVAL,), [layout.PYTHON | 0x1000], True).frames == (IN_EVAL,)
    process.cpython_frames.forget(7)
    assert process.cpython_frames.merge(7, (IN_EVAL,), [layout.PYTHON | 0x1000], True).frames == (IN_EVAL,)


def test_names_not_read_yet_are_requested() -> None:
    process = Process()
    f = process.function("f")
    assert process.cpython_frames.merge(7, (IN_EVAL,), [layout.PYTHON | f, SHIM], True).unnamed == (f,)


def test_a_replaced_code_object_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a code object by one with another file name.

    Both belong to functions of this process.
    """

    def function() -> None: ...

    binary = OWN
    files = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "r-xp" in line]
    path = next((one for one in files if "libpython" in one), str(binary))
    with Path(path).open("rb") as opened:
        found = cpython_layout.interpreter(opened.fileno(), path)
    assert found
    pid, image, cpython_frames = os.getpid(), Image((b"1",)), CPythonFrames(table := Table())
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "r-xp" in line and line.endswith(path):
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            image.starts.append(start)
            image.ends.append(end)
            image.offsets.append(int(line.split()[2], 16))
            image.labels.append(path)
    image.space = 1
    cpython_frames.add_interpreter(path, found)
    assert cpython_frames.load(pid, image)
    code = id(function.__code__)
    with Memory(pid) as memory:
        cpython_frames.read(pid, [code], memory)
    (frame,) = cpython_frames.merge(pid, (), [layout.PYTHON | code | layout.PYTHON_ENTRY], True).frames
    assert frame.name.endswith(f"<locals>.function ({Path(__file__).name}:{frame.offset})")
    assert frame.file == __file__
    later_s = time.monotonic() + 11
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert cpython_frames.due_pid == pid
    cpython_frames.check_names(pid)
    assert table.entries == {
        pid.to_bytes(4, "little"): found.pack(image.starts[0] - image.offsets[0] + found.runtime, 0)
    }
    cpython_frames._processes[pid].codes[code] = cpython_frames._processes[pid].codes[code]._replace(identity=(1, 2, 3))  # pyright: ignore[reportPrivateUsage]
    cpython_frames.check_names(pid)
    assert table.entries == {
        pid.to_bytes(4, "little"): found.pack(image.starts[0] - image.offsets[0] + found.runtime, 1)
    }
    assert cpython_frames.merge(pid, (), [layout.PYTHON | code | layout.PYTHON_ENTRY], True).unnamed == (code,)


def test_a_binarys_layout_is_validated() -> None:
    assert cpython_layout.parse(cpython_layout.serialize(KNOWN)) == KNOWN
    for text in (
        "",
        "3",
        "3 12 x",
        cpython_layout.serialize(KNOWN) + " 1",
        cpython_layout.serialize(KNOWN).rpartition(" ")[0],
    ):
        assert cpython_layout.parse(text) is None
    for change in ({"threads": 1 << 40}, {"line": -8}, {"frame_holder": 1 << 33}, {"code_mask": 1 << 65}):
        assert (
            cpython_layout.parse(cpython_layout.serialize(KNOWN._replace(layout=KNOWN.layout._replace(**change))))
            is None
        )
    assert cpython_layout.parse(cpython_layout.serialize(KNOWN._replace(runtime=1 << 50))) is None
    assert len(KNOWN.pack(BASE, 70_000)) == layout.PYTHON_LAYOUT.size


def test_no_python_is_found_in_other_binaries() -> None:
    with Path("/bin/true").open("rb") as opened:
        assert cpython_layout.interpreter(opened.fileno(), "/bin/python3.11") is None


@pytest.mark.parametrize(
    ("path", "may_be"),
    [
        ("/usr/bin/python3.11", True),
        ("/opt/lib/libpython3.12.so.1.0", True),
        ("/usr/lib/python3/x/_heapq.cpython-311-x86_64-linux-gnu.so", False),
        ("/usr/lib/python3/libssl.so", False),
        ("[anon]", False),
    ],
)
def test_a_binarys_name_shows_whether_it_may_hold_python(path: str, may_be: bool) -> None:
    assert cpython_layout.may_be_python(path) is may_be
