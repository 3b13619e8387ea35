"""Python parts of offtop for a machine without pip: its wheel and those it depends on, for Python 3.11 to 3.14.

The parts of all Python versions fit into one directory, because the names of their compiled modules differ. bcc is not
included: it belongs to the distribution's libbcc and Python.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = Path(__file__).with_name("parts.txt")
"""The releases of the dependencies, and the hashes of their wheels. lock.py writes it."""
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux2010")
_UNUSED = ("/tests/", "/include/", "numpy/f2py/", "numpy/_core/lib/", "numpy/random/lib/", "numpy/random/_examples/")
_OPTIONAL = ("yaml/_yaml.",)
"""2 MB for each Python, which only make it read a file faster."""
_UNUSED_ENDS = (".pyi", ".pxd", ".c", ".h", ".a")
_BUILD_DETAILS = ("numpy/__config__.py", ".dist-info/WHEEL")
"""Files that name the Python version which the wheel was built for, and nothing that runs."""

MACHINES = ("x86_64", "aarch64")


def members(wheel: Path, machine: str) -> dict[str, bytes]:
    """Return the contents of all parts by name, given offtop's own wheel. The others are downloaded."""
    with tempfile.TemporaryDirectory() as directory:
        return merged([wheel, *_downloaded(Path(directory), machine)])


def _downloaded(directory: Path, machine: str) -> list[Path]:
    """Download the wheels of all dependencies for each Python version, in the same releases."""
    for version in VERSIONS:
        download(directory, machine, version, "--no-deps", "--require-hashes", f"--requirement={LOCK}")
    return sorted(directory.glob("*.whl"))


def download(directory: Path, machine: str, version: str, *arguments: str) -> None:
    """Have `pip download` get wheels for this machine and version of Python. `arguments`: which ones."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--implementation=cp", f"--python-version={version}"]
    command += [*(f"--platform={one}_{machine}" for one in _PLATFORMS), "--platform=any"]
    command += [f"--abi=cp{version.replace('.', '')}", "--abi=abi3", "--abi=none", f"--dest={directory}", *arguments]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def merged(wheels: Sequence[Path]) -> dict[str, bytes]:
    """Return what offtop needs of the wheels, by name.

    Wheels for other Python versions add compiled modules. Exits if anything else in them is different.
    """
    contents: dict[str, bytes] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as found:
            for name in filter(_is_used, found.namelist()):
                content = found.read(name)
                if contents.setdefault(name, content) != content and not name.endswith(_BUILD_DETAILS):
                    sys.exit(f"{name} in {wheel.name} is not the same as for an earlier Python")
    return contents


def _is_used(name: str) -> bool:
    """bpf/*.c and *.h are sources that offtop itself compiles."""
    if name.startswith("offtop/"):
        return True
    if ".dist-info/" in name:
        return not name.endswith(("/", "/RECORD"))
    return not name.endswith(("/", *_UNUSED_ENDS)) and not any(part in name for part in (*_UNUSED, *_OPTIONAL))
