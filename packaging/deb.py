"""The Debian package: one for Debian 12, 13 and sid, because it has the Python parts for Python 3.11 to 3.14.

Same input, same bytes. dpkg-deb makes the package; it needs no root.
"""

import email.utils
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import system_files

from offtop import __version__

_HERE = Path(__file__).resolve().parent
_UPGRADE_OF_PYTHON = "usr/share/python3/runtime.d/offtop.rtupdate"
_SCRIPTS = ("postinst", "prerm", "postrm")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_VERSION = f"{__version__}-1"
_MAINTAINER = "The offtop authors <offtop@localhost.localdomain>"
_DEPENDS = (
    "python3 (>= 3.11)",
    "python3 (<< 3.15)",
    "python3-bpfcc",
    "libbpf1",
    "libdw1t64 | libdw1",
    "libseccomp2",
    "libc6 (>= 2.28)",
    "libgcc-s1",
    "libstdc++6",
    "zlib1g",
)
_DESCRIPTION = """\
top for waiting: where threads spend their time off CPU
 offtop shows, once a second and for every thread of the machine, where the
 time goes while it is not running: in which code, on what it waits, and who
 ended the wait. It uses eBPF, counts every wait, and costs little enough for
 production. Recordings can be replayed on the same screen.
 .
 It includes the Python packages that it needs in versions that Debian lacks,
 below /usr/lib/offtop, where no other program sees them."""


def files(members: Mapping[str, bytes], epoch: int) -> dict[str, bytes]:
    """Return path below / → content. `members`: the Python parts, by name; `epoch`: time of the release, in seconds."""
    doc = "usr/share/doc/offtop"
    return system_files.files(members) | {
        f"{doc}/copyright": system_files.licences(members).encode(),
        f"{doc}/changelog.Debian.gz": system_files.zipped(_changelog(epoch).encode()),
        "usr/share/lintian/overrides/offtop": (_HERE / "deb/lintian-overrides").read_bytes(),
        _UPGRADE_OF_PYTHON: (_HERE / "deb/rtupdate").read_bytes(),
    }


def build(installed: Mapping[str, bytes], into: Path, machine: str, epoch: int) -> Path:
    """Write the package of these files into a directory, and return its path. All files get the time `epoch`."""
    architecture = ARCHITECTURES[machine]
    path = into / f"offtop_{_VERSION}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "root")
        system_files.write(installed, root, epoch)
        (root / _UPGRADE_OF_PYTHON).chmod(0o755)
        control = {name: (_HERE / "deb" / name).read_text() for name in _SCRIPTS}
        control["control"] = _control(architecture, sum(map(len, installed.values())))
        sums = (f"{hashlib.md5(content).hexdigest()}  {name}\n" for name, content in sorted(installed.items()))
        control["md5sums"] = "".join(sums)
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN").chmod(0o755)
        for name, text in control.items():
            (root / "DEBIAN" / name).write_text(text)
            (root / "DEBIAN" / name).chmod(0o755 if name in _SCRIPTS else 0o644)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, path],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},  # files with later times get this one
        )
    return path


def _control(architecture: str, size: int) -> str:
    return (
        f"Package: offtop\nVersion: {_VERSION}\nArchitecture: {architecture}\nMaintainer: {_MAINTAINER}\n"
        f"Installed-Size: {-(-size // 1024)}\nDepends: {', '.join(_DEPENDS)}\nSection: admin\nPriority: optional\n"
        f"Description: {_DESCRIPTION}\n"
    )


def _changelog(epoch: int) -> str:
    head = f"offtop ({_VERSION}) unstable; urgency=medium"
    return f"{head}\n\n  * See changelog.gz.\n\n -- {_MAINTAINER}  {email.utils.formatdate(epoch)}\n"
