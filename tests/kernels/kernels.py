"""Debian's kernels for machines in the cloud, with all that a guest needs built in: found with apt, and kept.

apt works on directories of its own, with the mirror that this machine has, so nothing is installed, and nothing of the
machine's own changes.
"""

import contextlib
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_MIRROR = "http://deb.debian.org/"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_TIMEOUT_S = 300
_CX16 = 4 * 32 + 13
"""X86_FEATURE_CX16 (asm/cpufeatures.h): at a cmpxchg16b that is emulated 6.12 has double faults; task storage of 7.x
does not do without."""
_SYSTEM = ("python3", "python3-bpfcc", "libbpf1", "libdw1", "libseccomp2", "busybox-static")
TRIPLES = {"arm64": "aarch64-linux-gnu"}
"""What Debian calls a machine → what compilers do."""


class NotToBeHadError(Exception):
    """That kernel could not be fetched, and is not here from before; says why."""


class Kernel(NamedTuple):
    """Where Debian has it."""

    archive: str
    suite: str
    series: str
    """What its version begins with; empty: the newest of the suite."""
    is_needed: bool = False
    """It is a failure if it can't be had; others are skipped."""
    asked: str = ""
    """More for its command line."""
    machine: str = "amd64"
    """As Debian calls it."""


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "6.1": Kernel("debian", "bookworm", "6.1", is_needed=True),
        "6.12": Kernel("debian", "trixie", "6.12", is_needed=True, asked=f"clearcpuid={_CX16}"),
        "6.18": Kernel("debian", "trixie-backports", "6.18"),
        "newest": Kernel("debian", "trixie-backports", ""),
        "arm64": Kernel("debian", "bookworm", "6.1", machine="arm64"),
    }
)


def cache() -> Path:
    """Where packages and images stay: $OFFTOP_KERNELS, or ~/.cache/offtop."""
    place = Path(os.environ.get("OFFTOP_KERNELS") or Path.home() / ".cache/offtop")
    place.mkdir(parents=True, exist_ok=True)
    return place


def image(kernel: Kernel) -> Path:
    """The kernel's image; where nothing newer can be had, the one from before. Raises NotToBeHadError."""
    place = _own(kernel, cache() / "images") / (kernel.series or "newest")
    place.mkdir(parents=True, exist_ok=True)
    try:
        apt = _Apt(kernel)
        package = apt.newest(rf"linux-(?:image|binary)-{_version(kernel)}cloud-{kernel.machine}")
        file = place / f"vmlinuz-{package}"
        if not file.exists():
            with_kernel = unpacked(apt, package)
            (found,) = with_kernel.rglob("vmlinuz*")
            found.rename(file)
            _remove(with_kernel)
        return file
    except NotToBeHadError:
        kept = sorted(place.glob("vmlinuz-*"), key=_age)
        if not kept:
            raise
        return kept[-1]


def headers(kernel: Kernel, file: Path) -> list[Path]:
    """The headers of the kernel whose image `file` is, unpacked. Raises NotToBeHadError."""
    apt = _Apt(kernel)
    release = file.name.removeprefix("vmlinuz-").partition("-")[2].partition("-")[2]
    own = apt.newest(rf"linux-headers-{re.escape(release)}")
    common = apt.newest(rf"linux-headers-{re.escape(release.removesuffix('-cloud-amd64'))}-common")
    return [unpacked(apt, package) for package in (own, common)]


def system(kernel: Kernel) -> Path:
    """Of the kernel's suite and machine, what offtop runs on. Raises NotToBeHadError."""
    return _system(kernel, kernel.machine, "system", _SYSTEM)


def compiler(kernel: Kernel) -> Path:
    """A system of this machine's kind with a C compiler for the kernel's. Raises NotToBeHadError."""
    return _system(kernel, "amd64", "compiler", (f"gcc-{TRIPLES[kernel.machine]}", f"libc6-dev-{kernel.machine}-cross"))


def _system(kernel: Kernel, machine: str, purpose: str, packages: Sequence[str]) -> Path:
    """Packages for that machine and what they need, none of them set up."""
    with _made(f"{purpose}-{kernel.suite}-{kernel.machine}") as (to, begun):
        if begun:
            packed = begun / "system.tar"
            options = (
                *("--quiet", "--variant=extract", "--format=tar", f"--architectures={machine}", f"--keyring={_KEYS}"),
                *('--aptopt=Acquire::Check-Valid-Until "false"', f"--include={','.join(packages)}"),
            )
            _run("mmdebstrap", *options, kernel.suite, str(packed), _mirror(kernel.archive))
            _run("tar", "-xf", str(packed), "-C", str(begun), "--exclude=./dev/*", "--no-same-owner")
            packed.unlink()
    return to


def wheels(machine: str, python: str, wanted: Sequence[str]) -> Path:
    """Python's packages, each `name==version`, for that machine and version of Python. Raises NotToBeHadError."""
    digest = hashlib.sha256(" ".join(sorted(wanted)).encode()).hexdigest()[:12]
    with _made(f"python{python}-{machine}-{digest}") as (to, begun):
        if begun:
            glibc = ("_2_28", "_2_27", "_2_17", "2014")
            triple = TRIPLES[machine].partition("-")[0]
            platforms = [word for one in glibc for word in ("--platform", f"manylinux{one}_{triple}")]
            _run(
                *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"),
                *("--target", str(begun), *platforms, "--python-version", python, "--only-binary", ":all:", *wanted),
            )
    return to


def tools() -> Path:
    """bcc's own tools, unpacked, of the version that this machine's bcc has. Raises NotToBeHadError."""
    return unpacked(None, "bpfcc-tools")


def unpacked(apt: "_Apt | None", package: str) -> Path:
    """What is in a package, in a directory of its own. Without `apt`, as this machine would install it."""
    with _made(package) as (to, begun):
        if begun:
            if apt:
                deb = apt.download(package)
            else:
                _run("apt-get", "-q", "download", package, at=begun)
                (deb,) = begun.glob("*.deb")
            _run("dpkg-deb", "-x", str(deb), str(begun))
            deb.unlink()
    return to


@contextlib.contextmanager
def _made(name: str) -> Generator[tuple[Path, Path | None]]:
    """A directory that stays, and, where it is not there yet, the one to be filled, which becomes it."""
    to = cache() / "unpacked" / name
    if to.exists():
        yield to, None
        return
    begun = to.with_name(f"{name}.begun")
    _remove(begun)
    begun.mkdir(parents=True)
    yield to, begun
    begun.rename(to)


class _Apt:
    """apt for one suite alone."""

    def __init__(self, kernel: Kernel) -> None:
        self._machine = kernel.machine
        self._place = _own(kernel, cache() / "apt") / kernel.suite
        for name in ("lists/partial", "cache/archives/partial", "debs"):
            (self._place / name).mkdir(parents=True, exist_ok=True)
        (self._place / "status").touch()
        source = f"deb [signed-by={_KEYS}] {_mirror(kernel.archive)} {kernel.suite} main\n"
        (self._place / "sources.list").write_text(source)
        try:
            self._ask("apt-get", "-q", "update", "--error-on=any")
        except NotToBeHadError:
            if not [*(self._place / "lists").glob("*_Packages*")]:  # of another day
                raise

    def newest(self, pattern: str) -> str:
        """The package whose name fits, of several the one of the highest version."""
        names = self._ask("apt-cache", "pkgnames", "linux-").split()
        found = sorted((name for name in names if re.fullmatch(pattern, name)), key=_age)
        if not found:
            raise NotToBeHadError(f"{self._place.name} has no package {pattern}")
        return found[-1]

    def download(self, package: str) -> Path:
        debs = self._place / "debs"
        self._ask("apt-get", "-q", "download", package, at=debs)
        (found,) = debs.glob(f"{package}_*.deb")
        return found

    def _ask(self, *command: str, at: Path | None = None) -> str:
        place = self._place
        options = {
            "Dir::Etc::sourcelist": f"{place}/sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": f"{place}/lists",
            "Dir::State::status": f"{place}/status",
            "Dir::Cache": f"{place}/cache",
            "APT::Architecture": self._machine,
            "APT::Architectures": self._machine,
            "APT::Sandbox::User": "root",
            "Acquire::Check-Valid-Until": "false",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return _run(command[0], *words, *command[1:], at=at)


def _own(kernel: Kernel, place: Path) -> Path:
    """The part of it that is for the kernel's machine."""
    return place if kernel.machine == "amd64" else place / kernel.machine


def _version(kernel: Kernel) -> str:
    return rf"{re.escape(kernel.series)}\.\d\S*-" if kernel.series else r"\d\S*-"


def _age(name: str | Path) -> tuple[list[int], bool]:
    """The higher, the newer. From 6.19 on what is called `image` only leads to what is called `binary`."""
    text = Path(name).name
    return [int(number) for number in re.findall(r"\d+", text)], "binary" in text


def _mirror(archive: str) -> str:
    """This machine's, where it has one."""
    told = _run("apt-get", "indextargets", "--format", "$(REPO_URI)")
    return next((uri for uri in told.split() if uri.rstrip("/").endswith(f"/{archive}")), f"{_MIRROR}{archive}/")


def _run(*command: str, at: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=at, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHadError(str(error)) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise NotToBeHadError(f"{command[0]}: {last}")
    return done.stdout


def _remove(directory: Path) -> None:
    if directory.exists():
        _run("rm", "-r", str(directory))
