"""Test bpf/thinning.c as a C program: a clock and stacks of any length show how it chooses the minimum of a CPU."""

import ctypes as ct
import shutil
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from offtop import paths
from offtop.kernel.bpf.layout import Thinning
from tests.kernel.watch import MS, S

US = 1_000
BUDGET_NS = 5 * MS
HARNESS = r"""
#include <stdbool.h>
#include <stdint.h>
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int16_t s16; typedef int32_t s32; typedef int64_t s64;
#define BPF_PERCPU_ARRAY(name, type, many) \
	static type name##_entries[many]; \
	static type *name##_lookup(u32 *at) { return &name##_entries[*at]; } \
	static struct { type *(*lookup)(u32 *); } name = {name##_lookup}
static u64 clock_ns;
static u64 bpf_ktime_get_ns(void) { return clock_ns; }
#include "offcpu.h"
#include "thinning.c"
struct config config;
struct thinning *state(void) { return &thinning_entries[0]; }
bool leaves_out(u64 now_ns, u64 off_ns) { return is_thinned(&config, state(), now_ns, off_ns); }
u64 minimum(void) { return raised_min_ns(&config, state()->level); }
void charge(u64 began_ns, u64 now_ns)
{
	clock_ns = now_ns;
	charge_stacks(&config, state(), began_ns);
}
void configure(u64 min_ns, u64 stacks_ns, u64 depth)
{
	config.depth = depth;
	config.min_ns = config.requested_min_ns = min_ns;
	config.stacks_ns = stacks_ns;
	config.least_threshold_ns = ~0ULL;
}
"""


class State(ct.Structure):
    """`struct thinning`."""

    _fields_ = tuple((name, ct.c_uint64) for name in Thinning._fields)
    since_ns: int
    stacks_ns: int
    level: int


class Cpu:
    """One CPU, with a minimum of 1 ms and 5 ms a second for stacks."""

    def __init__(self, library: ct.CDLL) -> None:
        self._library = library
        library.state.restype = ct.POINTER(State)
        library.leaves_out.restype = ct.c_bool
        library.minimum.restype = ct.c_uint64
        self.configure(depth=0)
        ct.memset(library.state(), 0, ct.sizeof(State))
        self.state: State = library.state().contents

    def configure(self, depth: int) -> None:
        """Set how many wakers are found."""
        self._library.configure(ct.c_uint64(MS), ct.c_uint64(BUDGET_NS), ct.c_uint64(depth))

    @property
    def min_ns(self) -> int:
        return self._library.minimum()

    def leaves_out(self, now_ns: int, off_ns: int) -> bool:
        return self._library.leaves_out(ct.c_uint64(now_ns), ct.c_uint64(off_ns))

    def charge(self, began_ns: int, took_ns: int) -> None:
        self._library.charge(ct.c_uint64(began_ns), ct.c_uint64(began_ns + took_ns))

    def minimums(self, seconds: int, each_ns: int, took_ns: int, off_ns: Callable[[int], int]) -> Generator[int]:
        """Yield the minimum after each of `seconds` with a wait every `each_ns`.

        A wait's stacks take `took_ns`, and those of its waker as long again. `off_ns`: number of a wait → its length.
        """
        for second in range(1, seconds + 1):
            for number, now_ns in enumerate(range(second * S, (second + 1) * S, each_ns)):
                length_ns = off_ns(number)
                if length_ns >= self.min_ns:
                    self.charge(now_ns, took_ns)  # of the waker
                if not self.leaves_out(now_ns, length_ns):
                    self.charge(now_ns, took_ns)
            yield self.min_ns


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ct.CDLL:
    if not shutil.which("gcc"):
        pytest.skip("no gcc: sudo apt install gcc libc6-dev")
    built: Path = tmp_path_factory.mktemp("thinning") / "thinning.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-w", f"-I{paths.bpf()}", "-o", str(built), "-x", "c", "-"]
    subprocess.run(command, input=HARNESS.encode(), check=True, timeout=60)
    return ct.CDLL(str(built))


@pytest.fixture
def cpu(library: ct.CDLL) -> Cpu:
    return Cpu(library)


@contextmanager
def unchanged(cpu: Cpu) -> Generator[None]:
    was = cpu.state.level, cpu.state.stacks_ns
    yield
    assert (cpu.state.level, cpu.state.stacks_ns) == was


def test_a_busy_cpu_doubles_its_minimum_and_an_idle_one_halves_it_each_second(cpu: Cpu) -> None:
    for number in range(1000):
        if not cpu.leaves_out(S + number * 100 * US, 2 * MS):
            cpu.charge(S + number * 100 * US, 50 * US)
    assert cpu.min_ns == 4 * MS, "the 101st stack is beyond the budget, and the 202nd beyond that at 2 ms"
    cpu.leaves_out(2 * S + 100 * MS, 2 * MS)
    assert cpu.min_ns == 4 * MS, "the last second was busy"
    cpu.leaves_out(4 * S + 100 * MS, 2 * MS)
    assert cpu.min_ns == MS, "the last two were not"


def test_a_wakeup_in_an_interrupt_does_not_reset_the_minimum(cpu: Cpu) -> None:
    cpu.state.level, cpu.state.since_ns, cpu.state.stacks_ns = 5, 9 * S + 20 * US, 3 * MS
    with unchanged(cpu):
        cpu.leaves_out(9 * S, 2 * MS)  # the clock was read before the interrupt


def test_a_clock_that_steps_back_charges_nothing(cpu: Cpu) -> None:
    cpu.state.since_ns = 9 * S
    with unchanged(cpu):
        cpu.charge(9 * S, -1 * US)


def test_a_stack_during_which_the_hypervisor_took_the_cpu_away_does_not_raise_the_minimum(cpu: Cpu) -> None:
    cpu.state.since_ns = 9 * S
    cpu.charge(9 * S, 10 * MS)
    assert cpu.min_ns == MS
    assert cpu.state.stacks_ns == 100 * US


def test_with_wakers_the_minimum_settles(cpu: Cpu) -> None:
    cpu.configure(depth=1)
    found = [*cpu.minimums(60, S // 260, 10 * US, lambda number: 3 * MS if number % 10 == 0 else 1500 * US)]
    changes = [at for at, (was, now) in enumerate(pairwise(found)) if was != now]
    assert found[-1] == 2 * MS, "260 waits a second take 5.2 ms with their wakers"
    assert not changes or changes[-1] < 5, found
