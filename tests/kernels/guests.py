"""Boots a Debian kernel in QEMU with a root file system that contains offtop.

The root is made of this machine's own Python and bcc, or of Debian's packages if the guest has another architecture.
KVM is not used, so that guests also run in virtual machines and in CI. Everything that needs a CPU takes ten times as
long in a guest; sleeps have their correct length.
"""

import importlib.metadata
import lzma
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.kernel import waits, wakings
from tests.kernels import kernels
from tests.kernels.kernels import Kernel

_ROOT = Path(__file__).parents[2]
_AT = "/offtop"
"""Path of the checkout in the guest."""
PROGRAMS = "/programs"
MODULES = "/modules"
"""Kernel modules for checks, in files that sort in the order in which they have to be loaded."""
_WANTED_MODULES = ("crc32c_generic", "loop", "ext4", "dm_mod", "nfsd", "nfsv4")
"""Those that a kernel does not have as modules are built in, or it does not need them."""
_TOOLS = ("mkfs.ext4", "dmsetup")
_BCC = Path("/usr/lib/python3/dist-packages/bcc")
_LIBRARIES = ("libbcc.so.0", "libbpf.so.1", "libdw.so.1", "librt.so.1", "libpthread.so.0", "libdl.so.2")
"""Libraries opened with dlopen(), which ldd does not list."""
_SOURCES = {
    "waits": sorted(waits.SOURCES.glob("*.c")),
    "wakings": [wakings.SOURCE],
    "operations": [Path(__file__).with_name("operations.c")],
}
"""Program → its source files."""
_MEMORY = "2G"
_BOOT_S = 2400
_CPUS, _CHECK = 2, "tests.kernels.inside"
"""Number of CPUs, and the module that runs in a guest."""
_WITHOUT = ("test", "config-3*", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo", "dist-packages")
_INIT = f"""#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
mount -t tracefs t /sys/kernel/tracing; mount -t debugfs d /sys/kernel/debug; mount -t bpf b /sys/fs/bpf
mount -t cgroup2 c /sys/fs/cgroup; mount -t tmpfs t /run; ip link set lo up
cd {_AT}
.venv/bin/python -m $CHECK
echo o > /proc/sysrq-trigger
sleep 60
"""
PASSED = "guest: all checks passed"
_PANIC, _BEGUN = "Kernel panic", "guest:"


class Machine(NamedTuple):
    """An emulated machine."""

    qemu: tuple[str, ...]
    append: str
    """Additional kernel command line."""


_MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        # QEMU 7.2 emulates AVX2 incorrectly: NumPy sorts wrongly with it.
        "amd64": Machine(("qemu-system-x86_64", "-cpu", "max,avx2=off"), "console=ttyS0 tsc=reliable"),
        "arm64": Machine(
            ("qemu-system-aarch64", "-M", "virt,gic-version=3", "-cpu", "cortex-a72"),
            "console=ttyAMA0",
        ),
    }
)


def root(kernel: Kernel, modules: Path, extra: Iterable[Path] = ()) -> Path:
    """Build the initramfs of a guest, including the contents of the `extra` directories.

    `modules`: a directory with all modules of the kernel, of which it takes those that checks need.

    Raises UnavailableDownloadError.
    """
    place = kernels.cache() / "root"
    shutil.rmtree(place, ignore_errors=True)
    if kernel.machine == "amd64":
        _of_this_machine(place)
    else:
        _of_another(place, kernel)
    _checkout(place, kernel)
    _modules(place / MODULES[1:], modules)
    for directory in extra:
        shutil.copytree(directory, place, symlinks=True, dirs_exist_ok=True)
    init = place / "init"
    init.write_text(_INIT)
    init.chmod(0o755)
    archive = kernels.cache() / "root.cpio"
    with archive.open("wb") as out:
        names = subprocess.run(["find", ".", "-print0"], cwd=place, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["cpio", "-0", "-o", "-H", "newc", "--quiet"], cwd=place, check=True, input=names, stdout=out)
    shutil.rmtree(place)
    return archive


def boot(kernel: Kernel, image: Path, archive: Path, log: Path, cpus: int = _CPUS, check: str = _CHECK) -> str:
    """Boot a guest that runs the module `check`, and return its whole console output.

    Retries once if the kernel panics before offtop starts.
    """
    output = _booted(kernel, image, archive, log, cpus, check)
    if _PANIC not in output or _BEGUN in output:
        return output
    log.rename(log.with_suffix(".panic.log"))
    return _booted(kernel, image, archive, log, cpus, check)


def _booted(kernel: Kernel, image: Path, archive: Path, log: Path, cpus: int, check: str) -> str:
    machine = _MACHINES[kernel.machine]
    command = [
        *("nice", "-n", "10", *machine.qemu, "-accel", "tcg,thread=single", "-smp", str(cpus)),
        *("-m", _MEMORY, "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"),
        *("-kernel", str(image), "-initrd", str(archive)),
        *("-append", f"quiet panic=-1 {machine.append} {kernel.asked} CHECK={check}"),
    ]
    with log.open("wb") as out:
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=_BOOT_S, check=False)
        except subprocess.TimeoutExpired:
            out.write(f"\nguest: it took more than {_BOOT_S} s\n".encode())
    return log.read_bytes().decode(errors="replace").replace("\r", "")


def _of_this_machine(place: Path) -> None:
    for name in ("proc", "sys", "dev", "tmp", "run", "root", "etc", "var/cache", "usr/bin", "usr/sbin", "usr/lib"):
        (place / name).mkdir(parents=True)
    (place / "usr/lib64").mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        (place / name).symlink_to(f"usr/{name}")
    busybox = Path(_busybox())
    tools = [Path(_tool(name)) for name in _TOOLS]
    _copy(place, [busybox, *tools, *_linked(tools)])
    _applets(place, busybox)
    _python(place)


def _of_another(place: Path, kernel: Kernel) -> None:
    """Use Debian's packages for that architecture, and this machine's Python package versions."""
    shutil.copytree(kernels.system(kernel), place, symlinks=True)
    for name in ("proc", "sys", "run", "root"):
        (place / name).mkdir(exist_ok=True)
    _applets(place, Path("/bin/busybox"))
    python = (place / "usr/bin/python3").readlink().name
    version = python.removeprefix("python")
    wanted = [f"{one.name}=={one.version}" for one in _needed("offtop", set()) if one.name != "offtop"]
    packages = _environment(place, Path("/usr/bin") / python, version)
    shutil.copytree(kernels.wheels(kernel.machine, version, wanted), packages, dirs_exist_ok=True)


def _busybox() -> str:
    return _tool("busybox")


def _tool(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    assert found, f"{name} is not here: packaging/system.sh guest"
    return found


def _applets(place: Path, busybox: Path) -> None:
    for name in subprocess.run([_busybox(), "--list"], check=True, capture_output=True, text=True).stdout.split():
        link = place / "usr/bin" / name
        if not link.exists():
            link.symlink_to(busybox)


def _python(place: Path) -> None:
    """Copy Python, bcc, their libraries, and an environment with the packages offtop needs."""
    python, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    loaded = [*(library / "lib-dynload").iterdir()]
    libraries = [found for name in _LIBRARIES if (found := _library(name))]
    (place / "usr/bin/python3").symlink_to(python)
    _copy(place, [python, *_linked([python, *loaded, *libraries]), *libraries])
    ignored = shutil.ignore_patterns(*_WITHOUT)
    shutil.copytree(library, place / library.relative_to("/"), ignore=ignored, dirs_exist_ok=True)
    shutil.copytree(_BCC, place / _BCC.relative_to("/"))
    packages = _environment(place, python, f"{sys.version_info[0]}.{sys.version_info[1]}")
    for found in _needed("offtop", set()):
        for file in found.files or ():
            at = Path(str(file.locate()))
            if found.name != "offtop" and ".." not in file.parts and at.is_file():
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(at, packages / file)


def _environment(place: Path, python: Path, version: str) -> Path:
    """Create a virtual environment for the checkout and return its site-packages directory."""
    environment = place / _AT[1:] / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").symlink_to(python)
    (environment / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    packages = environment / f"lib/python{version}/site-packages"
    packages.mkdir(parents=True)
    (packages / "offtop.pth").write_text(f"{_AT}\n")
    return packages


def _needed(name: str, seen: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """Yield an installed package and its dependencies, recursively."""
    if name in seen:
        return
    seen.add(name)
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # it is for another operating system
    yield found
    for requirement in found.requires or ():
        if "extra ==" not in requirement:
            yield from _needed(re.split(r"[^\w.-]", requirement, maxsplit=1)[0], seen)


def _checkout(place: Path, kernel: Kernel) -> None:
    at = place / _AT[1:]
    for name in ("offtop", "bpf", "themes", "tests"):
        shutil.copytree(_ROOT / name, at / name)
    programs = place / PROGRAMS[1:]
    programs.mkdir()
    if kernel.machine == "amd64":
        _compiled(programs, at, ("gcc",))
        return
    system = kernels.compiler(kernel)
    within = system / "build"
    shutil.rmtree(within, ignore_errors=True)
    shutil.copytree(at / "tests", within / "tests")
    enter = ("chroot",) if os.geteuid() == 0 else ("unshare", "--map-root-user", "chroot")
    _compiled(Path("/build"), Path("/build"), (*enter, str(system), f"{kernels.TRIPLES[kernel.machine]}-gcc"))
    for name in _SOURCES:
        shutil.copy2(within / name, programs)


def _compiled(to: Path, checkout: Path, compiler: Sequence[str]) -> None:
    """Compile the programs of known waits; both paths are as the compiler sees them."""
    flags = [
        "-D_GNU_SOURCE=",
        "-O1",
        "-static",
        "-fno-omit-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-fno-builtin",
        "-pthread",
    ]
    for program, sources in _SOURCES.items():
        found = [str(checkout / source.relative_to(_ROOT)) for source in sources]
        subprocess.run([*compiler, *flags, "-o", str(to / program), *found], check=True, timeout=60)


def _modules(to: Path, modules: Path) -> None:
    """Copy the modules that checks need, and those that they depend on."""
    left = {file.name.partition(".")[0].replace("-", "_"): file for file in modules.rglob("*.ko*")}
    to.mkdir()

    def take(name: str) -> None:
        file = left.pop(name, None)
        if not file:
            return
        content = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
        depends = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in depends[1].decode().split(",") if depends else ():
            take(other.replace("-", "_"))
        (to / f"{len(list(to.iterdir())):02}-{name}.ko").write_bytes(content)

    for name in _WANTED_MODULES:
        take(name)


def _library(name: str) -> Path | None:
    listing = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    found = re.search(rf"^\s*{re.escape(name)} .*x86-64.*=> (\S+)$", listing, re.MULTILINE)
    return Path(found[1]) if found else None


def _linked(files: Sequence[Path]) -> set[Path]:
    listing = subprocess.run(["ldd", *map(str, files)], check=False, capture_output=True, text=True).stdout
    return {Path(path) for path in re.findall(r"^\s+(?:\S+ => )?(/[^\s:]+) \(", listing, re.MULTILINE)}


def _copy(place: Path, files: Iterable[Path]) -> None:
    for file in files:
        to = place / file.relative_to("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            shutil.copy2(file, to)
