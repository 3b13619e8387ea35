"""Runs in a guest with many CPUs and checks how much kernel memory the BPF maps take there, map by map."""

import os

from offtop.kernel.bpf import map_sizes
from offtop.kernel.doctor.kernel_checks import kernel_memory
from tests.kernel import map_memory
from tests.kernels.checks import Findings
from tests.kernels.guests import PASSED

_MB = 1 << 20


def main() -> None:
    print(f"guest: {os.cpu_count()} CPUs", flush=True)
    found = Findings()
    with found.checking("kernel memory"):
        print(kernel_memory().what, flush=True)
        maps = map_memory.of_this_machine()
        for name, one in sorted(maps.items(), key=lambda item: -item[1].counted):
            if one.computed:
                print(f"{name}: {one.computed / _MB:.2f} MB computed, {one.counted / _MB:.2f} MB counted", flush=True)
                found.check(one.is_right or name == map_sizes.PER_CPU_ARRAYS, f"{name}:", one)
        computed, counted = (sum(sizes) for sizes in zip(*maps.values(), strict=True))
        print(f"all: {computed / _MB:.1f} MB computed, {counted / _MB:.1f} MB counted", flush=True)
        found.check(abs(computed - counted) <= 0.02 * counted, "all:", computed, counted)
    print(PASSED if not found.count else f"guest: {found.count} checks failed", flush=True)


if __name__ == "__main__":
    main()
