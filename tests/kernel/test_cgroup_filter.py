"""Test --cgroup on the real kernel.

Exactly one cgroup and its descendants count, in any hierarchy.
"""

import os
import re
import subprocess
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from offtop.errors import UsageError
from offtop.kernel.bpf import features, libbpf
from offtop.kernel.procfs import cgroup_selector
from offtop.kernel.procfs.cgroup_selector import Cgroup, find
from offtop.kernel.procfs.cgroups import Mount, mounted
from offtop.model.values.snapshot import Filters
from tests.conftest import lacks
from tests.kernel import waits, watch
from tests.kernel.procfs.test_cgroups import remove
from tests.kernel.test_counts import wait_until_asleep
from tests.kernel.test_filters import counted, is_settled, keys_of, since
from tests.kernel.watch import MS

FORKS = """
while read go; do
    for i in 1 2 3; do sleep 0.05; done
    echo done
done
"""


class Place:
    """A hierarchy in which tests make cgroups."""

    def __init__(self, top: Path, stack: ExitStack) -> None:
        self.top, self._stack = top, stack

    def make(self, name: str) -> Path:
        """Make a cgroup; it is removed at the end of the test."""
        made = self.top / name
        made.mkdir()
        self._stack.callback(remove, made)
        return made

    def path(self, made: Path) -> str:
        return f"/{made.relative_to(self.top)}"


@pytest.fixture(params=["v1", "v2"])
def place(request: pytest.FixtureRequest) -> Generator[Place]:
    usable = [mount for mount in mounted() if mount.is_v2 or mount.controllers & {"cpu", "memory", "pids"}]
    mount = next((mount for mount in usable if mount.is_v2 is (request.param == "v2")), None)
    if mount is None:
        lacks(f"control groups of version {request.param[1]}, mounted")
    with ExitStack() as stack:
        yield Place(Path(mount.point), stack)


def name(of: str) -> str:
    return f"offtop-{os.getpid()}-{of}"


def put(pid: int, into: Path) -> None:
    (into / "cgroup.procs").write_text(str(pid))


@contextmanager
def sleeping(into: Path, times: int = 23, each_ms: int = 10) -> Generator[waits.Child]:
    with waits.running("sleep", times=times, each_ms=each_ms) as child:
        put(child.pid, into)
        yield child


@pytest.mark.kernel
@pytest.mark.parametrize("probe", ["auto", "switch"])
def test_only_the_selected_cgroup_and_its_descendants_count(place: Place, probe: str) -> None:
    one, other = place.make(name("one")), place.make(name("one2"))
    inner = place.make(f"{one.name}/inner")
    with (
        sleeping(one) as child,
        sleeping(inner) as below,
        sleeping(other) as outside,
        watch.watching_kernel_stacks(Filters(cgroup=place.path(one)), probe=probe) as live,
    ):
        live.tick()
        before = {tid: watch.switches(tid) for tid in (child.tid, below.tid)}
        for each in (child, below, outside):
            each.go()
        windows = [live.tick(0.1)]
        for each in (child, below, outside):
            each.finish()
        wait_until_asleep(child.tid, below.tid)
        windows.append(live.tick())
        assert {key.pid for window in windows for key in keys_of(window)} == {child.pid, below.pid}
        for tid, was in before.items():
            # Switch-ins that this kernel does not trace: see test_switch_in_probes.py.
            missed = sum(window.lost.get("events", 0) for window in windows) if probe == "switch" else 0
            watch.check_sleeps(windows, tid, 23, missed)
            assert sum(since(was, tid)) - missed <= sum(counted(windows, tid)) <= sum(since(was, tid))
            assert missed or counted(windows, tid) == since(was, tid)
        live.source.set_filters(Filters(cgroup=place.path(inner)))
        live.tick(0.1)
        window = live.tick(0.1)
        assert {key.pid for key in keys_of(window) if is_settled(key, window)} == {below.pid}
        assert watch.thread(window, below.tid).offcpu_ns == window.span_ns


@pytest.mark.kernel
def test_processes_forked_there_count_from_their_start(place: Place) -> None:
    made = place.make(name("forks"))
    shell = subprocess.Popen(["sh", "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert shell.stdin and shell.stdout
    try:
        put(shell.pid, made)
        with watch.watching_kernel_stacks(Filters(cgroup=place.path(made))) as live:
            live.tick()
            print("go", file=shell.stdin, flush=True)
            assert shell.stdout.readline() == "done\n"
            window = live.tick()
            names = [window.catalog.comm(key) for key in keys_of(window) if key.pid not in (0, shell.pid)]
            slept = sum(
                part.waits for part in (watch.by_category(window, tid).get("sleep") for tid in tids(window)) if part
            )
            assert names == ["sleep"] * 3
            assert slept == 3
    finally:
        shell.kill()
        shell.wait(10)
        shell.stdin.close()
        shell.stdout.close()


def tids(window: watch.Window) -> list[int]:
    return [key.tid for key in keys_of(window)]


@pytest.mark.kernel
def test_a_moved_thread_counts_where_its_waits_begin(place: Place) -> None:
    here, there = place.make(name("here")), place.make(name("there"))
    with (
        sleeping(here, times=40) as child,
        watch.watching_kernel_stacks(Filters(cgroup=place.path(here))) as of_here,
        watch.watching_kernel_stacks(Filters(cgroup=place.path(there))) as of_there,
    ):
        of_here.tick()
        of_there.tick()
        before = watch.switches(child.tid)
        child.go()
        time.sleep(0.1)
        put(child.pid, there)
        moved = [of_here.tick(), of_there.tick(0.05)]
        put(child.pid, here)
        time.sleep(0.05)
        put(child.pid, there)
        child.finish()
        wait_until_asleep(child.tid)
        at_here, at_there = [moved[0], of_here.tick()], [moved[1], of_there.tick()]
        left, put_aside = (
            a + b for a, b in zip(counted(at_here, child.tid), counted(at_there, child.tid), strict=True)
        )
        assert (left, put_aside) == since(before, child.tid)
        for windows in (at_here, at_there):
            assert counted(windows, child.tid)[0] >= 5
        assert watch.thread(of_here.tick(0.1), child.tid).offcpu_ns == 0
        last = of_there.tick(0.1)
        assert 0 < watch.thread(last, child.tid).offcpu_ns <= last.span_ns


@pytest.mark.kernel
def test_a_moved_sleeper_changes_sides_at_the_next_full_scan(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = place.make(name("here")), place.make(name("there"))
    with (
        sleeping(here, times=3) as child,
        watch.watching_kernel_stacks(Filters(cgroup=place.path(here))) as of_here,
        watch.watching_kernel_stacks(Filters(cgroup=place.path(there))) as of_there,
    ):
        of_here.tick()
        of_there.tick()
        put(child.pid, there)
        asleep, elsewhere = of_here.tick(0.1), of_there.tick()
        assert watch.thread(asleep, child.tid).offcpu_ns == asleep.span_ns
        assert watch.thread(elsewhere, child.tid).offcpu_ns == 0
        monkeypatch.setattr("offtop.kernel.live._PRIME_CGROUP_NS", 0)
        of_here.tick()
        of_there.tick()
        asleep, elsewhere = of_there.tick(0.1), of_here.tick()
        assert watch.thread(asleep, child.tid).offcpu_ns == asleep.span_ns
        assert watch.thread(elsewhere, child.tid).offcpu_ns == 0
        before = watch.switches(child.tid)
        child.go()
        child.finish()
        wait_until_asleep(child.tid)
        assert counted([of_here.tick()], child.tid) == (0, 0)
        assert counted([of_there.tick()], child.tid) == since(before, child.tid)


@pytest.mark.kernel
def test_narrowing_to_a_cgroup_and_widening_counts_no_time_twice(place: Place) -> None:
    made = place.make(name("narrow"))
    with (
        sleeping(made, times=1, each_ms=5000) as child,
        waits.running("sleep", times=1, each_ms=10) as other,
        watch.watching_kernel_stacks() as live,
    ):
        child.go()
        live.tick(0.1)
        wide = [live.tick(0.1) for _ in range(2)]
        live.source.set_filters(Filters(cgroup=place.path(made)))
        narrow = [live.tick(0.1) for _ in range(3)]
        live.source.set_filters(Filters())
        again = [live.tick(0.1) for _ in range(3)]
        for window in (*wide, *narrow, *again):
            assert watch.by_category(window, child.tid)["sleep"].total_ns == window.span_ns
        for window in (*wide, *again[1:]):
            assert watch.by_category(window, other.tid)["pipe"].total_ns == window.span_ns
        assert [watch.thread(window, other.tid).offcpu_ns for window in narrow] == [0, 0, 0]
        other.go()
        other.finish()
        last = live.tick(0.02)
        assert watch.thread(last, other.tid).offcpu_ns <= last.span_ns + 50 * MS


@pytest.mark.kernel
def test_with_a_process_filter_both_must_match(place: Place) -> None:
    made = place.make(name("both"))
    with sleeping(made) as child, sleeping(made) as other, waits.running("sleep", times=0) as outside:
        pids = (child.pid, outside.pid)
        with watch.watching_kernel_stacks(Filters(pids=pids, cgroup=place.path(made))) as live:
            live.tick()
            window = live.tick(0.1)
            assert {key.pid for key in keys_of(window)} == {child.pid}
            assert other.pid not in pids
        with watch.watching_kernel_stacks(Filters(who="kernel", cgroup=place.path(made))) as live:
            live.tick()
            assert keys_of(live.tick(0.1)) == set()


@pytest.mark.kernel
def test_a_recreated_cgroup_is_followed(place: Place) -> None:
    made = place.make(name("again"))
    path = place.path(made)
    with ExitStack() as stack:
        child = stack.enter_context(sleeping(made))
        live = stack.enter_context(watch.watching_kernel_stacks(Filters(cgroup=path)))
        live.tick()
        assert watch.thread(live.tick(0.1), child.tid).offcpu_ns > 0
        child.end()
        was = made.stat().st_ino
        remove(made)
        without = live.tick(0.1)
        assert [key for key in keys_of(without) if is_settled(key, without)] == []
        made.mkdir()
        assert made.stat().st_ino != was
        live.source.set_filters(Filters(cgroup=path))  # which finds the new one before the next tick does
        with sleeping(made) as child:
            live.tick()
            window = live.tick(0.1)
            assert watch.thread(window, child.tid).offcpu_ns == window.span_ns
            assert live.source.read() is not None


@pytest.mark.kernel
def test_an_unknown_cgroup_is_refused_and_counting_goes_on(place: Place) -> None:
    made = place.make(name("there"))
    with (
        pytest.raises(UsageError, match="there is no cgroup"),
        watch.watching_kernel_stacks(Filters(cgroup="/not-there")),
    ):
        pass
    with sleeping(made) as child, watch.watching_kernel_stacks(Filters(cgroup=place.path(made))) as live:
        live.tick()
        with pytest.raises(UsageError, match=f"there is no cgroup '/{name('ther')}' here. Is it /{name('there')}"):
            live.source.set_filters(Filters(cgroup=f"/{name('ther')}"))
        assert {key.pid for key in keys_of(live.tick(0.1))} == {child.pid}


@pytest.mark.kernel
def test_each_way_to_name_a_cgroup_finds_the_same(place: Place) -> None:
    made = place.make(name("ways"))
    found = find(place.path(made))
    assert (found.directory, found.level, found.id) == (made, 1, made.stat().st_ino)
    for way in (str(made), f"{made}/", made.name, f"/{made.name}/"):
        assert find(way) == found
    container = place.make("1a2b3c4d5e6f" + "0" * 39 + f"{os.getpid():013}")
    for way in (container.name, container.name[:12], "1a2b3c4", "docker 1a2b3c4d5e6f"):
        assert find(way).directory == container
    service = place.make(f"{name('web')}.service")
    inside = place.make(f"{service.name}/inside")
    for way in (service.name, name("web")):
        assert find(way).directory == service
    assert find(f"{service.name}/inside").directory == inside


@pytest.mark.kernel
def test_kernel_types_list_each_hierarchy() -> None:
    found = features.detect(libbpf.KernelTypes()).hierarchies
    lines = Path("/proc/cgroups").read_text().splitlines()[1:]
    assert set(found) == {"", *(line.split()[0] for line in lines)}
    assert len({*found.values()}) == len(found)


# --- made-up machines ---

ID, OTHER = "1a2b3c4d5e6f" + 52 * "0", "1a2b9999" + 56 * "0"


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Mount, ...]:
    """Set up a hybrid machine: directories, and a line in `cgroup.procs` for each process."""

    def depth_of_root(hierarchy: str) -> int:
        return 0 if hierarchy else 2

    monkeypatch.setattr(cgroup_selector, "_depth_of_root", depth_of_root)
    for at, processes in {
        "v2/system.slice/mysql.service": 1,
        "v2/system.slice/mysql.service/io": 1,
        "v2/user.slice/a/app.service": 0,
        "v2/user.slice/b/app.service": 0,
        f"v2/machine.slice/libpod-{OTHER}.scope": 1,
        f"v2/machine.slice/libpod-conmon-{OTHER}.scope": 1,
        "v2/both": 1,
        "cpu/both": 9,
        "cpu/same": 3,
        "v2/same": 3,
        f"cpu/docker/{ID}": 2,
        f"cpu/docker/{ID}/init.scope": 1,
        f"memory/docker/{ID}": 2,
        "systemd/only.slice": 1,
        "systemd/same": 3,
    }.items():
        (tmp_path / at).mkdir(parents=True)
        (tmp_path / at / "cgroup.procs").write_text("1\n" * processes)
    return (
        Mount(str(tmp_path / "v2"), "/", frozenset(), is_v2=True),
        *(
            Mount(str(tmp_path / of), "/", frozenset({"rw", one}), is_v2=False)
            for of, one in (("memory", "memory"), ("cpu", "cpu"), ("systemd", "name=systemd"))
        ),
    )


def hierarchy(made_up: tuple[Mount, ...], text: str) -> tuple[str, str, int]:
    found = find(text, made_up)
    return found.path, found.hierarchy, found.level


def test_of_several_hierarchies_the_one_with_most_processes_wins(made_up: tuple[Mount, ...]) -> None:
    assert hierarchy(made_up, "/both") == ("/both", "cpu", 1)
    assert hierarchy(made_up, "/same") == ("/same", "", 3)
    assert hierarchy(made_up, ID[:9]) == (f"/docker/{ID}", "cpu", 2)
    assert hierarchy(made_up, "mysql") == ("/system.slice/mysql.service", "", 4)
    assert hierarchy(made_up, "system.slice/mysql.service/io") == ("/system.slice/mysql.service/io", "", 5)


def test_a_directory_selects_its_own_hierarchy(made_up: tuple[Mount, ...]) -> None:
    of_memory = str(Path(made_up[1].point, "docker", ID))
    found = find(of_memory, made_up)
    assert (found.path, found.hierarchy, found.level) == (of_memory, "memory", 2)
    assert find(found.path, made_up) == found
    assert hierarchy(made_up, str(Path(made_up[0].point, "both"))) == (str(Path(made_up[0].point, "both")), "", 3)
    assert hierarchy(made_up, str(Path(made_up[2].point, "both"))) == ("/both", "cpu", 1)
    assert hierarchy(made_up, str(Path(made_up[3].point, "same"))) == ("/same", "", 3)  # systemd's own is unusable
    assert hierarchy(made_up, f"{made_up[1].point}/") == (made_up[1].point, "memory", 0)


def test_a_containers_monitor_and_children_do_not_match_its_id(made_up: tuple[Mount, ...]) -> None:
    assert find(OTHER[:8], made_up).path == f"/machine.slice/libpod-{OTHER}.scope"
    assert find("conmon 1a2b99990000", made_up).path == f"/machine.slice/libpod-conmon-{OTHER}.scope"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the name is empty"),
        ("mysqld.service", "there is no cgroup 'mysqld.service' here. Is it /system.slice/mysql.service"),
        ("mysq", "there is no cgroup 'mysq' here. Is it /system.slice/mysql.service? List them with: "),
        ("/system.slice/mysqld", "there is no cgroup '/system.slice/mysqld' here. Is it "),
        ("zzzzzzzz", "there is no cgroup 'zzzzzzzz' here. List them with: "),
        ("app", "'app' matches 2 cgroups: /user.slice/a/app.service, /user.slice/b/app.service. Give the path of one"),
        ("1a2b", "'1a2b' matches 2 cgroups: /docker/1a2b3c4d5e6f"),
        ("/only.slice", "/only.slice is only in a hierarchy without a controller"),
        ("only.slice", "there is no cgroup 'only.slice' here"),
        ("/..", "there is no cgroup '/..' here"),
        ("/same/../both", "there is no cgroup '/same/../both' here"),
        ("/a\0b", "there is no cgroup '/a\\x00b' here"),
        ("/" + "x" * 300, "there is no cgroup '/xxx"),
        ("\x1b[2J\udcff", "there is no cgroup '\\x1b[2J"),
    ],
)
def test_an_unknown_cgroup_is_refused_with_suggestions(made_up: tuple[Mount, ...], text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        find(text, made_up)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 800


def test_without_mounts_there_is_no_cgroup() -> None:
    with pytest.raises(UsageError, match="there is no cgroup '/' here"):
        find("/", ())


def test_paths_start_where_the_mount_does(made_up: tuple[Mount, ...]) -> None:
    inside = (made_up[0]._replace(root="/docker/1"),)
    found = find("/docker/1/both", inside)
    assert (found.path, found.level, found.directory.name) == ("/docker/1/both", 5, "both")
    outside = (made_up[0]._replace(root="/.."),)  # in a namespace two levels below the root
    assert find("/../both", outside)[:4] == ("/../both", Path(made_up[0].point, "both"), "", 2)


def test_a_removed_cgroup_stays_what_it_was(made_up: tuple[Mount, ...]) -> None:
    found = find("/both", made_up)
    assert found.current() == found
    gone = Cgroup("/gone", Path(made_up[0].point, "gone"), "", 1, 7)
    assert gone.current() == gone
    with pytest.raises(OSError), suppress(ValueError), gone.opened():
        pass
