"""Maps user addresses to (file, offset), which is still valid after the process exits.

/proc/PID/maps is read once per program that a process runs, because a read takes 0.2 ms or more. It is read again after
an exec, when it does not cover an address (dlopen), and when it is 10 s old (dlclose, then another library at the same
address).
"""

import errno
import itertools
import os
import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from offtop.kernel.binary.files import VDSO, VDSO_32, File, Files, MappedFile, Mapping
from offtop.kernel.binary.perf_map import PerfMap
from offtop.kernel.bpf import probes
from offtop.kernel.bpf.layout import EXACT
from offtop.kernel.procfs.direct_reads import every_pid
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.model.values.stack import ANONYMOUS, CLOSED, GONE, JIT, SIGNAL, UNREAD, Frame
from offtop.printable import printable

UNKNOWN = "[unknown]"
"""No code is at that address: unwinding went wrong in a binary without frame pointers, or the code was unmapped."""

_GONE = (Frame(GONE, 0),)
NOT_PERMITTED = (Frame(CLOSED, 0),)
"""Stands for the whole user stack of a process whose mappings offtop may not read."""
NOT_READ = (Frame(UNREAD, 0),)
"""Stands for the whole user stack of a process whose mappings were not read in time."""
_UNKNOWN = Frame(UNKNOWN, 0)
_CODE = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-]x[ps] ([0-9a-f]{1,16}) ([0-9a-f]+:[0-9a-f]+) ([0-9]+) *(.*)$",
    re.MULTILINE,
)
_MAY_BE_JIT = re.compile(r"$|\[anon|\[heap\]|\[stack|//|/memfd:|/dev/zero|/dev/shm/|/SYSV|anon_inode:")
"""Paths of memory into which a JIT may write code."""
_LAST_USER = 1 << 56
_LIFETIME_NS = 10_000_000_000
_PAUSE_FACTOR = 50
"""After a read, no read for uncovered addresses for 50 times as long, so they take 2% of the time at most."""
_MOST_IMAGES = 4096
_MOST_FILES = 2048
"""Of one process; others have no names."""
_MOST_FRAMES = 4096
_CHECKED_NS = 1_000_000_000
_DEADLINE_S = 0.5
"""Deadline for reading the mappings of one process."""
_SPACES = itertools.count(1)
"""Unique across all instances and never reused, because BPF finds unwind rules by them."""


class Image:
    """The code mappings of one process, from one read of /proc/PID/maps."""

    __slots__ = (
        *("ends", "frames", "identity", "is_jit", "labels", "retry_ns", "offsets", "expires_ns", "perf_map", "space"),
        *("starts", "searched_bytes", "unnamed"),
    )

    def __init__(self, identity: tuple[bytes, ...]) -> None:
        self.identity = identity
        self.starts = array("Q")
        self.ends = array("Q")
        self.offsets = array("Q")
        self.labels: list[str] = []
        """The value of `Frame.file` of each mapping."""
        self.is_jit = bytearray()
        """1 for each mapping whose code a JIT may have written, so a perf map may name it."""
        self.frames: dict[int, Frame] = {}
        self.perf_map: PerfMap | None = None
        self.unnamed: set[int] = set()
        """Addresses that the perf map did not name."""
        self.searched_bytes = 0
        """Size of the perf map when it was last searched for `unnamed`."""
        self.space = 0
        """Number of the address space layout: the same for processes with the same code at the same addresses. Never
        reused."""
        self.expires_ns = 0
        """When it must be read again (CLOCK_MONOTONIC)."""
        self.retry_ns = 0
        """Earliest time of a read for an uncovered address."""


class Processes:
    """Turns user addresses into frames. For use by one thread."""

    def __init__(self, files: Files, reads: Channel | None = None) -> None:
        """`reads`: used to read mappings; by default, a new channel."""
        self.exited = 0
        """Stacks whose process exited before its mappings were read."""
        self.unread = 0
        """Stacks of processes whose mappings were not read in time."""
        self._files = files
        self._reads = reads or files.reads.channel(_DEADLINE_S)
        self._images: dict[int, Image] = {}
        self._checked_ns: dict[int, int] = {}
        """Process → until when its memory is assumed to be readable (CLOCK_MONOTONIC)."""
        self._spaces: dict[int, int] = {}
        """Hash of the layout of code → Image.space."""
        self.missed_code = False
        """Whether an address was not covered and the mappings could not be read again, because the last read was too
        recent, or because it hung."""

    def frames(self, pid: int, addresses: Sequence[int]) -> tuple[Frame, ...]:
        """Return the frames of a user stack, leaf first.

        There is one for each address, or only `[gone]`, `[not permitted]` or `[not read]`. All addresses except the
        leaf are return addresses and belong to the call before them (`address - 1`), unless they are marked with
        layout.EXACT.
        """
        if not addresses:
            return ()
        try:
            image = self._image(pid)
        except TimeoutError:
            self.unread += 1
            return NOT_READ
        if image is None and is_closed(pid):
            return NOT_PERMITTED
        if image is None:
            self.exited += 1
            return _GONE
        known, frames, call = image.frames, list[Frame](), 0
        for address in addresses:
            at = address & ~EXACT if address & EXACT else address - call
            frames.append(known.get(at) or self._frame(pid, image, at))
            call = 1
        for number, address in enumerate(addresses[1:-1], 1):
            if address & EXACT and addresses[number + 1] & EXACT:  # signal trampoline, interrupted code
                frames[number] = frames[number]._replace(name=SIGNAL)
        return tuple(frames)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a read, which has a deadline. Thread-safe."""
        return self._reads.is_waiting

    def close_reads(self) -> None:
        """Stop reading processes."""
        self._reads.close()

    def check(self, pid: int) -> None:
        """Check that a read of a process's memory returns, at most once per second.

        Raises TimeoutError if it does not, because the mmap_lock is held.
        """
        now_ns = time.monotonic_ns()
        if now_ns < self._checked_ns.get(pid, 0):
            return
        try:
            self._reads.ask(pid, "piece", f"/proc/{pid}/pagemap", 8, 0)
        except TimeoutError:
            raise
        except OSError:
            pass  # the actual read will fail with it
        if len(self._checked_ns) >= _MOST_IMAGES:
            self._checked_ns.clear()
        self._checked_ns[pid] = now_ns + _CHECKED_NS

    def hangs(self, pid: int) -> bool:
        """Whether the last read of the process hangs. Thread-safe."""
        return pid in self._reads.hung

    def image(self, pid: int) -> "Image | None":
        """Return the current code mappings of a process; None if it has exited.

        Raises TimeoutError.
        """
        return self._image(pid)

    def reread_image(self, pid: int) -> "Image | None":
        """Return the same after reading it again. Raises TimeoutError."""
        if pid in self._images:
            self._images[pid].expires_ns = 0
        return self._image(pid)

    def frame_at(self, pid: int, image: "Image", address: int) -> Frame | None:
        """Return the frame of an address; None if there is no code.

        This may read the mappings again and change `image.space`, so read that afterwards.
        """
        frame = image.frames.get(address) or self._frame(pid, image, address)
        return None if frame is _UNKNOWN else frame

    def newly_named(self) -> list[int]:
        """Return processes whose perf map has new names for addresses that had none."""
        return [pid for pid, image in self._images.items() if image.unnamed and self._has_names(image)]

    def forget(self, pid: int) -> None:
        """Forget a process that has exited or called exec."""
        self._images.pop(pid, None)

    def _image(self, pid: int) -> Image | None:
        image, identity = self._images.get(pid), _identity(pid)
        if not identity:
            return image  # it has just exited: what was read before is still right
        if image is None or image.identity != identity:
            fresh = Image(identity)
            if not self._read(pid, fresh):
                # An exiting process releases its memory, and so its mappings, before it disappears.
                return image if image and image.identity[0] == identity[0] else None
            image = fresh
            self._images.pop(pid, None)
            if len(self._images) >= _MOST_IMAGES:
                del self._images[next(iter(self._images))]
            self._images[pid] = image
        elif time.monotonic_ns() > image.expires_ns:
            with suppress(TimeoutError):  # keep what was read before
                self._read(pid, image)
            if image.perf_map:
                self._files.perf_maps.refresh(image.perf_map)
        return image

    def _frame(self, pid: int, image: Image, address: int) -> Frame:
        at = _index(image, address)
        if at < 0:
            if not 0 < address < _LAST_USER:
                return _UNKNOWN
            if time.monotonic_ns() < image.retry_ns:
                self.missed_code = True
                return _UNKNOWN
            try:
                has_code = self._read(pid, image)
            except TimeoutError:
                self.missed_code = True
                return _UNKNOWN
            if not has_code:
                return _UNKNOWN
            at = _index(image, address)
            if at < 0:
                return _UNKNOWN
        if image.is_jit[at]:
            return self._jit_frame(pid, image, at, address)
        if len(image.frames) >= _MOST_FRAMES:
            image.frames.clear()
        frame = Frame(image.labels[at], address - image.starts[at] + image.offsets[at])
        image.frames[address] = frame
        return frame

    def _jit_frame(self, pid: int, image: Image, at: int, address: int) -> Frame:
        """Return the frame of JIT code.

        It is not cached, because other code may be there the next time.
        """
        maps = self._files.perf_maps
        if image.perf_map is None:
            image.perf_map = maps.of(pid, image.identity)
        if name := maps.name(image.perf_map, address):
            return Frame(JIT, address, name)
        if len(image.unnamed) < _MOST_FRAMES:
            image.unnamed.add(address)
        if image.labels[at] == ANONYMOUS:
            return Frame(ANONYMOUS, address)
        return Frame(image.labels[at], address - image.starts[at] + image.offsets[at])

    def _has_names(self, image: Image) -> bool:
        """Whether the perf map names more of the unnamed addresses than the last time."""
        perf_map = image.perf_map
        if perf_map is None:
            return False
        self._files.perf_maps.refresh(perf_map)
        if perf_map.size_bytes == image.searched_bytes:
            return False
        image.searched_bytes = perf_map.size_bytes
        named = {address for address in image.unnamed if perf_map.lookup(address)}
        image.unnamed -= named
        return bool(named)

    def _read(self, pid: int, image: Image) -> bool:
        """Read the mappings; return whether the process has code.

        If not, `image` is unchanged. Raises TimeoutError.
        """
        began_ns = time.monotonic_ns()
        found: list[tuple[bytes, ...]] = _CODE.findall(_maps(self._reads, pid))
        if found:
            starts, ends, offsets = array("Q"), array("Q"), array("Q")
            labels: list[str] = []
            is_jit = bytearray()
            known = self._labels(pid, found)
            for start_hex, end_hex, offset_hex, device, inode, path in found:
                start, end = int(start_hex, 16), int(end_hex, 16)
                label = known[device, inode, path]
                starts.append(start)
                ends.append(end)
                offsets.append(int(offset_hex, 16))
                labels.append(label[0])
                is_jit.append(label[1])
            if (starts, ends, offsets, labels) != (image.starts, image.ends, image.offsets, image.labels):
                image.starts, image.ends, image.offsets, image.labels, image.is_jit = (
                    starts,
                    ends,
                    offsets,
                    labels,
                    is_jit,
                )
                image.frames.clear()
                image.space = self._space(image)
        ended_ns = time.monotonic_ns()
        image.retry_ns = ended_ns + _PAUSE_FACTOR * (ended_ns - began_ns)
        image.expires_ns = ended_ns + _LIFETIME_NS
        return bool(found)

    def _space(self, image: Image) -> int:
        identity = hash((image.starts.tobytes(), image.ends.tobytes(), image.offsets.tobytes(), *image.labels))
        space = self._spaces.pop(identity, 0)
        if not space:
            space = next(_SPACES)
        self._spaces[identity] = space
        if len(self._spaces) > _MOST_IMAGES:
            del self._spaces[next(iter(self._spaces))]
        return space

    def _labels(
        self, pid: int, found: Sequence[tuple[bytes, ...]]
    ) -> dict[tuple[bytes, bytes, bytes], tuple[str, bool]]:
        """Return (device, inode, path) → label and whether a JIT may have written the code.

        The label is the value of `Frame.file`.
        """
        mapped: dict[tuple[bytes, bytes, bytes], MappedFile] = {}
        for start, end, _, device, inode, path in found:
            one = MappedFile(os.fsdecode(path), device.decode(), int(inode), Mapping(pid, int(start, 16), int(end, 16)))
            mapped.setdefault((device, inode, path), one)
        of_files = ((key, one) for key, one in mapped.items() if one.path.startswith("/") and one.inode)
        files = dict(itertools.islice(of_files, _MOST_FILES))
        seen = dict(zip(files, self._files.seen([*files.values()], self._reads), strict=True))
        return {key: self._label(one, seen.get(key)) for key, one in mapped.items()}

    def _label(self, mapped: MappedFile, file: File | None) -> tuple[str, bool]:
        is_jit = may_be_jit(mapped.path)
        if file is not None:
            return file.label, is_jit
        if mapped.path == VDSO and mapped.mapping.end < 1 << 32:
            return VDSO_32, False
        return ANONYMOUS if is_jit else printable(mapped.path), is_jit


def is_closed(pid: int) -> bool:
    """Whether the process exists, but offtop may not read its mappings."""
    try:
        os.close(os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return probes.process_exists(pid)  # /proc is mounted with hidepid
    return False


def denied_access(reads: Channel) -> Literal["", "memory", "mappings"]:
    """Return what the kernel does not let offtop read of some process: "mappings", or only its "memory".

    Empty if it may read everything. With CAP_PERFMON alone, some kernels allow reading the mappings (87ad827a2780).
    """
    found: Literal["", "mappings"] = ""
    for pid in {*every_pid(), 1}:  # PID 1 always exists, even if /proc is mounted with hidepid
        if probes.memory_of(pid) == errno.EPERM:
            found = "mappings"
            with suppress(OSError):  # it has exited, it protects itself, or reads of it hang
                if reads.ask(pid, "code_of", pid):
                    return "memory"
    return found


def may_be_jit(path: str) -> bool:
    """Whether a JIT may have written the code that is mapped from this path."""
    return _MAY_BE_JIT.match(path) is not None


def _index(image: Image, address: int) -> int:
    """Return the index of the mapping that contains `address`, or -1."""
    at = bisect_right(image.starts, address) - 1
    return at if at >= 0 and address < image.ends[at] else -1


def _identity(pid: int) -> tuple[bytes, ...]:
    """Return what identifies the process and the program that it runs; empty if it has exited.

    This is its start time, and the addresses of program, heap, stack and arguments: an exec moves them. They are read
    from /proc/PID/task/PID/stat, because /proc/PID/stat adds up all threads first.
    """
    try:
        fd = os.open(f"/proc/{pid}/task/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    except OSError:
        return ()
    finally:
        os.close(fd)
    return (*fields[19:20], *fields[23:26], *fields[42:49])


def _maps(reads: Channel, pid: int) -> bytes:
    """Read the code mappings.

    Empty for a kernel thread, and if the process has exited. Raises TimeoutError.
    """
    code: bytes = reads.ask(pid, "code_of", pid)
    return code
