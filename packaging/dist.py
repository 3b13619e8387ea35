"""Build the wheel, and what installs offtop on machines without pip: `dist.py DIR KIND...`."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import deb
import onefile
import parts
import rpm

from offtop import __version__

_MOST_BYTES = 60 * 1000 * 1000
_TOOLS = {"deb": "dpkg-deb", "rpm": "rpmbuild"}
"""What builds a kind of package."""


def main() -> None:
    parser = argparse.ArgumentParser(description="build the wheel, and offtop for machines without pip")
    parser.add_argument("into", type=lambda text: Path(text).absolute(), help="directory for the files")
    parser.add_argument("kinds", nargs="+", choices=("pyz", "deb", "rpm"), help="what to build")
    parser.add_argument("--machine", choices=parts.MACHINES, default=os.uname().machine)
    args = parser.parse_args()
    for kind in args.kinds:
        if kind in _TOOLS and shutil.which(_TOOLS[kind]) is None:
            sys.exit(f"offtop: {_TOOLS[kind]} is missing. Install it, or build without {kind}: make dist KINDS=pyz")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", args.into]
    subprocess.run(build, check=True, cwd=parts.ROOT, stdin=subprocess.DEVNULL)
    members = parts.members(args.into / f"offtop-{__version__}-py3-none-any.whl", args.machine)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    for kind in args.kinds:
        if kind == "pyz":
            path = args.into / f"offtop-{__version__}-{args.machine}.pyz"
            path.write_bytes(onefile.archive(members, args.machine, epoch))
            path.chmod(0o755)
        elif kind == "rpm":
            path = rpm.build(rpm.files(members), args.into, args.machine, epoch)
        else:
            installed = deb.files(members, epoch)
            path = deb.build(installed, args.into, args.machine, epoch)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
        if path.stat().st_size > _MOST_BYTES:
            sys.exit(f"{path} is larger than {_MOST_BYTES / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
