"""Waits that have reached their mark, out of the kernel side's ring buffer; and the marks, which it is told in turn.

It knows a mark by kernel stack and program. What it has none for it hands out from the lowest of all marks on: then
it is told. Such a wait goes no further where it has not reached its own mark, for on a machine with too few CPUs all
waits of all programs that come and go are among them.
"""

from collections.abc import Callable

from offtop.kernel.bpf import layout, libbpf
from offtop.kernel.bpf.libbpf import Map
from offtop.model.values.catalog import Book, SiteKey
from offtop.model.values.outlier import Caught, Marks

Locate = Callable[[int, int, int, int, int], SiteKey]
"""(pid, tid, raw kernel stack id, raw user stack id, raw id of the wake) → site."""
KernelStack = Callable[[int], int]
"""Raw kernel stack id → the book's."""

_Known = tuple[str, int, tuple[int, int]]
"""Program, kernel stack (the book's id), and the marks of such waits."""


class Catcher:
    """For the thread that reads. Close it."""

    def __init__(self, ring: Map, marks: Map, book: Book, locate: Locate, kernel_stack: KernelStack) -> None:
        """Raises OSError where the ring buffer cannot be read."""
        self._map, self._book, self._locate, self._kernel_stack = marks, book, locate, kernel_stack
        self._raw: list[bytes] = []
        self._told: dict[bytes, _Known] = {}
        """What the kernel side knows, by its key."""
        self._marks: Marks | None = None
        self._version = -1
        self._ring = libbpf.RingBuffer(ring.fd, self._raw.append)

    def take(self, marks: Marks | None) -> list[Caught]:
        """Those since the last call. `marks`: what is wanted from now on."""
        self._ring.consume()
        raw, self._raw[:] = [*self._raw], []
        if marks is None:
            return []
        if marks is not self._marks or marks.version != self._version:
            self._marks, self._version = marks, marks.version
            self._tell_anew(marks)
        return [one for one in (self._caught(one, marks) for one in raw) if one]

    def forget(self) -> None:
        """What the kernel side was told is not so any more: its stacks have other names, and so other marks."""
        for of in self._told:
            self._map.delete(of)
        self._told.clear()

    def close(self) -> None:
        self._ring.close()

    def _caught(self, raw: bytes, marks: Marks) -> Caught | None:
        """None: it is shorter than its mark, of which the kernel side had not been told."""
        left_ns, back_ns, runqueue_ns, kernel, user, wake, pid, tid, state, cpu, of = layout.CAUGHT.unpack(raw)
        known = self._told.get(of)
        if known is None:
            known = self._tell(of, marks)
        program, _, (blocked_ns, ready_ns) = known
        if back_ns - left_ns - runqueue_ns < blocked_ns and runqueue_ns < ready_ns:
            return None
        return Caught(self._locate(pid, tid, kernel, user, wake), left_ns, back_ns, runqueue_ns, state, cpu, program)

    def _tell(self, of: bytes, marks: Marks) -> _Known:
        if len(self._told) >= self._map.entries // 2:
            self.forget()
        raw_kernel, name = layout.MARK_KEY.unpack(of)
        program, kernel = layout.text_of(name), self._kernel_stack(raw_kernel)
        marks_ns = marks.marks_ns(program, kernel, self._book)
        self._map.update(of, layout.MARK.pack(*marks_ns))
        self._told[of] = program, kernel, marks_ns
        return self._told[of]

    def _tell_anew(self, marks: Marks) -> None:
        for of, (program, kernel, was_ns) in list(self._told.items()):
            if kernel not in self._book.stacks:  # given back: it is told when it comes again
                self._map.delete(of)
                del self._told[of]
                continue
            marks_ns = marks.marks_ns(program, kernel, self._book)
            if marks_ns != was_ns:
                self._map.update(of, layout.MARK.pack(*marks_ns))
                self._told[of] = program, kernel, marks_ns
