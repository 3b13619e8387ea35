"""Test the child that reads binaries.

If it dies or stalls, only the names of that file are lost.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from itertools import product
from pathlib import Path

import pytest

from offtop.kernel import sandbox
from offtop.kernel.binary import binaries as binaries_module
from offtop.kernel.binary import unwind_rules
from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.files import File, Files
from offtop.kernel.binary.unwind_rules import Value
from offtop.kernel.symbols.mappings import Processes
from offtop.kernel.symbols.names import NameWorker
from offtop.model.values.stack import Frame
from tests.kernel import waits, watch
from tests.kernel.programs import Program, build, running

ROOT = Path(__file__).parents[3]
SOURCE = r"""
#include <dlfcn.h>
#include <sys/syscall.h>
int main(int count, char **words) {
    tell("main", main);
    for (int n = 1; n < count; n++) {
        void *library = dlopen(words[n], RTLD_NOW);
        tell(words[n], dlsym(library, "first"));
    }
    next();
    syscall(SYS_pause);
    return 0;
}
"""
LIBRARY = "int first(void) { return getpid(); } int second(void) { return getuid(); }"


@pytest.fixture
def binaries() -> Generator[Binaries]:
    made = Binaries(30)
    yield made
    made.end()


class Seen:
    """A program and its libraries, as a data source sees them."""

    def __init__(self, app: Program) -> None:
        self.files, self.app = Files(), app
        self.processes = Processes(self.files)

    def frame(self, name: str | Path) -> Frame:
        (frame,) = self.processes.frames(self.app.pid, [self.app.at[str(name)]])
        return frame

    def file(self, name: str | Path) -> tuple[File, int]:
        frame = self.frame(name)
        file = self.files.get(frame.file)
        assert file
        return file, frame.offset


@pytest.fixture
def libraries(tmp_path: Path) -> list[Path]:
    return [build(tmp_path / f"{name}.so", LIBRARY, "-shared", "-fPIC") for name in ("one", "two")]


@pytest.fixture
def seen(tmp_path: Path, libraries: list[Path]) -> Generator[Seen]:
    with running([build(tmp_path / "app", SOURCE), *libraries]) as app:
        yield Seen(app)


def status(pid: int) -> dict[str, str]:
    """Return /proc/PID/status, or nothing if the process has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {key: " ".join(value.split()) for key, _, value in (line.partition(":") for line in lines)}


def has_ended(pid: int) -> bool:
    return status(pid).get("State", "Z").startswith("Z")  # without an init that reaps, a zombie stays


def until_ended(pid: int) -> None:
    deadline = time.monotonic() + 60
    while not has_ended(pid):
        assert time.monotonic() < deadline, status(pid)
        time.sleep(0.01)


def until(pid: int, key: str, value: str) -> None:
    deadline = time.monotonic() + 60
    while not status(pid)[key].startswith(value):
        assert time.monotonic() < deadline, status(pid)
        time.sleep(0.01)


def stop(pid: int) -> None:
    """Stop a process once it is ready for requests, so in the middle of the next one."""
    until(pid, "Name", "offtop-reader")
    os.kill(pid, signal.SIGSTOP)
    until(pid, "State", "T")


def new_reader(before: set[int]) -> int:
    """Return the PID of the child that a thread of ours has started since."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for pid in children() - before:
            if status(pid).get("Name") == "offtop-reader":
                return pid
        time.sleep(0.01)
    raise AssertionError("no reader was started")


def children() -> set[int]:
    found = (status(int(path.name)) for path in Path("/proc").glob("[0-9]*"))
    return {int(one["Pid"]) for one in found if one.get("PPid") == str(os.getpid())}


def truncate_unnoticed(file: File, path: Path) -> None:
    """Truncate a file as if that happened between the check of its mtime and the read."""
    os.truncate(path, 0)
    os.utime(path, ns=(file.written_ns, file.written_ns))


def test_no_offsets_have_no_names(binaries: Binaries, seen: Seen) -> None:
    assert binaries.names(seen.file("main")[0], []) == []


def test_a_truncated_library_costs_only_its_own_names(binaries: Binaries, seen: Seen, libraries: list[Path]) -> None:
    (one, at_one), (two, at_two) = (seen.file(path) for path in libraries)
    assert binaries.names(one, [at_one]) == ["first"]
    first = binaries.start().pid
    truncate_unnoticed(one, libraries[0])
    assert binaries.names(one, [at_one, at_one + 1]) == ["", ""]
    assert binaries.names(two, [at_two]) == ["first"]
    second = binaries.start().pid
    assert second != first  # it died
    assert has_ended(first)
    assert one.unreadable
    assert binaries.names(one, [at_one]) == [""]
    assert binaries.start().pid == second  # no file kills two readers
    assert binaries.names(two, [at_two]) == ["first"]


def test_a_reader_killed_while_idle_is_replaced_and_no_file_blamed(binaries: Binaries, seen: Seen) -> None:
    file, offset = seen.file("main")
    assert binaries.names(file, [offset]) == ["main"]
    pid = binaries.start().pid
    os.kill(pid, signal.SIGKILL)
    until_ended(pid)
    assert binaries.names(file, [offset]) == ["main"]
    assert binaries.start().pid != pid
    assert not file.unreadable


def test_a_reader_killed_while_busy_is_replaced_and_names_arrive(seen: Seen, libraries: list[Path]) -> None:
    before = children()
    worker = NameWorker(seen.files)
    try:
        reader = new_reader(before)
        stop(reader)
        first, others = seen.frame(libraries[0]), {seen.frame(libraries[1]), seen.frame("main")}
        assert not worker.wait({first}, 0.1)
        assert not worker.wait(others, 0.1)
        os.kill(reader, signal.SIGKILL)
        assert worker.wait({first, *others}, 60)
        assert {worker.of(frame) for frame in others} == {"first", "main"}
        assert worker.of(first) in ("first", f"one.so+0x{first.offset:x}")
        assert new_reader(before) != reader
    finally:
        worker.close()


def test_a_reader_that_does_not_answer_is_replaced(seen: Seen, libraries: list[Path]) -> None:
    binaries = Binaries(2)
    (one, at_one), (two, at_two) = (seen.file(path) for path in libraries)
    stopped = binaries.start().pid
    stop(stopped)
    assert binaries.names(one, [at_one]) == [""]
    assert one.unreadable
    assert has_ended(stopped)
    until(binaries.start().pid, "Name", "offtop-reader")
    assert binaries.names(two, [at_two]) == ["first"]
    assert binaries.names(one, [at_one]) == [""]  # not retried for a while
    binaries.end()


def test_slow_reader_startup_is_not_blamed_on_a_file(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "START", f"import time; time.sleep(3); {sandbox.START}")
    binaries = Binaries(2)
    file, offset = seen.file("main")
    assert (binaries.names(file, [offset]), binaries.failures) == (["main"], 0)
    binaries.end()
    monkeypatch.setattr(binaries_module, "_BEGIN_S", 0.5)
    assert (binaries.names(file, [offset]), binaries.failures) == ([""], 1)
    binaries.end()


def test_after_four_deaths_in_a_minute_no_reader_starts_for_a_while(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries_module, "_SKIP_S", 0)
    monkeypatch.setattr(binaries_module, "_FAILURES_S", 1e6)
    binaries = Binaries(0.05)
    file, offset = seen.file("main")
    for _ in range(4):
        assert binaries.rest_s == 0
        stop(binaries.start().pid)
        assert binaries.names(file, [offset]) == [""]
    assert binaries.rest_s > 0
    monkeypatch.setattr(binaries_module, "_FAILURES_S", 0)
    assert binaries.rest_s == 0


def test_without_a_reader_names_are_late_not_missing(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = seen.frame("main")
    monkeypatch.setattr(Binaries, "rest_s", 1e6)
    worker = NameWorker(seen.files)
    assert not worker.wait({frame}, 0.1)
    monkeypatch.setattr(Binaries, "rest_s", 0)
    assert worker.of(seen.frame("main")) == f"app+0x{frame.offset:x}"
    worker.of(Frame(frame.file, frame.offset + 1))  # wakes it
    assert worker.wait({frame}, 60)
    assert worker.of(frame) == "main"
    worker.close()


def test_the_reader_returns_unwind_rules(binaries: Binaries, seen: Seen) -> None:
    file, offset = seen.file("main")
    entered, nowhere = map(unwind_rules.parse, binaries.rules(file, [offset, 1 << 40]))
    assert entered.cfa == Value(unwind_rules.X86_64.sp, 8)  # nothing is pushed yet but the return address
    assert entered.ip == Value(unwind_rules.CFA, -8, True)
    assert nowhere == unwind_rules.NO_RULE
    stop(binaries.start().pid)
    os.kill(binaries.start().pid, signal.SIGKILL)
    until_ended(binaries.pid)
    assert [unwind_rules.parse(one) for one in binaries.rules(file, [offset])] == [entered]  # from the next reader


def test_the_reader_exits_with_its_parent_even_if_stopped() -> None:
    code = "import time; from offtop.kernel.binary.binaries import Binaries; b = Binaries(9)"
    code = f"{code}; print(b.start().pid, flush=True)"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(600)"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    with parent.stdout as output:
        reader = int(output.readline())
    stop(reader)
    assert not has_ended(reader)
    parent.kill()
    parent.wait(60)
    until_ended(reader)


@pytest.mark.kernel
def test_the_reader_runs_as_nobody_without_capabilities_or_files(
    binaries: Binaries, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, offset = seen.file("main")
    assert binaries.names(file, [offset]) == ["main"]
    pid = binaries.start().pid
    found = status(pid)
    nobody = "65534 65534 65534 65534"
    assert (found["Uid"], found["Gid"], found["Groups"], found["NoNewPrivs"]) == (nobody, nobody, "", "1")
    assert [int(found[held], 16) for held in ("CapPrm", "CapEff", "CapInh", "CapAmb")] == [0, 0, 0, 0]
    assert os.getsid(pid) == pid
    monkeypatch.setattr(binaries_module, "_UNUSED_S", 0)
    assert 0 < (binaries.close_unused() or 0) <= 20
    assert binaries.names(file, []) == []
    deadline = time.monotonic() + 60
    while file.path in Path(f"/proc/{pid}/maps").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    links = sorted(str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    assert links[:-1] == ["/dev/null", "/dev/null", "/dev/null"]
    assert links[-1].startswith("socket:")
    assert binaries.start().pid == pid


@pytest.mark.kernel
def test_an_idle_reader_is_ended_and_started_again_when_it_is_needed(
    binaries: Binaries, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, offset = seen.file("main")
    assert binaries.close_unused() is None
    assert binaries.names(file, [offset]) == ["main"]
    pid = binaries.pid
    monkeypatch.setattr(binaries_module, "_UNUSED_S", 0)
    monkeypatch.setattr(binaries_module, "_IDLE_S", 0)
    assert binaries.close_unused() is None
    until_ended(pid)
    assert binaries.pid == 0
    assert binaries.names(file, [offset]) == ["main"]
    assert binaries.pid not in (0, pid)
    assert binaries.failures == 0


def test_the_reader_imports_few_modules(binaries: Binaries) -> None:
    code = "import sys; sys.path.append(sys.argv[1]); from offtop.kernel.binary import reader; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    modules = {name.partition(".")[0] for name in done.stdout.split()}
    assert "offtop" in modules, done.stderr
    assert not modules & {"numpy", "textual", "rich", "bcc", "psutil", "subprocess", "asyncio"}
    pid = binaries.start().pid
    until(pid, "Name", "offtop-reader")  # -S: it has no packages at all, and still gets this far


@pytest.mark.kernel
def test_readers_and_their_replacements_are_not_counted() -> None:
    with waits.running("sleep", times=3) as child, watch.watching() as live:
        names = live.source.names
        before = names.reader_pid
        assert before
        shown = {key.pid for _ in range(3) for key, _ in live.tick(0.1).each_thread()}
        os.kill(before, signal.SIGKILL)
        child.go()
        child.finish()
        window = live.tick()
        assert [stack for stack in live.user_stacks(window, child.tid) if stack[:5] == child.user]
        assert names.reader_pid not in (0, before)
        later = {key.pid for _ in range(3) for key, _ in live.tick(0.1).each_thread()}
        assert os.getppid() in shown & later
        reads = live.source._reads.pid  # pyright: ignore[reportPrivateUsage]
        assert reads
        assert not {before, names.reader_pid, reads} & (shown | later)


@pytest.mark.kernel
@pytest.mark.parametrize(
    "first_seen",
    [*(pytest.param(one, marks=pytest.mark.variant) for one in ("by no scan", "by a scan")), "by a scan that primes"],
)
def test_a_child_that_began_to_wait_before_it_was_known_is_not_counted(first_seen: str) -> None:
    with waits.running("sleep", times=3) as child, watch.watching() as live:
        names, stages = live.source.names, live.source._stages  # pyright: ignore[reportPrivateUsage]
        killed = names.reader_pid
        os.kill(killed, signal.SIGKILL)
        child.go()
        child.finish()
        assert live.user_stacks(live.tick(), child.tid)
        reads = live.source._reads.pid  # pyright: ignore[reportPrivateUsage]
        children = {names.reader_pid, reads}
        assert children.isdisjoint((0, killed))
        time.sleep(0.1)
        if first_seen == "by a scan that primes":
            stages.must_prime = True
            live.source.drain()
        for _ in range(3):
            if first_seen == "by no scan":
                live.leave_out_next_scan()
            window = live.tick(0.1)
            assert children.isdisjoint(key.pid for key, _ in window.each_thread())
            assert children.isdisjoint(key.pid for key in window.still)
            for pid, number in product(children, (signal.SIGSTOP, signal.SIGCONT)):
                os.kill(pid, number)
