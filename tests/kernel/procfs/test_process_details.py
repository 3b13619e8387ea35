"""Test the details of one real process, whatever its name, and even after its exit."""

import os
import pwd
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from offtop.kernel.procfs import process_details as module
from offtop.kernel.procfs import processes
from offtop.kernel.procfs.cgroups import Quota, cgroup_of, content_of, mounted
from offtop.kernel.procfs.process_details import read_details
from tests.kernel.procfs.test_cgroups import HEADLESS, group
from tests.kernel.programs import build, running, until
from tests.kernel.reads import READS

NAMES = (
    "command line", "executable", "user", "started", "parent", "state", "threads", "open files", "memory", "cgroup",
    "container", "cpu quota", "throttled",
)  # fmt: skip
MS = 1_000_000
ESCAPES = "\x1b[2J\n\x07"
NAMED = r"""
#include <pthread.h>
#include <sys/prctl.h>
static void *other(void *unused) { for (;;) pause(); return unused; }
int main(int count, char **words) {
    pthread_t thread;
    if (count > 2)
        pthread_create(&thread, 0, other, 0);
    prctl(PR_SET_NAME, words[1]);
    next();
}
"""
"""Takes its name from the first argument; with a second one it has a second thread."""


@pytest.fixture(scope="session")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("named") / "named", NAMED, "-pthread")


@contextmanager
def child(*command: str, user: int | None = None, limit: int = 0) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sh", "-c", f'{f"ulimit -Sn {limit};" if limit else ""} exec "$@"', "sh", *(command or ("sleep", "1000"))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
    )
    try:
        name = (command or ("sleep",))[0].encode()
        until(lambda: name in Path(f"/proc/{process.pid}/cmdline").read_bytes()[:20])
        yield process
    finally:
        process.kill()
        process.wait(10)


def wait_for_state(pid: int, state: str) -> None:
    until(lambda: f") {state} " in Path(f"/proc/{pid}/stat").read_text())


def giving(value: object) -> Callable[..., object]:
    """Return a function that returns this value for any arguments."""

    def give(*_: object) -> object:
        return value

    return give


def test_our_own_process_has_correct_details() -> None:
    details = dict(read_details(os.getpid(), READS))
    assert [name for name in NAMES if name in details] == [*details]  # in that order
    assert details["command line"].split()[0] in Path("/proc/self/cmdline").read_text()
    assert details["executable"] == str(Path("/proc/self/exe").readlink())
    assert details["user"] == f"{pwd.getpwuid(os.geteuid()).pw_name}, uid {os.geteuid()}"
    assert details["parent"] == f"{os.getppid()} {Path(f'/proc/{os.getppid()}/comm').read_text().rstrip()}"
    assert int(details["threads"]) >= 1  # exact only for the child below: a thread of ours may exit
    assert details["memory"].endswith("MB resident")
    assert details["cgroup"] == cgroup_of(content_of(os.getpid()), mounted())
    assert "state" not in details


def test_a_child_shows_its_arguments_limit_and_start_time() -> None:
    began = datetime.now()
    with child("sleep", "1000", "0", limit=100) as one:
        details = dict(read_details(one.pid, READS))
        assert details["command line"] == "sleep 1000 0"
        assert details["executable"].endswith(("/sleep", "/coreutils", "/busybox"))
        assert details["open files"] == "3, limit 100"
        assert details["threads"] == "1"
        assert details["parent"].startswith(f"{os.getpid()} ")
        when, age = details["started"].split(", ")
        assert abs((datetime.fromisoformat(when) - began).total_seconds()) < 60
        assert age.endswith("s ago")
        assert 0 <= int(age.removesuffix("s ago")) < 60


def test_escape_codes_in_names_are_kept_raw(named: Path) -> None:
    with running([named, ESCAPES, "second\x1b[31m"]) as one:
        details = dict(read_details(one.pid, READS))
        assert details["command line"] == f"{named} {ESCAPES} second\x1b[31m"
        assert details["threads"] == "2"
    with child("sh", "-c", 'exec 3>"/proc/$$/comm"; printf "\\033[2J" >&3; sleep 1000; :') as parent:
        until(lambda: [one.name() for one in psutil.Process(parent.pid).children()] == ["sleep"])
        [only] = psutil.Process(parent.pid).children()
        try:
            assert dict(read_details(only.pid, READS))["parent"] == f"{parent.pid} \x1b[2J"
        finally:
            only.kill()


@pytest.mark.kernel
@pytest.mark.parametrize("name", ["Uid:\t0\t0\t0", "Threads:\t77", "State:\tZ", ") Z (", "a\nUid:\t0\t0\t0"])
def test_a_name_that_looks_like_a_kernel_line_is_not_parsed_as_one(named: Path, name: str) -> None:
    with running([named, name]) as one:
        details = dict(read_details(one.pid, READS))
        assert details["user"] == f"{pwd.getpwuid(os.geteuid()).pw_name}, uid {os.geteuid()}"
        assert details["threads"] == "1"
        assert "state" not in details
    program = named.parent / "placeholder_keys"
    with running(["setpriv", "--reuid=65534", "--clear-groups", build(program, NAMED, "-pthread"), name]) as one:
        assert dict(read_details(one.pid, READS))["user"] == f"{pwd.getpwuid(65534).pw_name}, uid 65534"


@pytest.mark.kernel
def test_a_process_with_another_effective_user_shows_both(tmp_path: Path) -> None:
    with running([build(tmp_path / "app", "int main(void) { if (seteuid(54321)) return 1; next(); }")]) as one:
        assert dict(read_details(one.pid, READS))["user"] == "uid 54321 (real: root, uid 0)"


@pytest.mark.kernel
def test_a_kernel_thread_has_neither_program_nor_memory() -> None:
    details = dict(read_details(2, READS))
    assert details["user"] == "root, uid 0"
    assert details["threads"] == "1"
    assert not {"command line", "executable", "memory", "parent", "state", "cpu quota"} & {*details}


def test_a_replaced_program_is_marked_deleted(named: Path) -> None:
    program = build(named.parent / "old", NAMED, "-pthread")
    with running([program, "old"]) as one:
        program.unlink()
        assert dict(read_details(one.pid, READS))["executable"] == f"{program} (deleted)"


def test_an_exited_process_is_reported_as_gone() -> None:
    with child() as one:
        assert len(read_details(one.pid, READS)) > 5
    assert read_details(one.pid, READS) == (("process", f"{one.pid} no longer exists"),)
    for pid in (0, -1, 1 << 30, 1 << 31, 1 << 70):
        assert read_details(pid, READS) == (("process", f"{pid} no longer exists"),)


def test_a_process_that_exits_while_being_read_is_reported_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with child() as one:

        def exits_meanwhile(_: int) -> dict[str, str]:
            one.kill()
            one.wait(10)
            return {}

        monkeypatch.setattr(module, "status_of", exits_meanwhile)
        assert read_details(one.pid, READS) == (("process", f"{one.pid} no longer exists"),)


def test_a_zombie_is_reported() -> None:
    with child() as one:
        one.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        details = dict(read_details(one.pid, READS))
        assert details["state"] == "zombie: it has exited, and its parent has not waited for it"
        assert details["parent"].startswith(f"{os.getpid()} ")
        assert {"user", "started", "threads"} < {*details}
        assert not {"command line", "open files", "memory", "cgroup"} & {*details}


def test_a_stopped_process_is_reported() -> None:
    with child() as one:
        psutil.Process(one.pid).suspend()
        wait_for_state(one.pid, "T")
        assert dict(read_details(one.pid, READS))["state"] == "stopped"


def test_a_process_without_its_main_thread_is_reported(tmp_path: Path) -> None:
    with running([build(tmp_path / "app", HEADLESS, "-pthread")]) as app:
        app.go_on_alone()
        wait_for_state(app.pid, "Z")
        until(lambda: len([*Path(f"/proc/{app.pid}/task").iterdir()]) == 2)  # the third exits by itself
        details = dict(read_details(app.pid, READS))
        assert details["state"] == "its main thread has exited, other threads still run"
        assert details["threads"] == "2"
        assert details["cgroup"] == cgroup_of(content_of(os.getpid()), mounted())
        assert "open files" not in details  # the main thread has none any more


@pytest.mark.kernel
def test_unreadable_values_are_reported_as_not_permitted() -> None:
    """Read root's process as nobody."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setuid(65534)
            details = dict(read_details(os.getppid(), READS))
            assert details["executable"] == details["open files"] == "not permitted"
            assert details["user"] == "root, uid 0"
            assert details["cgroup"]
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.kernel
def test_a_quota_shows_how_much_was_throttled() -> None:
    with group("facts", quota_us=10_000) as place, child("sh", "-c", "while :; do :; done") as one:
        (place / "cgroup.procs").write_text(str(one.pid))
        until(lambda: not dict(read_details(one.pid, READS))["throttled"].startswith("never"))
        details = dict(read_details(one.pid, READS))
        assert details["cpu quota"].startswith("0.1 CPUs: 10ms in each 100ms")
        count, _, periods, _, time_, *over = details["throttled"].removeprefix("in ").replace(",", "").split()
        assert 1 <= int(count) <= int(periods)
        assert time_[0].isdigit()
        assert over == ["over", "all", "CPUs"]


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (None, None),
        (Quota("/a", 250 * MS, 100 * MS, 0, 0, 0), ("2.5 CPUs: 250ms in each 100ms", "never, in 0 periods")),
        (
            Quota("/b", 1 * MS, 1000 * MS, 340, 12, 1_840 * MS),
            ("0.001 CPUs: 1.0ms in each 1.00s, of /b", "in 12 of 340 periods, 1.84s over all CPUs"),
        ),
    ],
)
def test_a_quota_is_described(
    monkeypatch: pytest.MonkeyPatch, quota: Quota | None, expected: tuple[str, str] | None
) -> None:
    monkeypatch.setattr(module, "quota_of", giving(quota))
    monkeypatch.setattr(processes, "cgroup_of", giving("/a"))
    found = dict(read_details(os.getpid(), READS))
    assert found["cgroup"] == "/a"
    assert "container" not in found
    assert (found.get("cpu quota"), found.get("throttled")) == (expected or (None, None))


def test_a_container_shows_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/docker/1a2b3c4d5e6f{52 * '0'}"
    monkeypatch.setattr(processes, "cgroup_of", giving(path))
    details = dict(read_details(os.getpid(), READS))
    assert (details["cgroup"], details["container"]) == (path, "docker 1a2b3c4d5e6f")
