"""What lies where in a process: a user address becomes (file, offset), which still means something when it is gone.

/proc/PID/maps is read once for each image of a process, because reading it costs 0.2 ms and more. It is read
again when the image is another one (exec), when an address is met that it does not explain (dlopen), and when
what we remember is 10 s old (dlclose, and another library in its place).
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
from pathlib import Path
from typing import Literal

from offtop.kernel.binary.files import VDSO, VDSO_32, File, Files, MappedFile, Mapping
from offtop.kernel.binary.perf_map import PerfMap
from offtop.kernel.bpf import probes
from offtop.kernel.bpf.layout import EXACT
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.model.values.stack import ANONYMOUS, CLOSED, GONE, JIT, SIGNAL, UNREAD, Frame
from offtop.printable import printable

UNKNOWN = "[unknown]"
"""No code is there: the walk went astray in a binary without frame pointers, or the code is gone since."""

_GONE = (Frame(GONE, 0),)
NOT_PERMITTED = (Frame(CLOSED, 0),)
"""All of a user stack of a process that we may not look into."""
NOT_READ = (Frame(UNREAD, 0),)
"""All of a user stack of a process whose mappings were not read in time."""
_UNKNOWN = Frame(UNKNOWN, 0)
_CODE = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-]x[ps] ([0-9a-f]{1,16}) ([0-9a-f]+:[0-9a-f]+) ([0-9]+) *(.*)$",
    re.MULTILINE,
)
_MADE_AT_RUN_TIME = re.compile(r"$|\[anon|\[heap\]|\[stack|//|/memfd:|/dev/zero|/dev/shm/|/SYSV|anon_inode:")
"""Paths of memory that a JIT may write its code into."""
_LAST_USER = 1 << 56
_OLD_NS = 10_000_000_000
_THRIFT = 50
"""Reading maps for the sake of unexplained addresses takes a fiftieth of the time at most."""
_MOST_IMAGES = 4096
_MOST_FRAMES = 4096
_CHECKED_NS = 1_000_000_000
_PATIENCE_S = 0.5
"""So long the mappings of one process may take to be read."""
_SPACES = itertools.count(1)
"""No number is used twice, whoever reads mappings: the kernel side may know rules by it."""


class Image:
    """The code mappings of one process, as of one reading."""

    __slots__ = (
        *("ends", "frames", "identity", "labels", "made", "next_ns", "offsets", "old_ns", "perf_map", "space"),
        *("starts", "told_bytes", "unnamed"),
    )

    def __init__(self, identity: tuple[bytes, ...]) -> None:
        self.identity = identity
        self.starts = array("Q")
        self.ends = array("Q")
        self.offsets = array("Q")
        self.labels: list[str] = []
        """What `Frame.file` says."""
        self.made = bytearray()
        """1: a JIT may have written this code, and a perf map may name it."""
        self.frames: dict[int, Frame] = {}
        self.perf_map: PerfMap | None = None
        self.unnamed: set[int] = set()
        """Addresses that it did not name."""
        self.told_bytes = 0
        """How much of it was read when it was last looked at for their sake."""
        self.space = 0
        """The same for processes that have the same code at the same places, and never used again for others."""
        self.old_ns = 0
        self.next_ns = 0
        """No reading for unexplained addresses before this."""


class Processes:
    """Turns user addresses into frames. For use by one thread."""

    def __init__(self, files: Files, reads: Channel | None = None) -> None:
        """`reads`: by which mappings are read; one of its own, if none is given."""
        self.gone = 0
        """Stacks whose process ended before its mappings were read."""
        self.unread = 0
        """Stacks whose process did not let its mappings be read in time."""
        self._files = files
        self._reads = reads or files.reads.channel(_PATIENCE_S)
        self._images: dict[int, Image] = {}
        self._checked_ns: dict[int, int] = {}
        """Until when the memory of a process is taken to be readable."""
        self._spaces: dict[int, int] = {}
        """Hash of where code lies → its space."""
        self.doubts = False
        """Mappings could not be read again for an address that they do not explain: too little time has passed."""

    def frames(self, pid: int, addresses: Sequence[int]) -> tuple[Frame, ...]:
        """Frames of a user stack, leaf first: one for each address, or `[gone]`, `[not permitted]` or `[not read]`
        alone.

        All but the leaf are return addresses, and stand for the call before them: `address - 1`; but not those that
        are marked (layout.EXACT).
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
            self.gone += 1
            return _GONE
        known, frames, call = image.frames, list[Frame](), 0
        for address in addresses:
            at = address & ~EXACT if address & EXACT else address - call
            frames.append(known.get(at) or self._frame(pid, image, at))
            call = 1
        for number, address in enumerate(addresses[1:-1], 1):
            if address & EXACT and addresses[number + 1] & EXACT:  # what a handler returns to, and what it interrupted
                frames[number] = frames[number]._replace(name=SIGNAL)
        return tuple(frames)

    def check(self, pid: int) -> None:
        """Raises TimeoutError where the memory of a process cannot be read, because its mmap_lock is held. What was
        checked a moment ago is not checked again."""
        now_ns = time.monotonic_ns()
        if now_ns < self._checked_ns.get(pid, 0):
            return
        with suppress(PermissionError, FileNotFoundError, ProcessLookupError):  # whoever reads it is told
            self._reads.ask(pid, "piece", f"/proc/{pid}/pagemap", 8, 0)
        if len(self._checked_ns) >= _MOST_IMAGES:
            self._checked_ns.clear()
        self._checked_ns[pid] = now_ns + _CHECKED_NS

    def hangs(self, pid: int) -> bool:
        """Whether the last read of the process hangs. For any thread."""
        return pid in self._reads.hung

    def image(self, pid: int) -> "Image | None":
        """The code of a process as it is now; None of one that is gone. Raises TimeoutError where it was not read."""
        return self._image(pid)

    def look(self, pid: int) -> "Image | None":
        """The same, read anew. Raises TimeoutError where it was not read."""
        if pid in self._images:
            self._images[pid].old_ns = 0
        return self._image(pid)

    def at(self, pid: int, image: "Image", address: int) -> Frame | None:
        """What lies there; None where no code is. Reads the mappings again if need be, for other code is an address of
        another space: ask `image.space` afterwards."""
        frame = image.frames.get(address) or self._frame(pid, image, address)
        return None if frame is _UNKNOWN else frame

    def renamed(self) -> list[int]:
        """Processes whose perf map names code by now that it did not name before, so that it makes other frames."""
        return [pid for pid, image in self._images.items() if image.unnamed and self._has_names(image)]

    def forget(self, pid: int) -> None:
        """The process has ended, or begun another program."""
        self._images.pop(pid, None)

    def _image(self, pid: int) -> Image | None:
        image, identity = self._images.get(pid), _identity(pid)
        if not identity:
            return image  # it has just ended: what we remember of it holds
        if image is None or image.identity != identity:
            fresh = Image(identity)
            if not self._read(pid, fresh):
                # A process that ends loses its memory first, and its mappings with it.
                return image if image and image.identity[0] == identity[0] else None
            image = fresh
            self._images.pop(pid, None)
            if len(self._images) >= _MOST_IMAGES:
                del self._images[next(iter(self._images))]
            self._images[pid] = image
        elif time.monotonic_ns() > image.old_ns:
            with suppress(TimeoutError):  # what was known of it holds
                self._read(pid, image)
            if image.perf_map:
                self._files.perf_maps.refresh(image.perf_map)
        return image

    def _frame(self, pid: int, image: Image, address: int) -> Frame:
        at = _index(image, address)
        if at < 0:
            if not 0 < address < _LAST_USER:
                return _UNKNOWN
            if time.monotonic_ns() < image.next_ns:
                self.doubts = True
                return _UNKNOWN
            try:
                has_code = self._read(pid, image)
            except TimeoutError:
                self.doubts = True
                return _UNKNOWN
            if not has_code:
                return _UNKNOWN
            at = _index(image, address)
            if at < 0:
                return _UNKNOWN
        if image.made[at]:
            return self._made_at_run_time(pid, image, at, address)
        if len(image.frames) >= _MOST_FRAMES:
            image.frames.clear()
        frame = Frame(image.labels[at], address - image.starts[at] + image.offsets[at])
        image.frames[address] = frame
        return frame

    def _made_at_run_time(self, pid: int, image: Image, at: int, address: int) -> Frame:
        """Not remembered: the next time other code may be there."""
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
        """Whether there are more of them since the last time."""
        told = image.perf_map
        if told is None:
            return False
        self._files.perf_maps.refresh(told)
        if told.size_bytes == image.told_bytes:
            return False
        image.told_bytes = told.size_bytes
        named = {address for address in image.unnamed if told.known(address)}
        image.unnamed -= named
        return bool(named)

    def _read(self, pid: int, image: Image) -> bool:
        """Whether the process has code; what was known of it stays if it has not. Raises TimeoutError."""
        began_ns = time.monotonic_ns()
        found: list[tuple[bytes, ...]] = _CODE.findall(_maps(self._reads, pid))
        if found:
            starts, ends, offsets = array("Q"), array("Q"), array("Q")
            labels: list[str] = []
            made = bytearray()
            known = self._labels(pid, found)
            for start_hex, end_hex, offset_hex, device, inode, path in found:
                start, end = int(start_hex, 16), int(end_hex, 16)
                label = known[device, inode, path]
                starts.append(start)
                ends.append(end)
                offsets.append(int(offset_hex, 16))
                labels.append(label[0])
                made.append(label[1])
            if (starts, ends, offsets, labels) != (image.starts, image.ends, image.offsets, image.labels):
                image.starts, image.ends, image.offsets, image.labels, image.made = starts, ends, offsets, labels, made
                image.frames.clear()
                image.space = self._space(image)
        ended_ns = time.monotonic_ns()
        image.next_ns = ended_ns + _THRIFT * (ended_ns - began_ns)
        image.old_ns = ended_ns + _OLD_NS
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
        """By device, inode and path: what `Frame.file` says, and whether a JIT may have written the code."""
        mapped: dict[tuple[bytes, bytes, bytes], MappedFile] = {}
        for start, end, _, device, inode, path in found:
            one = MappedFile(os.fsdecode(path), device.decode(), int(inode), Mapping(pid, int(start, 16), int(end, 16)))
            mapped.setdefault((device, inode, path), one)
        files = {key: one for key, one in mapped.items() if one.path.startswith("/") and one.inode}
        seen = dict(zip(files, self._files.seen([*files.values()], self._reads), strict=True))
        return {key: self._label(one, seen.get(key)) for key, one in mapped.items()}

    def _label(self, mapped: MappedFile, file: File | None) -> tuple[str, bool]:
        made = is_made_at_run_time(mapped.path)
        if file is not None:
            return file.label, made
        if mapped.path == VDSO and mapped.mapping.end < 1 << 32:
            return VDSO_32, False
        return ANONYMOUS if made else printable(mapped.path), made


def is_closed(pid: int) -> bool:
    """Whether the process is there, and we may not see what lies where in it."""
    try:
        os.close(os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return probes.is_there(pid)  # /proc is mounted with hidepid
    return False


def closed_to_us(reads: Channel) -> Literal["", "memory", "mappings"]:
    """What of some process we may not see: its memory, or not even what lies where in it (with CAP_PERFMON alone some
    kernels let us: 87ad827a2780); empty: we may look into all that there are."""
    found: Literal["", "mappings"] = ""
    listed = {int(process.name) for process in Path("/proc").iterdir() if process.name.isdecimal()}
    for pid in listed | {1}:  # which is always there, also where /proc is mounted with hidepid
        if probes.memory_of(pid) == errno.EPERM:
            found = "mappings"
            with suppress(OSError):  # it has ended, it protects itself, or it hangs who reads it
                if reads.ask(pid, "code_of", pid):
                    return "memory"
    return found


def is_made_at_run_time(path: str) -> bool:
    """Whether a JIT may have written the code that is mapped under that name."""
    return _MADE_AT_RUN_TIME.match(path) is not None


def _index(image: Image, address: int) -> int:
    """Which mapping holds `address`; -1 for none."""
    at = bisect_right(image.starts, address) - 1
    return at if at >= 0 and address < image.ends[at] else -1


def _identity(pid: int) -> tuple[bytes, ...]:
    """When the process began, and where its program, heap, stack and arguments lie: an exec moves them.

    /proc/PID/task/PID/stat, because /proc/PID/stat adds up all its threads first. Nothing if it is gone.
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
    """Those of code. Nothing for a kernel thread and for a process that is gone. Raises TimeoutError."""
    code: bytes = reads.ask(pid, "code_of", pid)
    return code
