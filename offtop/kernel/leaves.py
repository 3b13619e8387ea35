"""Puts back the caller that a walk along frame pointers skips: that of a leaf without a frame of its own.

libc's system call wrappers are such leaves, so without this `main → beta → syscall` reads `main → syscall`.
The kernel side keeps the word at the stack pointer; here .eh_frame decides whether it is a return address.
"""

from collections.abc import Sequence

from offtop.kernel.binaries import Binaries
from offtop.kernel.files import Files
from offtop.kernel.mappings import Processes
from offtop.model.stack import Frame

_MOST_LEAVES = 8192


class Leaves:
    """User frames with no caller missing behind the leaf. For use by one thread."""

    def __init__(self, files: Files, processes: Processes) -> None:
        self._files, self._processes = files, processes
        self._binaries = Binaries()
        self._known: dict[Frame, bool] = {}

    def frames(self, pid: int, addresses: Sequence[int], at_sp: int) -> tuple[Frame, ...]:
        """Frames of a user stack, leaf first. `at_sp`: the word at the stack pointer, 0 where not kept."""
        if not at_sp or not addresses or (len(addresses) > 1 and addresses[1] == at_sp):
            return self._processes.frames(pid, addresses)
        frames = self._processes.frames(pid, (addresses[0], at_sp, *addresses[1:]))
        if len(frames) > 1 and not (self._hides_caller(frames[0]) and self._files.get(frames[1].file)):
            return frames[:1] + frames[2:]
        return frames

    def close(self) -> None:
        self._binaries.close()

    def _hides_caller(self, leaf: Frame) -> bool:
        known = self._known.get(leaf)
        if known is None:
            if len(self._known) >= _MOST_LEAVES:
                self._known.clear()
            known = self._known[leaf] = self._look(leaf)
        return known

    def _look(self, leaf: Frame) -> bool:
        file = self._files.get(leaf.file)
        binary = self._binaries.of(file) if file else None
        address = binary.address(leaf.offset) if binary else None
        return bool(binary and address is not None and binary.return_address_at_sp(address))
