"""Build offtop in one file: a shell script, and behind it a ZIP archive with all Python parts for Python 3.11 to 3.14.

Same input, same bytes: members are sorted, and have the time of SOURCE_DATE_EPOCH. The parts of the Python versions fit
into one directory, because the names of their compiled modules differ. bcc is not included: it belongs to the
distribution's libbcc and Python.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onefile_start import BUILD

_HERE = Path(__file__).resolve().parent
_VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux2010")
_MOST_BYTES = 60 * 1000 * 1000
_UNUSED = ("/tests/", "/include/", "numpy/f2py/", "numpy/_core/lib/", "numpy/random/lib/", "numpy/random/_examples/")
_UNUSED_ENDS = (".pyi", ".pxd", ".c", ".h", ".a")
_EARLIEST = 315_532_800
"""ZIP archives cannot have members from before 1980."""


def main() -> None:
    parser = argparse.ArgumentParser(description="build offtop in one file")
    parser.add_argument("wheel", type=Path, help="offtop's wheel")
    parser.add_argument("into", type=Path, help="directory for the file")
    parser.add_argument("--machine", choices=("x86_64", "aarch64"), default=os.uname().machine)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        wheels = [args.wheel, *_downloaded(Path(directory), args.machine)]
        members = dict(_members(wheels))
    path = args.into / f"{args.wheel.name.split('-py3')[0]}-{args.machine}.pyz"
    path.write_bytes(archive(members, int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    path.chmod(0o755)
    if path.stat().st_size > _MOST_BYTES:
        sys.exit(f"{path} has {path.stat().st_size:,} bytes, more than {_MOST_BYTES:,}")
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def _downloaded(directory: Path, machine: str) -> list[Path]:
    """Download the wheels of all dependencies for each Python version, in the same releases."""
    wanted: Sequence[str] = tomllib.loads((_HERE.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    platforms = [f"--platform={one}_{machine}" for one in _PLATFORMS]
    for version in _VERSIONS:
        abi = f"cp{version.replace('.', '')}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--only-binary=:all:"]
        command += ["--implementation=cp", f"--python-version={version}", *platforms, "--platform=any"]
        command += [f"--abi={abi}", "--abi=abi3", "--abi=none", f"--dest={directory}", *wanted]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        wanted = sorted({"==".join(path.name.split("-")[:2]) for path in directory.glob("*.whl")})
    return sorted(directory.glob("*.whl"))


def _members(wheels: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield what offtop needs of the wheels, by name. Later wheels have other compiled modules, and the same Python."""
    seen: set[str] = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as found:
            for name in found.namelist():
                if name.endswith("/") or name in seen or not _is_used(name):
                    continue
                seen.add(name)
                yield name, found.read(name)


def _is_used(name: str) -> bool:
    """bpf/*.c and *.h are sources that offtop itself compiles."""
    if name.startswith("offtop/"):
        return True
    return not name.endswith(_UNUSED_ENDS) and not any(part in name for part in _UNUSED) and "/RECORD" not in name


def archive(members: Mapping[str, bytes], epoch: int) -> bytes:
    """Return the file with `members` and the start of offtop; `epoch`: time of all members, in seconds."""
    build = hashlib.sha256()
    for name, content in sorted(members.items()):
        build.update(f"{name}\0{len(content)}\0".encode() + content)
    added = {
        **members,
        "__main__.py": (_HERE / "onefile_start.py").read_bytes(),
        BUILD: build.hexdigest()[:32].encode(),
    }
    script = (_HERE / "onefile.sh").read_bytes()
    with tempfile.TemporaryFile() as file:
        file.write(script)
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as into:
            for name, content in sorted(added.items()):
                member = zipfile.ZipInfo(name, time.gmtime(max(epoch, _EARLIEST))[:6])
                member.external_attr = 0o644 << 16
                into.writestr(member, content, zipfile.ZIP_DEFLATED, 9)
        file.seek(0)
        return file.read()


if __name__ == "__main__":
    main()
