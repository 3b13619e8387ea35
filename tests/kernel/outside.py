"""Threads outside of a container, which not every kernel lets offtop count."""

from functools import cache

from offtop.kernel.bpf.libbpf import KernelTypes
from offtop.kernel.bpf.pid_namespace import FUNCTIONS
from offtop.kernel.bpf.probes import has_map_iterators
from tests.conftest import lacks


@cache
def is_counted() -> bool:
    types = KernelTypes()
    return all(types.function(name) for name in FUNCTIONS.values()) and has_map_iterators(types)


def needed() -> None:
    """Skip this test if they are not counted here."""
    if not is_counted():
        lacks("iterators over maps, by which threads outside of a container are counted")
