"""The tools that are compared, run as a person runs them, and what the kernel counted of their programs.

The kernel shows each loaded program under the descriptors of the process that holds it, with its runs and
the time they took; so nothing of a tool is asked about itself, and all of them are asked the same way.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.answer import UnanswerableError
from bench.machine import need
from offtop.kernel.bpf import libbpf

OFFTOP = "offtop"
OFFCPUTIME = "offcputime"
BPFTRACE = "bpftrace"
NAMES = (OFFTOP, OFFCPUTIME, BPFTRACE)

_ATTACH_SECONDS = 20.0
_END_SECONDS = 10.0

# bpftrace 0.17 knows no raw tracepoint, and a kernel may have no kprobes: so stacks at leaving, as offcputime.
_ONE_LINER = """
tracepoint:sched:sched_switch
{{
  @left[args->prev_pid] = nsecs; @kernel[args->prev_pid] = kstack; @user[args->prev_pid] = ustack;
  if (@left[args->next_pid]) {{
    $ns = nsecs - @left[args->next_pid];
    if ($ns >= {min_us}000) {{ @ns[args->next_pid, @kernel[args->next_pid], @user[args->next_pid]] = sum($ns); }}
    delete(@left[args->next_pid]);
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Runs:
    """What the kernel counted of all programs of a tool."""

    switches: int
    """Runs of the program that runs most of those at a switch: at each."""
    switch_ns: int
    """In the programs that run at a switch."""
    walked: int
    """Threads that walks of all threads came by."""
    walk_ns: int
    """In the programs of those walks."""

    def since(self, before: "Runs") -> "Runs":
        return Runs(
            self.switches - before.switches,
            self.switch_ns - before.switch_ns,
            self.walked - before.walked,
            self.walk_ns - before.walk_ns,
        )

    @property
    def ns_per_switch(self) -> float:
        """Of all programs, added up."""
        return (self.switch_ns + self.walk_ns) / max(1, self.switches)


def command(tool: str, min_us: int) -> list[str]:
    """How a person runs `tool` for waits from `min_us` up. Raises UnanswerableError where it is not installed."""
    if tool == OFFTOP:
        return [str(offtop()), "--json", "--min", f"{min_us}us"]
    if tool == OFFCPUTIME:
        return [need("offcputime", "libbpf-tools"), "-m", str(max(1, min_us))]
    return one_liner(_ONE_LINER.format(min_us=min_us))


def one_liner(program: str, *options: str) -> list[str]:
    """How bpftrace runs `program`. Raises UnanswerableError where it is not installed."""
    return [*_with_tracefs(), need("bpftrace", "bpftrace"), *options, "-e", program]


def offtop() -> Path:
    """The launcher beside the Python that runs the bench."""
    path = Path(sys.executable).with_name("offtop")
    if not path.exists():
        raise UnanswerableError(f"{path} is missing: make setup")
    return path


def _with_tracefs() -> list[str]:
    """bpftrace reads tracepoints' formats in tracefs, which may not be mounted: then for it alone."""
    if Path("/sys/kernel/tracing/events").exists():
        return []
    mount = 'mount -t tracefs nodev /sys/kernel/tracing && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh"]


@contextmanager
def counting() -> Generator[None]:
    """The kernel counts what programs take; by a descriptor, so that it ends with this process."""
    fd = libbpf.enable_statistics()
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def running(arguments: Sequence[str], out: IO[bytes] | int = subprocess.DEVNULL) -> Generator[subprocess.Popen[bytes]]:
    """A process that is gone afterwards, with its group, whatever happens."""
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        end(process, signal.SIGTERM)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Ask it to end, see to it that it does."""
    if process.poll() is None:
        process.send_signal(number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_END_SECONDS)


def wait_until_attached(process: subprocess.Popen[bytes]) -> None:
    """Return when the tool's programs run at switches. Wants `counting`. Raises UnanswerableError if they never do."""
    until = time.monotonic() + _ATTACH_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise UnanswerableError(f"a tool ended before it had begun, status {process.returncode}: {process.args}")
        if runs(process.pid).switches > 100:
            return
        time.sleep(0.1)
    raise UnanswerableError(f"the programs of process {process.pid} did not run within {_ATTACH_SECONDS:.0f} s")


def runs(pid: int) -> Runs:
    """What the programs that process `pid` holds have taken so far."""
    programs: dict[str, tuple[int, int]] = {}
    walkers: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            lines = descriptor.read_text().splitlines()
        except OSError:
            continue  # closed meanwhile
        said = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if "run_cnt" in said:
            programs[said["prog_id"]] = int(said["run_cnt"]), int(said["run_time_ns"])
        elif said.get("link_type") == "iter":
            walkers.add(said["prog_id"])
    at_switch = [taken for program, taken in programs.items() if program not in walkers]
    in_walks = [taken for program, taken in programs.items() if program in walkers]
    return Runs(
        max((count for count, _ in at_switch), default=0),
        sum(ns for _, ns in at_switch),
        sum(count for count, _ in in_walks),
        sum(ns for _, ns in in_walks),
    )


def at_wakeups(pid: int) -> tuple[int, int]:
    """How often programs of process `pid` have run where the kernel tells of a wakeup, and their ns."""
    ours: set[str] = set()
    programs: dict[str, tuple[int, int]] = {}
    for descriptor in Path(f"/proc/{pid}/fdinfo").glob("*"):
        with suppress(OSError):
            said = {
                key: value.strip()
                for key, _, value in (line.partition(":") for line in descriptor.read_text().splitlines())
            }
            if said.get("tp_name") in ("sched_waking", "sched_wakeup"):
                ours.add(said["prog_id"])
            elif "run_cnt" in said:
                programs[said["prog_id"]] = int(said["run_cnt"]), int(said["run_time_ns"])
    runs = [programs[program] for program in ours & programs.keys()]
    return sum(count for count, _ in runs), sum(ns for _, ns in runs)


def cpu_s(task: int | str) -> tuple[float, float]:
    """CPU seconds so far, outside and inside the kernel, of a process, or of a thread by its path in /proc."""
    after_name = Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return int(after_name[11]) * tick_s, int(after_name[12]) * tick_s


def family(pid: int) -> list[int]:
    """The process and its children that read binaries. (Its compiler was a child, too, and is gone.)"""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [pid, *(int(child) for task in tasks for child in (task / "children").read_text().split())]
