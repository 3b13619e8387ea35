"""The frames of user stacks: by process, from copied stacks, and with Python's functions among them."""

from collections.abc import Sequence
from contextlib import suppress

from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.symbols.mappings import Processes
from offtop.kernel.unwind.cpython_frames import CPythonFrames
from offtop.kernel.unwind.user_stacks import CopyResult, UserStacks
from offtop.model.values.stack import Frame


class UserFrames:
    """Resolves what BPF recorded of user stacks. For the polling thread."""

    def __init__(
        self, processes: Processes, user_stacks: UserStacks, cpython_frames: CPythonFrames, execs: Map
    ) -> None:
        self._processes, self._user_stacks, self._cpython_frames, self._execs = (
            processes,
            user_stacks,
            cpython_frames,
            execs,
        )

    def frames(self, pid: int, addresses: Sequence[int]) -> tuple[Frame, ...]:
        """Return the frames of a process's code addresses, leaf first."""
        return self._processes.frames(pid, addresses)

    def copied(self, raw_id: int) -> CopyResult | None:
        """Return a copied stack and its result; None if it was lost."""
        return self._user_stacks.copy_result(raw_id)

    def has_rule(self, frame: Frame) -> bool:
        """Return whether the frame's binary has an unwind rule for it."""
        return self._user_stacks.has_rule(frame)

    def program_number(self, pid: int) -> int | None:
        """Return how often the process has called exec(), as Stacks.set_program_number; None if it has not."""
        known = self._execs.lookup(pid.to_bytes(4, "little"))
        return None if known is None else int.from_bytes(known[:4], "little")

    def with_python(
        self, pid: int, frames: tuple[Frame, ...], of_python: Sequence[int], is_whole: bool
    ) -> tuple[tuple[Frame, ...], bool]:
        """Merge Python's frames into a stack; also return whether some may be misplaced.

        `of_python`: Python frames from BPF. `is_whole`: the frames reach the start of the thread. Python's frames are
        left out if their names are not known in time. That stack stays so; the next one with these frames becomes
        another stack.
        """
        if not of_python:
            self._cpython_frames.request_examination(pid, frames)
            return frames, False
        with suppress(TimeoutError):
            if image := self._processes.image(pid):
                self._cpython_frames.load(pid, image)
        mixed = self._cpython_frames.merge(pid, frames, of_python, is_whole)
        if mixed.unnamed and self._user_stacks.name_python_functions(pid, mixed.unnamed):
            mixed = self._cpython_frames.merge(pid, frames, of_python, is_whole)
        if mixed.unnamed:
            self._cpython_frames.change_generation(pid)
            return frames, False
        return mixed.frames, mixed.unsure

    def forget(self, pid: int) -> None:
        """Forget a process that has exited."""
        self._processes.forget(pid)
        self._cpython_frames.forget(pid)
        self._user_stacks.note_exit(pid)
