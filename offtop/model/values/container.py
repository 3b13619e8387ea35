r"""Name of a container or unit, from a cgroup path.

Neither a container runtime nor systemd is queried: a recording has nothing but the path, and whoever creates a cgroup
writes into the path what it is for. These are the forms, and where they are documented:

systemd (systemd.unit(5), systemd.special(7), systemd.io/CGROUP_DELEGATION): a unit is a directory with its name, below
those of its slices. Characters not allowed in a name are written as `\x2d`, byte by byte (systemd-escape(1)).
`mysql.service`, `postgresql@15-main.service`, `session-3.scope` (pam_systemd(8)). `app-gnome-firefox-2345.scope`,
`app-org.kde.kate@HEX.service`: names of what a desktop starts end in a random part (systemd.io/DESKTOP_ENVIRONMENTS).
So do the scopes of snaps and of terminal tabs: `vte-spawn-UUID.scope`.

systemd-nspawn(1), systemd-machined(8): `machine-NAME.scope`, or `systemd-nspawn@NAME.service`; below it `payload`.
libvirt uses the same form, `machine-lxc\x2d2\x2dNAME.scope`; its `machine-qemu\x2d1\x2dNAME.scope` is no container.

runc, and what uses it or crun (runc's docs/systemd.md): `PREFIX-ID.scope`, with the prefix of the caller: `docker`,
`libpod` (Podman), `cri-containerd`, `crio`, `nerdctl`. Without systemd the same request becomes one directory,
`kubepods-pod1a2b.slice:cri-containerd:ID` (opentelemetry-java#4507), `system.slice:docker:ID` (moby#45796). Ids of
Docker and containerd are 64 hex digits, those of BuildKit 25 digits and letters.

Docker without systemd: `/docker/ID`, and `--cgroup-parent`/ID, which may be anything (dockerd's reference). BuildKit:
`/docker/buildkit/ID`. Docker in Docker: `/docker/ID/docker/ID`. Podman (podman-run(1), `--cgroups`): `libpod-ID.scope`,
rootless with `container` below; split, as by Quadlet, `web.service/libpod-payload-ID`. `libpod-conmon-ID.scope` has the
process that monitors the container. CRI-O: `crio-ID.scope`, `crio-conmon-ID.scope`; without systemd `crio-ID`.
containerd (its WithNamespaceCgroup): `/NAMESPACE/ID`: `/k8s.io/ID`, `/default/web`. kubelet (its pkg/kubelet/cm):
`/kubepods/burstable/podUID/ID`, or with systemd
`/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope`, whose UID has `_`
for `-`; UIDs of static pods are 32 hex digits. Below a prefix if the kubelet has a `--cgroup-root`, as in kind. ECS
(amazon-ecs-agent#1119): `/ecs/TASK/ID`; on Fargate `/ecs/TASK/TASK-DIGITS` (datadog-agent#24186). LXC
(lxc.container.conf(5), `lxc.cgroup.dir.container`): `/lxc.payload.NAME`, `/lxc.monitor.NAME`; before 4.0
`/lxc.payload/NAME`, `/lxc/NAME`, as on Proxmox.

Paths are untrusted: these functions fail on none, and take time linear in its length.
"""

import re
from functools import lru_cache
from typing import NamedTuple


class Container(NamedTuple):
    """What a process runs in.

    All texts are untrusted and raw: escape them before they are shown.
    """

    kind: str
    """`docker`, `podman`, `containerd`, `crio`, `kubernetes`, `nspawn`, `lxc`; `unit`, `session`: a systemd unit, not a
    container; empty if unknown."""
    name: str
    """Short name for display: 12 digits of an id, `pod 1a2b3c4d/1a2b3c4d5e6f`, `mysql.service`, `session 3`. `conmon`
    or `monitor` before the id marks the monitor of that container, `build` one that BuildKit runs."""
    full: str
    """Complete name, as other programs use it: the whole id; `UID/ID` for a pod; the escaped unit name, as systemctl
    takes it."""


NOTHING = Container("", "", "")
_SHORT_ID = 12
_SHORT_UID = 8
_WITHOUT_PREFIX = frozenset({"kubernetes", "unit", "session"})
"""Kinds whose names need no prefix."""
_UNITS = (".service", ".scope", ".socket", ".mount", ".swap")
"""Suffixes of units that contain processes. Slices contain units only."""
_NAMESPACES = frozenset({"k8s.io", "default", "moby"})
"""containerd namespaces of the kubelet, of ctr and nerdctl, of Docker."""
_RUNTIMES = {
    "docker": "docker",
    "libpod": "podman",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "crio",
}
"""Prefix that a runtime passes to runc → kind."""
_DELETED = " (deleted)"
"""The kernel appends this to the path of a removed cgroup."""

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
    """Return the innermost container in `path`, ignoring cgroups inside it.

    Without one, return the innermost unit, otherwise `NOTHING`.
    """
    return _innermost(path)[0]


@lru_cache(maxsize=4096)
def place(path: str) -> str:
    """Return the cgroup that `container` names: `path` or one above it.

    It is `path` itself if that is unknown.

    So all paths into one container have the same place.
    """
    what, end = _innermost(path)
    return "/".join(path.removesuffix(_DELETED).split("/")[:end]) if what.kind else path


def _innermost(path: str) -> tuple[Container, int]:
    """Return what `container` does, and where its name ends, as a number of components."""
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
    """Return the text for a column: `docker 1a2b3c4d5e6f`, `mysql.service`.

    It is the path if that is unknown, and empty for the root or an empty path. Raw, as the path is.
    """
    if path in ("", "/"):
        return ""
    kind, name, _ = container(path)
    if not kind:
        return path
    return name if kind in _WITHOUT_PREFIX else f"{kind} {name}"


def names(path: str) -> tuple[str, ...]:
    """Return the texts that a filter matches, including the kind.

    There are none without a container or unit.
    """
    what = container(path)
    return (*what, label(path)) if what.kind else ()


def _names(path: str) -> list[tuple[str, int]]:
    """Return the directories of `path`, each with the number of path components up to its end.

    A name that runc wrote as one, `SLICE:PREFIX:ID`, is returned as the two that it stands for. `..` leads out of our
    cgroup namespace and is skipped, so that cgroups outside get the same names as those inside.
    """
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
    """Return the container whose directory is `name`, below `above`."""
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
    r"""Decode `\x2d` and the like as UTF-8 bytes; invalid bytes become surrogates, as with os.fsdecode."""
    return _ESCAPES.sub(
        lambda escapes: bytes.fromhex(escapes[0].replace(r"\x", "")).decode("utf-8", "surrogateescape"), name
    )
