"""Stands in for ssh: plays what a test has written, another act each time it is started.

    fake_ssh.py DIRECTORY …

DIRECTORY/N.json is the Nth act; the last one repeats. What it is started with goes to DIRECTORY/started, a JSON array a
line, and what it reads from stdin to DIRECTORY/requests.
"""

import base64
import json
import os
import sys
import threading
import time
from pathlib import Path


def main(directory: Path, *words: str) -> int:
    with (directory / "started").open("a") as started:
        started.write(f"{json.dumps(words)}\n")
    number = len((directory / "started").read_text().splitlines())
    while not (directory / f"{number}.json").exists():
        number -= 1
    act = json.loads((directory / f"{number}.json").read_text())
    if act.get("listens", True):
        threading.Thread(target=keep_requests, args=(directory,), daemon=True).start()
    else:
        os.close(0)
    sys.stderr.write(act.get("says", ""))
    sys.stderr.flush()
    for sent in act.get("sends", []):
        os.write(1, base64.b64decode(sent))
        time.sleep(act.get("pause_s", 0))
    while act.get("repeats"):
        os.write(1, base64.b64decode(act["repeats"]))
    time.sleep(act.get("stays_s", 0))
    return act.get("status", 0)


def keep_requests(directory: Path) -> None:
    with (directory / "requests").open("ab") as requests:
        while line := sys.stdin.buffer.readline():
            requests.write(line)
            requests.flush()


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1]), *sys.argv[2:]))  # a thread still reads stdin
