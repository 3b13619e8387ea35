"""Test when threads last ran, as far as the kernel tells: after they got a CPU, and by the CPU's own clock."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.accounting.scanned_waits import last_ran_ns
from offtop.kernel.bpf.scan_rows import TASK_ROW

runs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 500)))
"""CPU, length of each run, pause before it, and how much of that the CPU's own clock leaves out."""


@given(runs)
def test_the_bound_is_never_before_a_thread_got_its_cpu_nor_after_it_left_it(
    every: list[tuple[int, int, int, int]],
) -> None:
    now_ns, behind_ns = defaultdict[int, int](lambda: 10_000), defaultdict[int, int](lambda: 5_000)
    tasks, left_ns = np.zeros(len(every), TASK_ROW), np.zeros(len(every), np.int64)
    for task, (cpu, ran_ns, pause_ns, stolen_ns) in enumerate(every):
        now_ns[cpu] += pause_ns + stolen_ns
        behind_ns[cpu] += stolen_ns
        tasks["arrived_ns"][task], tasks["cpu"][task] = now_ns[cpu], cpu
        now_ns[cpu] += ran_ns
        left_ns[task], tasks["exec_start_ns"][task] = now_ns[cpu], now_ns[cpu] - behind_ns[cpu]
    for order in (slice(None), slice(None, None, -1)):
        found = last_ran_ns(tasks[order])
        assert (tasks["arrived_ns"][order] <= found).all()
        assert (found <= left_ns[order]).all()


def test_a_clock_that_stood_still_between_two_threads_delays_only_the_second() -> None:
    tasks = np.zeros(2, TASK_ROW)
    tasks["arrived_ns"], tasks["exec_start_ns"] = [6_000, 1_000], [100, 100]
    assert last_ran_ns(tasks).tolist() == [6_000, 1_000]


def test_a_long_run_has_its_end_from_a_short_one_before_it() -> None:
    tasks = np.zeros(4, TASK_ROW)
    tasks["cpu"] = [0, 0, 1, 0]
    tasks["arrived_ns"] = [2_000, 1_000, 2_000, 2_000]
    tasks["exec_start_ns"] = [9_000 - 700, 1_001 - 700, 9_000 - 700, 0]  # of a clock that is 700 ns behind
    assert last_ran_ns(tasks).tolist() == [8_999, 1_000, 2_000, 2_000], "the clock of CPU 1, and the last, are unknown"
