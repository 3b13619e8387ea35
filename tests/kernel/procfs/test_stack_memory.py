"""Stacks of one process are read at once: here the buffers of a process that tells where they are."""

import mmap
import subprocess
import sys

import numpy as np
import pytest

from offtop.kernel.procfs.stack_memory import read_stacks

CODE = """
import ctypes, mmap, sys
pages = [mmap.mmap(-1, 4 * mmap.PAGESIZE) for _ in range(100)]
for number, page in enumerate(pages):
    page[: 2 * mmap.PAGESIZE] = number.to_bytes(8, "little") * (mmap.PAGESIZE // 4)
print(*(ctypes.addressof(ctypes.c_char.from_buffer(page)) for page in pages), flush=True)
sys.stdin.read()
"""
PAGE = mmap.PAGESIZE


@pytest.mark.kernel
def test_words_are_read_where_all_pages_are_resident() -> None:
    with subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            first = np.array(child.stdout.readline().split(), np.uint64)
            # each buffer has two pages that were written, and two that were not
            inside, across = first + (PAGE - 16), first + (2 * PAGE - 16)
            nowhere = np.array([0, 8, (1 << 64) - 8, 1 << 63], np.uint64)
            words, is_read = read_stacks(child.pid, np.concatenate((inside, across, nowhere)), 32)
            assert is_read.tolist() == [True] * 100 + [False] * 104
            assert words[:100].tolist() == [[number] * 4 for number in range(100)]
            words, is_read = read_stacks(child.pid, across, 16)  # the last two words before the page
            assert (words[:, 0].tolist(), is_read.all()) == (list(range(100)), True)
        finally:
            child.kill()


def test_nothing_is_read_of_no_stack_and_of_a_process_that_has_exited() -> None:
    assert [one.tolist() for one in read_stacks(1 << 22, np.array([PAGE], np.uint64), 8)] == [[[0]], [False]]
    assert [one.tolist() for one in read_stacks(1, np.zeros(0, np.uint64), 8)] == [[], []]
