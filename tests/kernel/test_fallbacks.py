"""Test that each fallback is announced at startup, on the help screen and in JSON."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from offtop.kernel.bpf import features, layout, libbpf, program
from offtop.kernel.bpf.program import Program, Unwind
from offtop.kernel.unwind.stack_copies import Copies, Copy
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import LINKED
from tests.conftest import lacks
from tests.kernel import programs, watch

pytestmark = pytest.mark.kernel

DEEP = r"""
#include <unistd.h>
static __attribute__((noinline)) void deep(void)
{
	volatile char room[50000];
	for (int i = 0; i < sizeof(room); i++) /* only pages that are present can be copied */
		room[i] = i;
	usleep(20000);
	room[0] = 2;
}
int main(void)
{
	while (next())
		deep();
	return 0;
}
"""
"""At each go it sleeps with 50 KB of stack between it and main()."""


def attached(unwind: Unwind, **defines: int) -> Program:
    return program.attach(features.detect(libbpf.KernelTypes()), unwind=unwind, defines=defines)


def copied(unwind: Unwind, binary: Path) -> Copy:
    """Return the copy of its stack from the wait in deep(), for which no rule is known yet."""
    running = attached(unwind)
    try:
        assert (running.unwind, running.notices) == (unwind, ())
        maps = running.maps
        copies = Copies(maps["copies"], maps["copies_left"])
        copies.take(10)
        with programs.running([binary]) as child:
            maps["only_pids"].update(child.pid.to_bytes(4, "little"), bytes(4))
            never, least_ns = (1 << 64) - 1, 10_000_000
            outliers = (never, 0, least_ns, never)  # none of them, and no limit on the time for stacks
            wanted = (least_ns, never, 0xFFFFFFFF, layout.ONLY_PIDS, os.getpid(), *[0] * 9, *outliers, *[0] * 15)
            maps["config"].update(bytes(4), layout.CONFIG.pack(*wanted))
            child.go()
            found = [one for one in copies.take(10) if one.pid == child.pid]
        copies.close()
        return max(found, key=lambda one: len(one.stack))  # it may also have waited in main(), for its go
    finally:
        running.close()


@pytest.mark.parametrize(("stack_kb", "least"), [(16, 16 << 10), (64, 50_000)])
def test_the_requested_amount_of_stack_is_copied(stack_kb: int, least: int, tmp_path: Path) -> None:
    binary = programs.build(tmp_path / "deep", DEEP, "-D_GNU_SOURCE", "-O1", "-fomit-frame-pointer")
    assert least <= len(copied(Unwind(stack_kb=stack_kb), binary).stack) <= stack_kb << 10


@pytest.mark.variant
def test_without_kernel_unwinding_frame_pointers_are_used_with_a_notice() -> None:
    running = attached(Unwind(), RULES=0)  # a map without room for anything cannot be created
    running.close()
    assert running.unwind == Unwind("fp")
    (notice,) = running.notices
    assert notice.startswith("User stacks follow frame pointers only, because the program that unwinds by .eh_frame ")
    assert notice.endswith("Please report it, with the output of: offtop doctor.")


_ON_A_REAL_TIME_KERNEL = """
from dataclasses import replace
from offtop.kernel.bpf import features
find = features.detect
features.detect = lambda types: replace(find(types), ring_buffer=False)
from offtop.start import main
main()
"""


def test_missing_features_are_reported_at_startup_and_in_each_json_tick() -> None:
    command = [sys.executable, "-c", _ON_A_REAL_TIME_KERNEL, "-b", "--json", "-n", "1", "-d", "0.2"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=True)
    (notice,) = json.loads(done.stdout)["notices"]
    assert notice.startswith("This real-time kernel's BPF ring buffers use a lock that may sleep")
    assert done.stderr == f"offtop: {notice}\n"


NARROW = r"""
	.data
each:	.long 0, 20000000
	.text
	.globl _start, alpha, beta
	.type _start, @function
	.type alpha, @function
	.type beta, @function
beta:	push %ebp
	mov %esp, %ebp
	mov $162, %eax
	lea each, %ebx
	xor %ecx, %ecx
	int $0x80
	pop %ebp
	ret
	.size beta, .-beta
alpha:	push %ebp
	mov %esp, %ebp
	call beta
	pop %ebp
	ret
	.size alpha, .-alpha
_start:	xor %ebp, %ebp
1:	call alpha
	jmp 1b
	.size _start, .-_start
"""
"""Sleeps 20 ms forever, with the 32-bit nanosleep(2)."""


def test_a_32_bit_program_is_unwound_along_frame_pointers(tmp_path: Path) -> None:
    if platform.machine() != "x86_64":
        lacks("x86-64's 32-bit mode")
    code, binary = tmp_path / "narrow.o", tmp_path / "narrow"
    subprocess.run(["as", "--32", "-o", code], input=NARROW.encode(), check=True)
    subprocess.run(["ld", "-m", "elf_i386", "-o", binary, code], check=True)
    with subprocess.Popen([binary]) as child, watch.watching(Filters(pids=(child.pid,))) as live:
        try:
            live.tick()
            window = live.tick(0.5)
            found = live.user_stacks(window, child.pid)
            stacks = [window.catalog.stack(key.user) for key, _ in window.each_site()]
        finally:
            child.kill()
    waits = {names: totals.waits for names, totals in found.items() if totals.waits}
    assert [*waits] == [("beta", "alpha", "_start")] and waits["beta", "alpha", "_start"] > 10
    assert {stack.end for stack in stacks if stack.frames} == {LINKED}
