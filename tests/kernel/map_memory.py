"""The kernel memory of the BPF maps: as computed, and as the kernel counts it."""

import ctypes as ct
import os
import re
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.bpf import features, libbpf, map_sizes, program

_PERCPU_ARRAY = 6
"""BPF_MAP_TYPE_PERCPU_ARRAY in include/uapi/linux/bpf.h."""
_NAME_AT, _NAME_BYTES = 24, 16
"""Where struct bpf_map_info has the name, which the kernel cuts off."""
_MOST_APART = 0.02


class MapMemory(NamedTuple):
    """Bytes of a map, or of all per-CPU arrays together."""

    computed: int
    """0: this map is not computed."""
    counted: int
    """`memlock` in its fdinfo."""

    @property
    def is_right(self) -> bool:
        return abs(self.computed - self.counted) <= _MOST_APART * self.counted


def of_this_machine() -> dict[str, MapMemory]:
    """Load the BPF programs, those for wakers included, and return the memory of each of their maps by its name."""
    before, sizes = _ids(), map_sizes.for_machine()
    with closing(program.attach(features.detect(libbpf.KernelTypes()), waking=True)) as attached:
        in_hash = not attached.in_task_storage
        maps = map_sizes.maps(sizes, program.possible_cpus(), stack_kb=16, in_hash=in_hash, waking=True)
        computed = {name if name == map_sizes.PER_CPU_ARRAYS else name[: _NAME_BYTES - 1]: size for name, size in maps}
        counted = Counter[str]()
        for map_id in _ids() - before:
            name, size = _counted(map_id)
            counted[name] += size
    return {name: MapMemory(computed.get(name, 0), size) for name, size in counted.items()}


def _ids() -> set[int]:
    ids, last = set[int](), ct.c_uint32()
    while not libbpf.library().bpf_map_get_next_id(last, ct.byref(last)):
        ids.add(last.value)
    return ids


def _counted(map_id: int) -> tuple[str, int]:
    """Return a map's name and bytes."""
    fd = libbpf.library().bpf_map_get_fd_by_id(map_id)
    try:
        info, size = ct.create_string_buffer(_NAME_AT + _NAME_BYTES), ct.c_uint32(_NAME_AT + _NAME_BYTES)
        assert not libbpf.library().bpf_obj_get_info_by_fd(fd, info, ct.byref(size))
        fields = dict(re.findall(r"^(map_type|memlock):\s*(\d+)", Path(f"/proc/self/fdinfo/{fd}").read_text(), re.M))
    finally:
        os.close(fd)
    is_per_cpu = int(fields["map_type"]) == _PERCPU_ARRAY and int(fields["memlock"]) < 100_000
    name = info.raw[_NAME_AT:].rstrip(b"\0").decode()
    return map_sizes.PER_CPU_ARRAYS if is_per_cpu else name, int(fields["memlock"])
