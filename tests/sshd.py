"""An sshd of its own on loopback, and an ssh_config that leads to it as `db7`."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from tests.command import OFFTOP, family

_ROOT = Path(__file__).parents[1]
_SERVER = "/usr/sbin/sshd"
_SECONDS = 10.0


class Sshd:
    def __init__(self, directory: Path, process: subprocess.Popen[bytes], port: int) -> None:
        self.directory, self.process, self.port = directory, process, port
        self.ssh = f"ssh -F {directory}/config"
        self.options = ["--host", "db7", "--ssh-command", self.ssh, "--remote-offtop", str(directory / "offtop")]
        """Options that make this the host of offtop."""

    @property
    def sessions(self) -> list[int]:
        """The PIDs of its connections, each with what was started there."""
        return family(self.process.pid)[1:]

    def cut(self) -> None:
        """End its connections, as a cut cable would."""
        for pid in self.sessions:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sshd: "):
                    os.kill(pid, signal.SIGKILL)

    def wait_until_alone(self) -> None:
        """Wait until nothing that was started there runs any more."""
        _wait_until(lambda: not self.sessions)

    def wait_until_gone(self, pids: Sequence[int]) -> None:
        """Wait until none of these processes exists; those of a cut connection have other parents."""
        _wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < deadline, "something is left behind"
        time.sleep(0.05)


@contextlib.contextmanager
def running(directory: Path) -> Generator[Sshd]:
    """Start an sshd that lets this user in with a key; skip the test if there is none."""
    missing = [name for name in (_SERVER, "ssh", "ssh-keygen") if not shutil.which(name)]
    if missing or os.geteuid():
        pytest.skip("needs root, and sshd: sudo apt install openssh-server")
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it, and a service manager may not have made it
    for name in ("host_key", "key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    for name, key in (("known", "host_key"), ("known_other", "other_key")):
        public = (directory / f"{key}.pub").read_text().split()[:2]
        (directory / name).write_text(f"[127.0.0.1]:{port} {' '.join(public)}\n")
    (directory / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {directory}/host_key\nAuthorizedKeysFile {directory}/key.pub\n"
        "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    (directory / "config").write_text(
        f"Host db7\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {directory}/key\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {directory}/known\n  StrictHostKeyChecking yes\n"
    )
    offtop = directory / "offtop"
    offtop.write_text(f'#!/bin/sh\nPYTHONPATH={_ROOT} exec {sys.executable} {OFFTOP} "$@"\n')
    offtop.chmod(0o755)
    log = (directory / "log").open("wb")
    process = subprocess.Popen([_SERVER, "-D", "-e", "-f", directory / "sshd_config"], stderr=log)
    try:
        _wait_for(port, process, directory / "log")
        yield Sshd(directory, process, port)
    finally:
        process.terminate()
        process.wait()
        log.close()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
