"""A child process that fetches one debug file from debuginfod servers, as the user nobody.

It does not parse what servers send, but writes it to stdout, a file that the parent has opened. A server learns only
the build ID: `URL/buildid/ID/debuginfo` (elfutils, debuginfod(8)).
"""

import codecs
import os
import shutil
import sys
import urllib.request
from http.client import HTTPException
from urllib.error import HTTPError

from offtop import __version__
from offtop.kernel.binary.confinement import confine, set_name
from offtop.kernel.binary.debuginfod import FAILED, FOUND, UNKNOWN

_SILENCE_S = 20.0


def main() -> None:
    """Fetch a file.

    The arguments are its size limit in bytes, the build ID, and the servers to try in turn.
    """
    most_bytes, build_id, *servers = sys.argv[1:]
    codecs.lookup("idna")  # needed for server names; the user nobody may be unable to load it
    confine(int(most_bytes), network=True)  # an exception exits with status 1, which is FAILED
    set_name("offtop-fetch")
    failed = False
    for server in servers:
        outcome = _fetch(f"{server.rstrip('/')}/buildid/{build_id}/debuginfo")
        if outcome == FOUND:
            sys.exit(FOUND)
        failed = failed or outcome == FAILED
    sys.exit(FAILED if failed else UNKNOWN)


def _fetch(address: str) -> int:
    try:
        request = urllib.request.Request(address, headers={"User-Agent": f"offtop/{__version__}"})
        with urllib.request.urlopen(request, timeout=_SILENCE_S) as answer:
            os.ftruncate(1, 0)
            os.lseek(1, 0, os.SEEK_SET)
            with open(1, "wb", closefd=False) as out:
                shutil.copyfileobj(answer, out)
            return FAILED if answer.length else FOUND  # length: bytes that have not arrived
    except HTTPError as error:
        return UNKNOWN if error.code == 404 else FAILED
    except (OSError, ValueError, HTTPException):
        return FAILED
