"""Check offtop with another system's bcc; bccs.sh runs this there.

The installed offtop must compile with that bcc, and count 23 sleeps of a child process with their waker and a whole
user stack.
"""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OFFTOP = Path(sys.executable).with_name("offtop")
NAPS = "import time; input(); [time.sleep(0.01) for _ in range(23)]; input()"


def main() -> None:
    environment = {**os.environ, "OFFTOP_CACHE": "", "LC_ALL": "C.UTF-8", "TERM": "xterm"}
    doctor = subprocess.run([OFFTOP, "doctor", "--json"], capture_output=True, text=True, env=environment)
    checks = {check["name"]: check for check in json.loads(doctor.stdout)}
    for name in ("bcc", "attaching"):
        print(f"{name}: {checks[name]['what']}")
    assert doctor.returncode == 0, [check for check in checks.values() if check["verdict"] == "FAIL"]
    began_s = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", NAPS], stdin=subprocess.PIPE, text=True) as child:
        command = [OFFTOP, "-b", "--json", "-n", "2", "--mode", "wakeup", "-p", str(child.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as live:
            assert child.stdin and live.stdout
            live.stdout.readline()
            first_s = time.monotonic() - began_s
            child.stdin.write("\n")
            child.stdin.flush()
            tick: dict[str, Any] = json.loads(live.stdout.readline())
        child.kill()
    naps = [site for site in tick["sites"] if site["category"] == "sleep"]
    assert sum(site["waits"] for site in naps) == 23, naps
    assert {site["waker"]["kind"] for site in naps} == {"timeout"}, naps
    most = max(naps, key=lambda site: site["waits"])
    assert "<module> (<string>:1)" in most["user"], most
    assert most["user_end"] == "whole", most
    print(f"Python {platform.python_version()}: 23 sleeps; first tick after {first_s:.1f} s")
    print(f"user stack ({most['user_end']}): {' < '.join(most['user'])}")


if __name__ == "__main__":
    main()
