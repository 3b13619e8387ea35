"""Resolves BPF stack ids to catalog ids: stacks are read once, symbolized by process, and merged by content.

Kernel stacks are equal if their functions are; user stacks if their (file, offset) pairs are, in any process and
wherever its libraries are mapped. So forked workers share their stacks.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.id_table import IdTable
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.bpf.scan_rows import Rows, kinds_of
from offtop.kernel.resolve.user_frames import UserFrames
from offtop.kernel.symbols.kallsyms import HIDDEN, HiddenSymbols, KernelSymbols
from offtop.kernel.unwind.unwinder import UnwoundStack
from offtop.kernel.unwind.user_stacks import CopyResult
from offtop.model.classify import wakers
from offtop.model.classify.categories import CONNECT, OTHER, POLL, Categories
from offtop.model.classify.causes import PYTHON_FUNCTION
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.stack import (
    BAD_PC,
    CLOSED,
    DEEP,
    ENDED,
    FIRST_STACK,
    GONE,
    LINKED,
    MISPLACED_PYTHON,
    NO_STACK,
    NO_WAY,
    NOT_COPIED,
    NOT_FOLLOWED,
    NOT_IN_MEMORY,
    NOT_PERMITTED,
    NOT_READ,
    STACK_LOST,
    UNREAD,
    WHOLE,
    Frame,
    Stack,
)
from offtop.model.values.table import SITES, Ints, distinct
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.breakdown import RUN_QUEUE, STOPPED, THROTTLE

_TRACER_FRAMES = 12
_TRACERS = ("bpf_", "__bpf_", "__traceiter_", "__probestub_")
"""How functions begin that are on top of a stack only because a tracepoint is traced."""
_MAX_SCANNED = 16_384
"""Limit of the cache for scanned stacks: stale words on a thread's stack make a few more keys than there are stacks."""

MOST_USER_STACKS = 32_768
"""How many user stacks the catalog keeps, of 1 KB each: next to compilers there are 1,000 new ones a second."""
_NO_PID = -1
_THROTTLES = "throttle_cfs_rq_work"
_END = layout.END_UNSURE - 1
_PYTHON_COUNT = (1 << layout.END_GENERATION_SHIFT - layout.END_PYTHON_SHIFT) - 1
_STACK_HEAD = struct.Struct("=QQ")
_EXITED_STACK = (Frame(GONE, 0),)
"""Stack of a process that exited or called exec() since."""
_UNREAD_ENDS = {GONE: ENDED, CLOSED: NOT_PERMITTED, UNREAD: NOT_READ}
"""File of the frame in place of a stack that could not be read → how that stack ends."""
_ENDS = {
    layout.END_COMPLETE: WHOLE,
    layout.END_LINKED: LINKED,
    layout.END_TRUNCATED: DEEP,
    layout.END_MEMORY: NOT_IN_MEMORY,
    layout.END_BAD_PC: BAD_PC,
    layout.END_NO_UNWIND_INFO: NO_WAY,
    layout.END_CFA_UNSUPPORTED: NOT_FOLLOWED,
    layout.END_NOT_COPIED: NOT_COPIED,
}


def _stack_of(value: bytes | memoryview) -> tuple[bytes, int]:
    """Addresses as u64, leaf first, and one of layout.END_* with its flags.

    They stay packed: thousands of stacks are kept, and each is resolved once in most cases.
    """
    depth, end = _STACK_HEAD.unpack_from(value)
    return bytes(value[_STACK_HEAD.size : _STACK_HEAD.size + 8 * min(depth, layout.FRAMES)]), end


def _addresses(packed: bytes) -> list[int]:
    return memoryview(packed).cast("Q").tolist()


class Stacks:
    """Assigns stack ids to sites and adds stacks to the catalog."""

    def __init__(
        self,
        maps: Mapping[str, Map],
        catalog: Catalog,
        categories: Categories,
        symbols: KernelSymbols | HiddenSymbols,
        user_frames: UserFrames,
        note_emptying: Callable[[], None] = lambda: None,
    ) -> None:
        """`note_emptying` is called before and after stacks are removed from BPF."""
        self._kernel = IdTable(maps["kernel_stacks"], _stack_of, note_emptying)
        self._user = IdTable(maps["user_stacks"], _stack_of, note_emptying)
        self._catalog, self._categories = catalog, categories
        self._kernel_frame, self._user_frames = symbols.lookup, user_frames
        self._next_id = FIRST_STACK
        self._by_frames: dict[tuple[tuple[Frame, ...], str, bool], int] = {}
        """Frames, the stack's end or a category that the frames do not show, is_unsure → id."""
        self._kernel_ids: dict[int, int] = {}
        self._scanned_ids: dict[tuple[int | bytes, ...], int] = {}
        self._user_ids: dict[int, dict[int, int]] = {}
        self._of_users = set[int]()
        """Ids of user stacks."""
        self._execs: dict[int, int] = {}
        """pid → program number, as `runs` was last called."""
        self._exited = set[int]()
        """Processes found to have exited in this tick: their memory cannot be read any more."""
        self._unread_pids = set[int]()
        """Processes that could not be read in time in this tick; they may be in the next."""
        self._this_tick_only: dict[tuple[int, int], int] = {}
        """(pid, raw id) → id of stacks that are cached in this tick only: a record's first site is resolved twice.

        They come from a stack copy, or from a process that exited (another may soon have its pid) or could not be read
        in time; or the kernel no longer had them. Kernel stacks have _NO_PID.
        """
        self.unread = 0
        """Stacks that a record refers to but the kernel no longer had: their time is under [stack lost]."""

    def site(self, pid: int, tid: int, kernel: int, user: int) -> SiteKey:
        """Return the site for a record's raw ids."""
        return SiteKey(pid, tid, self._kernel_id(kernel), self._user_id(pid, user))

    def sites(self, raw: NDArray[np.uint64]) -> Ints:
        """Return the sites of many records, each row with its pid, tid, raw kernel stack id and raw user stack id."""
        sites = np.full((len(raw), SITES.width), NO_WAKE)
        sites[:, :2] = raw[:, :2]
        kernels, which = np.unique(raw[:, 2], return_inverse=True)
        sites[:, 2] = np.array([self._kernel_id(one) for one in kernels.tolist()], np.int64)[which]
        users, of_users = np.unique(raw[:, 3], return_inverse=True)
        pairs, which = distinct(np.column_stack((sites[:, 0], of_users)))
        stacks = zip(pairs[:, 0].tolist(), users[pairs[:, 1]].tolist(), strict=True)
        sites[:, 3] = np.array([self._user_id(pid, one) for pid, one in stacks], np.int64)[which]
        return sites

    def connecting(self, kernel: int) -> int:
        """Return the catalog id of the same kernel stack, as a wait for a connection if it is in poll or select.

        Only the state of the socket tells that wait from one for the next message.
        """
        stack = self._catalog.stack(kernel)
        if stack.category != POLL:
            return kernel
        return self._intern(stack.frames, CONNECT, False, lambda: stack._replace(category=CONNECT))

    def frozen(self, kernel: int) -> int:
        """Return the catalog id of the same kernel stack, as the stack of a thread that is frozen there.

        Since f5d39b020809 (6.1), a freezer stops a thread in the middle of some sleeps, which shows only in its state.
        """
        stack = self._catalog.stack(kernel)
        if kernel < FIRST_STACK or stack.category == STOPPED:
            return kernel
        return self._intern(stack.frames, STOPPED, False, lambda: stack._replace(category=STOPPED))

    def ready(self, kernel: int) -> int:
        """Return the catalog id of the same kernel stack, as that of a thread that waits for a CPU, if it may be one.

        The kernel throttles a thread in a task work (throttle_cfs_rq_work), and reschedules right after it, as it may
        do after any other task work. Only that function itself tells the two apart, and it is seldom on the stack.
        """
        stack = self._catalog.stack(kernel)
        if stack.category != THROTTLE or any(frame.name == _THROTTLES for frame in stack.frames):
            return kernel
        return self._intern(stack.frames, RUN_QUEUE, False, lambda: stack._replace(category=RUN_QUEUE))

    def kernel(self, raw_id: int) -> int:
        """Return the catalog id of a kernel stack by its raw id."""
        return self._kernel_id(raw_id)

    def ids(self, pid: int, kernel: int, user: int) -> tuple[int, int]:
        """Return the catalog ids of a process's kernel and user stack by their raw ids."""
        return self._kernel_id(kernel), self._user_id(pid, user)

    def user(self, found: UnwoundStack) -> int:
        """Return the catalog id of a user stack that was unwound in user space."""
        return self._intern_user(found.frames, _ENDS[found.end], found.unsure)

    def scanned(self, stacks: Rows, deep_frames: Mapping[int, NDArray[np.uint64]] = MappingProxyType({})) -> Ints:
        """Return the catalog ids of kernel stacks from the task scan. `deep_frames`: as of Scan.

        bpf_get_task_stack omits __sched functions, so they are added here from what the BPF program has found on the
        thread's stack.
        """
        found, is_short = np.empty(len(stacks), np.int64), np.ones(len(stacks), np.bool_)
        for at, more in deep_frames.items():
            row, is_short[at] = stacks[at], False
            rest = more[: int(row["depth"]) - layout.SHORT_FRAMES]
            found[at] = self._scanned(row["sched"].tolist(), row["frames"].tobytes() + rest.tobytes())
        short = stacks[is_short] if deep_frames else stacks
        depths = short["depth"].astype(np.int64)
        columns = max(1, int(depths.max(initial=0)))
        frames = short["frames"][:, :columns] * (np.arange(columns) < depths[:, None])
        ones, which = kinds_of((frames, short["sched"]))
        each = zip(depths[ones].tolist(), short["sched"][ones].tolist(), frames[ones], strict=True)
        ids = [self._scanned(sched, frame_row[:depth].tobytes()) for depth, sched, frame_row in each]
        found[is_short] = np.array(ids, np.int64)[which]
        return found

    def _scanned(self, sched: list[int], frames: bytes) -> int:
        """Return the catalog id of a stack of these __sched functions, followed by zeros, and these packed frames."""
        known = self._scanned_ids.get((*sched, frames))
        if known is None:
            # None of these functions calls itself: what repeats one is left on the stack from an earlier call.
            once: dict[str, int] = {}
            for word in filter(None, sched):
                once.setdefault(self._kernel_frame(word).name, word)
            known = self._scanned_ids[(*sched, frames)] = self._intern_kernel((*once.values(), *_addresses(frames)))
        return known

    def make_room(self, at_once: bool) -> None:
        """Keep the kernel's tables from filling up; call it once per tick. `at_once`: one is full."""
        self._this_tick_only.clear()
        self._exited.clear()
        self._unread_pids.clear()
        if len(self._scanned_ids) > _MAX_SCANNED:
            self._scanned_ids.clear()
        if self._kernel.make_room(at_once):
            self._kernel_ids.clear()
        if self._user.make_room(at_once):
            self._user_ids.clear()

    @property
    def fill(self) -> tuple[float, float]:
        """Fill level of the tables of kernel and user stacks, 0 to 1."""
        return self._kernel.fill, self._user.fill

    def forget_thread(self, key: ThreadKey) -> None:
        """Forget a thread that exited.

        For a main thread, also forget its process, which may have called exec() instead.
        """
        if key.tid == key.pid:
            self._user_ids.pop(key.pid, None)
            self._execs.pop(key.pid, None)

    def forget_names(self, pid: int) -> None:
        """Forget stacks of a process whose mappings or symbols changed.

        Its addresses have other names now, so they make other stacks.
        """
        self._user_ids.pop(pid, None)
        self._this_tick_only.clear()

    def forget_kernel_names(self) -> None:
        """Forget kernel stacks after symbols changed: their addresses have other names now."""
        self._kernel_ids.clear()
        self._scanned_ids.clear()
        self._this_tick_only.clear()

    @property
    def surplus(self) -> frozenset[int]:
        """All user stacks if they are too many; otherwise none. See Ledger.drop_stacks."""
        return frozenset(self._of_users if len(self._of_users) > MOST_USER_STACKS else ())

    def forget(self, dropped: set[int]) -> None:
        """Forget ids that were evicted from the catalog."""
        self._of_users -= dropped
        self._by_frames = {what: i for what, i in self._by_frames.items() if i not in dropped}
        self._kernel_ids.clear()
        self._scanned_ids.clear()
        self._user_ids.clear()
        self._this_tick_only.clear()

    def _kernel_id(self, raw_id: int) -> int:
        if raw_id < layout.FIRST_ID:
            return raw_id
        known = self._kernel_ids.get(raw_id) or self._this_tick_only.get((_NO_PID, raw_id))
        if known is None:
            found = self._kernel.read(raw_id)
            if found is None:
                self.unread += 1
                self._this_tick_only[_NO_PID, raw_id] = STACK_LOST
                return STACK_LOST
            known = self._kernel_ids[raw_id] = self._intern_kernel(_addresses(found[0]))
        return known

    def _user_id(self, pid: int, raw_id: int) -> int:
        if raw_id < layout.FIRST_ID:
            return raw_id
        of_process = self._user_ids.get(pid)
        known = of_process.get(raw_id) if of_process else None
        if known is None:
            known = self._this_tick_only.get((pid, raw_id))
        if known is None:
            known = self._this_tick_only[pid, raw_id] = self._resolve_user(pid, raw_id)
        return known

    def _resolve_user(self, pid: int, raw_id: int) -> int:
        """Return the catalog id of a user stack, and keep it if it will be the same in later ticks."""
        if raw_id & layout.COPIED:
            copy = self._user_frames.copied(raw_id) or CopyResult(0, STACK_LOST)
            raw_id = copy.fallback
            if copy.found is not None:
                if raw_id >= layout.FIRST_ID:
                    self._user.note_inserted(raw_id)
                is_old = self._has_execed(pid, copy.execs)
                return self._intern_user(_EXITED_STACK, ENDED, False) if is_old else self.user(copy.found)
            self.unread += raw_id == STACK_LOST
        if raw_id < layout.FIRST_ID:
            return raw_id
        of_process = self._user_ids.setdefault(pid, {})
        known = of_process.get(raw_id)
        if known is None:
            read = self._user.read(raw_id)
            if read is None:
                self.unread += 1
                return STACK_LOST
            addresses, end = _addresses(read[0]), read[1]
            unsure, count = bool(end & layout.END_UNSURE), end >> layout.END_PYTHON_SHIFT & _PYTHON_COUNT
            own = len(addresses) - count
            is_exited = pid in self._exited and own > 0
            is_old = (count or not is_exited) and self._has_execed(pid, end >> layout.END_EXECS_SHIFT)
            end &= _END
            frames = _EXITED_STACK if is_old or is_exited else self._user_frames.frames(pid, addresses[:own])
            if not is_old:
                if frames == _EXITED_STACK:
                    self._exited.add(pid)
                if frames[-1:] and frames[-1].file == UNREAD:
                    self._unread_pids.add(pid)
                is_whole = end == layout.END_COMPLETE
                frames, misplaced = self._user_frames.with_python(pid, frames, addresses[own:], is_whole)
                unsure = unsure or misplaced
            known = self._intern_user(frames, _ENDS[end], unsure)
            if pid not in self._exited and pid not in self._unread_pids:
                of_process[raw_id] = known
        return known

    def set_program_numbers(self, execs: Mapping[int, int]) -> None:
        """Note processes' program numbers by pid; they change with each exec()."""
        self._execs.update(execs)

    def _has_execed(self, pid: int, execs: int) -> bool:
        """Return whether the process has called exec() since.

        If so, its old addresses cannot be resolved any more.
        """
        now = self._execs.get(pid)
        if now is None:  # threads that are not counted are in no scan
            now = self._user_frames.program_number(pid)
        return now is not None and now != execs

    def _intern_user(self, frames: tuple[Frame, ...], end: str, unsure: bool) -> int:
        if not frames:
            return NO_STACK
        unread = next((frame.file for frame in frames if frame.file in _UNREAD_ENDS), None)
        if unread is not None:  # Python's functions may be known all the same
            end, unsure = _UNREAD_ENDS[unread], False

        def make() -> Stack:
            if not unsure:
                return Stack(frames, end=end)
            without = (frame.file for frame in frames if not self._user_frames.has_rule(frame))
            python = (MISPLACED_PYTHON for frame in frames if PYTHON_FUNCTION.fullmatch(frame.name))
            return Stack(frames, end=end, is_unsure=True, guessed_in=next(without, next(python, "")))

        known = self._intern(frames, end, unsure, make)
        self._of_users.add(known)
        return known

    def _intern_kernel(self, addresses: Sequence[int]) -> int:
        if not addresses:
            return STACK_LOST
        frames = tuple(self._kernel_frame(address) for address in addresses)
        if frames[0] == HIDDEN:
            frames = frames[:1]
        names = [frame.name for frame in frames]
        for i, name in enumerate(names[:_TRACER_FRAMES]):
            if name in ("__schedule", wakers.FIRST):  # frames above are the tracer's: the BPF program and its caller
                frames, names = frames[i:], names[i:]
                break
        else:
            own = next((i for i, name in enumerate(names) if not name.startswith(_TRACERS)), 0)
            frames, names = frames[own:], names[own:]
        if names[0] == wakers.FIRST:
            frames = frames[: wakers.cut_at_interrupt(names)]
            tail = wakers.tail_length(names)
        else:
            tail = self._categories.tail_length(names)

        def make() -> Stack:
            trimmed = names[tail : len(frames)]
            if names[0] == wakers.FIRST:
                return Stack(
                    frames, tail, OTHER, wakers.entry_length(trimmed) or self._categories.entry_length(trimmed)
                )
            return Stack(frames, tail, self._categories.classify(trimmed), self._categories.entry_length(trimmed))

        return self._intern(frames, WHOLE, False, make)

    def _intern(self, frames: tuple[Frame, ...], what: str, unsure: bool, make: Callable[[], Stack]) -> int:
        known = self._by_frames.get((frames, what, unsure))
        if known is None:
            known = self._by_frames[frames, what, unsure] = self._next_id
            self._next_id += 1
            self._catalog.stacks[known] = make()
        return known
