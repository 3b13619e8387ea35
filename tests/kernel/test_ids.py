"""Test that stack IDs differ at each start.

Otherwise a program could make two of its stacks collide.
"""

import platform
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.program import Unwind
from tests.kernel import watch
from tests.kernel.programs import Program, build, running

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is in assembly"),
]

_WORD = (1 << 64) - 1
_TOP = 1 << 63
_CANCELS_TOP = _TOP | 1 << 34
_MARK = 0x0FF7_0000_0000_0000
"""Base of made-up return addresses; the number of the frame is added."""
SOURCE = rf"""
#include <time.h>
static unsigned long chain[7][2];
static const struct timespec five_ms = {{0, 5000000}};
static __attribute__((noinline)) void nap(unsigned long first, unsigned long fifth)
{{
	for (int n = 1; n < 7; n++) {{
		chain[n - 1][0] = n < 6 ? (unsigned long)chain[n] : 0;
		chain[n - 1][1] = {_MARK:#x}ul + n;
	}}
	chain[0][1] ^= first;
	chain[4][1] ^= fifth;
	long done;
	__asm__ volatile("push %%rbp; mov %1, %%rbp; syscall; pop %%rbp" : "=a"(done)
		: "r"(chain), "a"(35l), "D"(&five_ms), "S"(0l) : "rcx", "r11", "memory");
}}
int main(void)
{{
	while (next()) {{
		nap(0, 0);
		nap({_TOP:#x}ul, {_CANCELS_TOP:#x}ul);
	}}
	return 0;
}}
"""
"""Sleeps twice at each step, below a made-up frame pointer chain.

The chain leads through six addresses of its own choice.
"""


def unkeyed_mix(hashed: int, word: int) -> int:
    """Return how IDs were mixed from words before they had a key."""
    hashed = (hashed ^ word) * 0x9E3779B97F4A7C15 & _WORD
    return hashed ^ hashed >> 29


def ids_of_forged_stacks(forger: Program) -> dict[tuple[int, ...], int]:
    """Return frames and ID of each stack that BPF keeps of one step, under a new source."""
    found: dict[tuple[int, ...], int] = {}
    with watch.watching(unwind=Unwind("fp")) as live:
        live.tick()
        forger.go()
        live.tick()
        for keys, values in live.source._program.maps["user_stacks"].read():  # pyright: ignore[reportPrivateUsage]
            for number, raw_id in enumerate(keys.cast("Q")):
                depth, _, *frames = layout.STACK.unpack_from(values, number * layout.STACK.size)
                if frames[2:5] == [_MARK + n for n in (2, 3, 4)]:
                    found[tuple(frames[:depth])] = raw_id
    return found


@pytest.fixture
def forger(tmp_path: Path) -> Generator[Program]:
    with running([build(tmp_path / "forger", SOURCE)]) as program:
        yield program


def test_a_stack_has_another_id_at_each_start(forger: Program) -> None:
    one, other = ids_of_forged_stacks(forger), ids_of_forged_stacks(forger)
    assert one.keys() == other.keys()
    assert one
    assert not {*one.values()} & {*other.values()}


def test_two_stacks_made_to_collide_stay_separate(forger: Program) -> None:
    for start in (1, 0x1234567890ABCDEF):
        one, other = (
            unkeyed_mix(unkeyed_mix(start, (_MARK + 1) ^ first), (_MARK + 5) ^ fifth)
            for first, fifth in ((0, 0), (_TOP, _CANCELS_TOP))
        )
        assert one == other
    assert sorted(frames[1] for frames in ids_of_forged_stacks(forger)) == [_MARK + 1, (_MARK + 1) ^ _TOP]
