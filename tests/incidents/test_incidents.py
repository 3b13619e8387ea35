"""Offtop's line about the largest cause is right for incidents with real programs.

`make incidents` runs these tests; they need Debian's postgresql, mariadb-server and redis.
"""

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench import servers
from bench.servers import Servers

pytestmark = pytest.mark.incident

_HERE = Path(__file__).parent
_TOLD = re.compile(r"^(?:about )?(\d+)% wait for (.+?) \((\S+)\): (.+)$")
_TICKS = 4


@contextmanager
def started(*command: str | Path, **options: object) -> Generator[subprocess.Popen[bytes]]:
    """Start a process; it and its children are killed at the end of the block."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(list(map(str, command)), start_new_session=True, **{**quiet, **options})  # pyright: ignore
    try:
        yield process
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
        process.wait(10)


def diagnosed(chosen: str, *options: str) -> list[tuple[int, str, str, str]]:
    """Return share, cause, process and explanation of the line about the cause in each tick."""
    offtop = Path(sys.executable).with_name("offtop")
    command = [offtop, "-b", "-n", str(_TICKS), "--filter", chosen, *options]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    found = [_TOLD.match(line) for line in text.splitlines()]
    return [(int(one[1]), one[2], one[3], one[4]) for one in found if one]


def check(chosen: str, name: str, least_share: int, process: str, *options: str) -> None:
    found = diagnosed(chosen, *options)
    assert len(found) >= _TICKS - 1, f"only {found}"
    for share, what, process_name, _ in found[-2:]:
        assert (what, process_name) == (name, process), found
        assert share >= least_share, found


def compiled(source: str, to: Path, *flags: str) -> Path:
    subprocess.run(["gcc", "-O1", "-g", "-o", str(to), str(_HERE / source), *flags], check=True, timeout=60)
    return to


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Generator[Servers]:
    directory = tmp_path_factory.mktemp("postgres")
    for parent in (directory, *directory.parents[:2]):
        parent.chmod(0o755)
    with servers.serving(directory) as serving:
        serving.postgres(idle=2)
        yield serving


def psql(at: Servers, sql: str) -> None:
    at.start("", ["psql", "-h", at.directory, "-U", "postgres", "-c", sql])


def test_rows_locked_by_one_session_are_a_postgresql_row_lock(postgres: Servers) -> None:
    to = ["psql", "-h", str(postgres.directory), "-U", "postgres", "-c"]
    subprocess.run([*to, "create table pile(a int, b int); insert into pile values (1, 0)"], check=True, timeout=30)
    psql(postgres, "begin; update pile set b = 1 where a = 1; select pg_sleep(60)")
    time.sleep(0.5)
    for _ in range(8):
        psql(postgres, "begin; update pile set b = b + 1 where a = 1; select pg_sleep(60)")
    time.sleep(2)
    check("proc=postgres", "a row or table lock", 60, "postgres")
    # the sessions that wait for the table of bench/servers.py wait in the same way
    assert any("another session" in explanation for _, _, _, explanation in diagnosed("proc=postgres"))


def test_commits_to_a_slow_disk_are_the_postgresql_wal(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("wal")
    for parent in (directory, *directory.parents[:2]):
        parent.chmod(0o755)
    slow = compiled("slow_disk.c", directory / "slow_disk.so", "-shared", "-fPIC")
    data = directory / "data"
    of = servers.of_postgres
    with servers.serving(directory) as serving, ExitStack() as stack:
        assert servers.run([of("initdb"), "-A", "trust", "--no-sync", "-D", data], "postgres")
        options = ["-k", directory, "-c", "listen_addresses=", "-c", "max_connections=50"]
        environment = ["env", f"LD_PRELOAD={slow}"]
        serving.start("PostgreSQL", [*environment, of("postgres"), "-D", data, *options], user="postgres")
        to = ["-h", str(directory), "-U", "postgres"]
        servers.wait_for(lambda: servers.run(["psql", *to, "-c", "select 1"]), "postgres")
        assert servers.run([servers.need("pgbench", "postgresql-contrib"), *to, "-i", "-s", "8", "postgres"])
        bench = [servers.need("pgbench", "postgresql-contrib"), *to, "-n", "-N", "-c", "8", "-T", "60", "postgres"]
        stack.enter_context(started(*bench))
        time.sleep(2)
        check("proc=postgres", "the WAL flush", 40, "postgres")


def test_rows_locked_by_one_transaction_are_an_innodb_row_lock(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("mariadb")
    for parent in (directory, *directory.parents[:2]):
        parent.chmod(0o755)
    with servers.serving(directory) as serving:
        serving.mariadb(idle=2)
        client = ["mariadb", "--no-defaults", "-S", directory / "mariadb.sock", "-e"]
        table = "create table d.pile (a int primary key, b int) engine=innodb; insert into d.pile values (1, 0)"
        assert servers.run([*client, table])
        for _ in range(40):  # to outweigh the waiters that bench/servers.py starts
            serving.start("", [*client, "begin; update d.pile set b = b + 1 where a = 1; select sleep(60)"])
        time.sleep(4)
        check("proc=mariadbd", "a row lock", 25, "mariadbd")


def test_clients_of_a_slow_redis_wait_for_its_reply(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    at = tmp_path / "redis.sock"
    redis = servers.need("redis-server", "redis-server")
    cli = servers.need("redis-cli", "redis-tools")
    with ExitStack() as stack:
        stack.enter_context(started(redis, "--port", "0", "--unixsocket", at, "--enable-debug-command", "yes"))
        servers.wait_for(at.exists, "redis-server")
        for _ in range(6):
            stack.enter_context(started(cli, "-s", at, "-r", "1000", "debug", "sleep", "0.2"))
        time.sleep(1)
        check("proc=redis-cli", "an answer from Redis", 80, "redis-cli")


def test_python_threads_that_compute_wait_for_the_gil() -> None:
    computes = (
        "import threading\ndef f():\n while True: sum(range(2000))\n"
        "for _ in range(6): threading.Thread(target=f).start()"
    )
    with started(shutil.which("python3", path="/usr/bin") or sys.executable, "-c", computes) as python:
        time.sleep(1)
        check(f"pid={python.pid}", "Python's GIL", 50, Path(f"/proc/{python.pid}/comm").read_text().strip())


def test_long_held_mutex_is_a_convoy(tmp_path: Path) -> None:
    with started(compiled("convoy.c", tmp_path / "convoy", "-pthread")):
        time.sleep(1)
        check("proc=convoy", "a mutex", 60, "convoy")


@contextmanager
def silent_name_server(directory: Path, many: int) -> Generator[None]:
    """Let so many programs look up a name on a server that does not answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent, ExitStack() as stack:
        silent.bind(("127.0.0.99", 53))
        resolv = directory / "resolv.conf"
        resolv.write_text("nameserver 127.0.0.99\noptions timeout:30\n")
        script = f"mount --bind {resolv} /etc/resolv.conf && exec getent ahosts offtop.example"
        for _ in range(many):
            stack.enter_context(started("unshare", "--mount", "sh", "-c", script))
        time.sleep(1)
        yield


def test_unresponsive_name_server_is_dns(tmp_path: Path) -> None:
    with silent_name_server(tmp_path, many=3):
        check("proc=getent", "DNS", 90, "getent")


def test_unread_pipe_is_full() -> None:
    with started("sh", "-c", "yes | sleep 60"):
        time.sleep(1)
        check("proc=yes", "room in the pipe to sleep", 90, "yes")


def test_mapped_file_that_is_not_cached_waits_in_page_faults(tmp_path: Path) -> None:
    file = Path(tmp_path, "cold")
    file.write_bytes(bytes(64 << 20))
    touches = (
        "import mmap, os, random, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)\nm.madvise(mmap.MADV_RANDOM)\n"
        "while True:\n m.madvise(mmap.MADV_DONTNEED)\n os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
        " for _ in range(2000): m[random.randrange(len(m))]"
    )
    with started(sys.executable, "-c", touches, file) as python:
        time.sleep(1)
        name = Path(f"/proc/{python.pid}/comm").read_text().strip()
        check(f"pid={python.pid} cat!=run-queue", "a mapped file", 60, name, "--min", "10us", "--exact-stacks")
