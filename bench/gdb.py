"""Compare the stacks of waiting threads with gdb's, frame by frame, and check that they are whole."""

import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from bench.answer import Answer, Bar, UnanswerableError, table
from bench.machine import need
from bench.servers import Servers, serving
from offtop import paths
from offtop.kernel.bpf import features, libbpf
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.live import LiveSource
from offtop.model.classify import categories
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import WHOLE, Stack

_THREADS = 300
"""Threads of each CPython process."""
_CONNECTIONS = 200
_SETTLE_S = 3.0
_OLD_NS = 2_000_000_000
_MOST_S = 60.0
_MOST_WRONG_PCT = 1.0
_SCRIPT = """
import gdb
for thread in sorted(gdb.selected_inferior().threads(), key=lambda one: one.num):
    thread.switch()
    frame, called = gdb.newest_frame(), 0
    words = [str(thread.ptid[1])]
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            is_signal = frame.type() == gdb.SIGTRAMP_FRAME
            words.append(f"{frame.pc() - (0 if is_signal else called):x}")
            called = 0 if is_signal else 1
        try:
            frame = frame.older()
        except gdb.error:
            break
    print("thread", *words)
"""
"""gdb script that prints addresses like offtop's: of call instructions, not return addresses."""

Place = tuple[str, int]
"""File and offset."""


class Thread(NamedTuple):
    """A compared thread."""

    of: str
    stack: Stack
    ours: tuple[Place, ...]
    by_gdb: tuple[Place, ...]

    @property
    def agrees(self) -> bool:
        return self.ours == self.by_gdb


def ask(_waits: Path) -> Answer:
    threads = compared()
    if not threads:
        raise UnanswerableError("every thread ran during the comparison")
    rows: list[tuple[str, ...]] = []
    for of in sorted({one.of for one in threads}):
        mine = [one for one in threads if one.of == of]
        whole, agree = sum(one.stack.end == WHOLE for one in mine), sum(one.agrees for one in mine)
        sure, depth = sum(not one.stack.is_unsure for one in mine), sum(len(one.ours) for one in mine) / len(mine)
        kinds = len({one.ours for one in mine})
        rows.append((of, *map(str, (len(mine), kinds, f"{depth:.0f}", whole, sure, agree))))
    wrong = [one for one in threads if not one.agrees or one.stack.end != WHOLE]
    lines = table(("of", "threads", "stacks", "frames", "whole", "sure", "as gdb's"), rows)
    lines += [line for one in _different(wrong) for line in ("", *_beside(one))]
    wrong_pct = 100 * len(wrong) / len(threads)
    bar = Bar("stacks that are not whole, or not gdb's", wrong_pct, _MOST_WRONG_PCT, " %")
    figures = {"threads": len(threads), "wrong": len(wrong), "stacks": len({one.ours for one in threads})}
    return Answer("Stacks of waits in progress, compared with gdb's", lines, [bar], dict(figures))


def compared() -> list[Thread]:
    """Return the threads of all servers that did not run during the comparison."""
    need("gdb", "gdb")
    known = categories.parse(paths.categories().read_text())
    with tempfile.TemporaryDirectory(prefix="offtop-stacks-") as directory, serving(Path(directory)) as servers:
        servers.python(_THREADS)
        servers.redis()
        servers.nginx()
        servers.postgres(idle=30)
        servers.mariadb(idle=_CONNECTIONS)
        time.sleep(_SETTLE_S)
        servers.find_children()
        with _without_python(), closing(LiveSource(known, Filters(), unwind=Unwind(cpu_pct=100.0))) as source:
            before = _stacks(source, servers)
            schedstats = {key: _schedstat(*key) for key in before}
            found: list[Thread] = []
            for pid in sorted({pid for pid, _ in before}):
                mapped = _mapped(pid)
                stood = {tid for one, tid in before if one == pid and _schedstat(pid, tid) == schedstats[pid, tid]}
                for tid, addresses in _gdb(pid).items():
                    if tid not in stood:
                        continue
                    stack = before[pid, tid]
                    ours = tuple((frame.file, frame.offset) for frame in stack.frames)
                    gdb_frames = tuple(_place(mapped, address) for address in addresses)
                    found.append(Thread(servers.named[pid], stack, ours, gdb_frames))
    return found


@contextmanager
def _without_python() -> Generator[None]:
    """Leave out Python's own functions: gdb shows the interpreter's instead."""
    detect = features.detect

    def detect_without(types: libbpf.KernelTypes) -> features.Features:
        return replace(detect(types), fs_base=None, own_id={})

    with mock.patch.object(features, "detect", detect_without):
        yield


def _stacks(source: LiveSource, servers: Servers) -> dict[tuple[int, int], Stack]:
    """Return (pid, tid) → stack, once all threads that have waited long enough have one."""
    until_s = time.monotonic() + _MOST_S
    while True:
        snapshot = source.read()
        assert snapshot is not None
        found = {(key.pid, key.tid): one for key, one in snapshot.waiting.items() if key.pid in servers.named}
        stacks = {key: snapshot.catalog.stack(one.user) for key, one in found.items()}
        missing = [key for key, one in found.items() if one.age_ns(snapshot.at_ns) > _OLD_NS and not stacks[key].frames]
        if (found and not missing) or time.monotonic() > until_s:
            return {key: stack for key, stack in stacks.items() if stack.frames}
        time.sleep(0.5)


def _schedstat(pid: int, tid: int) -> str:
    """Return a thread's schedstat (run time, run-queue time, slices); empty if it exited."""
    try:
        return Path(f"/proc/{pid}/task/{tid}/schedstat").read_text()
    except OSError:
        return ""


def _gdb(pid: int) -> dict[int, list[int]]:
    """Return tid → addresses, leaf first."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(_SCRIPT)
        script.flush()
        set_up = ("set pagination off", "set debuginfod enabled off", "set backtrace past-main on")
        options = [word for line in set_up for word in ("-iex", line)]
        command = ["gdb", "-nx", "-batch", *options, "-p", str(pid), "-x", script.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_S, stdin=subprocess.DEVNULL)
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("thread ")]
    return {int(tid): [int(word, 16) for word in words] for tid, *words in lines}


def _mapped(pid: int) -> list[tuple[int, int, int, str]]:
    """Return start, end, offset and file of each executable mapping."""
    rows = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    found: list[tuple[int, int, int, str]] = []
    for at, rights, offset, _, _, *path in rows:
        start, end = (int(word, 16) for word in at.split("-"))
        if "x" in rights:
            found.append((start, end, int(offset, 16), path[0] if path else "[anon]"))
    return found


def _place(mapped: list[tuple[int, int, int, str]], address: int) -> Place:
    for start, end, offset, path in mapped:
        if start <= address < end:
            return path, address if path == "[anon]" else address - start + offset
    return "", address


def _different(wrong: list[Thread]) -> list[Thread]:
    """Return one thread per kind of difference, most frequent first."""
    kinds = Counter((one.of, one.ours, one.by_gdb) for one in wrong)
    return [next(one for one in wrong if (one.of, one.ours, one.by_gdb) == kind) for kind, _ in kinds.most_common(6)]


def _beside(one: Thread) -> list[str]:
    """Format where the two stacks first differ, and the next frames."""
    own_frames, gdb_frames = (
        [f"{path.rpartition('/')[2]}+0x{offset:x}" for path, offset in way] for way in (one.ours, one.by_gdb)
    )
    same = next(
        (n for n, (a, b) in enumerate(zip(own_frames, gdb_frames, strict=False)) if a != b),
        min(len(own_frames), len(gdb_frames)),
    )
    end = "whole" if one.stack.end == WHOLE else f"ends {one.stack.end!r}"
    return [
        f"{one.of}: {len(own_frames)} frames, {end}; gdb has {len(gdb_frames)}; the first {same} are the same",
        f"  offtop {' < '.join(own_frames[max(0, same - 1) : same + 4])}",
        f"  gdb    {' < '.join(gdb_frames[max(0, same - 1) : same + 4])}",
    ]
