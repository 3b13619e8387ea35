"""A child process whose threads wake each other in known ways, a known number of times.

    with wakings.running("futex", times=23, each_ms=20) as child:
        ...attach...
        child.go()  # returns when it has happened
        child.at["sleeper"]  # has been woken 23 times by child.at["waker"], in main's child.pid

Kinds:
- `futex`, `pipe`, `unix`, `eventfd`, `tcp`, `two-tcp` (two connections by turns) and `splice`: a waker wakes a sleeper.
  In `splice` the sleeper waits for room in a pipe, with a file as the first argument.
- `late`: the same, but the waker keeps the sleeper from the CPU.
- `relay`: main wakes runner-0, which wakes runner-1 and so on, up to runner-4.
- `pingpong`: ping and pong wake each other.
- `storm`: main broadcasts to 100 members on its CPU. None of them runs meanwhile, so that each broadcast is one burst,
  unless it takes long: at most `gaps` bursts more. `storms` of them found enough members waiting, at most `most`, and
  `woken` in all.
- `timer` and `timer-calls`: a timer wakes main, while another thread spins on its CPU.
- `nap`: main sleeps in a poll of nothing, each time after a poll of a pipe.
- `timerfd`; `timerfds`: another one each time, and all stay open.
- `accept`: main waits for connections of its child.
- `signal`, `exit` and `exec`: main waits for its child's signal, its exit, its bytes.
- `killed`: main waits for the exit of a child that spins until a signal kills it.

A prefix with a colon for the first six kinds sets how the sleeper waits until it can read: `poll`, `ppoll`, `select`,
`pselect`, `turns` (poll and pselect by turns), `5` (poll of this and four more that never become readable).
"""

import atexit
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel import programs

SOURCE = Path(__file__).with_suffix(".c")


@contextmanager
def running(kind: str, times: int = 23, each_ms: int = 20) -> Generator[programs.Program]:
    """Run the child, which waits for its go; kill it at the end."""
    with programs.running([program(), kind, str(times), str(each_ms)]) as child:
        yield child


@functools.cache
def program() -> Path:
    """Compile the child.

    It has frame pointers and no tail calls, so that frames are as written.
    """
    directory = tempfile.mkdtemp(prefix="wakings-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    binary = Path(directory) / "wakings"
    flags = ("-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin", "-pthread")
    subprocess.run(["gcc", *flags, "-o", str(binary), str(SOURCE)], check=True, timeout=60)
    return binary
