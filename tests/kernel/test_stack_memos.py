"""User stacks that BPF verifies instead of unwinding them: they are those that unwinding would find."""

import re
import shutil
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from offtop import paths
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.unwind.stack_memos import RuleGenerations
from offtop.kernel.unwind.unwinder import RuleMaps
from offtop.model.values.snapshot import Memos, SiteTotals
from tests.kernel import programs, watch
from tests.kernel.watch import Watch

pytestmark = pytest.mark.kernel

CHECK_ALL, NEVER = 1, 0
WAITS = 40
DEEP = 20

CALLERS = r"""
#include <time.h>
static void rest(void) { struct timespec t = {0, 2000000}; nanosleep(&t, NULL); }
#define CALLER(name) __attribute__((noinline)) void name(int depth) \
    { if (depth) name(depth - 1); else rest(); asm volatile("" ::: "memory"); }
CALLER(left)
CALLER(right)
CALLER(deep)
__attribute__((noinline)) void outer_left(void) { deep(20); asm volatile("" ::: "memory"); }
__attribute__((noinline)) void outer_right(void) { deep(20); asm volatile("" ::: "memory"); }
int main(void)
{
    for (char c; (c = next()); )
        for (int i = 0; i < 40; i++)
            switch (c) {
            case 'a': (i & 1 ? right : left)(0); break;
            case 'o': (i & 1 ? outer_right : outer_left)(); break;
            case 'r': deep(i & 1 ? 19 : 20); break;
            default: left(0);
            }
}
"""
"""It waits 40 times: `g` in one function, `a` in two by turns, `o` in one that two call by turns, `r` at two depths.

The pairs of functions have equal frames, so that registers are the same in both.
"""


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("memos") / "callers"
    return programs.build(program, CALLERS, "-fno-optimize-sibling-calls", "-fomit-frame-pointer", "-fno-inline")


@pytest.fixture(scope="module")
def checking() -> Generator[Watch]:
    """Watch with each verified stack unwound as well."""
    with watch.watching(unwind=Unwind(cpu_pct=200, check_every=CHECK_ALL)) as found:
        yield found


def waits_by(live: Watch, child: programs.Program, way: bytes, *names: str) -> dict[str, int]:
    """Have `child` wait in a way, and count its waits by which of `names` is in the stack.

    It does so again until their stacks are known, because unwind rules are missing at first, and until it was not
    preempted, because that is a wait, too.
    """
    stacks: dict[tuple[str, ...], SiteTotals] = {}
    for _ in range(50):
        live.tick()
        before = preemptions(child.pid)
        child.write(way)
        child.listen()
        stacks = live.user_stacks(live.tick(), child.pid, "sleep")
        found = dict.fromkeys(names, 0)
        for frames, totals in stacks.items():
            for name in {*names} & {*frames}:
                found[name] += totals.waits
        if stacks and all("main" in frames for frames in stacks) and preemptions(child.pid) == before:
            return found
    raise AssertionError(f"incomplete stacks: {stacks}")


def preemptions(pid: int) -> int:
    found = re.search(r"^nonvoluntary_ctxt_switches:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def memos(live: Watch) -> Memos:
    return live.last.cost.memos


@contextmanager
def started(program: Path, live: Watch) -> Generator[programs.Program]:
    with programs.running([program]) as child, live.only(child.pid):
        yield child


def test_a_stack_that_is_the_same_again_is_verified(callers: Path, live: Watch) -> None:
    with started(callers, live) as child:
        waits_by(live, child, b"g", "left")
        assert waits_by(live, child, b"g", "left") == {"left": WAITS}
        found = memos(live)
    assert found.verified >= WAITS - 2
    assert found.walked <= 4, "its first wait, that at the pipe, and one that is checked"
    assert found.found >= WAITS
    assert found.disagreements == 0


def test_each_stack_is_unwound_if_memos_are_off(callers: Path) -> None:
    with watch.watching(unwind=Unwind(cpu_pct=200, check_every=NEVER)) as live, started(callers, live) as child:
        waits_by(live, child, b"g", "left")
        waits_by(live, child, b"g", "left")
        assert memos(live).verified == 0
        assert memos(live).walked >= WAITS


@pytest.mark.parametrize("way", [b"a", b"o"])
def test_callers_with_equal_frames_are_told_apart(callers: Path, live: Watch, way: bytes) -> None:
    names = ("left", "right") if way == b"a" else ("outer_left", "outer_right")
    with started(callers, live) as child:
        assert waits_by(live, child, way, *names) == dict.fromkeys(names, WAITS // 2)
        assert waits_by(live, child, way, *names) == dict.fromkeys(names, WAITS // 2)
    assert memos(live).disagreements == 0


def test_each_stack_of_a_recursion_has_its_own_depth(callers: Path, live: Watch) -> None:
    with started(callers, live) as child:
        waits_by(live, child, b"r", "deep")
        child.write(b"r")
        child.listen()
        stacks = live.user_stacks(live.tick(), child.pid, "sleep")
    depths = {frames.count("deep"): totals.waits for frames, totals in stacks.items()}
    assert depths == {DEEP: WAITS // 2, DEEP + 1: WAITS // 2}


def test_every_verified_stack_is_what_unwinding_finds(callers: Path, checking: Watch) -> None:
    with started(callers, checking) as child:
        for way in (b"g", b"a", b"o", b"r"):
            waits_by(checking, child, way, "main")
            waits_by(checking, child, b"g", "main")
            found = memos(checking)
            assert found.checked == found.verified >= WAITS - 10
            assert found.disagreements == 0
    assert "memos" not in checking.last.lost


def test_a_stack_that_was_removed_from_the_table_is_unwound_anew(callers: Path) -> None:
    unwind = Unwind(cpu_pct=200, check_every=1 << 30)
    with watch.watching(unwind=unwind) as live, started(callers, live) as child:
        stacks = live.source._parts.stacks  # pyright: ignore[reportPrivateUsage]
        waits_by(live, child, b"g", "left")
        child.write(b"g")
        for _ in range(2):
            time.sleep(0.02)
            stacks.make_room(at_once=True)
        child.listen()
        found = live.user_stacks(live.tick(), child.pid, "sleep")
    assert sum(totals.waits for totals in found.values()) >= WAITS
    assert [frames for frames in found if "left" not in frames] == []


def test_after_a_change_of_the_rules_the_next_stack_is_unwound_anew(callers: Path) -> None:
    unwind = Unwind(cpu_pct=200, check_every=1 << 30)
    with watch.watching(unwind=unwind) as live, started(callers, live) as child:
        maps = live.source._program.maps  # pyright: ignore[reportPrivateUsage]
        waits_by(live, child, b"g", "left")
        waits_by(live, child, b"g", "left")
        assert memos(live).walked == 2, "the wait at the pipe, and the first that is elsewhere"
        raw = maps["spaces"].lookup(child.pid.to_bytes(4, "little"))
        assert raw is not None
        child.write(b"g")
        time.sleep(0.03)
        with RuleGenerations(maps["rule_generations"]).changing(*layout.SPACE.unpack(raw[: layout.SPACE.size])):
            pass
        child.listen()
        live.tick()
        assert memos(live).walked == 3


class Table(dict[bytes, bytes]):
    """A BPF map in memory."""

    def lookup(self, key: bytes) -> bytes | None:
        return self.get(key)

    def update(self, key: bytes, value: bytes) -> None:  # type: ignore[override]
        self[key] = value


def test_only_rules_and_address_spaces_that_differ_change_the_generation() -> None:
    rules, spaces, generations = Table(), Table(), Table()
    maps = RuleMaps(cast(Map, rules), cast(Map, spaces), RuleGenerations(cast(Map, generations)))
    one, other = (layout.RULE.pack(size, 0, layout.CFA_SP, 0, 0) for size in (8, 16))
    of_5 = (5).to_bytes(4, "little")

    def is_changed(act: Callable[[], None]) -> bool:
        before = generations.get(of_5)
        act()
        return generations.get(of_5) != before

    assert is_changed(lambda: maps.load_rules(5, [(0x1000, one)]))
    assert not is_changed(lambda: maps.load_rules(5, [(0x1000, one)]))
    assert is_changed(lambda: maps.load_rules(5, [(0x1000, one), (0x1000, other)]))
    assert not is_changed(lambda: maps.load_rules(6, [(0x1000, one)]))
    assert not is_changed(lambda: maps.load_space(77, 5)), "it had no rules before"
    assert not is_changed(lambda: maps.load_space(77, 5))
    assert is_changed(lambda: maps.load_space(77, 6)), "stacks of process 77 were unwound by the rules of space 5"


def test_threads_that_run_python_are_always_unwound(live: Watch) -> None:
    """Python's own frames are not on the stack that is compared."""
    code = "import time\ndef nap(): time.sleep(0.002)\n"
    code += "while print('ready', flush=True) or input(): [nap() for _ in range(40)]"
    with programs.running([sys.executable, "-c", code]) as child, live.only(child.pid):
        for _ in range(50):
            live.tick()
            child.write(b"g\n")
            child.listen()
            stacks = live.user_stacks(live.tick(), child.pid, "sleep")
            if all(any(name.startswith("nap ") for name in frames) for frames in stacks):
                break
        live.tick()
        child.write(b"g\n")
        child.listen()
        live.tick()
        assert memos(live).verified == 0
        assert memos(live).walked >= WAITS


@pytest.mark.variant
def test_a_comparison_that_leaves_out_words_names_wrong_callers_and_is_noticed(
    callers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutation of memo.c: it compares no word of the stack but the first, which all of these callers share."""
    shutil.copytree(paths.bpf(), tmp_path / "bpf")
    source = tmp_path / "bpf" / "memo.c"
    compared = "copy->differs |= *(u64 *)(copy->stack + off) ^ memo->words[i];"
    text = source.read_text()
    assert text.count(compared) == 1
    source.write_text(text.replace(compared, f"if (!i) {compared}"))
    monkeypatch.setattr(paths, "bpf", lambda: tmp_path / "bpf")
    monkeypatch.setenv("OFFTOP_CACHE", "")
    unwind = Unwind(cpu_pct=200, check_every=CHECK_ALL)
    with watch.watching(unwind=unwind) as live, started(callers, live) as child:
        waits_by(live, child, b"o", "outer_left")
        waits_by(live, child, b"o", "outer_left")
        assert memos(live).disagreements >= WAITS - 4
        assert live.last.lost["memos"] >= WAITS - 4
    with watch.watching(unwind=Unwind(cpu_pct=200)) as live, started(callers, live) as child:
        waits_by(live, child, b"o", "outer_left")
        wrong = waits_by(live, child, b"o", "outer_left", "outer_right")
        assert max(wrong.values()) > WAITS // 2
