"""A guest: one of Debian's kernels on an emulated machine, whose root is made of this machine's own Python and bcc.

KVM is not asked for, so that it runs in a virtual machine and in CI, too. Everything that needs a CPU takes ten times
as long in there; sleeps have their right length.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.kernel import waits, wakings
from tests.kernels import kernels

_ROOT = Path(__file__).parents[2]
_AT = "/offtop"
"""Where the checkout is in the guest."""
PROGRAMS = "/programs"
_BCC = Path("/usr/lib/python3/dist-packages/bcc")
_LIBRARIES = ("libbcc.so.0", "libbpf.so.1", "libdw.so.1", "librt.so.1", "libpthread.so.0", "libdl.so.2")
"""Opened by name, which ldd does not tell."""
_MEMORY = "2G"
_BOOT_S = 1200
_WITHOUT = ("test", "config-3*", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo", "dist-packages")
_INIT = f"""#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 TERM=dumb
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
mount -t tracefs t /sys/kernel/tracing; mount -t debugfs d /sys/kernel/debug; mount -t bpf b /sys/fs/bpf
mount -t cgroup2 c /sys/fs/cgroup; mount -t tmpfs t /run; ip link set lo up
cd {_AT}
.venv/bin/python -m tests.kernels.inside
echo o > /proc/sysrq-trigger
sleep 60
"""
PASSED = "guest: all is as it should be"
_PANIC, _BEGUN = "Kernel panic", "guest:"


def root(extra: Iterable[Path] = ()) -> Path:
    """An archive of what a guest boots into. `extra`: directories whose content is put in, too."""
    place = kernels.cache() / "root"
    shutil.rmtree(place, ignore_errors=True)
    for name in ("proc", "sys", "dev", "tmp", "run", "root", "etc", "var/cache", "usr/bin", "usr/sbin", "usr/lib"):
        (place / name).mkdir(parents=True)
    (place / "usr/lib64").mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        (place / name).symlink_to(f"usr/{name}")
    _busybox(place)
    _python(place)
    _checkout(place)
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


def boot(image: Path, archive: Path, log: Path, asked: str = "") -> str:
    """All that the guest says, from its start to its end; once more where its kernel panics before offtop is there.
    `asked`: for the kernel's command line."""
    said = _booted(image, archive, log, asked)
    if _PANIC not in said or _BEGUN in said:
        return said
    log.rename(log.with_suffix(".panic.log"))
    return _booted(image, archive, log, asked)


def _booted(image: Path, archive: Path, log: Path, asked: str) -> str:
    command = [
        *("nice", "-n", "10", "qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2"),
        *("-m", _MEMORY, "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"),
        *("-kernel", str(image), "-initrd", str(archive)),
        *("-append", f"console=ttyS0 quiet panic=-1 tsc=reliable {asked}"),
    ]
    with log.open("wb") as out:
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=_BOOT_S, check=False)
        except subprocess.TimeoutExpired:
            out.write(f"\nguest: it took more than {_BOOT_S} s\n".encode())
    return log.read_bytes().decode(errors="replace").replace("\r", "")


def _busybox(place: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox, "busybox is not here: apt-get install busybox-static"
    _copy(place, [Path(busybox)])
    for name in subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split():
        link = place / "usr/bin" / name
        if not link.exists():
            link.symlink_to("busybox")


def _python(place: Path) -> None:
    """The system's Python, bcc, what both are linked with, and an environment with what offtop needs."""
    python, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    loaded = [*(library / "lib-dynload").iterdir()]
    libraries = [found for name in _LIBRARIES if (found := _library(name))]
    (place / "usr/bin/python3").symlink_to(python)
    _copy(place, [python, *_linked([python, *loaded, *libraries]), *libraries])
    ignored = shutil.ignore_patterns(*_WITHOUT)
    shutil.copytree(library, place / library.relative_to("/"), ignore=ignored, dirs_exist_ok=True)
    shutil.copytree(_BCC, place / _BCC.relative_to("/"))
    environment = place / _AT[1:] / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").symlink_to(python)
    (environment / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    packages = environment / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    (packages / "offtop.pth").write_text(f"{_AT}\n")
    seen: set[str] = set()
    _add_package("offtop", packages, seen)


def _add_package(name: str, to: Path, seen: set[str]) -> None:
    """An installed package, and what it asks for."""
    if name in seen:
        return
    seen.add(name)
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # for another system
    for file in found.files or ():
        at = Path(str(file.locate()))
        if name != "offtop" and ".." not in file.parts and at.is_file():
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(at, to / file)
    for asked in found.requires or ():
        if "extra ==" not in asked:
            _add_package(re.split(r"[^\w.-]", asked, maxsplit=1)[0], to, seen)


def _checkout(place: Path) -> None:
    at = place / _AT[1:]
    for name in ("offtop", "bpf", "themes", "tests"):
        shutil.copytree(_ROOT / name, at / name)
    programs = place / PROGRAMS[1:]
    programs.mkdir()
    flags = [
        "-D_GNU_SOURCE=",
        "-O1",
        "-static",
        "-fno-omit-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-fno-builtin",
        "-pthread",
    ]
    for program, sources in {"waits": sorted(waits.SOURCES.glob("*.c")), "wakings": [wakings.SOURCE]}.items():
        subprocess.run(["gcc", *flags, "-o", str(programs / program), *map(str, sources)], check=True, timeout=60)


def _library(name: str) -> Path | None:
    told = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    found = re.search(rf"^\s*{re.escape(name)} .*x86-64.*=> (\S+)$", told, re.MULTILINE)
    return Path(found[1]) if found else None


def _linked(files: Sequence[Path]) -> set[Path]:
    told = subprocess.run(["ldd", *map(str, files)], check=False, capture_output=True, text=True).stdout
    return {Path(path) for path in re.findall(r"^\s+(?:\S+ => )?(/[^\s:]+) \(", told, re.MULTILINE)}


def _copy(place: Path, files: Iterable[Path]) -> None:
    for file in files:
        to = place / file.relative_to("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            shutil.copy2(file, to)
