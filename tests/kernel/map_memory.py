"""The kernel memory of the BPF maps: as computed, and as the kernel counts it."""

import ctypes as ct
import os
import re
import struct
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.bpf import features, libbpf, map_sizes, program

_PERCPU_ARRAY = 6
"""BPF_MAP_TYPE_PERCPU_ARRAY in include/uapi/linux/bpf.h."""
_NAME_AT, _NAME_BYTES = 24, 16
"""Where struct bpf_map_info has the name, which the kernel cuts off."""
_IDS_AT, _MOST_MAPS = 56, 256
"""Where struct bpf_prog_info has the address of the ids of its maps; their number is before it."""
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
    before, sizes = _open(), map_sizes.for_machine()
    found = replace(features.detect(libbpf.KernelTypes()), run_delay=None)  # the main program then has those for wakers
    with closing(program.attach(found)) as attached:
        in_hash = not attached.in_task_storage
        maps = map_sizes.maps(sizes, program.possible_cpus(), stack_kb=16, in_hash=in_hash, waking=True)
        computed = {name if name == map_sizes.PER_CPU_ARRAYS else name[: _NAME_BYTES - 1]: size for name, size in maps}
        counted = Counter[str]()
        used = set[int]().union(*map(_used, attached.programs.values()))
        for map_id in (_open() - before) | used:
            name, size = _counted(map_id)
            counted[name] += size
    return {name: MapMemory(computed.get(name, 0), size) for name, size in counted.items()}


def _open() -> set[int]:
    """Return the ids of the maps that this process has open: others may load programs at the same time."""
    ids = set[int]()
    for one in Path("/proc/self/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            ids.update(map(int, re.findall(r"^map_id:\s*(\d+)", one.read_text(), re.M)))
    return ids


def _used(program_fd: int) -> set[int]:
    """Return the ids of the maps that a program uses."""
    ids, info = (ct.c_uint32 * _MOST_MAPS)(), ct.create_string_buffer(_IDS_AT + 8)
    struct.pack_into("=IQ", info, _IDS_AT - 4, _MOST_MAPS, ct.addressof(ids))
    size = ct.c_uint32(len(info))
    assert not libbpf.library().bpf_obj_get_info_by_fd(program_fd, info, ct.byref(size))
    (count,) = struct.unpack_from("=I", info, _IDS_AT - 4)
    return set(ids[:count])


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
