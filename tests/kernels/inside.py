"""Runs in a guest and checks that offtop counts known waits of every kind, in each mode and with each probe.

Prints one line per failed check, and at the end whether all passed. Emulation makes everything that needs a CPU ten
times as long, so only lower bounds of such times are checked; sleeps have their correct length, and counts are exact.
"""

import contextlib
import json
import os
import platform
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from offtop.kernel.bpf import features, libbpf, program
from offtop.kernel.bpf.features import Features
from offtop.model.values.wake import CHAIN, MODES, OFFCPU, OFFWAKE
from tests.kernel.programs import Program, running
from tests.kernels import operations
from tests.kernels.checks import MS, OFFTOP_S, OPTIONS, TICKS, BccTool, Findings, Row, Tick, watched
from tests.kernels.guests import PASSED, PROGRAMS

TIMES, EACH_MS = 23, 20
TURNS = 5
"""How often the spinning thread is preempted."""
LEARN_AT, COUNT_AT = 1, 11
"""Ticks after which the load runs for the first time, so that offtop reads the unwind rules, and for the second time,
which is checked. Reading libc's rules alone may take four emulated seconds."""
PROBES = Path("/sys/kernel/tracing/kprobe_events")
_CPU = Path("/sys/devices/system/cpu/cpu1")
_CGROUPS = Path("/sys/fs/cgroup")
_OBJECTS = {"futex": "futex", "pipe": "pipe", "unix": "unix"}
_CATEGORIES = {"futex": "lock", "pipe": "pipe", "unix": "pipe"}
_WAITS = {"sleep": ("sleep", "sleep"), "mutex": ("mutex-libc", "lock")}
"""Name → kind of a child of tests/kernel/waits.py and the category of its waits."""
_PEERS = {
    "offcputime": (r"sleeper;.*pipe_read", "total_ns"),
    "wakeuptime": (r".*;sleeper ", "blocked_ns"),
    "offwaketime": (r"sleeper;.*;waker ", "total_ns"),
}
"""bcc tool → pattern of its folded stacks of a sleeper that reads from a pipe, and the figure of offtop that is a lower
bound of the tool's time; offtop's whole wait is the upper bound. wakeuptime counts until the sleeper is runnable and
takes its waker from there, which may be the idle task of another CPU that was asked to make it runnable."""


class Waiter:
    """A child of tests/kernel/waits.py."""

    def __init__(self, kind: str, times: int, each_ms: int, directory: Path) -> None:
        command = [f"{PROGRAMS}/waits", kind, str(times), str(each_ms), str(directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        self.other_pid = int(self._line().split()[1])

    def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write(b"g")
        self._process.stdin.flush()

    def finish(self) -> None:
        line = self._line()
        assert line.startswith("done"), line

    def end(self) -> None:
        for pid in (self.other_pid, self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid or self.pid, signal.SIGKILL)
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout
        assert select.select([self._process.stdout], [], [], 60)[0], "no output of a child"
        return self._process.stdout.readline().decode()


class Load:
    """All programs of known waits, ready to start.

    One thread already waits for a lock that is never released, and one sleeps for an hour.
    """

    def __init__(self, stack: contextlib.ExitStack, name: str, uses_rules: bool) -> None:
        """`uses_rules`: user stacks are unwound with .eh_frame."""
        self.uses_rules = uses_rules
        directory = Path("/tmp") / name
        directory.mkdir(exist_ok=True)
        self.waiters = {name: Waiter(kind, TIMES, EACH_MS, directory) for name, (kind, _) in _WAITS.items()}
        self.spinner = Waiter("run-queue", TURNS, 1, directory)
        self.held = Waiter("flock", 1, 3_600_000, directory)
        self.asleep = Waiter("sleep", 1, 3_600_000, directory)
        self.wakings: dict[str, Program] = {}
        for one in (*self.waiters.values(), self.spinner, self.held, self.asleep):
            stack.callback(one.end)
        for kind in (*_OBJECTS, "relay"):
            command = [f"{PROGRAMS}/wakings", kind, str(TIMES), str(EACH_MS)]
            self.wakings[kind] = stack.enter_context(running(command))
        self.held.go()
        self.asleep.go()
        time.sleep(0.2)

    def go(self) -> None:
        """Run all programs and return when they have finished."""
        self.spinner.go()
        self.spinner.finish()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.spinner.other_pid, signal.SIGKILL)
        for one in self.waiters.values():
            one.go()
        for child in self.wakings.values():
            child.go_on_alone()
        for one in self.waiters.values():
            one.finish()
        for child in self.wakings.values():
            child.listen()


def rows(ticks: Sequence[Tick], table: str, tid: int) -> list[Row]:
    return [row for tick in ticks for row in tick[table] if row["tid"] == tid]


def over(ticks: Sequence[Tick], tid: int) -> list[Row]:
    """Return the sites of a thread at which waits ended."""
    return [row for row in rows(ticks, "sites", tid) if row["waits"]]


def check_sums(found: Findings, ticks: Sequence[Tick], best: str) -> None:
    """Check the accounting invariants, and that nothing was lost with the best probe."""
    for number, tick in enumerate(ticks):
        every = sum(row["total_ns"] for row in tick["categories"]), sum(row["offcpu_ns"] for row in tick["threads"])
        found.check(every[0] == every[1], f"tick {number}: categories and threads differ:", every)
        lost = {kind: count for kind, count in tick["lost"].items() if count}
        # 7.x misses some kprobe hits and reports them; it has a better probe
        found.check(not lost or tick["door"] != best, f"tick {number}: lost", lost)
        off = [row for row in tick["threads"] if row["offcpu_ns"] != row["blocked_ns"] + row["runqueue_ns"]]
        found.check(not off, f"tick {number}: {len(off)} threads whose parts differ from the whole, as", off[:1])


def check_kernel_stacks(found: Findings, known: Features) -> None:
    """Check that kernel stacks are verified if that is asked for, and that every wait is still at its place."""
    with contextlib.ExitStack() as stack:
        first, load = (Load(stack, name, program.DEFAULT_UNWIND.uses_rules(known)) for name in ("first", "second"))
        ticks = watched({LEARN_AT: first.go, COUNT_AT: load.go}, found, "--verify-kernel-stacks", *OPTIONS)
        if len(ticks) != TICKS:
            return
        check_sums(found, ticks, known.switch_in_probes[0])
        check_waits(found, ticks, load)
        memos = [tick["kernel_stack_memos"] for tick in ticks]
        found.check(all(memos) and sum(one["verified"] for one in memos) > TIMES, "no kernel stacks verified:", memos)
        found.check(not any(one["disagreements"] for one in memos if one), "verified kernel stacks differ:", memos)


def check_waits(found: Findings, ticks: Sequence[Tick], load: Load) -> None:
    """Check counts, categories, times and user stacks, which every mode has."""
    for name, (_, category) in _WAITS.items():
        check_site(found, ticks, name, load.waiters[name].pid, category, "beta", load)
    for kind, category in _CATEGORIES.items():
        check_site(found, ticks, kind, load.wakings[kind].at["sleeper"], category, "sleeper", load)
    # without CPU time for more, offtop unwinds the rest with frame pointers
    ends = [(row["user_end"], row["user"]) for one in load.waiters.values() for row in over(ticks, one.pid)]
    found.check(not load.uses_rules or "whole" in dict(ends), "no user stack is whole:", ends)
    spun = rows(ticks, "threads", load.spinner.pid)
    preempted = sum(row["involuntary"] for row in spun), sum(row["preempted_ns"] for row in spun)
    queued_ns = sum(row["runqueue_ns"] for row in spun)
    found.check(preempted[0] >= TURNS and preempted[1] >= TURNS * MS, "run queue: preempted too seldom:", preempted)
    found.check(queued_ns >= preempted[1], "run queue: shorter than the preempted time:", queued_ns)
    check_held(found, ticks[-1], load.held.pid)
    # read from another thread, with the scheduler function that the kernel leaves out
    asleep = [row["kernel"] for row in ticks[-1]["still_blocked"] if row["tid"] == load.asleep.pid]
    found.check([kernel[:1] for kernel in asleep] == [["do_nanosleep"]], "asleep: its kernel stack is", asleep)


def check_site(
    found: Findings, ticks: Sequence[Tick], name: str, tid: int, category: str, function: str, load: Load
) -> None:
    mine = [row for row in over(ticks, tid) if row["category"] == category]
    waits = sum(row["waits"] for row in mine)
    blocked_ms = sum(row["blocked_ns"] for row in mine) / MS
    listed = [
        (number, row["category"], row["waits"], row["kernel"][:3], row["user"][:4])
        for number, tick in enumerate(ticks)
        for row in over([tick], tid)
    ]
    preempted = sum(
        row["involuntary"] for row in rows(ticks, "threads", tid)
    )  # on its way to sleep, or woken in between
    found.check(abs(waits - TIMES) <= preempted, f"{name}: {waits} waits of the category {category}:", listed)
    least_ms = 0.9 * TIMES * EACH_MS
    most_ms = (3 if name in load.waiters else 30) * least_ms  # others have also waited for the start signal
    found.check(least_ms <= blocked_ms <= most_ms, f"{name}: blocked for {blocked_ms:.0f} ms")
    below = [row for row in mine if function in row["user"]]
    found.check(below, f"{name}: no user stack has {function}:", listed)


def check_held(found: Findings, tick: Tick, tid: int) -> None:
    """Check the wait that began before offtop started and is still in progress."""
    waits = [row for row in tick["still_blocked"] if row["tid"] == tid]
    found.check(len(waits) == 1, f"held: {len(waits)} waits in progress")
    for row in waits:
        found.check(row["category"] == "lock" and row["syscall"] in ("flock", None), "held:", row)
        found.check(row["age_ns"] >= (TICKS - 1) * 900 * MS, "held: too young:", row["age_ns"])
    total_ns = sum(row["offcpu_ns"] for row in tick["threads"] if row["tid"] == tid)
    found.check(total_ns == tick["span_ns"], "held: in the last tick it was off CPU for", total_ns, tick["span_ns"])


def check_wakers(found: Findings, ticks: Sequence[Tick], load: Load) -> None:
    for kind in _OBJECTS:
        child = load.wakings[kind]
        preempted = sum(row["involuntary"] for row in rows(ticks, "threads", child.at["sleeper"]))
        wakers = Counter[tuple[str, str, int]]()
        for row in over(ticks, child.at["sleeper"]):
            if row["waker"]:
                wakers[row["waker"]["kind"], row["waker"]["comm"], row["waker"]["tid"]] += row["waits"]
        by_waker = wakers.pop(("thread", "waker", child.at["waker"]), 0)
        found.check(
            abs(by_waker - TIMES) <= preempted and not wakers, f"{kind}: {by_waker} by its waker, and by", dict(wakers)
        )
    tid = load.waiters["sleep"].pid
    kinds = Counter[str]()
    for row in over(ticks, tid):
        if row["waker"] and row["category"] == "sleep":
            kinds[row["waker"]["kind"]] += row["waits"]
    found.check(kinds == {"timeout": TIMES}, "sleep: its wakers are", dict(kinds))


def check_chain(found: Findings, ticks: Sequence[Tick], load: Load) -> None:
    """Check that each runner of the relay was woken by the previous one.

    A runner may be woken again before it runs.
    """
    at = load.wakings["relay"].at
    path = [at[f"runner-{number}"] for number in (3, 2, 1, 0)] + [at["main"]]
    chains = Counter[tuple[int, ...]]()
    for row in over(ticks, at["runner-4"]):
        if row["waker"]:
            chains[tuple(one["tid"] for one in (row["waker"], *row["chain_wakers"]))] += row["waits"]
    whole = sum(count for chain, count in chains.items() if [*chain[:3]] == path[:3])
    found.check(whole >= TIMES // 2, f"relay: {whole} chains follow {path}:", dict(chains))


def check_objects(found: Findings, ticks: Sequence[Tick], load: Load) -> None:
    for kind, named in _OBJECTS.items():
        tid = load.wakings[kind].at["sleeper"]
        preempted = sum(row["involuntary"] for row in rows(ticks, "threads", tid))
        sites = [row for row in over(ticks, tid) if row["waker"] or row["object"]]
        count = sum(row["waits"] for row in sites if row["object"] and row["object"]["kind"] == named)
        objects = [row["object"] for row in sites]
        found.check(abs(count - TIMES) <= preempted, f"{kind}: {count} of its waits are on a {named}:", objects)


def check_doctor(found: Findings) -> None:
    command = [sys.executable, "-m", "offtop", "doctor", "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=OFFTOP_S)
    found.check(done.returncode == 0 and not done.stderr, f"it ended with {done.returncode}:", done.stderr[-1000:])
    for check in json.loads(done.stdout or "[]"):
        print(f"doctor: {check['verdict']:4} {check['name']}: {check['what']}", flush=True)
        found.check(check["verdict"] != "FAIL", check["name"], check["what"])


def check_cgroups(found: Findings) -> None:
    """Check that programs above the CPU quota and above the memory.high of a cgroup (v2) are suspects."""
    (_CGROUPS / "cgroup.subtree_control").write_text("+cpu +memory")
    with contextlib.ExitStack() as stack:
        for name, file, limit, does, many in (
            ("quota", "cpu.max", "20000 100000", "while True: pass", 1),
            ("high", "memory.high", "16M", "kept = []\nwhile True: kept.append(b'.' * (1 << 20))", 3),
        ):
            group = _CGROUPS / name
            group.mkdir()
            (group / file).write_text(limit)
            enter = f"open('{group}/cgroup.procs', 'w').write('0'); open('/proc/self/comm', 'w').write('{name}')\n"
            for _ in range(many):
                process = subprocess.Popen([sys.executable, "-c", enter + does])
                stack.callback(process.wait)
                stack.callback(process.kill)
        time.sleep(5)
        ticks = watched({}, found, *OPTIONS)
    for name, state in (("quota", "throttle"), ("high", "reclaim")):
        texts = [
            [
                one["text"]
                for one in tick["suspects"]
                if (hop := one["hops"][0])["process"] == name and hop["state"] == state
            ]
            for tick in ticks[-3:]
        ]
        print(f"cgroup v2: {texts[-1:]}", flush=True)
        found.check(all(texts), f"{name} is no suspect:", [one["text"] for one in ticks[-1]["suspects"]])


def compare_with_bcc(found: Findings) -> None:
    """Compare how long a thread waits for another with each of bcc's tools, run in parallel.

    The waits start when both measure, because the tools do not count a wait whose begin they have not seen.
    """
    for name, (pattern, part) in _PEERS.items():
        with contextlib.ExitStack() as stack:
            tool = BccTool(name, "-f", "3600")
            stack.callback(tool.kill)
            children: list[Program] = []

            def begin(stack: contextlib.ExitStack = stack, children: list[Program] = children) -> None:
                command = [f"{PROGRAMS}/wakings", "pipe", str(TIMES), str(EACH_MS)]
                children.append(stack.enter_context(running(command)))
                children[0].go()

            ticks = watched({LEARN_AT: begin}, found, "--mode", OFFWAKE, *OPTIONS, "--min", "0")
            sleeper = children[0].at["sleeper"]
            reading = [row for row in rows(ticks, "sites", sleeper) if "pipe_read" in str(row["kernel"])]
            woken = [row for row in reading if row["category"] == "pipe"]
            output, errors = tool.finish()
            stacks = [line for line in output.splitlines() if "sleeper" in line]
            tool_ms = sum(int(line.rpartition(" ")[2]) for line in stacks if re.match(pattern, line)) / 1000
            # offcputime also counts preemption
            ours = reading if name == "offcputime" else woken
            least_ms, most_ms = (sum(row[which] for row in ours) / MS for which in (part, "total_ns"))
            print(f"{name}: {tool_ms:.1f} ms, offtop {least_ms:.1f} to {most_ms:.1f} ms", flush=True)
            is_near = least_ms and 0.95 * least_ms <= tool_ms <= 1.05 * most_ms
            found.check(is_near, f"{name}: {tool_ms} ms:", errors[-300:], *stacks)


def set_clock_back() -> None:
    time.clock_settime(time.CLOCK_REALTIME, time.time() - 3600)


def take_a_cpu_away() -> None:
    for is_there in "01":
        (_CPU / "online").write_text(is_there)
        time.sleep(1)


def suspend() -> None:
    """Freeze every process for 5 s: a suspend without the machine itself stopping."""
    Path("/sys/power/pm_test").write_text("freezer")
    Path("/sys/power/state").write_text("freeze")


def troubles() -> Generator[Callable[[], None]]:
    """Yield the disturbances that this kernel supports."""
    if _CPU.joinpath("online").exists():
        yield take_a_cpu_away
    if Path("/sys/power/pm_test").exists() and "freeze" in Path("/sys/power/state").read_text():
        yield suspend
    yield set_clock_back


def check_trouble(found: Findings, trouble: Callable[[], None]) -> None:
    """Check that waits before and after the disturbance are counted and nothing is lost."""
    with contextlib.ExitStack() as stack:
        waiters = [Waiter("sleep", TIMES, EACH_MS, Path("/tmp/first")) for _ in range(2)]
        for one in waiters:
            stack.callback(one.end)

        def happen() -> None:
            waiters[0].go()
            waiters[0].finish()
            trouble()
            waiters[1].go()
            waiters[1].finish()

        ticks = watched({COUNT_AT: happen}, found, *OPTIONS)
        if len(ticks) == TICKS:
            check_sums(found, ticks, ticks[0]["door"])
            for one in waiters:
                slept = [row for row in over(ticks, one.pid) if row["category"] == "sleep"]
                count = sum(row["waits"] for row in slept)
                preempted = sum(row["involuntary"] for row in rows(ticks, "threads", one.pid))
                found.check(abs(count - TIMES) <= preempted, f"{count} sleeps")


def runs(known: Features) -> Generator[tuple[str, str]]:
    """Yield (probe, mode): all modes with the default probe, first and last with the others."""
    for probe in known.switch_in_probes:
        for mode in MODES if probe == known.switch_in_probes[0] else (OFFCPU, CHAIN):
            yield probe, mode


def main() -> None:
    print(f"guest: {platform.release()}, Python {platform.python_version()}", flush=True)
    found = Findings()
    known = features.detect(libbpf.KernelTypes())
    with found.checking("doctor"):
        check_doctor(found)
    operations.check(found)
    with found.checking("cgroups"):
        check_cgroups(found)
    for probe, mode in runs(known):
        with found.checking(f"probe {probe}, {mode}"), contextlib.ExitStack() as stack:
            first, load = (Load(stack, name, program.DEFAULT_UNWIND.uses_rules(known)) for name in ("first", "second"))
            ticks = watched({LEARN_AT: first.go, COUNT_AT: load.go}, found, "--probe", probe, "--mode", mode, *OPTIONS)
            if len(ticks) == TICKS:
                check_sums(found, ticks, known.switch_in_probes[0])
                check_waits(found, ticks, load)
                if mode != OFFCPU:
                    check_wakers(found, ticks, load)
                if mode == CHAIN:
                    check_chain(found, ticks, load)
                if known.registers and known.files and probe != "switch":
                    check_objects(found, ticks, load)
    if program.Unwind(kernel_check_every=1).verifies_kernel_stacks(known, known.switch_in_probes[0]):
        with found.checking("verified kernel stacks"):
            check_kernel_stacks(found, known)
    for trouble in troubles():
        with found.checking(trouble.__name__):
            check_trouble(found, trouble)
    if all(Path(f"/usr/sbin/{name}-bpfcc").exists() for name in _PEERS):
        with found.checking("comparison with bcc's tools"):
            compare_with_bcc(found)
    found.about = "at the end"
    found.check(not PROBES.read_text(), "kprobes are left over:", PROBES.read_text())
    print(PASSED if not found.count else f"guest: {found.count} checks failed", flush=True)


if __name__ == "__main__":
    main()
