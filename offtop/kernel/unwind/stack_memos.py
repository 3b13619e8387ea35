"""What user space tells bpf/memo.c and bpf/kernelmemo.c, which compare a stack with the thread's last one.

A memo is valid as long as the stack is in the table of user stacks, or of kernel stacks; and that of a user stack as
long as the unwind rules of its address space are the same. Each of these has a generation, which changes here.
"""

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.libbpf import Map
from offtop.model.values.snapshot import Memos

_ZERO = bytes(4)
_GENERATIONS = count(1)
"""Numbers that no generation has had before, as far as 32 bits go."""


def _new_generation() -> int:
    return next(_GENERATIONS) & 0xFFFFFFFF


class RuleGenerations:
    """The generation of the rules of each address space. Thread-safe."""

    def __init__(self, generations: Map) -> None:
        """`generations`: the BPF map `rule_generations`."""
        self._map = generations

    @contextmanager
    def changing(self, space: int) -> Generator[None]:
        """Change the rules of an address space (mappings.Image.space): all of its stacks are unwound anew.

        The generation changes before, so that nothing is compared with what was unwound by the old rules; and after, so
        that nothing is compared with what was unwound by a part of the new ones.
        """
        self._change(space)
        try:
            yield
        finally:
            self._change(space)

    def _change(self, space: int) -> None:
        self._map.update((space % layout.GENERATIONS).to_bytes(4, "little"), _new_generation().to_bytes(4, "little"))


class StackMemos:
    """Settings and counters of the memos of user stacks, or of kernel stacks."""

    def __init__(self, settings: Map, counts: Map, check_every: int) -> None:
        """`settings` and `counts`: these BPF maps.

        `check_every`: one in so many verified stacks is unwound all the same; 0: each stack is unwound.
        """
        self._settings, self._counts = settings, counts
        self.check_every = check_every
        self.total = Memos()
        """Numbers since the start."""
        self.forget_stacks()

    def forget_stacks(self) -> None:
        """Have all stacks unwound anew. Call it before and after stacks are removed from their table.

        Before, so that none of those is found by a memo any more; and after, so that none that was found meanwhile is.
        """
        self._settings.update(_ZERO, layout.MEMO_SETTINGS.pack(self.check_every, _new_generation(), 0))

    def read(self) -> Memos:
        """Return the numbers since the last call."""
        of_cpus = layout.MEMO_COUNTS.iter_unpack(self._counts.lookup(_ZERO) or b"")
        sums = [sum(column) for column in zip(*of_cpus, strict=True)]
        before, self.total = self.total, Memos(*sums[: len(Memos._fields)])
        return self.total.since(before)
