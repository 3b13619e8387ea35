"""Starts child processes that handle untrusted data: binaries and debuginfod replies.

Each is a separate Python process with only the standard library and offtop, an empty environment, and the descriptors
that it is given. The first thing it does is to confine itself (confinement.py).
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

START = (
    "import sys; n = int(sys.argv[1]); sys.path += sys.argv[2 : 2 + n]; del sys.argv[1 : 2 + n]; "
    "from offtop.kernel.binary import {0}; {0}.main()"
)
_ROOT = Path(__file__).resolve().parents[3]


def start(
    module: str,
    arguments: Sequence[str],
    fds: Sequence[int] = (),
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    packages: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Run `main()` of a module of offtop.kernel.binary with `arguments` in sys.argv[1:].

    `packages`: directories of packages that it imports besides the standard library. Raises OSError.
    """
    path = [str(_ROOT), *packages]
    return subprocess.Popen(
        # -I and -S: no code from the current directory, and no .pth files.
        [sys.executable, "-I", "-S", "-c", START.format(module), str(len(path)), *path, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        pass_fds=fds,
        cwd="/",
        env={},  # also removes DEBUGINFOD_URLS: libdw would ask those servers
        start_new_session=True,  # only the parent handles a ctrl-C on the terminal
    )
