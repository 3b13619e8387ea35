"""Test user stacks of real programs, however they were built.

Each caller up to the thread's start must be found, for ended waits and for the one in progress.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from offtop.kernel.binary import dwfl
from offtop.kernel.binary.demangle import demangled
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.live import LiveSource
from offtop.kernel.unwind import unwinder
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import LINKED, NO_WAY, WHOLE, Frame, Stack, functions
from offtop.model.windows.window import Window
from tests.kernel import chains, watch
from tests.kernel.chains import CHAINS, WAITS, Chain
from tests.kernel.programs import Program, running
from tests.kernel.watch import Watch

pytestmark = pytest.mark.kernel

_SLEEPS = ("nanosleep", "__nanosleep", "std::thread::functions::sleep", "std::thread::sleep", "syscall.Nanosleep")
_PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def live() -> Generator[Watch]:
    """Watch everything, without a limit on the time for unwinding."""
    with closing(LiveSource(watch.rules(), Filters(), unwind=Unwind(cpu_pct=100.0))) as source:
        yield Watch(source)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chains")


def built(name: str, directory: Path) -> Path:
    """Return the program; its twin with all symbols is beside it as `program.full`."""
    chain, program = CHAINS[name], directory / "".join(letter if letter.isalnum() else "-" for letter in name)
    if missing := chain.missing():
        pytest.skip(f"no {missing}")
    if not program.exists():
        chain.make(directory, program)
    return program


class Seen:
    """One program under watch, and what is known of its stacks."""

    def __init__(self, live: Watch, child: Program, program: Path) -> None:
        self.live, self.child = live, child
        self.tid = child.at.get("tid", child.pid)
        twin = program.with_name(f"{program.name}.full")
        self._twin = twin if twin.exists() else None

    def names(self, stack: Stack) -> list[str]:
        self.live.source.wait_for_names(set(stack.frames), _PATIENCE_S)
        return [self._name(frame) for frame in stack.frames]

    def _name(self, frame: Frame) -> str:
        name = self.live.source.names.of(frame)
        if self._twin is not None and name.startswith(f"{self._twin.stem}+"):
            binary = dwfl.Binary(os.open(self._twin, os.O_RDONLY), str(self._twin))
            symbol = binary.symbol(binary.address(frame.offset) or 0)
            name = demangled(symbol.name) if symbol else name
            binary.close()
        return functions(name)[-1].removesuffix(" [clone .cold]").removesuffix(".cold")

    def sleeps(self, window: Window) -> list[tuple[int, Stack, list[str]]]:
        """Return (waits, stack, names) of the thread's ended sleeps."""
        found: list[tuple[int, Stack, list[str]]] = []
        for site, totals in watch.sites_of(window, self.tid).items():
            category = window.catalog.stack(site.kernel).category
            if totals.waits and category == "sleep":
                stack = window.catalog.stack(site.user)
                found.append((totals.waits, stack, self.names(stack)))
        return found

    def now(self) -> tuple[Stack, list[str]]:
        """Return stack and names of the wait in progress, once it was read."""
        until_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s:
            for key, one in self.live.last.waiting.items():
                stack = self.live.last.catalog.stack(one.user)
                if key.tid == self.tid and stack.frames:
                    return stack, self.names(stack)
            self.live.tick(0.1)
        raise TimeoutError(f"thread {self.tid} has no stack")


@contextmanager
def watched(live: Watch, command: Sequence[str | Path], program: Path) -> Generator[Seen]:
    with running(command) as child, only(live, child):
        yield Seen(live, child, program)


@contextmanager
def only(live: Watch, child: Program) -> Generator[None]:
    """Watch only this program.

    On a busy machine the stacks of all others would be unwound before its own.
    """
    live.source.set_filters(Filters(pids=(child.pid,)))
    live.tick()
    try:
        yield
    finally:
        live.source.set_filters(Filters())


def check(seen: Seen, chain: Chain) -> None:
    """Check a chain in two rounds, and the wait after the first.

    In the first round, offtop learns the code and marks what it does not know yet; in the second it knows.
    """
    seen.child.go()
    window = seen.live.tick(0.05)
    first, preempted = seen.sleeps(window), watch.thread(window, seen.tid).involuntary
    assert WAITS <= sum(waits for waits, *_ in first) <= WAITS + preempted  # on its way to sleep
    for _, stack, names in first:
        assert stack.end != WHOLE or is_so(stack, names, chain), names
    stack, names = seen.now()
    assert is_so(stack, names, chain), (stack.end, stack.is_unsure, names)
    seen.live.tick()
    seen.child.go()
    window = seen.live.tick(0.05)
    second, preempted = seen.sleeps(window), watch.thread(window, seen.tid).involuntary
    assert WAITS <= sum(waits for waits, *_ in second) <= WAITS + preempted, second
    assert all(is_so(stack, names, chain) for _, stack, names in second), second


def is_so(stack: Stack, names: Sequence[str], chain: Chain) -> bool:
    """Return whether these are the chain's functions.

    Only libc's and the language's own may be in between.
    """
    known = set(chain.path)
    path = [name for name in names if name in known]
    if chain.end:
        return (stack.end, len(names)) == (chain.end, 127) and path[:2] == [*chain.path[:2]] and set(path) == known
    return path == [*chain.path] and (stack.end, stack.is_unsure) == (WHOLE, chain.is_unsure) and begins(stack, names)


def begins(stack: Stack, names: Sequence[str]) -> bool:
    """Return whether the last frame is where a thread starts, if its libc has a name for that."""
    return names[-1] in chains.BEGINNINGS or "+0x" in names[-1]


_VARIANTS = frozenset(
    {
        *("-O0", "-O1", "-O3", "static", "no-pie", "stripped", "200 callers", "Rust", "Go"),
        *("C++, an exception is caught", "a library opened late", "a JIT's code that jumps"),
        *("musl, -O0", "musl, static", "musl, a thread"),
    }
)
"""Programs whose stacks hold little that is not in those of another program here: make variants."""
assert set(CHAINS) > _VARIANTS


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.variant] if name in _VARIANTS else []) for name in CHAINS]
)
def test_every_caller_is_known_up_to_the_threads_start(live: Watch, directory: Path, name: str) -> None:
    program, chain = built(name, directory), CHAINS[name]
    with watched(live, [program, *(word.format(program) for word in chain.words)], program) as seen:
        check(seen, chain)


def test_a_deleted_program_is_still_read(live: Watch, directory: Path) -> None:
    program = directory / "deleted"
    shutil.copy(built("-O2", directory), program)
    with running([program]) as child:
        program.unlink()
        with only(live, child):
            check(Seen(live, child, program), CHAINS["-O2"])


def test_a_replaced_program_is_still_the_old_one(live: Watch, directory: Path) -> None:
    program, other = directory / "replaced", directory / "another"
    shutil.copy(built("-O2", directory), program)
    shutil.copy(built("aligned locals and alloca", directory), other)
    with running([program]) as child:
        other.rename(program)
        with only(live, child):
            check(Seen(live, child, program), CHAINS["-O2"])
        with watched(live, [program], program) as seen:
            check(seen, CHAINS["aligned locals and alloca"])


def test_a_program_in_a_chroot_is_read_there(live: Watch, directory: Path) -> None:
    program, room = built("-O2", directory), directory / "room"
    room.mkdir()
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
    needed = " ".join(word for word in libraries if word.startswith("/"))
    script = f"mount -t tmpfs none {room} && cp --parents {needed} {room} && cp {program} {room}/in-its-own-room"
    command = ["unshare", "--mount", "sh", "-ec", f"{script} && exec chroot {room} /in-its-own-room"]
    with watched(live, command, program) as seen:
        assert not list(room.iterdir())
        check(seen, CHAINS["-O2"])


def test_jit_functions_have_their_perf_map_names(live: Watch, directory: Path) -> None:
    program = built("a JIT's code without", directory)
    with watched(live, [program, "none"], program) as seen:
        perf_map = Path(f"/tmp/perf-{seen.child.pid}.map")
        perf_map.write_text(f"{seen.child.at['jit']:x} 40 made_at_run_time\n")
        try:
            check(
                seen, Chain(CHAINS["-O2"].make, ("gamma_", "made_at_run_time", "beta", "alpha", "main"), is_unsure=True)
            )
        finally:
            perf_map.unlink()


def test_no_jit_function_is_skipped_if_it_returns_to_code_without_a_call(live: Watch, directory: Path) -> None:
    """Like the functions of Java's interpreter."""
    program = built("a JIT's code that jumps", directory)
    with watched(live, [program, "jumps"], program) as seen:
        code = seen.child.at["jit"]
        perf_map = Path(f"/tmp/perf-{seen.child.pid}.map")
        perf_map.write_text(f"{code:x} 13 outer\n{code + 0x13:x} 20 inner\n")
        path = ("gamma_", "inner", "outer", "beta", "alpha", "main")
        try:
            check(seen, Chain(CHAINS["-O2"].make, path, is_unsure=True))
        finally:
            perf_map.unlink()


def test_code_that_replaces_other_code_is_unwound_by_its_own_rules(
    live: Watch, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwinder, "_CHECK_AGAIN_S", 0.5)
    command = chains.two_of_one_place(directory)
    with watched(live, command, command[0]) as seen:
        path = ["once", "in_library", "alpha", "main"]
        seen.child.go()
        seen.child.go()
        assert seen.child.at[str(command[1])] == seen.child.at[str(command[2])]
        seen.live.tick(0.05)
        until_s = time.monotonic() + _PATIENCE_S
        found: list[str] = []
        while [name for name in found if name in path] != path:
            assert time.monotonic() < until_s, found
            seen.child.go()
            (_, _, found), *_ = seen.sleeps(seen.live.tick(0.05))


@contextmanager
def alone(way: str, program: Path) -> Generator[Seen]:
    """Run the program under a source of its own with this way of unwinding."""
    with (
        closing(LiveSource(watch.rules(), Filters(), unwind=Unwind(way, cpu_pct=100.0))) as source,
        watched(Watch(source), [program], program) as seen,
    ):
        yield seen


def test_without_rules_the_stack_follows_frame_pointers_and_says_so(directory: Path) -> None:
    with alone("fp", built("frame pointers", directory)) as seen:
        seen.child.go()
        (waits, stack, names), *others = seen.sleeps(seen.live.tick(0.05))
        assert (waits, stack.end, others) == (WAITS, LINKED, [])
        assert [name for name in names if name in CHAINS["-O2"].path] == ["beta", "alpha", "main"]
        assert seen.now()[0].end == LINKED


def test_kernels_without_may_goto_unwind_the_same_stacks(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    watch.without(monkeypatch, "may_goto")
    with alone("auto", built("-O2", directory)) as seen:
        check(seen, CHAINS["-O2"])


def test_with_dwarf_only_nothing_is_guessed(directory: Path) -> None:
    with alone("dwarf", built("musl", directory)) as seen:
        stack, names = seen.now()
        assert (stack.end, stack.is_unsure, len(names)) == (NO_WAY, False, 1)


EXEC = r"""
#include <time.h>
#include <unistd.h>
static __attribute__((noinline)) void NAP(void) {
    struct timespec time = {0, 20000000};
    nanosleep(&time, 0);
    __asm__ volatile("");
}
int main(int count, char **words) {
    for (int n = 0; n < 12; n++)
        NAP();
    execl(words[2], words[2], words[2], words[1], (char *)0);
    return 1;
}
"""


@pytest.mark.variant
def test_a_program_does_not_show_functions_of_its_exec_successor(live: Watch, tmp_path: Path) -> None:
    """Both are at the same addresses, so only the exec itself distinguishes them."""
    naps = ("nap_of_one", "nap_of_the_other_with_a_longer_name")
    for name, nap in zip(("one", "other"), naps, strict=True):
        options = ["-O2", "-static", "-no-pie", "-fomit-frame-pointer", f"-DNAP={nap}"]
        command = ["gcc", *options, "-o", str(tmp_path / name), "-x", "c", "-"]
        if subprocess.run(command, input=EXEC.encode(), check=False, timeout=60).returncode:
            pytest.skip("no static libc: sudo apt install libc6-dev")
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    found: dict[str, int] = {}
    with subprocess.Popen([one, one, other]) as child:
        try:
            live.tick()
            for _ in range(12):
                window = live.tick(0.15)
                for site, totals in watch.sites_of(window, child.pid).items():
                    stack = window.catalog.stack(site.user)
                    if totals.waits and stack.end == WHOLE and window.catalog.stack(site.kernel).category == "sleep":
                        live.source.wait_for_names(set(stack.frames), _PATIENCE_S)
                        names = [live.source.names.of(frame) for frame in stack.frames]
                        assert names[-1] == "_start", names
                        (nap,) = [name for name in names if name in naps]
                        found[nap] = found.get(nap, 0) + totals.waits
        finally:
            child.kill()
    assert set(found) == {*naps}
