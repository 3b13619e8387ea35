"""Check user stacks that the BPF programs unwind by rules, against copies of the same stacks.

With VERIFY (bpf/unwind.c), the BPF programs send a copy of the stack with some of their unwinds. Here the copy is
unwound again from its leaf, with all registers and with rules read anew from the binaries.
"""

import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench.answer import Answer, Bar, UnanswerableError, table
from bench.machine import need
from bench.servers import Servers, serving
from offtop import paths
from offtop.kernel.binary.files import Files
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.live import LiveSource
from offtop.kernel.unwind.stack_copies import Copies, Copy, leaf_state
from offtop.kernel.unwind.unwinder import Unwinder, UnwoundStack
from offtop.model.classify import categories
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import Frame

_SECONDS = 12
_MOST_DIFFERENT_PCT = 0.1
_FRAMES = layout.FRAMES + 1 + layout.PYTHON_FRAMES
"""Frame words at the end of a copy's header."""
_MOST_KEPT = 150
"""Unwinds checked per server and tick: each takes 2 ms."""
_NOT_KNOWN = (layout.END_MEMORY, layout.END_CFA_UNSUPPORTED, layout.END_NOT_COPIED)
"""Ends of a copy that is shorter than the stack."""
_GO = """
package main
import ("os"; "sync"; "time")
func work(in, out chan int, n time.Duration) { for one := range in { time.Sleep(n * time.Millisecond); out <- one } }
func main() {
    in, out, lock := make(chan int), make(chan int), sync.Mutex{}
    for n := time.Duration(1); n < 20; n++ { go work(in, out, n) }
    go func() { for n := 0; ; n++ { in <- n } }()
    read := func() { lock.Lock(); os.ReadFile("/proc/self/stat"); lock.Unlock() }
    go func() { for { read(); time.Sleep(3 * time.Millisecond) } }()
    for range out { lock.Lock(); lock.Unlock() }
}
"""
_RUST = """
use std::{sync::{mpsc, Arc, Condvar, Mutex}, thread, time::Duration};
fn main() {
    let (to, from) = mpsc::channel::<u64>();
    let both = Arc::new((Mutex::new(0u64), Condvar::new()));
    for n in 1..8u64 {
        let (to, both) = (to.clone(), both.clone());
        thread::spawn(move || loop {
            thread::sleep(Duration::from_millis(n));
            to.send(n).unwrap();
            *both.0.lock().unwrap() += n;
            both.1.notify_one();
        });
    }
    let other = both.clone();
    thread::spawn(move || loop {
        let mut sum = other.0.lock().unwrap();
        while *sum < 10 { sum = other.1.wait(sum).unwrap(); }
        *sum = 0;
    });
    let mut all: Vec<u64> = Vec::new();
    for one in from {
        all.push(one);
        all.sort_by_key(|n| std::fs::metadata("/").map(|_| *n).unwrap_or(0));
        all.truncate(9);
    }
}
"""


class Wait(NamedTuple):
    """A wait whose user stack the BPF programs unwound."""

    of: str
    kernels: tuple[Frame, ...]
    copys: tuple[Frame, ...]

    @property
    def agrees(self) -> bool:
        return self.kernels == self.copys


class _Verifying(Unwind):
    def defines(self, features: Features, probe: str) -> dict[str, int]:
        return {**super().defines(features, probe), "VERIFY": 1}


class _Unwinds:
    """Filters unwinds with copies from the BPF programs' records; offtop gets the others."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._unwinder = Unwinder(Files(), "auto", None)
        self._received: list[tuple[Copy, int]] = []
        self._count = Counter[str]()
        self._lock = threading.Lock()

    def add(self, raw: bytes) -> bool:
        """Store a record if it is an unwind with a copy. Return whether it is one."""
        head = layout.COPY_HEAD.unpack_from(raw)
        *_, pid, tid, _space, _unused, depth, unsure, _end, execs, _, unwind_end = head[:-_FRAMES]
        of = self._servers.named.get(pid, "")
        if unwind_end and of and self._count[of] < _MOST_KEPT:
            self._count[of] += 1
            state = leaf_state(head[2 : 2 + layout.REGISTERS])
            unwound = head[-_FRAMES:][:depth]
            stack = raw[layout.COPY_HEAD.size :]
            copy = Copy(0, 0, pid, tid, tuple(unwound), bool(unsure), state, execs, state.sp, stack)
            with self._lock:
                self._received.append((copy, unwind_end))
        return bool(unwind_end)

    def compared(self) -> list[Wait]:
        """Unwind the copies since the last call, and return the waits."""
        with self._lock:
            received, self._received = self._received, []
            self._count.clear()
        found: list[Wait] = []
        for copy, unwind_end in received:
            kernels = self._unwinder.frames(copy.pid, copy.unwound)
            copys = self._unwinder.unwind_copy(copy._replace(unwound=()))
            if copys is None or not kernels or unwind_end & 0xFF == layout.END_MEMORY:
                continue
            found.append(_wait(self._servers.named[copy.pid], kernels, copys))
        return found

    def end(self) -> None:
        self._unwinder.end()


def _wait(of: str, kernels: tuple[Frame, ...], copys: UnwoundStack) -> Wait:
    size = len(copys.frames) if copys.end in _NOT_KNOWN else max(len(copys.frames), len(kernels))
    return Wait(of, kernels[:size], copys.frames)


def ask(_waits: Path) -> Answer:
    """Measure the share of off-CPU time with a wrong user stack."""
    waits, time_of = watched()
    if not waits:
        raise UnanswerableError("no user stack was unwound")
    rows: list[tuple[str, ...]] = []
    different: list[Wait] = []
    total_ns = wrong_ns = 0.0
    for of in sorted({one.of for one in waits}):
        mine = [one for one in waits if one.of == of]
        wrong = [one for one in mine if not one.agrees]
        stacks, wrong_stacks = Counter(one.kernels for one in mine), Counter(one.kernels for one in wrong)
        of_ns = sum(time_of.get((of, frames), 1) for frames in stacks)
        of_wrong_ns = sum(
            time_of.get((of, frames), 1) * wrong_stacks[frames] / stacks[frames] for frames in wrong_stacks
        )
        rows.append((of, str(len(mine)), str(len(stacks)), str(len(wrong)), f"{100 * of_wrong_ns / of_ns:.4f}"))
        total_ns, wrong_ns = total_ns + of_ns, wrong_ns + of_wrong_ns
        different += wrong[:2]
    lines = table(("of", "waits", "stacks", "different", "% of the time"), rows)
    lines += [line for one in different for line in ("", *_beside(one))]
    bar = Bar("time with a wrong user stack", 100 * wrong_ns / total_ns, _MOST_DIFFERENT_PCT, " %")
    figures = {"waits": len(waits), "different": sum(not one.agrees for one in waits)}
    return Answer(
        "User stacks unwound in the kernel, compared with copies of the same stacks", lines, [bar], dict(figures)
    )


def watched() -> tuple[list[Wait], dict[tuple[str, tuple[Frame, ...]], int]]:
    """Return the waits of all servers, and the time waited in each stack."""
    known = categories.parse(paths.categories().read_text())
    waits: list[Wait] = []
    time_of: Counter[tuple[str, tuple[Frame, ...]]] = Counter()
    with tempfile.TemporaryDirectory(prefix="offtop-merges-") as directory, serving(Path(directory)) as servers:
        start(servers)
        unwinds = _Unwinds(servers)
        add = Copies._add  # pyright: ignore[reportPrivateUsage]
        Copies._add = lambda self, raw: None if unwinds.add(raw) else add(self, raw)  # pyright: ignore[reportPrivateUsage]
        try:
            with closing(LiveSource(known, Filters(), unwind=_Verifying(cpu_pct=100.0))) as source:
                snapshot = source.read()
                for _ in range(_SECONDS):
                    time.sleep(0.9)
                    servers.find_children()
                    waits += unwinds.compared()
                    snapshot = source.read()
                assert snapshot is not None
                for site, totals in snapshot.sites.items():
                    if site.pid in servers.named:
                        time_of[servers.named[site.pid], snapshot.catalog.stack(site.user).frames] += totals.total_ns
        finally:
            Copies._add = add  # pyright: ignore[reportPrivateUsage]
            unwinds.end()
    return waits, dict(time_of)


def start(servers: Servers) -> None:
    """Start servers, and programs in Go and Rust, that wait."""
    servers.python(8, busy=True)
    servers.redis(busy=True)
    servers.postgres(idle=2, busy=True)
    servers.mariadb(idle=2, busy=True)
    for name, text, build in (("Go", _GO, ["go", "build", "-o"]), ("Rust", _RUST, ["rustc", "-O", "-o"])):
        source = servers.directory / f"{name}.{'go' if name == 'Go' else 'rs'}"
        source.write_text(text)
        program = servers.directory / name
        environment = {
            "GOCACHE": str(servers.directory),
            "GO111MODULE": "off",
            "PATH": "/root/.cargo/bin:/usr/bin:/bin",
        }
        subprocess.run([need(build[0], build[0]), *build[1:], program, source], check=True, env=environment)
        servers.start(name, [program])


def _beside(one: Wait) -> list[str]:
    kernel_frames, copy_frames = (
        [f"{f.file.rpartition('/')[2]}+0x{f.offset:x}" for f in way] for way in (one.kernels, one.copys)
    )
    same = next(
        (n for n, (a, b) in enumerate(zip(kernel_frames, copy_frames, strict=False)) if a != b),
        min(len(kernel_frames), len(copy_frames)),
    )
    return [
        f"{one.of}: {len(kernel_frames)} frames in the kernel, {len(copy_frames)} in the copy; the first {same} agree",
        f"  kernel's  {' < '.join(kernel_frames[max(0, same - 1) : same + 4])}",
        f"  copy's    {' < '.join(copy_frames[max(0, same - 1) : same + 4])}",
    ]
