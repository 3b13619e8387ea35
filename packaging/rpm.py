"""The RPM package, for Fedora and RHEL 9, with the Python parts for Python 3.11 to 3.14.

Same input, same bytes. rpmbuild makes the package; it needs no root.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import system_files

from offtop import __version__

_HERE = Path(__file__).resolve().parent
_MACROS = {
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    "_buildhost": "localhost",
    "_binary_payload": "w9.zstdio",
    "__os_install_post": "%{nil}",  # the modules of the wheels are neither stripped nor compiled here
    "debug_package": "%{nil}",
}


def files(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return path below / → content. `members`: the Python parts, by name."""
    installed = system_files.files(members)
    installed[f"{system_files.HOME}/system_start.py"] = installed["usr/bin/offtop"]
    installed["usr/bin/offtop"] = (_HERE / "rpm/offtop.sh").read_bytes()
    zsh = "usr/share/zsh/vendor-completions/_offtop"
    installed["usr/share/zsh/site-functions/_offtop"] = installed.pop(zsh)
    installed["usr/share/licenses/offtop/LICENSE"] = system_files.licences(members).encode()
    return installed


def build(installed: Mapping[str, bytes], into: Path, machine: str, epoch: int) -> Path:
    """Write the package of these files into a directory, and return its path. All files get the time `epoch`."""
    date = time.strftime("%a %b %d %Y", time.gmtime(epoch))
    spec = (_HERE / "rpm/offtop.spec").read_text().replace("@VERSION@", __version__).replace("@DATE@", date)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        system_files.write(installed, place / "tree", epoch)
        (place / "offtop.spec").write_text(spec)
        macros = {**_MACROS, "_topdir": directory, "_sourcedir": directory, "_rpmdir": directory, "_dbpath": directory}
        defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
        subprocess.run(
            ["rpmbuild", "-bb", "--quiet", "--nodeps", "--target", f"{machine}-linux", *defines, place / "offtop.spec"],
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C"},
        )
        (made,) = (place / machine).glob("*.rpm")
        path = into / made.name
        path.write_bytes(made.read_bytes())
    return path
