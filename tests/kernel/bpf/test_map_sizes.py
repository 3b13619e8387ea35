"""The kernel memory of BPF maps: as computed, as the kernel counts it, and within 256 MB on a large machine."""

import re

import pytest

from offtop.kernel.bpf import map_sizes
from offtop.kernel.bpf.map_sizes import Sizes
from offtop.kernel.doctor.kernel_checks import kernel_memory
from tests.kernel import map_memory
from tests.kernel.watch import Watch

_MB = 1 << 20


def test_maps_of_128_cpus_and_50_000_threads_take_at_most_256_mb() -> None:
    sizes = map_sizes.for_machine(50_000)
    assert sizes.exits >= 20_000, "20,000 threads may exit in a second"
    assert sizes.sites >= 2 * 50_000
    assert map_sizes.memory_bytes(sizes, 128) <= 256 * _MB


@pytest.mark.parametrize("threads", [0, 100, 10_000, 50_000, 1_000_000])
def test_more_threads_never_get_less_room(threads: int) -> None:
    fewer, more = map_sizes.for_machine(threads), map_sizes.for_machine(threads + 10_000)
    assert all(more.defines()[name] >= count for name, count in fewer.defines().items())
    assert map_sizes.memory_bytes(more, 2) >= map_sizes.memory_bytes(fewer, 2)


def test_maps_of_a_small_machine_take_little() -> None:
    assert map_sizes.memory_bytes(map_sizes.for_machine(100), 2, waking=False) < 64 * _MB


@pytest.mark.kernel
def test_each_map_takes_as_much_memory_as_computed() -> None:
    maps = map_memory.of_this_machine()
    arrays = maps.pop(map_sizes.PER_CPU_ARRAYS)
    assert arrays.counted <= arrays.computed <= 1.5 * arrays.counted
    known = {name: one for name, one in maps.items() if one.computed}
    assert known.keys() >= {"exited_0", "sites_1", "user_stacks", "wakes", "rules", "thresholds", "execs", "copies"}
    assert {name: one for name, one in known.items() if not one.is_right} == {}
    assert sum(one.counted for name, one in maps.items() if name not in known) < 300_000


def test_unknown_sizes_default_to_the_number_of_threads_and_stacks() -> None:
    assert Sizes(16, 32, 64).defines() == {
        "THREADS": 16,
        "EXITS": 16,
        "SITES": 32,
        "STACKS": 64,
        "KERNEL_STACKS": 64,
        "WAKES": 8192,
        "STORMS": 4096,
    }


def test_the_doctor_shows_how_much_kernel_memory_the_maps_take() -> None:
    check = kernel_memory()
    assert check.verdict == "ok"
    assert re.match(r"BPF maps take [\d.]+MB for [\d,]+ threads and \d+ CPUs, [\d.]+MB more with wakers", check.what)


@pytest.mark.kernel
def test_help_shows_the_kernel_memory_of_the_maps(live: Watch) -> None:
    check = dict(live.source.about())["kernel memory"]
    found = re.fullmatch(r"([\d.]+)MB in BPF maps", check)
    assert found and float(found[1]) > 10
