"""Test PID namespaces.

A container sees its own IDs, and all other threads as one process; from outside, -p takes both IDs.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from offtop.errors import UsageError
from offtop.kernel.bpf import pid_namespace
from offtop.kernel.bpf.pid_namespace import pid_in
from offtop.model.values.snapshot import OUTSIDE
from tests import command
from tests.conftest import lacks
from tests.kernel import outside, programs
from tests.kernel.procfs.test_cgroups import group, remove
from tests.kernel.watch import MS, S

pytestmark = pytest.mark.kernel

Tick = dict[str, Any]
OWN = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Command prefix that makes a program the first process of a namespace."""
_NAMED = re.compile(r"(main|thread|exec)(\d+)")
_C = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-fno-builtin")

FAMILY = r"""
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
static const struct timespec ten_ms = {0, 10000000};
static __attribute__((noinline)) void nap(void)
{
	syscall(SYS_nanosleep, &ten_ms, 0);
	__asm__ volatile("");
}
static void *sleeper(void *unused)
{
	tell("tid", (void *)(long)gettid());
	next();
	for (int i = 0; i < 23; i++)
		nap();
	next();
	return 0;
}
int main(void)
{
	pthread_t thread;
	if (fork())
		return wait(0), 0;
	tell("pid", (void *)(long)getpid());
	pthread_create(&thread, 0, sleeper, 0);
	pthread_join(thread, 0);
	return 0;
}
"""
"""A child of the first process, with a thread that sleeps 23 times."""

STORM = r"""
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
static int calls;
static void *one(void *kind)
{
	char name[16];
	snprintf(name, sizeof(name), "%s%d", (char *)kind, (int)gettid());
	prctl(PR_SET_NAME, name);
	usleep(1000);
	if (calls && !strcmp(kind, "thread"))
		execl("/proc/self/exe", "storm", "again", (char *)0);
	return 0;
}
int main(int argc, char **argv)
{
	if (argc > 1)
		return one("exec"), 0;
	for (;;) {
		for (int i = 0; i < 8; i++)
			if (!fork()) {
				pthread_t thread;
				calls = i % 2;
				pthread_create(&thread, 0, one, "thread");
				one("main");
				pthread_join(thread, 0);
				_exit(0);
			}
		while (waitpid(-1, 0, 0) > 0)
			;
	}
}
"""
"""Processes and threads that live for some ms, and are named after their own IDs.

In some, the other thread calls exec, and so takes the TID of the first.
"""

NAPPERS = r"""
#include <pthread.h>
#include <time.h>
static void *nap(void *unused)
{
	struct timespec three_ms = {0, 3000000};
	nanosleep(&three_ms, 0);
	return 0;
}
int main(void)
{
	pthread_t threads[20];
	for (int i = 0; i < 20; i++)
		pthread_create(threads + i, 0, nap, 0);
	for (int i = 0; i < 20; i++)
		pthread_join(threads[i], 0);
	return 0;
}
"""
"""Each of 20 threads sleeps once, all at the same stack."""

SPIN = "int main(void) { next(); for (;;) ; }"


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("namespaces") / "family", FAMILY, *_C)


class Container:
    """A program that is the first process of a PID namespace, with its own /proc."""

    def __init__(self, program: programs.Program) -> None:
        self.program = program
        self.first = child_of(program.pid)
        """PID of the first process on the host."""
        self.enter = ("nsenter", "--target", str(self.first), "--pid", "unshare", "--mount-proc")

    def tick(self, *arguments: str, go: bool = False) -> Tick:
        """Return offtop's second tick in the container, of 1 s or as long as -d says.

        `go`: let the program go on during it.
        """
        process = command.start("-b", "--json", "-n", "2", *arguments, before=self.enter)
        try:
            assert process.stdout
            process.stdout.readline()
            if go:
                self.program.go_on_alone()
            ended = command.ended(process)
        finally:
            process.kill()
        assert (ended.status, ended.err) == (0, "")
        return json.loads(ended.out)


@contextmanager
def contained(*line: str | Path) -> Generator[Container]:
    with programs.running([*OWN, *line]) as program:
        yield Container(program)


def child_of(pid: int) -> int:
    (child,) = command.family(pid)[1:2]
    return child


def ids_of(pid: int) -> list[int]:
    """Return a process's PIDs in each of its namespaces, from here downwards."""
    found = re.search(r"^NSpid:\s+(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return [int(one) for one in found[1].split()]


def keys(tick: Tick) -> set[tuple[int, int]]:
    """Return the keys of all threads but the evicted ones."""
    rows = [*tick["threads"], *tick["sites"], *tick["still_blocked"]]
    return {(one["pid"], one["tid"]) for one in rows} - {(0, 0)}


def run_inside(of: Container, script: str) -> Any:
    """Return what a Python program prints in the container, as JSON."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*of.enter, sys.executable, "-c", script], capture_output=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), id="the default probe"),
        pytest.param(("--probe", "switch"), id="switch", marks=pytest.mark.variant),
    ],
)
def test_23_sleeps_count_under_the_containers_ids(family: Path, arguments: Sequence[str]) -> None:
    with contained(family) as one:
        pid, tid = one.program.at["pid"], one.program.at["tid"]
        assert (1 < pid < tid) and tid < one.first
        tick = one.tick(*arguments, go=True)
    sleeps = [site for site in tick["sites"] if site["category"] == "sleep" and site["pid"] == pid]
    missed = 1 if arguments else 0  # a switch-in that this kernel does not trace: see test_switch_in_probes.py
    assert {(site["tid"], site["comm"]) for site in sleeps} == {(tid, "family")}
    (thread,) = (thread for thread in tick["threads"] if thread["tid"] == tid and thread["pid"] == pid)
    assert 23 - missed <= sum(site["waits"] for site in sleeps) <= 23 + thread["involuntary"]
    assert (23 - missed) * 10 * MS <= sum(site["total_ns"] for site in sleeps) <= tick["span_ns"]
    assert "nap" in max(sleeps, key=lambda site: site["waits"])["user"]  # the first wait may not be unwound yet
    assert 24 - missed <= thread["voluntary"] <= 24  # including the wait for its go
    assert {(1, 1), (pid, pid), (pid, tid)} == {key for key in keys(tick) if key[0] != OUTSIDE}
    (waiting,) = (wait for wait in tick["still_blocked"] if (wait["pid"], wait["tid"]) == (1, 1))
    assert (waiting["syscall"], waiting["process"]) == ("wait4", "family")


def test_the_outside_is_one_process_with_the_machines_sums(family: Path, tmp_path: Path) -> None:
    outside.needed()
    spin, cpu = programs.build(tmp_path / "outsider", SPIN), max(os.sched_getaffinity(0))
    with contained(family) as one, ExitStack() as spinners:
        for _ in range(2):
            spinner = spinners.enter_context(programs.running([spin]))
            os.sched_setaffinity(spinner.pid, {cpu})
            spinner.go_on_alone()
        tick = one.tick("-d", "0.5")
    known = {key[1] for key in keys(tick) if key[0] == OUTSIDE}
    assert {2, os.getpid()} <= known  # kernel threads too
    assert {thread["process"] for thread in tick["threads"] if thread["pid"] == OUTSIDE} == {"(outside)"}
    ready = [thread for thread in tick["threads"] if thread["comm"] == "outsider"]
    assert {thread["pid"] for thread in ready} == {OUTSIDE}
    assert len(ready) == 2
    assert 0.35 * S <= sum(thread["runqueue_ns"] for thread in ready) <= 1.5 * S
    assert all(site["user"] == [] for site in tick["sites"] if site["pid"] == OUTSIDE)
    assert tick["lost"] == {}
    by_category = sum(category["total_ns"] for category in tick["categories"])
    assert by_category == sum(thread["offcpu_ns"] for thread in tick["threads"])


def test_the_laws_hold_in_a_container_without_offtops_own_threads(family: Path) -> None:
    script = """
import json, os
from tests.kernel import watch
with watch.watching() as live:  # which holds the laws in each tick
    windows = [live.tick(0.3) for _ in range(4)]
    held = {live.source.names.reader_pid, live.source._parts.user_stacks.reader_pid, os.getpid()}
    counted = [[*key] for window in windows for key, totals in window.each_thread()]
    print(json.dumps({"own": [key for key in counted if key[0] in held], "all": len(counted), "readers": len(held)}))
"""
    with contained(family) as one:
        found = run_inside(one, script)
    assert found["own"] == []
    assert found["readers"] >= 2
    assert found["all"] > (20 if outside.is_counted() else 8)


@pytest.mark.variant
def test_threads_with_ids_reused_within_a_tick_keep_their_waits(tmp_path: Path) -> None:
    if not Path("/proc/sys/kernel/ns_last_pid").exists():
        lacks("a way to choose ids")
    nappers = programs.build(tmp_path / "nappers", NAPPERS, "-static", *_C)
    script = f"""
import json, subprocess
from pathlib import Path
from tests.kernel import watch
with watch.watching() as live:  # which holds the laws in each tick
    live.tick(0.1)
    for first in (510, 509, 508):  # in here, no other thread has ids
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(first - 1))
        subprocess.run(["setarch", "-R", "{nappers}"], check=True)
    window = live.tick(0.1)
    asleep = [site for site, _ in window.each_site() if live.last.catalog.stack(site.kernel).category == "sleep"]
    print(json.dumps([[*site[:2]] for site in asleep if site.pid in (508, 509, 510)]))
"""
    with programs.running([*OWN, sys.executable, "-c", "input('ready\\n')"]) as program:
        found = run_inside(Container(program), script)
    naps = [(pid, tid) for pid, tid in found if tid > pid]
    assert len(naps) == len(set(naps)) == 60
    assert len({tid for _, tid in naps}) < 30


@pytest.mark.variant
def test_a_fork_storm_shows_no_host_id(tmp_path: Path) -> None:
    storm = programs.build(tmp_path / "storm", STORM, *_C)
    line = [*OWN, "sh", "-c", '"$0" & exec "$@"', str(storm), str(command.OFFTOP), "-b", "--json", "-n", "3"]
    done = subprocess.run(line, capture_output=True, timeout=command.TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, b"")
    ticks = [json.loads(one) for one in done.stdout.splitlines()]
    every = [one for tick in ticks for one in (*tick["threads"], *tick["sites"], *tick["still_blocked"])]
    seen = {
        (found[1], int(found[2]), one["pid"], one["tid"]) for one in every if (found := _NAMED.fullmatch(one["comm"]))
    }
    assert {kind for kind, *_ in seen} == {"main", "thread", "exec"}
    assert len(seen) > 100
    wrong = [
        (kind, number, pid, tid)
        for kind, number, pid, tid in seen  # a thread that calls exec swaps IDs with the first one
        if (not (pid < number and tid in (number, pid)) if kind == "thread" else number != pid or tid < pid)
    ]
    assert wrong == []
    assert [one["comm"] for one in every if one["pid"] == OUTSIDE and one["comm"] in ("storm", "exe")] == []


@pytest.mark.variant
def test_p_and_t_take_the_containers_ids(family: Path) -> None:
    with contained(family) as one:
        pid, tid = one.program.at["pid"], one.program.at["tid"]
        chosen = ("-p", f"1,{pid}"), ("-t", "1,2"), ("-p", str(OUTSIDE))

        def keys_of(words: Sequence[str]) -> set[tuple[int, int]]:
            return keys(one.tick("-d", "0.3", *words))

        with ThreadPoolExecutor(2) as pool:
            both, few, everybody_else = pool.map(keys_of, chosen)
        assert both == {(1, 1), (pid, pid), (pid, tid)}
        assert few == {(1, 1), (2, 2)}  # the host has such threads too
        assert {key[0] for key in everybody_else} == ({OUTSIDE} if outside.is_counted() else set())
        refused = command.run("-b", "-n", "1", "-p", str(one.first), before=one.enter)
        assert (refused.status, refused.sentence) == (2, f"No process {one.first}. Look it up with: pgrep NAME")


@pytest.mark.variant
def test_threads_of_a_nested_namespace_have_our_ids(family: Path) -> None:
    with contained(*OWN, family) as one:
        inner = child_of(one.first)
        last = child_of(inner)
        (_, ours, theirs), (_, our_first, their_first) = ids_of(last), ids_of(inner)
        assert (their_first, theirs) == (1, one.program.at["pid"])
        assert ours > our_first > 1
        found = {key for key in keys(one.tick("-d", "0.3")) if key[0] != OUTSIDE}
        assert {(1, 1), (our_first, our_first), (ours, ours)} < found
        assert {key[0] for key in found} == {1, our_first, ours}
        assert pid_in(str(one.first), ours) == pid_in(str(inner), theirs) == last
        assert run_inside(
            one, f"from offtop.kernel.bpf.pid_namespace import pid_in; print(pid_in('{our_first}', 1))"
        ) == (our_first)


@pytest.mark.variant
def test_a_kernel_without_the_needed_functions_counts_only_the_container(family: Path) -> None:
    script = """
import json
from offtop.kernel.accounting import changed_threads
from offtop.kernel.bpf import pid_namespace as namespace
from tests.kernel import watch
namespace.FUNCTIONS["TASK_ITER_NEW"] = "no_such_function"
changed_threads.threads_now = lambda: 1 << 30  # the host has many
with watch.watching() as live:
    live.tick(0.2)
    window = live.tick(0.2)
    print(json.dumps([[[*key] for key, _ in window.each_thread()], dict(live.source.about())["process ids"]]))
"""
    with contained(family) as one:
        found, description = run_inside(one, script)
        pid, tid = one.program.at["pid"], one.program.at["tid"]
    assert {tuple(key) for key in found} - {(0, 0)} == {(1, 1), (pid, pid), (pid, tid)}
    assert "not counted" in description


def test_with_a_foreign_proc_it_exits_and_names_the_fix() -> None:
    refused = command.run("-b", "-n", "1", "--source", "bpf", before=OWN[:-1])
    assert refused.status == 4
    assert refused.sentence.endswith("Give offtop a /proc of its own: unshare --mount-proc offtop")


@pytest.mark.variant
def test_on_the_host_p_takes_a_containers_id(family: Path) -> None:
    with contained(family) as one, contained(family) as other:
        pid = one.program.at["pid"]
        host = child_of(one.first)
        assert ids_of(host) == [host, pid]
        done = command.run(
            "-b", "--json", "-n", "1", "-d", "0.3", "-p", f"{os.getpid()},{one.first}:{pid},{host}:{pid}"
        )
        assert (done.status, done.err) == (0, "")
        tick = json.loads(done.out)
        assert tick["filters"]["pids"] == sorted([os.getpid(), host])
        assert {key[0] for key in keys(tick)} == {os.getpid(), host}
        assert pid_in(str(other.first), pid) == child_of(other.first)


@contextmanager
def in_group(place: Path, line: Sequence[str | Path]) -> Generator[int]:
    """Run the first process of a namespace in the cgroup `place`; yield its host PID."""
    script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    with programs.running(["sh", "-c", script, str(place), *OWN, *line]) as program:
        yield child_of(program.pid)


def test_a_container_is_found_by_id_or_name(family: Path) -> None:
    ids = ("feedface" + "1" * 56, "feedbeef" + "2" * 56)
    names = [f"docker-{ids[0]}.scope", f"docker-{ids[1]}.scope", "lxc.payload.web", "mysql.service"]
    with group("names") as top, ExitStack() as stack:
        places = [top / name for name in names]
        for place in places:
            place.mkdir()
            stack.callback(remove, place)
        first = [stack.enter_context(in_group(place, [family])) for place in places[:3]]
        last = [child_of(pid) for pid in first]
        inside = ids_of(last[0])[1]
        assert pid_in("feedf", inside) == pid_in(ids[0], inside) == pid_in(f"docker {ids[0][:12]}", inside) == last[0]
        assert pid_in(ids[1][:12], inside) == last[1]
        assert pid_in("web", 1) == pid_in("lxc web", 1) == first[2]
        refuses(
            "feed", 1, rf"more than one container\. Name it by .*-p {first[0]}:1 \(docker {ids[0][:12]}\), {first[1]}:"
        )
        refuses("fee", 1, r"no such container\. Name it by .*\. Containers here: .*docker feedface")
        refuses("feedbeef", 77, rf"no process 77 in that container\. Use one of: 1, {inside}$")
        stack.enter_context(
            programs.running(["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', places[3], family])
        )
        refuses("mysql.service", 7, r"no pid namespace of its own\. Use the pid seen here: -p 7$")


def test_an_unknown_container_is_refused_in_one_sentence() -> None:
    for option, message in (
        ("nobody:1", r"-p nobody:1: no such container\. Name it by"),
        (f"{os.getpid()}:1", r"no pid namespace of its own\. Use the pid seen here: -p 1"),
        ("\x1b[31m:7", r"-p \\x1b\[31m:7: no such container"),
    ):
        refused = command.call("-b", "-n", "1", "-p", option)
        assert refused.status == 2
        assert re.search(message, refused.sentence), refused.sentence


def refuses(name: str, pid: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pid_in(name, pid)


def test_the_machines_own_namespace_needs_nothing() -> None:
    if pid_namespace.own_inode():
        lacks("its own pid namespace for the tests")
    assert pid_namespace.describe_ids({}) == "the host's"
    assert not pid_namespace.exists(OUTSIDE)
