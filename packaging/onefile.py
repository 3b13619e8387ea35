"""Offtop in one file: a shell script, and behind it a ZIP archive with all Python parts for Python 3.11 to 3.14.

Same input, same bytes: members are sorted, and have the time of SOURCE_DATE_EPOCH.
"""

import hashlib
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from onefile_start import BUILD

_HERE = Path(__file__).resolve().parent
_EARLIEST = 315_532_800
"""ZIP archives cannot have members from before 1980."""


def archive(members: Mapping[str, bytes], machine: str, epoch: int) -> bytes:
    """Return the file with `members`, which are for `machine`, and the start of offtop.

    `epoch`: time of all members, in seconds since 1970.
    """
    build = hashlib.sha256()
    for name, content in sorted(members.items()):
        build.update(f"{name}\0{len(content)}\0".encode() + content)
    added = {
        **members,
        "__main__.py": (_HERE / "onefile_start.py").read_bytes(),
        BUILD: f"{machine}-{build.hexdigest()[:32]}".encode(),
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
