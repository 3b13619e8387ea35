"""Test the cgroup and quota of a process.

Machines of each layout are made up; the last tests use this one.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.procfs.cgroups import (
    MemoryLimit,
    Mount,
    Quota,
    cgroup_of,
    content_of,
    frozen_by,
    mounted,
    mounts_of,
    quota_at,
    quota_of,
    reached_memory_limit,
)
from offtop.kernel.procfs.processes import reading
from tests.conftest import lacks
from tests.kernel.programs import build, running, until
from tests.kernel.reads import READS

MS = 1_000_000
UNIFIED = rb"""
22 27 0:21 / /proc rw,relatime - proc proc rw
35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
36 24 0:31 / /sys/fs/net\040cls rw,nosuid shared:10 master:1 - cgroup cgroup rw,net_cls
"""
HYBRID = rb"""
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup systemd rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
NS_ROOT = "/offtop-inside"


def test_mounts_are_read_from_mountinfo() -> None:
    v2, net_cls = mounts_of(UNIFIED)
    assert v2 == Mount("/sys/fs/cgroup", "/", frozenset(), is_v2=True)
    assert net_cls == Mount("/sys/fs/net cls", "/", frozenset({"rw", "net_cls"}), is_v2=False)
    assert [mount.is_v2 for mount in mounts_of(HYBRID)] == [False, False, False, True]
    assert mounts_of(HYBRID)[0].controllers >= {"cpu", "cpuacct"}
    assert mounts_of(HYBRID)[2].controllers >= {"name=systemd"}


def test_octal_escapes_in_mountinfo_are_decoded() -> None:
    line = b"1 2 0:3 /a\\040b\\134c\\012d\r /at\\011\xff ro - cgroup2 x - y ro\n"
    assert mounts_of(line) == (Mount("/at\t\udcff", "/a b\\c\nd\r", frozenset(), is_v2=True),)


def test_empty_or_broken_mountinfo_has_no_mounts() -> None:
    assert mounts_of(b"") == mounts_of(b"\n\nnonsense\n1 2 - cgroup2\n") == ()


@given(st.binary(), st.binary())
def test_no_content_makes_it_fail(mountinfo: bytes, content: bytes) -> None:
    places = mounts_of(mountinfo + b"\n1 2 0:3 / /nowhere/" + mountinfo.replace(b"\n", b"") + b" ro - cgroup2 x ro\n")
    assert isinstance(cgroup_of(content, places), str)
    assert quota_of(content, places) is None


DOCKER_BY_FILES = (
    b"12:pids:/docker/1\n2:cpu,cpuacct:/docker/1\n1:name=systemd:/docker/1\n0::/system.slice/containerd.service\n"
)


@pytest.mark.parametrize(
    ("content", "on_unified", "on_hybrid"),
    [
        (b"0::/a\n", "/a", "/a"),
        (b"0::/\n", "/", "/"),
        (b"", "", ""),
        (b"nonsense\n", "", ""),
        (b"4:net_cls:/vpn\n0::/user.slice\n", "/user.slice", "/vpn"),
        (b"12:pids:/a\n1:name=systemd:/b\n0::/c\n", "/c", "/b"),
        (DOCKER_BY_FILES, "/system.slice/containerd.service", "/docker/1"),
        (b"9:name=systemd:/\n4:memory:/api/1\n1:cpu:/\n0::/\n", "/api/1", "/api/1"),
        (b"9:memory:/m\n8:pids:/p\n2:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/\n", "/s", "/s"),
        (b"9:memory:/longer\n8:pids:/p\n2:cpu,cpuacct:/c\n1:name=systemd:/\n0::/\n", "/c", "/c"),
        (b"9:memory:/m\n8:pids:/longer\n2:cpuacct:/longest\n1:cpu:/\n", "/m", "/m"),
        (b"9:pids:/p\n8:freezer:/longer\n", "/p", "/p"),
        (b"9:blkio:/b\n8:freezer:/longer\n7:devices:/c\n", "/longer", "/longer"),
        (b"9:memory:/\n1:name=systemd:/..\n0::/\n", "/", "/"),
        (b"9:memory:/\n1:name=systemd:/../..\n0::/../x\n", "/../x", "/../x"),
        (b"1:name=systemd:/../../system.slice/a:b\n0::/\n", "/../../system.slice/a:b", "/../../system.slice/a:b"),
        (b"0::/gone (deleted)\n", "/gone (deleted)", "/gone (deleted)"),
        (b"0::/odd\r0::\x0b\xff:\xc3\xa9\n", "/odd\r0::\x0b\udcff:é", "/odd\r0::\x0b\udcff:é"),
        (b"2:cpu:/x\n0::/told by its name\n0::/\n", "/x", "/x"),  # a name with a newline, before 5.13
    ],
)
def test_of_several_paths_the_most_specific_wins(content: bytes, on_unified: str, on_hybrid: str) -> None:
    assert cgroup_of(content) == cgroup_of(content, mounts_of(UNIFIED)) == on_unified
    assert cgroup_of(content, mounts_of(HYBRID)) == on_hybrid


def test_mounts_of_this_machine_exist() -> None:
    found = mounted()
    assert found == mounts_of(Path("/proc/self/mountinfo").read_bytes())
    assert all((Path(mount.point) / "cgroup.procs").exists() for mount in found)


V2 = (Mount("v2", "/", frozenset(), is_v2=True),)
V1 = (Mount("v2", "/", frozenset(), is_v2=True), Mount("v1", "/", frozenset({"rw", "cpu"}), is_v2=False))
"""Mounts in a made-up directory where a test writes files in the kernel's format."""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up version 2 with 20 ms in 100 ms at /a, and version 1 with 250 ms in 100 ms at /x."""
    monkeypatch.chdir(tmp_path)
    stat = "usage_usec 9\nnr_periods 340\nnr_throttled 12\nthrottled_usec 1500\nnr_bursts 0\nburst_usec 0\n"
    for directory, quota in (("v2/a", "20000 100000\n"), ("v2/a/b", "max 100000\n"), ("v2/max", "max 100000\n")):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "cpu.max").write_text(quota)
        (tmp_path / directory / "cpu.stat").write_text(stat)
    (tmp_path / "v2/a/b/without-cpu").mkdir()
    for directory, quota in (("v1", "-1\n"), ("v1/x", "250000\n"), ("v1/x/y", "-1\n")):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "cpu.cfs_quota_us").write_text(quota)
        (tmp_path / directory / "cpu.cfs_period_us").write_text("100000\n")
        (tmp_path / directory / "cpu.stat").write_text("nr_periods 7\nnr_throttled 0\nthrottled_time 1500\n")
    return tmp_path


OF_A = Quota("/a", quota_ns=20 * MS, period_ns=100 * MS, periods=340, throttled=12, throttled_ns=1_500_000)
OF_X = Quota("/x", quota_ns=250 * MS, period_ns=100 * MS, periods=7, throttled=0, throttled_ns=1500)


@pytest.mark.usefixtures("made_up")
def test_a_quota_comes_from_the_nearest_cgroup_with_one() -> None:
    for path in ("/a", "/a/b", "/a/b/without-cpu", "/a/b/gone (deleted)", "/a//b/"):
        assert quota_at(path, V2) == OF_A
    assert OF_A.cpus == 0.2
    for path in ("/x", "/x/y", "/x/gone"):
        assert quota_at(path, V1) == OF_X
    assert OF_X.cpus == 2.5


@pytest.mark.parametrize(
    ("frozen", "file"),
    [
        ("", None),
        ("v1/x/y/freezer.self_freezing", "v1/x/y/freezer.state"),
        ("v1/x/freezer.self_freezing", "v1/x/freezer.state"),
        ("v2/a/b/cgroup.freeze", "v2/a/b/cgroup.freeze"),
        ("v2/a/cgroup.freeze", "v2/a/cgroup.freeze"),
        ("v2/max/cgroup.freeze", None),
    ],
)
def test_a_process_is_frozen_by_its_cgroup_or_the_nearest_ancestor_that_is_frozen_itself(
    made_up: Path, frozen: str, file: str | None
) -> None:
    for directory in ("v1", "v1/x", "v1/x/y"):  # the root of version 1 has no such file
        if directory != "v1":
            (made_up / directory / "freezer.self_freezing").write_text("0\n")
    for directory in ("v2/a", "v2/a/b", "v2/max"):
        (made_up / directory / "cgroup.freeze").write_text("0\n")
    if frozen:
        (made_up / frozen).write_text("1\n")
    v1 = Mount("v1", "/", frozenset({"rw", "freezer"}), is_v2=False)
    content = b"4:freezer:/x/y\n3:memory:/a\n0::/a/b\n"
    assert frozen_by(content, (*V2, v1)) == (Path(file) if file else None)
    assert frozen_by(b"", (*V2, v1)) is None
    assert frozen_by(content, ()) is None


@pytest.mark.parametrize(
    ("used", "limits", "reached"),
    [
        ({}, {}, None),
        ({"v2/a/b": 100}, {"v2/a/b/memory.max": "max", "v2/a/b/memory.high": "max"}, None),
        ({"v2/a/b": 89}, {"v2/a/b/memory.max": "100"}, None),
        ({"v2/a/b": 90}, {"v2/a/b/memory.max": "100"}, "v2/a/b/memory.max"),
        ({"v2/a/b": 200}, {"v2/a/b/memory.max": "200", "v2/a/b/memory.high": "190"}, "v2/a/b/memory.high"),
        ({"v2/a/b": 50, "v2/a": 100}, {"v2/a/b/memory.max": "80", "v2/a/memory.max": "100"}, "v2/a/memory.max"),
        ({"v2/a/b": 80, "v2/a": 100}, {"v2/a/b/memory.max": "80", "v2/a/memory.max": "100"}, "v2/a/b/memory.max"),
        ({"v2/a/b": 76, "v2/a": 100}, {"v2/a/b/memory.max": "80", "v2/a/memory.max": "100"}, "v2/a/memory.max"),
        ({"v2/a/b": 80, "v2/a": 99}, {"v2/a/b/memory.high": "70", "v2/a/memory.max": "99"}, "v2/a/b/memory.high"),
        ({"v1/x": 100}, {"v1/x/memory.limit_in_bytes": "100"}, "v1/x/memory.limit_in_bytes"),
        ({"v1/x": 100}, {"v1/x/memory.limit_in_bytes": str((1 << 63) - 4096)}, None),
    ],
)
def test_memory_limit_that_is_reached_is_the_one_of_which_most_is_used(
    made_up: Path, used: dict[str, int], limits: dict[str, str], reached: str | None
) -> None:
    for directory, number in used.items():
        name = "memory.current" if directory.startswith("v2") else "memory.usage_in_bytes"
        (made_up / directory / name).write_text(f"{number}\n")
    for file, limit in limits.items():
        (made_up / file).write_text(f"{limit}\n")
    v1 = Mount("v1", "/", frozenset({"rw", "memory"}), is_v2=False)
    content = b"4:memory:/x/y\n0::/a/b\n"
    found = reached_memory_limit(content, (*V2, v1))
    assert found == (MemoryLimit(Path(reached), int(limits[reached])) if reached else None)
    assert reached_memory_limit(content, ()) is None


def test_a_file_longer_than_one_read_is_read_to_its_end(made_up: Path) -> None:
    stat = made_up / "v2/a/cpu.stat"
    stat.write_text("usage_usec 9\n" * 10_000 + stat.read_text())
    assert quota_at("/a", V2) == OF_A


@pytest.mark.usefixtures("made_up")
def test_no_quota_is_none() -> None:
    for path in (
        "",
        "/",
        "/max",
        "/gone",
        "a/../a",
        "/a/../a",
        "/../a",
        "/./a",
        "/\0",
        "/\ud800",
        "/x" * 500,
        "x" * 5000,
    ):
        assert quota_at(path, V2) is None
    for path in ("", "/", "/a"):
        assert quota_at(path, V1) is None
    assert quota_at("/a", ()) is None


@pytest.mark.usefixtures("made_up")
def test_a_quota_is_looked_up_where_the_cpu_controller_is() -> None:
    content = b"3:memory:/a\n2:cpu,cpuacct:/x/y\n1:name=systemd:/a\n0::/a/b\n"
    assert quota_of(content, V1) == OF_X
    assert quota_of(content, V2) == OF_A
    assert quota_of(b"1:name=systemd:/a\n", V1) is None
    assert quota_of(b"", V2) is None
    assert quota_of(content, ()) is None


@pytest.mark.usefixtures("made_up")
def test_a_mount_may_start_below_the_root_or_outside_the_namespace() -> None:
    def at(root: str) -> tuple[Mount, ...]:
        return (Mount("v2", root, frozenset(), is_v2=True),)

    assert quota_at("/docker/1/a/b", at("/docker/1")) == OF_A._replace(path="/docker/1/a")
    assert quota_at("/../../a/b", at("/../..")) == OF_A._replace(path="/../../a")
    itself = (Mount("v2/a", "/docker/1", frozenset(), is_v2=True),)  # as in a container, which sees only its own cgroup
    for path in ("/docker/1", "/docker/1/b", "/docker/1/gone"):
        assert quota_at(path, itself) == OF_A._replace(path="/docker/1")
    for path, root in (("/docker/2/a", "/docker/1"), ("/a", "/.."), ("/../a", "/../.."), ("/../../a", "/..")):
        assert quota_at(path, at(root)) is None  # not reachable, or not by names we know


@pytest.mark.parametrize(
    "stat", ["", "nr_periods 1\n", "nr_periods\n", "nr_periods x\nnr_throttled 0\nthrottled_usec 0\n"]
)
def test_torn_values_are_not_reported(made_up: Path, stat: str) -> None:
    (made_up / "v2/a/cpu.stat").write_text(stat)
    assert quota_at("/a", V2) is None
    (made_up / "v2/max/cpu.max").write_text("1000 0\n")
    assert quota_at("/max", V2) is None


# --- a real kernel ---


def write(group: Path, name: str, value: str) -> None:
    (group / name).write_text(value)


@contextmanager
def group(name: str, quota_us: int = 0) -> Generator[Path]:
    """Make a cgroup with the CPU controller and a quota per 100 ms; remove it at the end."""
    v1 = [mount for mount in mounted() if "cpu" in mount.controllers]
    v2 = [mount for mount in mounted() if mount.is_v2]
    if not v1 and not (v2 and "cpu" in (Path(v2[0].point) / "cgroup.controllers").read_text().split()):
        lacks("a CPU controller of control groups")
    top = Path((v1 or v2)[0].point)
    if not v1:
        write(top, "cgroup.subtree_control", "+cpu")
    made = top / f"offtop-{os.getpid()}-{name}"
    made.mkdir()
    try:
        if quota_us and v1:
            write(made, "cpu.cfs_period_us", "100000")
            write(made, "cpu.cfs_quota_us", str(quota_us))
        elif quota_us:
            write(made, "cpu.max", f"{quota_us} 100000")
        yield made
    finally:
        remove(made)


def remove(group: Path) -> None:
    """Remove the cgroup once the kernel has reaped its last process."""
    end_s = time.monotonic() + 10
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.01)


@contextmanager
def child(place: Path, *command: str) -> Generator[int]:
    """Run a process in the cgroup `place` and yield its PID; kill it at the end."""
    script = 'echo $$ > "$1/cgroup.procs" && shift && echo in && exec "$@"'
    process = subprocess.Popen(["sh", "-c", script, "sh", str(place), *command], stdout=subprocess.PIPE)
    assert process.stdout
    try:
        assert process.stdout.readline() == b"in\n"
        yield process.pid
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.mark.kernel
def test_a_throttled_spinner_has_its_quota() -> None:
    with group("spins", quota_us=10_000) as place:
        inner = place / "inner"  # without a quota of its own
        inner.mkdir()
        try:
            with child(inner, "sh", "-c", "while :; do :; done") as pid:
                first = quota_of(content_of(pid), mounted())
                assert first
                assert (first.quota_ns, first.period_ns, first.cpus) == (10 * MS, 100 * MS, 0.1)
                assert first.path == f"/{place.name}"
                began_ns = time.monotonic_ns()
                while (now := quota_of(content_of(pid), mounted())) and now.throttled < first.throttled + 5:
                    assert time.monotonic_ns() < began_ns + 30_000 * MS
                    time.sleep(0.05)
                assert now
                assert now.periods >= now.throttled
                assert MS < now.throttled_ns - first.throttled_ns < time.monotonic_ns() - began_ns + 200 * MS
        finally:
            remove(inner)


@pytest.mark.kernel
def test_a_process_is_in_its_cgroup_under_any_name() -> None:
    with group(os.fsdecode(b"a:b \r\xff (deleted)\xc3\xa9")) as place, child(place, "sleep", "1000") as pid:
        found = reading(READS, pid)
        assert found
        systemd = [
            line for line in content_of(pid).split(b"\n") if b":name=systemd:" in line and not line.endswith(b":/")
        ]
        if not systemd:  # otherwise it is where we are, and reports that
            assert found.details.cgroup == f"/{place.name}"
        assert quota_of(content_of(pid), mounted()) is None


HEADLESS = r"""
#include <pthread.h>
static void *other(void *unused) { for (;;) pause(); return unused; }
int main(void) {
    pthread_t ends, stays;
    pthread_create(&ends, 0, (void *(*)(void *))pthread_exit, 0);
    pthread_create(&stays, 0, other, 0);
    next();
    pthread_exit(0);
}
"""


@pytest.mark.kernel
def test_a_process_keeps_its_cgroup_when_its_main_thread_exits(tmp_path: Path) -> None:
    with (
        group("headless", quota_us=50_000) as place,
        running([build(tmp_path / "a) Z (b", HEADLESS, "-pthread")]) as app,
    ):
        write(place, "cgroup.procs", str(app.pid))
        before = content_of(app.pid)
        assert f":/{place.name}\n".encode() in before
        app.go_on_alone()
        until(lambda: b") Z " in Path(f"/proc/{app.pid}/stat").read_bytes())
        assert content_of(app.pid) == before
        assert quota_of(before, mounted())


def test_an_exited_process_has_no_cgroup_or_the_root() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert content_of(process.pid) == Path(f"/proc/{process.pid}/cgroup").read_bytes()
    process.wait(10)
    assert content_of(process.pid) == content_of(-1) == b""


@pytest.mark.kernel
def test_a_cgroup_name_cannot_have_a_newline() -> None:
    with pytest.raises(OSError), group("a\nb"):
        pass


@pytest.mark.kernel
def test_a_cgroup_outside_the_namespace_has_its_quota() -> None:
    """Read about a cgroup beside one's own from inside a cgroup namespace.

    The reader has the whole hierarchy mounted.
    """
    if not shutil.which("unshare"):
        lacks("unshare")
    with group("inside") as inside, group("beside", quota_us=50_000) as beside, child(beside, "sleep", "1000") as pid:
        script = f'echo $$ > "{inside}/cgroup.procs" && exec unshare -C cat /proc/{pid}/cgroup /proc/self/mountinfo'
        output = subprocess.run(["sh", "-c", script], capture_output=True, check=True, timeout=30).stdout
        places = mounts_of(output)
        seen = output[: output.index(b" - ")]
        assert f":/../{beside.name}\n".encode() in seen
        found = quota_of(output, places)
        assert found
        assert (found.path, found.cpus) == (f"/../{beside.name}", 0.5)
        assert {mount.root for mount in places} >= {"/.."}
