"""Test stacks that take a known path: each must be what unwinding it by itself finds."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.accounting import drain as drain_module
from offtop.kernel.binary.unwind_rules import (
    CFA,
    UNDEFINED,
    X86_64,
    Rule,
    Value,
)
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.scan_rows import REGISTERS_ROW, Rows
from offtop.kernel.unwind import known_paths, step, user_stacks
from offtop.kernel.unwind.cpu_allowance import Allowance
from offtop.kernel.unwind.known_paths import KnownPaths, Stacks
from offtop.kernel.unwind.unwinder import UNREAD, Unwinder, UnwoundStack
from offtop.kernel.unwind.user_stacks import OLD_NS, ReadStack, UserStacks
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Waiting
from offtop.model.values.stack import ANONYMOUS, NO_STACK, Frame
from offtop.model.values.table import Ints
from offtop.model.values.waits import WaitList
from tests.kernel.programs import build, running, until
from tests.kernel.watch import S, SiteKey, Watch

SP, DISTANCE = 0x7FFF_0000_1000, 1 << 20
"""Of the first stack, and how far the next one is from it."""
CODE = 0x5555_0000_0000
WORDS = 64
SPACE = 9
BP, R12 = X86_64.bp, X86_64.callee_saved[1]
KEPT = tuple(Value(register) for register in X86_64.callee_saved)
LAST = Rule(Value(X86_64.sp, 8), Value(UNDEFINED), Value(BP), KEPT)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """Draw a rule as compilers emit it, or as hand-written code has it."""
    size, saved_at = 8 * draw(st.integers(1, 6)), Value(CFA, -8 * draw(st.integers(2, 6)), True)
    cfa = draw(st.sampled_from([Value(X86_64.sp, size), Value(BP, 16), Value(R12, size), Value(X86_64.sp, size, True)]))
    bp = draw(st.sampled_from([Value(BP), saved_at, Value(UNDEFINED), Value(R12)]))
    r12 = draw(st.sampled_from([Value(R12), Value(CFA, -16, True)]))
    return Rule(cfa, Value(CFA, -8, True), bp, (KEPT[0], r12, *KEPT[2:]))


class Threads:
    """Threads whose stacks are alike but for some words."""

    def __init__(self, of_code: list[Rule], stacks: list[list[int]], registers: list[tuple[int, int]]) -> None:
        self._rules = [*of_code, LAST]
        self.is_read_elsewhere = False
        """Whether a rule looked for a register below or above the stacks, as none of a compiler does."""
        self.registers = np.zeros(len(stacks), REGISTERS_ROW)
        for row, (bp, r12) in enumerate(registers):
            self.registers[row]["ip"], self.registers[row]["sp"] = CODE, SP + row * DISTANCE
            self.registers[row]["bp"] = self.address(row, bp)
            self.registers[row]["callee_saved"][1] = self.address(row, r12)
        self.words = np.array([[self.word(row, one) for one in stack] for row, stack in enumerate(stacks)], np.uint64)

    def address(self, row: int, word: int) -> int:
        return SP + row * DISTANCE + 8 * word

    def word(self, row: int, one: int) -> int:
        """Return a return address for a small negative number, an address on the stack for others."""
        return CODE - 16 * one if one < 0 else self.address(row, one)

    def rule(self, frame: Frame) -> Rule:
        return self._rules[min(frame.offset // 16, len(self._rules) - 1)]

    def unwind(self, row: int) -> tuple[step.UnwindResult, int]:
        """Unwind one by itself; also return how much of its stack was needed."""
        tops = [0]

        def read(address: int, size_bytes: int) -> bytes:
            at = address - self.address(row, 0)
            tops.append(at + size_bytes)
            self.is_read_elsewhere |= not 0 <= at < 8 * WORDS
            return self.words[row].tobytes()[at : at + size_bytes] if at >= 0 else b""

        def frame_of(address: int) -> Frame | None:
            offset = (address - CODE + 15) // 16 * 16
            return Frame("/bin/it", offset) if 0 <= offset <= 16 * len(self._rules) else None

        one = self.registers[row]
        saved = tuple(one["callee_saved"].tolist()[: len(X86_64.callee_saved)])
        state = step.State(int(one["ip"]), int(one["sp"]), int(one["bp"]), saved, int(one["arguments"][0]))
        found = step.unwind(state, frame_of, self.rule, read, read, X86_64, guess=False)
        return found, max(tops)


@given(st.data())
def test_stacks_on_a_known_path_are_what_unwinding_each_finds(data: st.DataObject) -> None:
    of_code = data.draw(st.lists(rules(), min_size=1, max_size=3))
    words = st.one_of(st.integers(-len(of_code) - 1, -1), st.integers(0, WORDS - 1))
    first = data.draw(st.lists(words, min_size=WORDS, max_size=WORDS))
    registers = data.draw(st.tuples(st.integers(0, 8), st.integers(0, 8)))
    changes = data.draw(st.lists(st.tuples(st.integers(0, 11), words), max_size=6))
    stacks = [first, first, *([*first[:at], word, *first[at + 1 :]] for at, word in changes)]
    threads = Threads(of_code, stacks, [registers] * len(stacks))
    found, top = threads.unwind(0)
    paths = KnownPaths(X86_64)
    is_whole = found.end == layout.END_COMPLETE and len(found.by_rule) == len(found.frames)
    if is_whole:
        paths.add(SPACE, found.by_rule, top, found.frames)
    followed: list[tuple[int, tuple[Frame, ...]]] = [
        (row, path.frames)
        for path, rows in paths.follow(SPACE, CODE, Stacks(threads.registers, threads.words))
        for row in rows.tolist()
    ]
    assert {0, 1} <= {row for row, _ in followed} or not paths.of(SPACE, CODE) or threads.is_read_elsewhere
    for row, frames in followed:
        alone, _ = threads.unwind(row)
        assert (tuple(alone.frames), alone.end) == (frames, layout.END_COMPLETE)


def test_each_stack_takes_its_own_path() -> None:
    of_code = [Rule(Value(X86_64.sp, 16), Value(CFA, -8, True), Value(BP), KEPT)] * 3
    by_way = {"one": [0, -3, 0, 0], "two": [0, -1, 0, -3], "three": [0, -2, 0, -1, 0, -3], "none": [0, 0, 0, 0]}
    ways = ["one", "two", "three", "two", "none", "one"]
    stacks = [[*by_way[way], *[0] * (WORDS - len(by_way[way]))] for way in ways]
    threads, paths = Threads(of_code, stacks, [(0, 0)] * len(ways)), KnownPaths(X86_64)
    for row in range(3):
        found, top = threads.unwind(row)
        paths.add(SPACE, found.by_rule, top, found.frames)
    followed: dict[str, int] = {
        ways[row]: len(path.frames)
        for path, rows in paths.follow(SPACE, CODE, Stacks(threads.registers, threads.words))
        for row in rows.tolist()
    }
    assert followed == {"one": 2, "two": 3, "three": 4}
    assert not paths.of(SPACE + 1, CODE)


def test_paths_through_code_that_may_change_or_of_odd_sizes_are_not_kept() -> None:
    paths, steps = KnownPaths(X86_64), [(CODE, LAST)]
    paths.add(SPACE, steps, 8, [Frame(ANONYMOUS, 0)])
    for span_bytes in (0, 12, 1 << 20):
        paths.add(SPACE, steps, span_bytes, [Frame("/bin/it", 0)])
    assert not paths.of(SPACE, CODE)


def test_the_least_recently_learned_leaf_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_paths, "_MOST_LEAVES", 2)
    paths = KnownPaths(X86_64)
    for leaf in (CODE, CODE + 16, CODE, CODE + 32):
        paths.add(SPACE, [(leaf, LAST)], 8, [Frame("/bin/it", leaf - CODE)])
    assert [bool(paths.of(SPACE, CODE + offset)) for offset in (0, 16, 32)] == [True, False, True]


NAPS = r"""
#include <pthread.h>
#include <time.h>
#include <unistd.h>
static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 150000000}, 0); }
static void *naps(void *unused) { for (;;) nap(); }
int main(void)
{
    pthread_t thread;
    for (int i = 0; i < 16; i++, usleep(9000))
        pthread_create(&thread, 0, naps, 0);
    next();
    return 0;
}
"""


@pytest.mark.kernel
def test_waits_of_a_pool_have_their_stack_from_their_first_tick_on(live: Watch, tmp_path: Path) -> None:
    """They never get so old that each would be unwound by itself.

    The naps begin one after the other: those that end while offtop reads their stacks have none.
    """
    assert OLD_NS > 150_000_000
    program = build(tmp_path / "naps", NAPS, "-pthread", "-fno-omit-frame-pointer", "-O1", "-fno-inline")
    with running([program]) as child, live.only(child.pid):
        shares: list[float] = []
        for _ in range(20):
            live.tick(0.1)
            mine = [one.site.user for key, one in live.last.waiting.items() if key.pid == child.pid != key.tid]
            shares.append(sum(user != NO_STACK for user in mine) / max(1, len(mine)))
        assert sorted(shares)[2] > 0.5
        users = {one.site.user for key, one in live.last.waiting.items() if key.pid == child.pid != key.tid} - {
            NO_STACK
        }
        assert {"naps"} <= {name for user in users for name in names_of(live, user)}


def names_of(live: Watch, user: int) -> list[str]:
    stack = live.last.catalog.stack(user)
    live.source.wait_for_names(set(stack.frames), 20.0)
    return [live.source.names.of(frame) for frame in stack.frames]


class LearningUnwinder:
    """Knows a stack once a thread with it was unwound by itself. `paths` has that of each thread."""

    def __init__(self, paths: Sequence[int]) -> None:
        self._paths = np.array(paths)
        self._known = list[int]()
        self.unwound = 0

    def follow_known_paths(
        self, ids: Ints, _registers: Rows, _note_read: Callable[[int], None]
    ) -> Iterator[tuple[UnwoundStack, Ints]]:
        for path in self._known:
            if (which := np.flatnonzero(self._paths[ids[:, 1]] == path)).size:
                yield stack_of_path(path), which

    def unwind_thread(self, key: ThreadKey, *_: object) -> UnwoundStack:
        self.unwound += 1
        self._known.append(int(self._paths[key.tid]))
        return stack_of_path(self._known[-1])


def stack_of_path(path: int) -> UnwoundStack:
    return UnwoundStack((Frame("/bin/it", path),), layout.END_COMPLETE)


@pytest.mark.parametrize(("others", "most"), [(1, 8), (30, 16), (2000, 64)])
def test_waits_at_one_instruction_take_paths_that_few_of_them_have_shown(others: int, most: int) -> None:
    """Some waits are of a rare path: `others` of them."""
    paths = [0] * others + [1] * 1000
    unwinder = LearningUnwinder(paths)
    ids = np.column_stack((np.ones(len(paths), np.int64), np.arange(len(paths))))
    waits = user_stacks._Waits(ids, ids[:, 1], np.zeros(len(paths), REGISTERS_ROW))  # pyright: ignore[reportPrivateUsage]
    found, left = user_stacks._follow_or_sample(cast(Unwinder, unwinder), waits, lambda _: None, learns=True)  # pyright: ignore[reportPrivateUsage]
    assert len(left.ids) < 8  # too few of a path to be compared
    assert unwinder.unwound <= most
    of_tid = {tid: one.found.frames[0].offset for one in found for tid in one.ids[:, 1].tolist()}
    assert sorted([*of_tid, *left.ids[:, 1].tolist()]) == list(range(len(paths)))
    assert {tid: paths[tid] for tid in of_tid} == of_tid


def test_waits_that_are_all_different_are_not_compared_again_and_again() -> None:
    count = 1000
    unwinder = LearningUnwinder(range(count))
    ids = np.column_stack((np.ones(count, np.int64), np.arange(count)))
    waits = user_stacks._Waits(ids, ids[:, 1], np.zeros(count, REGISTERS_ROW))  # pyright: ignore[reportPrivateUsage]
    found, left = user_stacks._follow_or_sample(cast(Unwinder, unwinder), waits, lambda _: None, learns=True)  # pyright: ignore[reportPrivateUsage]
    assert (unwinder.unwound, len(found), len(left.ids)) == (8, 8, count - 8)


class LateUnwinder(LearningUnwinder):
    """Can read no stack until it `may_learn`."""

    due_pid, learned_paths, used_s, may_learn = 0, 0, 0.0, False

    def start(self) -> None: ...

    def rest(self) -> None: ...

    def end(self) -> None: ...

    def unwind_thread(self, key: ThreadKey, *_: object) -> UnwoundStack:
        if not self.may_learn:
            return UNREAD
        time.sleep(0.002)
        found = super().unwind_thread(key)
        self.learned_paths = len(self._known)
        return found


def test_waits_that_strayed_take_a_path_that_is_learned_later() -> None:
    unwinder, count = LateUnwinder([0] * 1000), 1000
    waiting = {ThreadKey(1, tid): Waiting(SiteKey(1, tid, 3, NO_STACK), S, S) for tid in range(count)}
    registers = np.zeros(count, REGISTERS_ROW)
    registers["ip"], registers["sp"], registers["pcount"] = CODE, SP, 1
    reader = UserStacks(cast(Unwinder, unwinder), Allowance(100))
    try:
        reader.note_waits(WaitList.of(waiting.values()).rows, registers)
        assert reader.followed() == []
        unwinder.may_learn = True
        found = list[ReadStack]()

        def are_all_found() -> bool:
            found.extend([*reader.followed(), *reader.read(waiting, 9 * S)])
            return len({tid for one in found for tid in one.ids[:, 1].tolist()}) == count

        until(are_all_found)
        assert unwinder.unwound < count / 2  # most of them were compared
    finally:
        reader.close()


def test_a_wait_that_was_noted_later_is_compared_in_place_of_the_threads_last_one() -> None:
    compared = list[list[int]]()

    class Noting(LateUnwinder):
        def follow_known_paths(
            self, ids: Ints, registers: Rows, note_read: Callable[[int], None]
        ) -> Iterator[tuple[UnwoundStack, Ints]]:
            compared.append(registers["pcount"].tolist())
            return super().follow_known_paths(ids, registers, note_read)

    reader = UserStacks(cast(Unwinder, Noting([0] * 20)), Allowance(100))
    registers = np.zeros(20, REGISTERS_ROW)
    registers["ip"], registers["sp"] = CODE, SP

    def note(number: int) -> dict[ThreadKey, Waiting]:
        registers["pcount"] = number
        waits = [Waiting(SiteKey(1, tid, 3, NO_STACK), number * S, number * S) for tid in range(20)]
        reader.note_waits(WaitList.of(waits).rows, registers)
        return {one.site.thread: one for one in waits}

    try:
        first = note(1)
        reader.followed()
        with reader._changed:  # pyright: ignore[reportPrivateUsage]  # the thread takes no work before all is prepared
            note(2)
            reader._learned.add(CODE)  # pyright: ignore[reportPrivateUsage]
            reader.read(first, 9 * S)
        reader.followed()
        assert compared[-1] == [2] * 20
    finally:
        reader.close()


@pytest.mark.kernel
@pytest.mark.parametrize("scanned_per_read", [0, 1 << 30])
def test_threads_that_have_run_since_they_were_noted_are_known(
    live: Watch, monkeypatch: pytest.MonkeyPatch, scanned_per_read: int
) -> None:
    """Whether these threads are looked up in /proc, or all are scanned."""
    monkeypatch.setattr(drain_module, "_SCANNED_PER_READ", scanned_per_read)
    drain = live.source._parts.drain  # pyright: ignore[reportPrivateUsage]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0) as child:
        assert child.stdin
        ids = np.array([(child.pid, child.pid), (child.pid, 1), (1, child.pid)])

        def pcounts() -> Ints:
            return np.full(3, int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[2]))

        until(lambda: "S" in Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2])
        before = pcounts()
        assert drain.have_run(ids, before).tolist() == [False, True, True]
        child.stdin.write(b".")
        until(lambda: pcounts()[0] > before[0])
        assert drain.have_run(ids, before).tolist() == [True, True, True]
