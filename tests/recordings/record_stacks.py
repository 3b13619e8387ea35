"""Records kernel stacks of real waits of every kind, to test the rules in offtop/categories.toml.

    sudo /usr/bin/python3 tests/recordings/record_stacks.py            writes stacks-KERNEL.json next to this file
    sudo /usr/bin/python3 tests/recordings/record_stacks.py look 20    shows 20 s of this machine and unmatched stacks
    sudo /usr/bin/python3 tests/recordings/record_stacks.py look 20 disk-read    also stacks of that category

Each kind is recorded in the forms in which offtop sees it: *finished* (taken by the thread itself when it is switched
in), *iterator* (taken from another thread while it waits, which leaves out the kernel's `__sched` functions), and
*restored* (the same with those functions found on the thread's stack). Stacks are function names, leaf first,
including the scheduler's own frames.
"""

import bisect
import collections
import importlib
import json
import os
import platform
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from offtop.kernel.bpf.libbpf import KernelTypes, read_iterator  # noqa: E402
from offtop.model.classify import categories  # noqa: E402
from tests.kernel import waits  # noqa: E402

_TRACING = 26  # BPF_PROG_TYPE_TRACING
_ROW = struct.Struct("IIII16sq64Q64Q")
_SHOWN = 40
_BETWEEN_WALKS_S = 0.002


class Sum(NamedTuple):
    waits: int
    total_ns: int


class Asleep(NamedTuple):
    """A thread that is off CPU now, as the task iterator reports it."""

    tid: int
    comm: str
    kernel_thread: bool
    iterator: tuple[str, ...]
    restored: tuple[str, ...]


class Symbols:
    """The kernel's functions, by address."""

    def __init__(self) -> None:
        known: list[tuple[int, str]] = []
        self._scheduler = [0, 0]
        for line in Path("/proc/kallsyms").read_text().splitlines():
            address, kind, name = line.split()[:3]
            if name in ("__sched_text_start", "__sched_text_end"):
                self._scheduler[name.endswith("end")] = int(address, 16)
            elif kind in "tTwW" and not name.startswith("__pfx_"):
                known.append((int(address, 16), name))
        known.sort(key=lambda symbol: symbol[0])
        self._addresses = [address for address, _ in known]
        self._names = [name for _, name in known]

    def name(self, return_address: int) -> str:
        """Return the calling function.

        The return address itself may already belong to the next function.
        """
        return self._names[bisect.bisect_left(self._addresses, return_address) - 1]

    def sleeps(self, address: int) -> bool:
        """Return whether the address is in a function that the task iterator leaves out."""
        return self._scheduler[0] < address < self._scheduler[1]


class Recorder:
    """The BPF programs of stacks.c, attached for as long as this lives."""

    def __init__(self) -> None:
        os.environ["BCC_KERNEL_SOURCE"] = str(ROOT / "bpf" / "headers")
        bcc: Any = importlib.import_module("bcc")
        libbcc: Any = importlib.import_module("bcc.libbcc")
        types = KernelTypes()
        at = {name: types.offset("task_struct", name) for name in ("__state", "pid", "comm", "flags", "thread")}
        where = {"STATE": at["__state"], "PID": at["pid"], "COMM": at["comm"], "FLAGS": at["flags"]}
        where["SP"] = (at["thread"] or 0) + (types.offset("thread_struct", "sp") or 0)
        flags = [f"-DTASK_{name}={offset}" for name, offset in where.items()]
        self._program: Any = bcc.BPF(src_file=str(Path(__file__).with_name("stacks.c")), cflags=flags)
        iterator = self._program.load_func("bpf_iter__task", _TRACING)
        self._walk_fd: int = libbcc.lib.bcc_iter_attach(iterator.fd, None, 0)
        self.symbols = Symbols()

    def clear(self) -> None:
        """Clear the sums of finished waits."""
        self._program["finished"].clear()

    def finished(self, tid: int | None = None) -> Iterator[tuple[tuple[str, ...], bool, Sum]]:
        """Yield (stack, switched out runnable, sum) of the finished waits.

        `tid` is a thread; None means all but this process.
        """
        frames: dict[int, tuple[str, ...]] = {}
        for stack_id, value in self._program["frames"].items():
            frames[stack_id.value] = tuple(self.symbols.name(a) for a in value.at[: value.depth])
        for site, total in self._program["finished"].items():
            if site.tid == tid or (tid is None and site.tid != os.getpid()):
                yield frames[site.stack], bool(site.runnable), Sum(total.waits, total.total_ns)

    def asleep(self) -> Iterator[Asleep]:
        """Yield every thread that is off CPU and not runnable."""
        for tid, state, kernel_thread, _, comm, size, *words in _ROW.iter_unpack(read_iterator(self._walk_fd)):
            addresses = words[: max(0, size) // 8]
            if not state or not addresses:
                continue
            stack = tuple(self.symbols.name(a) for a in addresses)
            hidden: list[str] = []
            for word in words[64:]:
                if word == addresses[0]:
                    break
                if self.symbols.sleeps(word):
                    hidden.append(self.symbols.name(word))
            name = comm.split(b"\0")[0].decode(errors="replace")
            yield Asleep(tid, name, bool(kernel_thread), stack, (*hidden, *stack))

    def lost(self) -> int:
        return self._program["lost"][0].value


def kernel_threads(recorder: Recorder) -> dict[str, dict[str, list[str]]]:
    """Return the stacks of kernel threads that did not move for 200 ms.

    On an idle machine these are the idle stacks.
    """
    before = {thread.tid: thread for thread in recorder.asleep() if thread.kernel_thread}
    time.sleep(0.2)
    return {
        thread.comm: {"iterator": list(thread.iterator), "restored": list(thread.restored)}
        for thread in recorder.asleep()
        if thread.kernel_thread and before.get(thread.tid) == thread and not thread.comm.startswith("kworker")
    }


def record(recorder: Recorder, name: str, threads: dict[str, Any]) -> dict[str, Any]:
    """Produce a kind of wait and return its stacks.

    Adds kernel threads of a file system to `threads`.
    """
    wait = waits.WAITS[name]
    seen: set[Asleep] = set()
    with waits.running(name, times=3 if name == "swap" else 23, each_ms=20) as child:
        if wait.filesystem:
            threads.update(kernel_threads(recorder))
        recorder.clear()
        child.go()
        while not child.has_finished():
            seen.update(thread for thread in recorder.asleep() if thread.tid == child.tid)
            time.sleep(_BETWEEN_WALKS_S)
        child.finish()
        ended = [entry for entry in recorder.finished(child.tid) if not _is_control(name, entry[0])]
    by_queue = wait.category in ("run-queue", "throttle")
    return {
        "category": wait.category,
        "finished": [
            {"waits": total.waits, "total_ns": total.total_ns, "frames": list(stack)}
            for stack, runnable, total in sorted(ended, key=lambda entry: -entry[2].total_ns)
            if runnable == by_queue
        ],
        "iterator": sorted({thread.iterator for thread in seen if not _is_control(name, thread.iterator)}),
        "restored": sorted({thread.restored for thread in seen if not _is_control(name, thread.restored)}),
    }


def _is_control(name: str, stack: Iterable[str]) -> bool:
    """Return whether this is the child's wait for the start or end signal, also a pipe read."""
    return name != "pipe" and any(function.endswith("pipe_read") for function in stack)


def write_recording() -> None:
    recorder = Recorder()
    threads = kernel_threads(recorder)
    recording: dict[str, Any] = {"kernel": platform.release(), "kernel_threads": threads, "waits": {}}
    for name in waits.WAITS:
        try:
            recording["waits"][name] = record(recorder, name, threads)
        except waits.UnavailableError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        got = recording["waits"][name]
        print(
            f"{name}: {sum(entry['waits'] for entry in got['finished'])} waits in {len(got['finished'])} stacks, "
            f"{len(got['iterator'])} in progress"
        )
    if recorder.lost():
        raise SystemExit(f"{recorder.lost()} stacks were lost: not written")
    version = ".".join(platform.release().split(".")[:2])
    file = Path(__file__).with_name(f"stacks-{version}.json")
    file.write_text(json.dumps(recording, indent=1) + "\n")


def look(seconds: float, wanted: Iterable[str]) -> None:
    """Print this machine's blocked time by category, and the stacks of the wanted categories."""
    rules = categories.parse((ROOT / "offtop" / "categories.toml").read_text())
    recorder = Recorder()
    print(f"looking for {seconds:g} s", flush=True)
    now: collections.Counter[tuple[tuple[str, ...], tuple[str, ...]]] = collections.Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.2)
        now.update((thread.iterator, thread.restored) for thread in recorder.asleep())
    by_category: collections.Counter[str] = collections.Counter()
    by_stack: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
    for stack, runnable, total in recorder.finished():
        trimmed = stack[rules.tail_length(stack) :]
        category = rules.classify(trimmed)
        by_category["run-queue" if runnable and category != "throttle" else category] += total.total_ns
        if not runnable:
            by_stack[category, trimmed] += total.total_ns
    whole_ns = sum(by_category.values()) or 1
    for category, total_ns in by_category.most_common():
        print(f"{category:<12} {100 * total_ns / whole_ns:8.4f} %  {total_ns / 1e9:10.3f} s")
    for category in wanted:
        stacks = collections.Counter({stack: n for (name, stack), n in by_stack.items() if name == category})
        for stack, total_ns in stacks.most_common(_SHOWN):
            print(f"{category}: {total_ns / 1e9:.6f} s  {' < '.join(stack)}  ({rules.rule_of(stack, category)})")
    print(f"in progress: {now.total()}")
    for (iterator, restored), n in now.items():
        raw, whole = (rules.classify(stack[rules.tail_length(stack) :]) for stack in (iterator, restored))
        if raw != whole or whole == categories.OTHER:
            print(f"    {n}: as walked {raw}, restored {whole}: {' < '.join(restored)}")
    print(f"lost: {recorder.lost()}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["look"]:
        look(float(sys.argv[2]), sys.argv[3:] or [categories.OTHER])
    else:
        write_recording()
