"""Check user stacks and kernel stacks that the BPF programs verify instead of unwinding them, in real programs.

Each verified stack is unwound as well (memo_settings.check_every = 1), and the two are compared in the BPF programs.
Waits count from a few µs on, so that there are many.
"""

import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench import headless, merges
from bench.answer import Answer, Bar, UnanswerableError, table
from bench.machine import need
from bench.servers import Servers, serving
from offtop.kernel.bpf.program import Unwind
from offtop.model.values.snapshot import Filters, Memos

_LEARN_TICKS, _TICKS, _TICK_S = 3, 10, 0.5
_MIN_NS = 5_000
_JAVA = """
import java.util.concurrent.*;
class Waits {
    static final Object lock = new Object();
    static int nested(int depth) throws Exception {
        if (depth > 0) return nested(depth - 1) + 1;
        Thread.sleep(1);
        return 0;
    }
    public static void main(String[] words) throws Exception {
        BlockingQueue<Integer> queue = new ArrayBlockingQueue<>(4);
        ScheduledExecutorService pool = Executors.newScheduledThreadPool(4);
        pool.scheduleAtFixedRate(() -> { synchronized (lock) { lock.notifyAll(); } }, 1, 1, TimeUnit.MILLISECONDS);
        for (int n = 0; n < 4; n++) {
            int depth = 4 * n;
            new Thread(() -> { try { for (;;) queue.put(nested(depth)); } catch (Exception e) { } }).start();
            new Thread(() -> { try { for (;;) synchronized (lock) { lock.wait(); } } catch (Exception e) { } }).start();
        }
        for (;;) if (queue.take() % 1000 == 999) System.gc();
    }
}
"""
_NODE = """
const {Worker, isMainThread} = require('worker_threads');
const fs = require('fs');
if (isMainThread) for (let n = 0; n < 3; n++) new Worker(__filename);
function nested(depth) { return depth ? nested(depth - 1) : fs.readFileSync('/proc/self/stat').length; }
let n = 0;
setInterval(() => { nested(n++ % 10); fs.stat('/', () => 0); }, 1);
setInterval(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2), 5);
"""


_USER = Unwind(cpu_pct=100.0, check_every=1)
_KERNEL = Unwind("off", cpu_pct=100.0, kernel_check_every=1)
_KERNEL_TICKS = 80
_LEAST_KERNEL_STACKS = 1_000_000
"""So many must have been verified without a disagreement before kernel stacks may be verified by default."""


def ask(_waits: Path) -> Answer:
    """Count verified user stacks that are not what unwinding finds."""
    by_name = _by_server("user", _TICKS)
    total = _total(by_name.values())
    if not total.verified:
        raise UnanswerableError("no user stack was verified")
    bar = Bar("verified user stacks that are not what unwinding finds", total.disagreements, 0)
    return _answer("user", by_name, [bar])


def ask_kernel(_waits: Path) -> Answer:
    """Count verified kernel stacks that are not what unwinding finds."""
    by_name = _by_server("kernel", _KERNEL_TICKS)
    total = _total(by_name.values())
    differ = Bar("verified kernel stacks that are not what unwinding finds", total.disagreements, 0)
    missing = max(0, _LEAST_KERNEL_STACKS - total.verified)
    return _answer(
        "kernel", by_name, [differ, Bar(f"verified kernel stacks below {_LEAST_KERNEL_STACKS:,}", missing, 0)]
    )


def _by_server(kind: str, ticks: int) -> dict[str, Memos]:
    """Return how the user or kernel stacks of each server's waits were found."""
    with tempfile.TemporaryDirectory(prefix="offtop-memos-") as directory, serving(Path(directory)) as servers:
        merges.start(servers)
        for name, text, program in (("Waits.java", _JAVA, ["java"]), ("waits.js", _NODE, ["node"])):
            source = servers.directory / name
            source.write_text(text)
            servers.start(program[0].capitalize(), [need(program[0], program[0]), *program[1:], source])
        time.sleep(2)
        servers.find_children()
        return {name: _found(servers, name, kind, ticks) for name in sorted({*servers.named.values()})}


def _found(servers: Servers, name: str, kind: str, ticks: int) -> Memos:
    found: list[Memos] = []
    pids = tuple(pid for pid, of in servers.named.items() if of == name and Path(f"/proc/{pid}").exists())
    with headless.watching(Filters(pids=pids, min_ns=_MIN_NS), _USER if kind == "user" else _KERNEL) as source:
        for _ in range(_LEARN_TICKS + ticks):
            time.sleep(_TICK_S)
            cost = headless.tick(source).cost
            found.append(cost.memos if kind == "user" else cost.kernel_memos)
    return _total(found[_LEARN_TICKS:])


def _total(some: Iterable[Memos]) -> Memos:
    return Memos(*map(sum, zip(*some, strict=True)))


def _answer(kind: str, by_name: Mapping[str, Memos], bars: list[Bar]) -> Answer:
    rows = [
        (name, f"{one.found:,}", f"{100 * one.verified / max(1, one.found):.0f}", str(one.disagreements))
        for name, one in {**by_name, "all": _total(by_name.values())}.items()
    ]
    return Answer(
        f"{kind.capitalize()} stacks that were verified, compared with the same stacks unwound",
        table(("of", f"{kind} stacks", "% verified", "unwinding found another"), rows),
        bars,
        {name: one._asdict() for name, one in by_name.items()},
    )
