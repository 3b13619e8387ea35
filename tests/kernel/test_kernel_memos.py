"""Kernel stacks that BPF verifies instead of unwinding them (--verify-kernel-stacks): unwinding would find the same."""

import re
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offtop import paths
from offtop.kernel.bpf.program import Unwind
from offtop.model.values.snapshot import Memos
from offtop.model.windows.window import Window
from tests.kernel import programs, watch
from tests.kernel.watch import Watch, sites_of

pytestmark = pytest.mark.kernel

CHECK_ALL, SELDOM = 1, 1 << 30
UNWIND = Unwind("off", kernel_check_every=SELDOM)
CHECKING = Unwind("off", kernel_check_every=CHECK_ALL)
WAITS = 40
SETTLED = 4
"""After so many rounds of waits, words that only look like return addresses are known."""

WAYS = r"""
#include <poll.h>
#include <sys/select.h>
#include <time.h>
static void sleeps(void) { struct timespec t = {0, 2000000}; nanosleep(&t, NULL); }
static void polls(void) { poll(NULL, 0, 2); }
static void selects(void) { struct timeval t = {0, 2000}; select(0, NULL, NULL, NULL, &t); }
int main(void)
{
    for (char c; (c = next()); )
        for (int i = 0; i < 40; i++)
            switch (c) {
            case 'a': i & 1 ? polls() : sleeps(); break;
            case 'b': i % 3 == 0 ? sleeps() : i % 3 == 1 ? polls() : selects(); break;
            default: sleeps();
            }
}
"""
"""It waits 40 times: `g` at one place in the kernel, `a` at two by turns, `b` at three."""


@pytest.fixture(scope="module")
def waiter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("kernel-memos") / "waits", WAYS)


@pytest.fixture(scope="module")
def verifying() -> Generator[Watch]:
    with watch.watching(unwind=UNWIND) as found:
        yield found


@contextmanager
def started(program: Path, live: Watch) -> Generator[programs.Program]:
    with programs.running([program]) as child, live.only(child.pid):
        yield child


def waits_at(live: Watch, child: programs.Program, way: bytes) -> dict[str, int]:
    """Have `child` wait in a way, and count its waits by the system call in the kernel stack."""
    live.tick()
    child.write(way)
    child.listen()
    return waits_in(live.tick(), child.pid)


def waits_in(window: Window, tid: int) -> dict[str, int]:
    """Count a thread's blocked waits by the system call in the kernel stack."""
    found: dict[str, int] = {}
    for site, totals in sites_of(window, tid).items():
        stack = window.catalog.stack(site.kernel)
        names = " ".join(frame.name for frame in stack.frames)
        call = re.search(r"_sys_(?:clock_|p)?(nanosleep|poll|select)6?\b", names)
        if call and stack.category != "run-queue":
            found[call[1]] = found.get(call[1], 0) + totals.waits
    return found


def memos(live: Watch) -> Memos:
    return live.last.cost.kernel_memos


def test_kernel_stacks_are_unwound_by_default(waiter: Path) -> None:
    with watch.watching_kernel_stacks() as live, started(waiter, live) as child:
        assert waits_at(live, child, b"g") == {"nanosleep": WAITS}
        assert (memos(live), live.last.cost.kernel_check_every) == (Memos(), 0)
        assert "kernel stacks verified" not in dict(live.source.about())


def test_a_kernel_stack_that_is_the_same_again_is_verified(waiter: Path, verifying: Watch) -> None:
    with started(waiter, verifying) as child:
        for _ in range(SETTLED):
            waits_at(verifying, child, b"g")
        assert waits_at(verifying, child, b"g") == {"nanosleep": WAITS}
    found = memos(verifying)
    assert found.found >= WAITS
    assert found.verified >= WAITS * 3 // 4
    assert found.checked == found.disagreements == 0
    assert verifying.last.cost.kernel_check_every == SELDOM


def test_places_that_are_waited_at_by_turns_are_told_apart(waiter: Path, verifying: Watch) -> None:
    with started(waiter, verifying) as child:
        for _ in range(SETTLED):
            waits_at(verifying, child, b"g")
            two = waits_at(verifying, child, b"a")
            assert two == {"nanosleep": WAITS // 2, "poll": WAITS // 2}
            three = waits_at(verifying, child, b"b")
            assert three == {"nanosleep": 14, "poll": 13, "select": 13}


def test_every_verified_kernel_stack_is_what_unwinding_finds(waiter: Path) -> None:
    """Of all threads of this machine, which switch in many ways."""
    with watch.watching(unwind=CHECKING) as live, programs.running([waiter]) as child:
        checked = 0
        for _ in range(SETTLED):
            for way in (b"g", b"a", b"g", b"b"):
                waits_at(live, child, way)
                assert memos(live).disagreements == 0
                checked += memos(live).checked
    assert checked >= WAITS * SETTLED
    assert "memos" not in live.last.lost


def test_a_kernel_stack_that_was_removed_from_the_table_is_unwound_anew(waiter: Path, verifying: Watch) -> None:
    with started(waiter, verifying) as child:
        stacks = verifying.source._parts.stacks  # pyright: ignore[reportPrivateUsage]
        for _ in range(SETTLED):
            waits_at(verifying, child, b"g")
        child.write(b"g")
        for _ in range(2):
            time.sleep(0.02)
            stacks.make_room(at_once=True)
        child.listen()
        assert waits_in(verifying.tick(), child.pid) == {"nanosleep": WAITS}


def test_that_kernel_stacks_cannot_be_verified_here_is_said() -> None:
    with watch.watching(unwind=UNWIND, probe="switch") as live:
        live.tick()
        assert live.last.cost.kernel_check_every == 0
        assert [one for one in live.source.notices if "Each kernel stack is unwound" in one]


def test_records_in_a_hash_have_memos_too(waiter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, and on kernels without task storage."""
    watch.without(monkeypatch, "task_storage")
    with watch.watching(unwind=UNWIND) as live, started(waiter, live) as child:
        for _ in range(SETTLED):
            waits_at(live, child, b"g")
        assert waits_at(live, child, b"g") == {"nanosleep": WAITS}
        assert memos(live).verified >= WAITS * 3 // 4


@pytest.mark.variant
def test_a_comparison_that_leaves_out_words_finds_wrong_stacks_and_is_noticed(
    waiter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutation of kernelmemo.c: it compares only the outermost return address, which all of these waits share."""
    shutil.copytree(paths.bpf(), tmp_path / "bpf")
    source = tmp_path / "bpf" / "kernelmemo.c"
    compared = "k->differs |= k->words[at & (STACK_WORDS - 1)] ^ memo->words[i];"
    text = source.read_text()
    assert text.count(compared) == 1
    source.write_text(text.replace(compared, f"if (i > MEMO_WORDS) {compared}"))
    monkeypatch.setattr(paths, "bpf", lambda: tmp_path / "bpf")
    monkeypatch.setenv("OFFTOP_CACHE", "")
    with watch.watching(unwind=CHECKING) as live, started(waiter, live) as child:
        waits_at(live, child, b"a")
        waits_at(live, child, b"a")
        assert memos(live).disagreements >= WAITS // 4
        assert live.last.lost["memos"] >= WAITS // 4
    with watch.watching(unwind=UNWIND) as live, started(waiter, live) as child:
        waits_at(live, child, b"a")
        assert waits_at(live, child, b"a") != {"nanosleep": WAITS // 2, "poll": WAITS // 2}
