"""A cgroup path names its container or unit, in the form of the software that created it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values.container import NOTHING, Container, container, label, names, place

ID = "1a2b3c4d5e6f" + 52 * "0"
INNER = "abcdef012345" + 52 * "9"
SHORT, SHORT_INNER = "1a2b3c4d5e6f", "abcdef012345"
UID = "5d6e7f80-1111-2222-3333-444455556666"
UID_ = UID.replace("-", "_")
STATIC = "0f1e2d3c" + 24 * "b"
"""The UID of a pod that comes from a file."""
BUILD = "osh60k53lspy0g0cjo94ur00h"
TASK = "c23e5f76c09d438aa1824ca4058bdcab"
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"
USER = "/user.slice/user-1000.slice"
POD = f"pod 5d6e7f80/{SHORT}"
POD_FULL = f"{UID}/{ID}"

CONTAINERS = (
    (f"/system.slice/docker-{ID}.scope", "docker", SHORT, ID),
    (f"/docker/{ID}", "docker", SHORT, ID),
    (f"/{ID}", "docker", SHORT, ID),  # --cgroup-parent=/
    (f"/builders/night/{ID}", "docker", SHORT, ID),
    (f"/system.slice:docker:{ID}", "docker", SHORT, ID),
    (f"/docker/{ID} (deleted)", "docker", SHORT, ID),
    (f"/../docker-{ID}.scope", "docker", SHORT, ID),
    (f"/docker/buildkit/{BUILD}", "docker", "build osh60k53lspy", BUILD),
    (f"/system.slice/docker-{BUILD}.scope", "docker", "build osh60k53lspy", BUILD),
    (f"/system.slice/system.slice:docker:{BUILD}", "docker", "build osh60k53lspy", BUILD),
    (f"/ecs/{TASK}/{ID}", "docker", SHORT, ID),
    (f"/ecstasks.slice/ecstasks-{TASK}.slice/docker-{ID}.scope", "docker", SHORT, ID),
    (f"/ecs/{TASK}/{TASK}-1234567890", "containerd", "c23e5f76c09d-1234567890", f"{TASK}-1234567890"),
    (f"/machine.slice/libpod-{ID}.scope", "podman", SHORT, ID),
    (f"/machine.slice/libpod-{ID}.scope/container", "podman", SHORT, ID),
    (f"{USER}/user@1000.service/user.slice/libpod-{ID}.scope/container", "podman", SHORT, ID),
    (f"/machine.slice/machine-libpod_pod_{INNER}.slice/libpod-{ID}.scope", "podman", SHORT, ID),
    (f"/system.slice/web.service/libpod-payload-{ID}", "podman", SHORT, ID),
    (f"/libpod_parent/libpod-{ID}", "podman", SHORT, ID),
    (f"/machine.slice/libpod-conmon-{ID}.scope", "podman", f"conmon {SHORT}", ID),
    (f"/k8s.io/{ID}", "containerd", SHORT, ID),
    (f"/default/{ID}", "containerd", SHORT, ID),
    ("/default/web-1", "containerd", "web-1", "web-1"),
    ("/../default/web-1", "containerd", "web-1", "web-1"),
    (f"/system.slice/nerdctl-{ID}.scope", "containerd", SHORT, ID),
    (f"/system.slice/cri-containerd-{ID}.scope", "containerd", SHORT, ID),
    (f"/system.slice/crio-{ID}.scope", "crio", SHORT, ID),
    (f"/system.slice/crio-conmon-{ID}.scope", "crio", f"conmon {SHORT}", ID),
    (f"{BURSTABLE}/cri-containerd-{ID}.scope", "kubernetes", POD, POD_FULL),
    (f"{BURSTABLE}/crio-{ID}.scope/container", "kubernetes", POD, POD_FULL),
    (f"{BURSTABLE}/docker-{ID}.scope", "kubernetes", POD, POD_FULL),
    (f"{BURSTABLE}/crio-conmon-{ID}.scope", "kubernetes", f"pod 5d6e7f80/conmon {SHORT}", POD_FULL),
    (f"{BURSTABLE}/kata_overhead", "kubernetes", "pod 5d6e7f80", UID),
    (BURSTABLE, "kubernetes", "pod 5d6e7f80", UID),
    (f"/kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope", "kubernetes", POD, POD_FULL),
    (f"/kubepods/burstable/pod{UID}/{ID}", "kubernetes", POD, POD_FULL),
    (f"/kubepods/pod{UID}/crio-{ID}", "kubernetes", POD, POD_FULL),
    (f"/kubepods/pod{STATIC}/{ID}", "kubernetes", f"pod 0f1e2d3c/{SHORT}", f"{STATIC}/{ID}"),
    (
        f"/system.slice/containerd.service/kubepods-besteffort-pod{UID_}.slice:cri-containerd:{ID}",
        "kubernetes",
        POD,
        POD_FULL,
    ),
    ("/lxc.payload.web", "lxc", "web", "web"),
    ("/lxc.payload.web.two-1/init.scope", "lxc", "web.two-1", "web.two-1"),
    ("/lxc.payload/web", "lxc", "web", "web"),
    ("/lxc.monitor.web", "lxc", "monitor web", "web"),
    ("/lxc.monitor/web", "lxc", "monitor web", "web"),
    ("/lxc/101/ns/system.slice/mysql.service", "lxc", "101", "101"),
    (r"/machine.slice/machine-lxc\x2d2\x2dold\x2dbox.scope", "lxc", "old-box", "old-box"),
    (r"/machine.slice/machine-my\x2dbox.scope/payload", "nspawn", "my-box", "my-box"),
    ("/machine.slice/systemd-nspawn@my-box.service/payload", "nspawn", "my-box", "my-box"),
    (r"/machine.slice/systemd-nspawn@\xc3\xa4.service", "nspawn", "ä", "ä"),
)
UNITS = (
    ("/system.slice/mysql.service", "mysql.service"),
    ("/system.slice/mysql.service (deleted)", "mysql.service"),
    ("/../system.slice/mysql.service", "mysql.service"),
    ("/system.slice/system-postgresql.slice/postgresql@15-main.service", "postgresql@15-main.service"),
    ("/system.slice/slurmd.service/job_12/step_0", "slurmd.service"),
    ("/init.scope", "init.scope"),
    (f"{USER}/user@1000.service/init.scope", "user@1000.service"),
    (f"{USER}/user@1000.service/app.slice/foo.service", "foo.service"),
    (f"{USER}/user@1000.service/app.slice/app-gnome-firefox-2345.scope", "app-gnome-firefox.scope"),
    (f"{USER}/user@1000.service/app.slice/app-org.kde.kate@{TASK}.service", "app-org.kde.kate.service"),
    (f"{USER}/user@1000.service/app.slice/app-blueman@autostart.service", "app-blueman@autostart.service"),
    (f"{USER}/user@1000.service/app.slice/vte-spawn-{UID}.scope", "vte-spawn.scope"),
    (f"/system.slice/run-r{TASK}.scope", "run-rc23e5f76c09d….scope"),
    (rf"/system.slice/systemd-fsck@disk-by\x2duuid-{UID}.service", f"systemd-fsck@disk-by-uuid-{UID}.service"),
    (r"/system.slice/caf\xc3\xa9\x2dbar.service", "café-bar.service"),
    (r"/system.slice/a\xff.service", "a\udcff.service"),
    (r"/machine.slice/machine-qemu\x2d1\x2dwin.scope/libvirt/emulator", "machine-qemu-1-win.scope"),
    ("/system.slice/cups.socket", "cups.socket"),
    ("/system.slice/web.service/runtime", "web.service"),  # beside libpod-payload
    (f"/system.slice/docker-{SHORT}.scope", f"docker-{SHORT}.scope"),  # no id of Docker's
)
NEITHER = (
    "", "/", "/..", "/../..", "/foo", "/../foo", "foo", "//", "/user.slice", "/system.slice/.service (deleted)x",
    f"/process_api/{TASK}", "/docker", "/docker/web", "/lxc", "/lxc.payload.", "/kubepods/burstable", "/default",
    "/default/-", "/a/default/web", f"/{ID[1:]}", f"/{ID}0", f"/{ID.upper()}", f"/ecs/{TASK}/{ID[:32]}-123",
    "/kubepods/pod1234", " (deleted)", "/x/buildkit/short", f"/builds/{BUILD}", f"/docker-{ID}0",
    f"/libpod-{ID}.scope.old", "/yarn/container_1",
)  # fmt: skip


@pytest.mark.parametrize(("path", "kind", "name", "full"), CONTAINERS)
def test_container_is_named_by_the_runtime_that_created_it(path: str, kind: str, name: str, full: str) -> None:
    assert container(path) == Container(kind, name, full)


@pytest.mark.parametrize(("path", "kind", "name", "full"), CONTAINERS)
def test_cgroups_inside_a_container_belong_to_it(path: str, kind: str, name: str, full: str) -> None:
    path = path.removesuffix(" (deleted)")
    for inside in ("/system.slice/mysql.service", "/user.slice/user-0.slice/session-1.scope", "/init.scope", "/x y"):
        assert container(path + inside) == container(path)


@pytest.mark.parametrize(("path", "kind", "name", "full"), CONTAINERS)
def test_innermost_of_nested_containers_is_named(path: str, kind: str, name: str, full: str) -> None:
    path = path.removesuffix(" (deleted)")
    if kind == "kubernetes" and "/" not in name:
        path = f"{path}/{SHORT}/{ID}"  # a pod has not begun a container here, else the next one would be its own
    assert container(f"{path}/docker/{INNER}") == Container("docker", SHORT_INNER, INNER)
    inner = f"{path}/kubepods/besteffort/pod{STATIC}/{INNER}"
    assert container(inner) == Container("kubernetes", f"pod 0f1e2d3c/{SHORT_INNER}", f"{STATIC}/{INNER}")


@pytest.mark.parametrize(("path", "name"), UNITS)
def test_innermost_unit_is_named_without_a_container(path: str, name: str) -> None:
    found = container(path)
    assert (found.kind, found.name) == ("unit", name)
    assert found.full in path.split(" ")[0].split("/")  # what systemctl takes
    assert label(path) == name


def test_session_is_named_by_its_number() -> None:
    assert container(f"{USER}/session-3.scope") == Container("session", "session 3", "session-3.scope")
    assert label(f"{USER}/session-c1.scope") == "session c1"
    assert container(f"{USER}/session-x.scope").kind == "unit"


@pytest.mark.parametrize("path", NEITHER)
def test_unknown_path_is_shown_unchanged(path: str) -> None:
    assert container(path) == NOTHING == ("", "", "")
    assert label(path) == ("" if path == "/" else path)


def test_label_includes_the_kind_if_the_name_does_not() -> None:
    assert label(f"/docker/{ID}") == "docker 1a2b3c4d5e6f"
    assert label(f"/machine.slice/libpod-conmon-{ID}.scope") == "podman conmon 1a2b3c4d5e6f"
    assert label(f"/kubepods/pod{UID}/{ID}") == "pod 5d6e7f80/1a2b3c4d5e6f"
    assert label(f"/docker/buildkit/{BUILD}") == "docker build osh60k53lspy"
    assert label("/lxc.monitor.web") == "lxc monitor web"
    assert label("/system.slice/mysql.service") == "mysql.service"
    assert label(f"{USER}/session-3.scope") == "session 3"
    assert label("/foo (deleted)") == "/foo (deleted)"
    assert label("/") == label("") == ""


@pytest.mark.parametrize(
    ("path", "of"),
    [
        (f"/docker/{ID}", f"/docker/{ID}"),
        (f"/docker/{ID} (deleted)", f"/docker/{ID}"),
        (f"/docker/{ID}/init.scope", f"/docker/{ID}"),
        (f"/docker/{ID}/system.slice/a.service", f"/docker/{ID}"),
        (f"/docker/{ID}/docker/{INNER}/x", f"/docker/{ID}/docker/{INNER}"),
        (f"/../docker-{ID}.scope/x", f"/../docker-{ID}.scope"),
        (f"/system.slice:docker:{ID}/x", f"/system.slice:docker:{ID}"),
        (f"{BURSTABLE}/kata_overhead", BURSTABLE),
        (f"{BURSTABLE}/crio-{ID}.scope/container", f"{BURSTABLE}/crio-{ID}.scope"),
        ("/system.slice/mysql.service/worker", "/system.slice/mysql.service"),
        (f"{USER}/user@1000.service/init.scope", f"{USER}/user@1000.service"),
        ("/user.slice/x (deleted)", "/user.slice/x (deleted)"),
        ("/", "/"),
        ("", ""),
    ],
)
def test_everything_in_one_container_or_unit_has_one_place(path: str, of: str) -> None:
    assert place(path) == of
    assert container(of) == container(path)


def test_names_of_a_container_are_all_its_forms() -> None:
    assert names(f"/docker/{ID}/x") == ("docker", SHORT, ID, f"docker {SHORT}")
    assert names("/system.slice/mysql.service") == ("unit", *["mysql.service"] * 3)
    assert names("/user.slice") == names("/") == names("") == ()


PARTS = (
    "docker", "docker-", "libpod-conmon-", "cri-containerd-", "crio-", ID, TASK, "pod", UID, UID_, "kubepods-",
    ".slice", ".scope", ".service", ":", "/", "..", "lxc.payload.", "lxc", "machine-", r"qemu\x2d", r"lxc\x2d2\x2d",
    r"\x2d", r"\x", r"\xff", "systemd-nspawn@", "session-", "app-", "-1", "@", " (deleted)", "\n", "\r", "\0",
    "\x1b[2J", "\udcff", "\ud800", "é", "buildkit", BUILD, "default", "init.scope",
)  # fmt: skip
REPEATED = (
    "a", "0", "-", "-0", "-0a", "a.", "A-", "-pod", f"-pod{UID[:-1]}", f"-{UID[:-1]}", f"{UID}-", TASK[1:] + "-",
)  # fmt: skip


@given(st.one_of(st.text(st.characters()), st.lists(st.sampled_from(PARTS), max_size=12).map("".join)))
def test_no_text_makes_it_fail(path: str) -> None:
    kind, name, full = container(path)
    assert bool(kind) == bool(name) == bool(full)
    assert kind in {"", "docker", "podman", "containerd", "crio", "kubernetes", "nspawn", "lxc", "unit", "session"}
    assert container(place(path)) == (kind, name, full)
    assert place(place(path)) == place(path)
    assert label(path) in (name, f"{kind} {name}") if kind else label(path) == path.removesuffix("/" * (path == "/"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("form", ["{}", "/{}", "machine-{}.scop", "app-{}.scope", "x{}.scope"])
def test_time_is_linear_in_the_length_of_the_path(form: str) -> None:
    """With quadratic time, each of these would take minutes."""
    for part in (*PARTS, *REPEATED):
        label(form.format(part * (300_000 // len(part))))
