"""What the programs for file operations (bpf/files.c) and for requests to disks (bpf/disks.c) have in common."""

import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from offtop.errors import KernelError
from offtop.kernel.bpf.program import maps_of
from offtop.model.values.io_stacks import StackTotals

STACK = struct.Struct("=4Q")
"""`struct file_stack` and `struct disk_stack`: the fields of StackTotals."""
STACK_IDS_BYTES = 16
"""Kernel and user stack, which follow the key of the row in `struct file_stack_key` and `struct disk_stack_key`."""


class IoProgram:
    """Programs that are attached beside those of offcpu.c, and their maps.

    They count the same threads, write to the same of two buffers, and use the same maps of stacks.
    """

    KIND: ClassVar[str]
    """What the names of its maps begin with."""
    KEY: ClassVar[struct.Struct]
    """Key of a row."""
    LOST_KINDS: ClassVar[int]
    """Number of counters of what was lost."""

    def __init__(self, fds: Mapping[str, int], sizes: Mapping[str, tuple[int, int]]) -> None:
        """`fds`: see Program.load_beside; `sizes`: see maps_of. Raises KernelError or OSError."""
        self._fds = dict(fds)
        self.programs: Mapping[str, int] = {
            name.replace("program ", f"{self.KIND} "): fd for name, fd in fds.items() if name.startswith("program ")
        }
        try:
            self.maps = maps_of(fds, sizes, [f"{self.KIND}_lost"])
        except (KernelError, OSError):
            self.close()
            raise

    @property
    def lost(self) -> int:
        """How much was not counted since this was loaded."""
        lost = self.maps[f"{self.KIND}_lost"]
        per_cpu = (lost.lookup(number.to_bytes(4, "little")) or b"" for number in range(self.LOST_KINDS))
        return sum(memoryview(b"".join(per_cpu)).cast("Q"))

    def stacks(self, buffer: int) -> Iterator[tuple[tuple[Any, ...], int, int, StackTotals]]:
        """Empty a buffer's stacks: key of the row, ids of kernel and user stack, and totals of each."""
        stack_key = struct.Struct(f"={self.KEY.size}sQQ")
        for keys, values in self.maps[f"{self.KIND}_stacks_{buffer}"].drain():
            for one, numbers in zip(stack_key.iter_unpack(keys), STACK.iter_unpack(values), strict=True):
                row, kernel, user = one
                yield self.KEY.unpack(row), kernel, user, StackTotals(*numbers)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
