"""A child process that fetches one debug file from debuginfod servers, as the user nobody.

It does not parse what servers send, but writes it to a file that the parent has opened. A server learns only
the build ID: `URL/buildid/ID/debuginfo` (elfutils, debuginfod(8)).
"""

import codecs
import os
import shutil
import socket
import sys
import urllib.request
from http.client import HTTPException
from urllib.error import HTTPError

from offtop import __version__
from offtop.kernel.binary.confinement import confine_and_report, send, set_name
from offtop.kernel.binary.debuginfod import FAILED, FOUND, UNKNOWN

_SILENCE_S = 20.0


def main() -> None:
    """Fetch a file.

    The arguments are the file's descriptor, its size limit in bytes, the build ID, the servers to try in turn, and the
    socket's descriptor. The answer is FOUND, FAILED or UNKNOWN.
    """
    fd, most_bytes, build_id, *servers, number = sys.argv[1:]
    parent = socket.socket(fileno=int(number))
    codecs.lookup("idna")  # needed for server names; the user nobody may be unable to load it
    confine_and_report(parent, int(most_bytes), network=True)
    set_name("offtop-fetch")
    outcomes = set[str]()
    for server in servers:
        outcomes.add(_fetch(f"{server.rstrip('/')}/buildid/{build_id}/debuginfo", int(fd)))
        if FOUND in outcomes:
            break
    send(parent, next((one for one in (FOUND, FAILED) if one in outcomes), UNKNOWN))


def _fetch(address: str, fd: int) -> str:
    try:
        request = urllib.request.Request(address, headers={"User-Agent": f"offtop/{__version__}"})
        with urllib.request.urlopen(request, timeout=_SILENCE_S) as answer:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            with open(fd, "wb", closefd=False) as out:
                shutil.copyfileobj(answer, out)
            return FAILED if answer.length else FOUND  # length: bytes that have not arrived
    except HTTPError as error:
        return UNKNOWN if error.code == 404 else FAILED
    except (OSError, ValueError, HTTPException):
        return FAILED
