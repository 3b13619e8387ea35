"""Run the compared tools as a user would, and read the kernel's statistics of their BPF programs.

The kernel shows each loaded program in fdinfo of the process that holds it, with its run count and run time. So no tool
reports about itself, and all are measured the same way.
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
VERIFYING = "offtop, verifying"
"""It also takes every stack, but compares it with the thread's last one if it can."""
OFFCPUTIME = "offcputime"
BPFTRACE = "bpftrace"
NAMES = (OFFTOP, OFFCPUTIME, BPFTRACE)

_ATTACH_SECONDS = 20.0
_END_SECONDS = 10.0

# bpftrace 0.17 has no raw tracepoints, and a kernel may have no kprobes, so stacks are taken at switch-out, as in
# offcputime.
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
    """The kernel's statistics of all BPF programs of a tool."""

    switches: int
    """Context switches: the run count of the most frequent program, which runs at each."""
    switch_ns: int
    """Run time of the programs that run at a switch."""
    scanned: int
    """Threads visited by task scans."""
    scan_ns: int
    """Run time of task scans."""

    def since(self, before: "Runs") -> "Runs":
        return Runs(
            self.switches - before.switches,
            self.switch_ns - before.switch_ns,
            self.scanned - before.scanned,
            self.scan_ns - before.scan_ns,
        )

    @property
    def ns_per_switch(self) -> float:
        """Run time of all programs per switch."""
        return (self.switch_ns + self.scan_ns) / max(1, self.switches)


def command(tool: str, min_us: int) -> list[str]:
    """Return the command of `tool` for waits from `min_us` up.

    Raises UnanswerableError if it is not installed.
    """
    if tool == OFFTOP:
        return [str(offtop()), "--json", "--min", f"{min_us}us", "--exact-stacks"]
    if tool == VERIFYING:
        return [str(offtop()), "--json", "--min", f"{min_us}us", "--verify-kernel-stacks", "--cpu-budget", "1000"]
    if tool == OFFCPUTIME:
        return [need("offcputime", "libbpf-tools"), "-m", str(max(1, min_us))]
    return one_liner(_ONE_LINER.format(min_us=min_us))


def one_liner(program: str, *options: str) -> list[str]:
    """Return the bpftrace command of `program`.

    Raises UnanswerableError if it is not installed.
    """
    return [*_with_tracefs(), need("bpftrace", "bpftrace"), *options, "-e", program]


def offtop() -> Path:
    """Return the `offtop` command next to the Python that runs the benchmarks."""
    path = Path(sys.executable).with_name("offtop")
    if not path.exists():
        raise UnanswerableError(f"{path} is missing: make setup")
    return path


def _with_tracefs() -> list[str]:
    """Return a prefix that mounts tracefs for bpftrace only, if it is not mounted."""
    if Path("/sys/kernel/tracing/events").exists():
        return []
    mount = 'mount -t tracefs nodev /sys/kernel/tracing && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh"]


@contextmanager
def counting() -> Generator[None]:
    """Enable BPF statistics until the block ends.

    The descriptor ends them if this process dies.
    """
    fd = libbpf.enable_statistics()
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def running(arguments: Sequence[str], out: IO[bytes] | int = subprocess.DEVNULL) -> Generator[subprocess.Popen[bytes]]:
    """Start a process, and end it and its process group after the block."""
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        end(process, signal.SIGTERM)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process, wait for it to exit, and kill its process group."""
    if process.poll() is None:
        process.send_signal(number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_END_SECONDS)


def wait_until_attached(process: subprocess.Popen[bytes]) -> None:
    """Wait until the tool's programs run at switches.

    Needs `counting`. Raises UnanswerableError if they never do.
    """
    until = time.monotonic() + _ATTACH_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise UnanswerableError(f"a tool ended before it had begun, status {process.returncode}: {process.args}")
        if runs(process.pid).switches > 100:
            return
        time.sleep(0.1)
    raise UnanswerableError(f"the programs of process {process.pid} did not run within {_ATTACH_SECONDS:.0f} s")


def runs(pid: int) -> Runs:
    """Return the statistics so far of the programs that a process holds."""
    programs: dict[str, tuple[int, int]] = {}
    iterators: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            lines = descriptor.read_text().splitlines()
        except OSError:
            continue  # closed meanwhile
        fields = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if "run_cnt" in fields:
            programs[fields["prog_id"]] = int(fields["run_cnt"]), int(fields["run_time_ns"])
        elif fields.get("link_type") == "iter":
            iterators.add(fields["prog_id"])
    at_switch = [taken for program, taken in programs.items() if program not in iterators]
    in_scans = [taken for program, taken in programs.items() if program in iterators]
    return Runs(
        max((count for count, _ in at_switch), default=0),
        sum(ns for _, ns in at_switch),
        sum(count for count, _ in in_scans),
        sum(ns for _, ns in in_scans),
    )


def at_wakeups(pid: int) -> tuple[int, int]:
    """Return run count and run time (ns) of a process's programs on wakeup tracepoints."""
    return at_tracepoints(pid, "sched_waking", "sched_wakeup")


def at_tracepoints(pid: int, *prefixes: str) -> tuple[int, int]:
    """Return run count and run time (ns) of a process's programs on raw tracepoints whose name starts with a prefix."""
    program_ids: set[str] = set()
    programs: dict[str, tuple[int, int]] = {}
    for descriptor in Path(f"/proc/{pid}/fdinfo").glob("*"):
        with suppress(OSError):
            fields = {
                key: value.strip()
                for key, _, value in (line.partition(":") for line in descriptor.read_text().splitlines())
            }
            if fields.get("tp_name", "").startswith(prefixes):
                program_ids.add(fields["prog_id"])
            elif "run_cnt" in fields:
                programs[fields["prog_id"]] = int(fields["run_cnt"]), int(fields["run_time_ns"])
    runs = [programs[program] for program in program_ids & programs.keys()]
    return sum(count for count, _ in runs), sum(ns for _, ns in runs)


def cpu_s(task: int | str) -> tuple[float, float]:
    """Return (user, kernel) CPU seconds of a process, or of a thread by path below /proc."""
    user_s, kernel_s, *_ = _times_s(task)
    return user_s, kernel_s


def family_cpu_s(pid: int) -> tuple[float, float]:
    """Return (user, kernel) CPU seconds of a process, its children, and those of its children that have ended."""
    user_s, kernel_s, ended_user_s, ended_kernel_s = _times_s(pid)
    user_s, kernel_s = user_s + ended_user_s, kernel_s + ended_kernel_s
    for child in family(pid)[1:]:
        with suppress(OSError):  # it has just ended
            more_user_s, more_kernel_s = cpu_s(child)
            user_s, kernel_s = user_s + more_user_s, kernel_s + more_kernel_s
    return user_s, kernel_s


def _times_s(task: int | str) -> tuple[float, float, float, float]:
    after_name = Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    user, kernel, ended_user, ended_kernel = (int(ticks) * tick_s for ticks in after_name[11:15])
    return user, kernel, ended_user, ended_kernel


def family_pss_mb(pid: int) -> float:
    """Return the memory (PSS) of a process and its children."""
    kb = 0
    for one in family(pid):
        with suppress(OSError):  # it has just ended
            kb += int(Path(f"/proc/{one}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
    return kb / 1024


def family(pid: int) -> list[int]:
    """Return the PIDs of offtop and its children that read binaries.

    (Its compiler has exited by then.)
    """
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [pid, *(int(child) for task in tasks for child in (task / "children").read_text().split())]
