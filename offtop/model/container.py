r"""A container's or unit's name, from a cgroup path.

Nobody is asked, neither a runtime nor systemd: a path is all that a recording has, and whoever makes a cgroup for
something writes into the path what it is. By whom, and where that is written down:

systemd (systemd.unit(5), systemd.special(7), systemd.io/CGROUP_DELEGATION): a unit is a directory of its name, in
those of its slices. What is not allowed in a name is `\x2d`, byte by byte (systemd-escape(1)).
`mysql.service`, `postgresql@15-main.service`, `session-3.scope` (pam_systemd(8)).
`app-gnome-firefox-2345.scope`, `app-org.kde.kate@HEX.service`: what a desktop starts ends in something random
(systemd.io/DESKTOP_ENVIRONMENTS). So do the scopes of snaps and of terminals' tabs: `vte-spawn-UUID.scope`.

systemd-nspawn(1), systemd-machined(8): `machine-NAME.scope`, or `systemd-nspawn@NAME.service`; below it `payload`.
libvirt's are named alike, `machine-lxc\x2d2\x2dNAME.scope`; its `machine-qemu\x2d1\x2dNAME.scope` is no container.

runc, and all that use it or crun (runc's docs/systemd.md): `PREFIX-ID.scope`, the prefix being that of whoever asks:
`docker`, `libpod` (Podman), `cri-containerd`, `crio`, `nerdctl`. Asked for that without systemd they make one
directory, `kubepods-pod1a2b.slice:cri-containerd:ID` (opentelemetry-java#4507), `system.slice:docker:ID`
(moby#45796). Docker's and containerd's ids are 64 hex digits; BuildKit's 25 digits and letters.

Docker without systemd: `/docker/ID`, and `--cgroup-parent`/ID, which may be anything (dockerd's reference). BuildKit:
`/docker/buildkit/ID`. Docker in Docker: `/docker/ID/docker/ID`.
Podman (podman-run(1), `--cgroups`): `libpod-ID.scope`, rootless with `container` below; split, as by Quadlet,
`web.service/libpod-payload-ID`. `libpod-conmon-ID.scope` holds the process that watches the container.
CRI-O: `crio-ID.scope`, `crio-conmon-ID.scope`; without systemd `crio-ID`.
containerd (its WithNamespaceCgroup): `/NAMESPACE/ID`: `/k8s.io/ID`, `/default/web`.
kubelet (its pkg/kubelet/cm): `/kubepods/burstable/podUID/ID`, or with systemd
`/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope`, whose UID has
`_` for `-`; static pods' UIDs are 32 hex digits. Below a prefix where the kubelet has a `--cgroup-root`, as in kind.
ECS (amazon-ecs-agent#1119): `/ecs/TASK/ID`; on Fargate `/ecs/TASK/TASK-DIGITS` (datadog-agent#24186).
LXC (lxc.container.conf(5), `lxc.cgroup.dir.container`): `/lxc.payload.NAME`, `/lxc.monitor.NAME`; before 4.0
`/lxc.payload/NAME`, `/lxc/NAME`, and so it is on Proxmox.

A path is a stranger's text: there is none on which these functions fail, and their time is linear in its length.
"""

import re
from functools import lru_cache
from typing import NamedTuple


class Container(NamedTuple):
    """What a process runs in. All of it is strangers' text, raw: escape it before it is shown."""

    kind: str
    """`docker`, `podman`, `containerd`, `crio`, `kubernetes`, `nspawn`, `lxc`; `unit`, `session`: no container, but a
    unit of systemd's; empty: nothing that we know."""
    name: str
    """Short, for a person: 12 digits of an id, `pod 1a2b3c4d/1a2b3c4d5e6f`, `mysql.service`, `session 3`. Before the
    id of a container whose watcher this is comes `conmon` or `monitor`, and before one that BuildKit runs, `build`."""
    full: str
    """What programs call it by: the whole id; a pod's `UID/ID`; the unit as systemctl takes it, still escaped."""


NOTHING = Container("", "", "")
_SHORT_ID = 12
_SHORT_UID = 8
_NAMED_WHOLLY = frozenset({"kubernetes", "unit", "session"})
"""Kinds whose names say what they are."""
_UNITS = (".service", ".scope", ".socket", ".mount", ".swap")
"""Ends of units in which processes are. A slice has none: it holds units."""
_NAMESPACES = frozenset({"k8s.io", "default", "moby"})
"""containerd's, of the kubelet, of ctr and nerdctl, of Docker."""
_RUNTIMES = {
    "docker": "docker",
    "libpod": "podman",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "crio",
}
"""By the prefix of what they ask runc for."""
_DELETED = " (deleted)"
"""The kernel's word at the end of the path of a cgroup that is no more."""

_UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_ID = re.compile(r"[0-9a-f]{64}")
_BUILD_ID = re.compile(r"[0-9a-z]{25}")
_BY_RUNTIME = re.compile(rf"({'|'.join(_RUNTIMES)})-(conmon-|payload-)?({_ID.pattern})(?:\.scope)?")
_BUILD = re.compile(rf"docker-({_BUILD_ID.pattern})\.scope")
_POD = re.compile(rf"(?:.*-)?pod({_UUID}|[0-9a-f]{{32}})(?:\.slice)?", re.DOTALL)
_FARGATE = re.compile(r"([0-9a-f]{32})-[0-9]{1,20}")
_NAMED_IN_CONTAINERD = re.compile(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")
_LXC = re.compile(r"lxc\.(payload|monitor)\.(.+)", re.DOTALL)
_MACHINE = re.compile(r"machine-(?!qemu\\x2d)(.+)\.scope|systemd-nspawn@(.+)\.service", re.DOTALL)
_LIBVIRT_LXC = re.compile(r"lxc\\x2d[0-9]+\\x2d(.+)", re.DOTALL)
_SESSION = re.compile(r"session-(c?[0-9]{1,20})\.scope")
_ESCAPES = re.compile(r"(?:\\x[0-9A-Fa-f]{2})+")
_RANDOM_OF_SCOPE = re.compile(rf"-{_UUID}\Z")
_RANDOM_OF_APP = re.compile(rf"[-@](?:{_UUID}|[0-9a-f]{{16,}}|[0-9]+)\Z")
_LONG_HEX = re.compile(r"[0-9a-f]{32,}")


def container(path: str) -> Container:
    """The innermost container that `path` leads into, whatever of its own runs in there; without one the innermost
    unit; else `NOTHING`."""
    return _found(path)[0]


@lru_cache(maxsize=4096)
def place(path: str) -> str:
    """The cgroup that `container` tells of: `path`, or one above it; `path` where it says nothing that we know. So two
    paths into one container have one place."""
    what, end = _found(path)
    return "/".join(path.removesuffix(_DELETED).split("/")[:end]) if what.kind else path


def _found(path: str) -> tuple[Container, int]:
    """What `container` tells, and at how many of the path's parts its name ends."""
    found, unit, pod = (NOTHING, 0), (NOTHING, 0), ""
    directories = _names(path)
    for depth, (name, end) in enumerate(directories):
        above = directories[depth - 1][0] if depth else ""
        if uid := _POD.fullmatch(name):
            pod = uid[1].replace("_", "-")
            found = Container("kubernetes", f"pod {pod[:_SHORT_UID]}", pod), end
        elif inner := _container(name, above, depth):
            found, pod = (_in_pod(inner, pod), end), ""
        elif name.endswith(_UNITS) and not (unit[0].kind and name == "init.scope"):  # user@1000.service has one, too
            unit = _unit(name), end
    return found if found[0].kind else unit


def label(path: str) -> str:
    """What a column shows: `docker 1a2b3c4d5e6f`, `pod 1a2b3c4d/1a2b3c4d5e6f`, `mysql.service`, the path where it
    says nothing that we know; empty at the root, and where there is no path. Raw, as the path is."""
    if path in ("", "/"):
        return ""
    kind, name, _ = container(path)
    if not kind:
        return path
    return name if kind in _NAMED_WHOLLY else f"{kind} {name}"


def names(path: str) -> tuple[str, ...]:
    """All that the container or unit is called, its kind as well; nothing where there is none."""
    what = container(path)
    return (*what, label(path)) if what.kind else ()


def _names(path: str) -> list[tuple[str, int]]:
    """The directories of `path`, and at how many of its parts each ends, with what runc left in one,
    `SLICE:PREFIX:ID`, as the two that it stands for. Without `..`, which leads out of our cgroup namespace: those
    outside are called as those inside."""
    parts: list[tuple[str, int]] = []
    for end, name in enumerate(path.removesuffix(_DELETED).split("/"), 1):
        match name.split(":", 3):
            case [above, prefix, id_] if above.endswith(".slice"):
                parts += (above, end), (f"{prefix}-{id_}.scope", end)
            case _:
                parts += [(name, end)] if name not in ("", "..") else []
    return parts


def _in_pod(inner: Container, pod: str) -> Container:
    if not pod:
        return inner
    return Container("kubernetes", f"pod {pod[:_SHORT_UID]}/{inner.name}", f"{pod}/{inner.full}")


def _container(name: str, above: str, depth: int) -> Container | None:
    """The one that the directory `name` is of, which lies in `above`."""
    if of := _BY_RUNTIME.fullmatch(name):
        prefix, part, id_ = of.groups()
        watches = "conmon " if part == "conmon-" else ""
        return Container(_RUNTIMES[prefix], watches + id_[:_SHORT_ID], id_)
    if _ID.fullmatch(name):
        return Container("containerd" if above in _NAMESPACES else "docker", name[:_SHORT_ID], name)
    if of := _BUILD.fullmatch(name):
        return Container("docker", f"build {of[1][:_SHORT_ID]}", of[1])
    if above == "buildkit" and _BUILD_ID.fullmatch(name):
        return Container("docker", f"build {name[:_SHORT_ID]}", name)
    if (of := _FARGATE.fullmatch(name)) and of[1] == above:
        return Container("containerd", name[:_SHORT_ID] + name[len(above) :], name)
    if depth == 1 and above in _NAMESPACES and _NAMED_IN_CONTAINERD.fullmatch(name):
        return Container("containerd", name, name)
    if above in ("lxc", "lxc.payload", "lxc.monitor"):
        return _of_lxc(above, name)
    if of := _LXC.fullmatch(name):
        return _of_lxc(of[1], of[2])
    if of := _MACHINE.fullmatch(name):
        own = of[1] or of[2]
        lxc = _LIBVIRT_LXC.fullmatch(own)
        own = _unescaped(lxc[1] if lxc else own)
        return Container("lxc" if lxc else "nspawn", own, own)
    return None


def _of_lxc(place: str, name: str) -> Container:
    return Container("lxc", f"monitor {name}" if place.endswith("monitor") else name, name)


def _unit(name: str) -> Container:
    if session := _SESSION.fullmatch(name):
        return Container("session", f"session {session[1]}", name)
    stem, _, kind = _unescaped(name).rpartition(".")
    if stem.startswith("app-"):
        stem = _RANDOM_OF_APP.sub("", stem)
    elif kind == "scope":
        stem = _RANDOM_OF_SCOPE.sub("", stem)
    stem = _LONG_HEX.sub(lambda hexes: f"{hexes[0][:_SHORT_ID]}…", stem)
    return Container("unit", f"{stem}.{kind}", name)


def _unescaped(name: str) -> str:
    r"""`\x2d` and the like as the bytes that they stand for, in UTF-8; what is none of it, as os.fsdecode has it."""
    return _ESCAPES.sub(
        lambda escapes: bytes.fromhex(escapes[0].replace(r"\x", "")).decode("utf-8", "surrogateescape"), name
    )
