"""Turns the kernel side's stack ids into the book's: read once, named by what is mapped where, kept by content.

Kernel stacks are the same when their functions are; user stacks when their (file, offset)s are, whichever
process they are of and wherever it has its libraries. So forked workers share their stacks.
"""

from collections.abc import Callable, Sequence

from offtop.kernel import layout
from offtop.kernel.libbpf import Map
from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.categories import Categories
from offtop.model.stack import FIRST_STACK, NO_STACK, STACK_LOST, Frame, Stack

_FIRST_RAW_ID = 16
_TRACER_FRAMES = 12
_MOST_WALKED = 16_384
"""Stale words of a thread's stack make a few more of them than there are stacks."""

KernelFrame = Callable[[int], Frame]
"""Address → frame."""
UserFrames = Callable[[int, Sequence[int], int], tuple[Frame, ...]]
"""(pid, addresses leaf first, the word at the stack pointer or 0) → frames."""


class _Table:
    """The stacks of one kernel map: emptied when half full, because the kernel puts back what it meets again."""

    def __init__(self, stacks: Map) -> None:
        self._map = stacks
        self._read: dict[int, tuple[tuple[int, ...], int]] = {}
        self._older: dict[int, tuple[tuple[int, ...], int]] = {}

    def read(self, raw_id: int) -> tuple[tuple[int, ...], int] | None:
        """(addresses leaf first, word at the stack pointer); None: it was not kept."""
        found = self._read.get(raw_id)
        if found is None:
            value = self._map.lookup(raw_id.to_bytes(8, "little"))
            if value is not None:
                depth, leaf_return, *frames = layout.STACK.unpack(value)
                found = tuple(frames[: min(depth, layout.FRAMES)]), leaf_return
            else:
                found = self._older.get(raw_id)
            if found is not None:
                self._read[raw_id] = found
        return found

    @property
    def fill(self) -> float:
        """How much of the map is taken, 0 to 1."""
        return len(self._read) / self._map.entries

    def make_room(self, at_once: bool) -> bool:
        """Empty the map if it is half full, or `at_once`. Records made before this are still understood."""
        if self.fill < 0.5 and not at_once:
            return False
        self._older, self._read = self._read, {}
        for keys, values in self._map.drain():
            for raw_id, (depth, leaf_return, *frames) in zip(
                keys.cast("Q"), layout.STACK.iter_unpack(values), strict=True
            ):
                self._older[raw_id] = tuple(frames[: min(depth, layout.FRAMES)]), leaf_return
        return True


class Stacks:
    """Gives sites their stack ids, and the book its stacks."""

    def __init__(
        self,
        kernel: Map,
        user: Map,
        book: Book,
        categories: Categories,
        kernel_frame: KernelFrame,
        user_frames: UserFrames,
        sched_text: tuple[int, int],
    ) -> None:
        """`sched_text`: first and end address of the kernel's __sched functions."""
        self._kernel, self._user = _Table(kernel), _Table(user)
        self._book, self._categories = book, categories
        self._kernel_frame, self._user_frames = kernel_frame, user_frames
        self._sched_text = sched_text
        self._next_id = FIRST_STACK
        self._by_frames: dict[tuple[Frame, ...], int] = {}
        self._kernel_ids: dict[int, int] = {}
        self._walked_ids: dict[tuple[int | bytes, ...], int] = {}
        self._user_ids: dict[int, dict[int, int]] = {}
        self._sites: dict[int, dict[tuple[int, int], SiteKey]] = {}
        """tid → raw ids → site."""
        self.unread = 0
        """Stacks that a record named and the kernel no longer had: their time is under [stack lost]."""

    def site(self, pid: int, tid: int, kernel: int, user: int) -> SiteKey:
        """The site of a record's raw ids."""
        of_thread = self._sites.get(tid)
        if of_thread is None:
            of_thread = self._sites[tid] = {}
        site = of_thread.get((kernel, user))
        if site is None or site.pid != pid:  # in one tick a tid may be of several processes, one after the other
            site = SiteKey(pid, tid, self._kernel_id(kernel), self._user_id(pid, user))
            of_thread[kernel, user] = site
        return site

    def read_user(self, pid: int, addresses: Sequence[int], at_sp: int) -> int:
        """The user stack of a wait in progress, as it was read from outside. `at_sp`: as for UserFrames."""
        frames = self._user_frames(pid, addresses, at_sp)
        return self._intern(frames, lambda: Stack(frames)) if frames else NO_STACK

    def walked(self, frames: bytes, words: bytes) -> int:
        """The stack that the task walk gave, with its __sched functions put back.

        bpf_get_task_stack leaves those out; they are the words of the thread's kernel stack that lie in
        their section, above the first frame that it does give.
        """
        first, end = self._sched_text
        leaf = int.from_bytes(frames[:8], "little")
        on_top: list[int] = []
        for word in memoryview(words).cast("Q"):
            if word == leaf:
                break
            if first <= word < end:
                on_top.append(word)
        given = (*on_top, frames)
        known = self._walked_ids.get(given)
        if known is None:
            addresses = (*on_top, *memoryview(frames).cast("Q"))
            known = self._walked_ids[given] = self._intern_kernel(addresses)
        return known

    def make_room(self, at_once: bool) -> None:
        """Once a tick: keep the kernel's tables from filling up. `at_once`: one has."""
        if len(self._walked_ids) > _MOST_WALKED:
            self._walked_ids.clear()
        if self._kernel.make_room(at_once):
            self._kernel_ids.clear()
            self._sites.clear()
        if self._user.make_room(at_once):
            self._user_ids.clear()
            self._sites.clear()

    @property
    def fill(self) -> tuple[float, float]:
        """How much of the kernel's tables of kernel and user stacks is taken, 0 to 1."""
        return self._kernel.fill, self._user.fill

    def forget_thread(self, key: ThreadKey) -> None:
        """It has ended. With a main thread, so has its process; or it is another program by now (exec)."""
        self._sites.pop(key.tid, None)
        if key.tid == key.pid:
            self._user_ids.pop(key.pid, None)

    def forget(self, dropped: set[int]) -> None:
        """The book gave these ids back."""
        self._by_frames = {frames: i for frames, i in self._by_frames.items() if i not in dropped}
        self._kernel_ids.clear()
        self._walked_ids.clear()
        self._user_ids.clear()
        self._sites.clear()

    def _kernel_id(self, raw_id: int) -> int:
        if raw_id < _FIRST_RAW_ID:
            return raw_id
        known = self._kernel_ids.get(raw_id)
        if known is None:
            found = self._kernel.read(raw_id)
            if found is None:
                self.unread += 1
                return STACK_LOST
            known = self._kernel_ids[raw_id] = self._intern_kernel(found[0])
        return known

    def _user_id(self, pid: int, raw_id: int) -> int:
        if raw_id < _FIRST_RAW_ID:
            return raw_id
        of_process = self._user_ids.setdefault(pid, {})
        known = of_process.get(raw_id)
        if known is None:
            found = self._user.read(raw_id)
            if found is None:
                self.unread += 1
                return STACK_LOST
            frames = self._user_frames(pid, *found)
            known = of_process[raw_id] = self._intern(frames, lambda: Stack(frames)) if frames else NO_STACK
        return known

    def _intern_kernel(self, addresses: Sequence[int]) -> int:
        if not addresses:
            return STACK_LOST
        frames = tuple(self._kernel_frame(address) for address in addresses)
        names = [frame.name for frame in frames]
        for i, name in enumerate(names[:_TRACER_FRAMES]):
            if name == "__schedule":  # what is above is the tracer: this program, and what called it
                frames, names = frames[i:], names[i:]
                break
        tail = self._categories.tail_length(names)

        def made() -> Stack:
            trimmed = names[tail:]
            return Stack(frames, tail, self._categories.classify(trimmed), self._categories.entry_length(trimmed))

        return self._intern(frames, made)

    def _intern(self, frames: tuple[Frame, ...], made: Callable[[], Stack]) -> int:
        known = self._by_frames.get(frames)
        if known is None:
            known = self._by_frames[frames] = self._next_id
            self._next_id += 1
            self._book.stacks[known] = made()
        return known
