"""A child process that fetches one debug file from servers of debuginfod, as nobody, and may die of what they send.

Nothing of it is read here: it goes to stdout, a file that the parent has opened. The build id is all that a server
is told: `URL/buildid/ID/debuginfo` (elfutils, debuginfod(8)).
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
    """The last arguments: how many bytes a file may have, the build id, and the servers, to be asked in turn."""
    most_bytes, build_id, *servers = sys.argv[1:]
    codecs.lookup("idna")  # of servers' names; nobody might not be let at it
    confine(int(most_bytes), network=True)  # an exception ends it with status 1, which is FAILED
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
            return FAILED if answer.length else FOUND  # what is left of it
    except HTTPError as error:
        return UNKNOWN if error.code == 404 else FAILED
    except (OSError, ValueError, HTTPException):
        return FAILED
