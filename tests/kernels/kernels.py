"""Downloads Debian's cloud kernels, which have everything that a guest needs built in, with apt and caches them.

apt works on its own directories, with the mirror of this machine, so nothing is installed or changed on the machine.
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
"""X86_FEATURE_CX16 (asm/cpufeatures.h): 6.12 has double faults at an emulated cmpxchg16b; task storage of 7.x needs
it."""
_SYSTEM = ("python3", "python3-bpfcc", "libbpf1", "libdw1", "libseccomp2", "busybox-static", "e2fsprogs", "dmsetup")
DISK_TOOLS = ("biosnoop", "biolatency")
"""bcc's tools for requests to disks. They need the tracepoint block_io_start (6.5): before, they probe functions that
Debian's kernels have inlined."""
TRIPLES = {"arm64": "aarch64-linux-gnu"}
"""Debian architecture → compiler triple."""


class UnavailableDownloadError(Exception):
    """A kernel or package could not be downloaded and is not cached; says why."""


class Kernel(NamedTuple):
    """Where to find a kernel in Debian's archive."""

    archive: str
    suite: str
    series: str
    """Start of its version; empty for the newest kernel of the suite."""
    is_needed: bool = False
    """Whether the test fails if the kernel is not available; otherwise it is skipped."""
    asked: str = ""
    """Additional kernel command line."""
    machine: str = "amd64"
    """Debian architecture."""


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
    """Return the directory of cached packages and images: $OFFTOP_KERNELS, or ~/.cache/offtop."""
    place = Path(os.environ.get("OFFTOP_KERNELS") or Path.home() / ".cache/offtop")
    place.mkdir(parents=True, exist_ok=True)
    return place


def image(kernel: Kernel) -> Path:
    """Return the newest image of a kernel, or a cached one if nothing can be downloaded.

    Raises UnavailableDownloadError.
    """
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
    except UnavailableDownloadError:
        kept = sorted(place.glob("vmlinuz-*"), key=_age)
        if not kept:
            raise
        return kept[-1]


def modules(kernel: Kernel, file: Path) -> Path:
    """Return the unpacked modules of the kernel with the image `file`. Raises UnavailableDownloadError."""
    apt, package = _Apt(kernel), file.name.removeprefix("vmlinuz-")
    release = re.sub(r"^linux-(image|binary)-", "", package)
    try:
        name = apt.newest(rf"linux-modules-{re.escape(release)}")
    except UnavailableDownloadError:  # older packages have the kernel and its modules
        name = package
    return unpacked(apt, name)


def headers(kernel: Kernel, file: Path) -> list[Path]:
    """Return the unpacked headers of the kernel with the image `file`. Raises UnavailableDownloadError."""
    apt = _Apt(kernel)
    release = file.name.removeprefix("vmlinuz-").partition("-")[2].partition("-")[2]
    own = apt.newest(rf"linux-headers-{re.escape(release)}")
    common = apt.newest(rf"linux-headers-{re.escape(release.removesuffix('-cloud-amd64'))}-common")
    return [unpacked(apt, package) for package in (own, common)]


def system(kernel: Kernel) -> Path:
    """Return a system of the kernel's suite and architecture that offtop runs on.

    Raises UnavailableDownloadError.
    """
    return _system(kernel, kernel.machine, "system", _SYSTEM)


def compiler(kernel: Kernel) -> Path:
    """Return an amd64 system with a C compiler for the kernel's architecture.

    Raises UnavailableDownloadError.
    """
    return _system(kernel, "amd64", "compiler", (f"gcc-{TRIPLES[kernel.machine]}", f"libc6-dev-{kernel.machine}-cross"))


def _system(kernel: Kernel, machine: str, purpose: str, packages: Sequence[str]) -> Path:
    """Unpack packages and their dependencies for an architecture, without configuring them."""
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
    """Install Python packages (`name==version`) for an architecture and Python version.

    Raises UnavailableDownloadError.
    """
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
    """Return bcc's tools, unpacked, in the version of this machine's bcc.

    Raises UnavailableDownloadError.
    """
    return unpacked(None, "bpfcc-tools")


def disk_tools(kernel: Kernel) -> Path:
    """Return a directory with DISK_TOOLS, in the version of the kernel's suite. Raises UnavailableDownloadError."""
    apt = _Apt(kernel)
    with _made(f"disk-tools-{kernel.suite}") as (to, begun):
        if begun:
            deb, every, place = apt.download("bpfcc-tools"), begun / "every", begun / "usr/sbin"
            _run("dpkg-deb", "-x", str(deb), str(every))
            deb.unlink()
            place.mkdir(parents=True)
            for name in DISK_TOOLS:
                (every / f"usr/sbin/{name}-bpfcc").rename(place / f"{name}-bpfcc")
            _remove(every)
    return to


def unpacked(apt: "_Apt | None", package: str) -> Path:
    """Unpack a package into its own directory.

    Without `apt`, take the version that this machine would install.
    """
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
    """Yield a cached directory and, if it does not exist yet, a temporary one to fill.

    The temporary directory becomes the cached one after the block.
    """
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
    """apt for a single suite."""

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
        except UnavailableDownloadError:
            if not [*(self._place / "lists").glob("*_Packages*")]:  # from an earlier update
                raise

    def newest(self, pattern: str) -> str:
        """Return the package whose name matches and has the highest version."""
        names = self._ask("apt-cache", "pkgnames", "linux-").split()
        found = sorted((name for name in names if re.fullmatch(pattern, name)), key=_age)
        if not found:
            raise UnavailableDownloadError(f"{self._place.name} has no package {pattern}")
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
    """Return the subdirectory for the kernel's architecture."""
    return place if kernel.machine == "amd64" else place / kernel.machine


def _version(kernel: Kernel) -> str:
    return rf"{re.escape(kernel.series)}\.\d\S*-" if kernel.series else r"\d\S*-"


def _age(name: str | Path) -> tuple[list[int], bool]:
    """Return a sort key for versions.

    From 6.19 on, an `image` package only depends on a `binary` package.
    """
    text = Path(name).name
    return [int(number) for number in re.findall(r"\d+", text)], "binary" in text


def _mirror(archive: str) -> str:
    """Return this machine's mirror of the archive, or Debian's."""
    listing = _run("apt-get", "indextargets", "--format", "$(REPO_URI)")
    return next((uri for uri in listing.split() if uri.rstrip("/").endswith(f"/{archive}")), f"{_MIRROR}{archive}/")


def _run(*command: str, at: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=at, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableDownloadError(str(error)) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableDownloadError(f"{command[0]}: {last}")
    return done.stdout


def _remove(directory: Path) -> None:
    if directory.exists():
        _run("rm", "-r", str(directory))
