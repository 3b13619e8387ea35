"""Run packaged database servers under load, each with its own data directory and a Unix socket in it."""

import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from bench.answer import UnanswerableError
from bench.machine import need

_START_SECONDS = 30.0
_END_SECONDS = 10.0
_CLIENTS = 6
_LONGEST_SECONDS = 120
"""Clients exit after this time, even if the benchmark hangs."""
_UPDATES = 200_000
"""More than a client completes."""


@contextmanager
def postgresql(directory: Path) -> Generator[int]:
    """Yield the server's pid while pgbench keeps it busy. Raises UnanswerableError."""
    programs = Path(need("postgres", "postgresql")).resolve().parent
    pgbench, user = need("pgbench", "postgresql-contrib"), "postgres"
    reach = ("-h", str(directory), "postgres")
    _change_owner(directory, user)
    _run([str(programs / "initdb"), "-D", f"{directory}/base", "--no-sync"], user)
    server = [str(programs / "postgres"), "-D", f"{directory}/base", "-k", str(directory), "-c", "listen_addresses="]
    with _running(server, user) as pid:
        _wait_for([pgbench, "-i", "-s", "2", *reach], user)
        with _running([pgbench, "-c", str(_CLIENTS), "-T", str(_LONGEST_SECONDS), *reach], user):
            yield pid


@contextmanager
def mariadb(directory: Path) -> Generator[int]:
    """Yield the server's pid while clients update the rows of one table.

    Raises UnanswerableError.
    """
    server, client, user = need("mariadbd", "mariadb-server"), need("mariadb", "mariadb-client"), "mysql"
    place = ("--no-defaults", f"--datadir={directory}/base")
    reach = [need("timeout", "coreutils"), str(_LONGEST_SECONDS), client, "--no-defaults", f"-S{directory}/socket"]
    rows = "create database t; use t; create table a (id int primary key, v int) engine=innodb; "
    rows += "insert into a select seq, 0 from seq_1_to_50"
    _change_owner(directory, user)
    install = [need("mariadb-install-db", "mariadb-server"), *place, "--skip-test-db"]
    _run([*install, "--auth-root-authentication-method=normal"], user)
    updates = directory / "updates"
    updates.write_text("".join(f"update a set v = v + 1 where id = {n * 7 % 50 + 1};\n" for n in range(_UPDATES)))
    with ExitStack() as stack:
        pid = stack.enter_context(_running([server, *place, f"--socket={directory}/socket", "--skip-networking"], user))
        _wait_for([*reach, "-uroot", "-e", "select 1"], user)
        _run([*reach, "-uroot", "-e", rows], user)
        for _ in range(_CLIENTS):
            stack.enter_context(_running([*reach, "-uroot", "t"], user, updates))
        yield pid


Server = Callable[[Path], AbstractContextManager[int]]
SERVERS: dict[str, Server] = {"PostgreSQL": postgresql, "MariaDB": mariadb}


def _change_owner(directory: Path, user: str) -> None:
    """Change the owner, because servers refuse to run as root.

    Raises UnanswerableError if the user does not exist.
    """
    try:
        shutil.chown(directory, user)
    except LookupError as error:
        raise UnanswerableError(f"there is no user {user}") from error


@contextmanager
def _running(arguments: Sequence[str], user: str, stdin_file: Path | None = None) -> Generator[int]:
    """Start a process, yield its pid, and end it afterwards.

    `stdin_file`: file for its standard input.
    """
    with (stdin_file or Path("/dev/null")).open() as standard_input:
        process = subprocess.Popen(
            arguments,
            stdin=standard_input,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            group=user,
            extra_groups=(),
            cwd="/",
        )
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_SECONDS)


def _run(arguments: Sequence[str], user: str) -> None:
    """Run a command to its end.

    Raises UnanswerableError with its last line of output if it fails.
    """
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=60, user=user, group=user, extra_groups=(), cwd="/"
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UnanswerableError(f"{arguments[0]}: {''.join(last) or done.returncode}")


def _wait_for(arguments: Sequence[str], user: str) -> None:
    """Repeat a command until it succeeds, which means that the server is up.

    Raises UnanswerableError.
    """
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            return _run(arguments, user)
        except UnanswerableError:
            if time.monotonic() > until:
                raise
        time.sleep(0.3)
