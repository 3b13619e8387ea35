"""Check an installed offtop on the system that it is installed in: `installed_check.py COMMAND`.

It must compile with that system's bcc, count 23 sleeps of a child process, with a whole user stack, no wrong waker and
at most three unknown ones, and show its screen on a terminal.
"""

import contextlib
import json
import os
import platform
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from typing import Any

NAPS = "import time; input(); [time.sleep(0.01) for _ in range(23)]; input()"
_SCREEN_S = 60
_ENVIRONMENT = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm"}


def main(offtop: str) -> None:
    check_start(offtop)
    check_doctor(offtop)
    check_counts(offtop)
    check_screen(offtop)


def check_start(offtop: str) -> None:
    began_s = time.monotonic()
    version = subprocess.run([offtop, "--version"], capture_output=True, text=True, check=True).stdout
    print(f"{version.strip()}: --version after {time.monotonic() - began_s:.2f} s")


def check_doctor(offtop: str) -> None:
    doctor = subprocess.run([offtop, "doctor", "--json"], capture_output=True, text=True, env=_ENVIRONMENT)
    checks = {check["name"]: check for check in json.loads(doctor.stdout)}
    for name in ("bcc", "attaching"):
        print(f"{name}: {checks[name]['what']}")
    assert doctor.returncode == 0, [check for check in checks.values() if check["verdict"] == "FAIL"]


def check_counts(offtop: str) -> None:
    began_s = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", NAPS], stdin=subprocess.PIPE, text=True) as child:
        command = [offtop, "-b", "--json", "-n", "2", "--mode", "wakeup", "-p", str(child.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT) as live:
            assert child.stdin and live.stdout
            live.stdout.readline()
            first_s = time.monotonic() - began_s
            child.stdin.write("\n")
            child.stdin.flush()
            tick: dict[str, Any] = json.loads(live.stdout.readline())
        child.kill()
    naps = [site for site in tick["sites"] if site["category"] == "sleep"]
    assert sum(site["waits"] for site in naps) == 23, naps
    by_timeout, unknown = (
        sum(site["waits"] for site in naps if site["waker"] and site["waker"]["kind"] == kind)
        for kind in ("timeout", "unknown")
    )
    assert by_timeout + unknown == 23, naps
    assert unknown <= 3, naps  # on a busy machine offtop may miss a waker, and says so
    most = max(naps, key=lambda site: site["waits"])
    assert "<module> (<string>:1)" in most["user"], most
    assert most["user_end"] == "whole", most
    print(f"Python {platform.python_version()}: 23 sleeps; first tick after {first_s:.1f} s")
    print(f"user stack ({most['user_end']}): {' < '.join(most['user'])}")


def check_screen(offtop: str) -> None:
    """Start the screen on a terminal of 100 x 30, wait for its first numbers, and press q."""
    began_s = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        os.execve(offtop, [offtop], _ENVIRONMENT)
    shown = b""
    try:
        while not (b"WAITING" in shown and b"run-queue" in shown):
            ready, _, _ = select.select([terminal], [], [], began_s + _SCREEN_S - time.monotonic())
            assert ready, shown
            shown += os.read(terminal, 1 << 16)
        print(f"screen after {time.monotonic() - began_s:.1f} s")
        while not os.waitpid(pid, os.WNOHANG)[0]:  # the key is lost if the screen does not read keys yet
            assert time.monotonic() < began_s + _SCREEN_S, "q does not end it"
            os.write(terminal, b"q")
            if select.select([terminal], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # it has closed the terminal
                    os.read(terminal, 1 << 16)
    finally:
        os.close(terminal)


if __name__ == "__main__":
    main(sys.argv[1])
