"""Run servers whose threads wait in many ways, in a separate directory and with Unix sockets only."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import tools
from bench.answer import UnanswerableError
from bench.machine import need

PYTHON = """
import queue, select, socket, sys, threading, time
lock, full, ready = threading.Lock(), queue.Queue(), threading.Condition()
lock.acquire()
one, other = socket.socketpair()
def waits_for(condition):
    with condition: condition.wait()
ways = (lock.acquire, full.get, lambda: waits_for(ready), lambda: time.sleep(1000), lambda: one.recv(1),
        lambda: select.select([one], [], []), threading.Event().wait, lambda: sorted([0, 1], key=lambda n: full.get()))
def nested(depth, way):
    return nested(depth - 1, way) if depth else way()
threading.stack_size(1 << 20)
for n in range(int(sys.argv[1])):
    threading.Thread(target=nested, args=(n % 20, ways[n % len(ways)]), daemon=True).start()
quick = (lambda: lock.acquire(timeout=0.003), lambda: time.sleep(0.003), lambda: select.select([one], [], [], 0.003),
         lambda: sorted([0, 1], key=lambda n: time.sleep(0.003) or n), lambda: [*map(time.sleep, [0.003] * 2)],
         lambda: nested(30, lambda: eval("time.sleep(0.003)")), lambda: max([1, 2], key=lambda n: (quick[n](), 0)[1]))
while True:
    for way in quick:
        way() if len(sys.argv) > 2 else time.sleep(1000)
"""
_NGINX = """
daemon off; worker_processes 4; pid {0}/nginx.pid; error_log {0}/error.log; user root;
events {{ worker_connections 64; }}
http {{ access_log off; server {{ listen unix:{0}/nginx.sock; }}
  client_body_temp_path {0}/a; proxy_temp_path {0}/b; fastcgi_temp_path {0}/c; uwsgi_temp_path {0}/d;
  scgi_temp_path {0}/e; }}
"""
_BEGIN_S = 60.0


@dataclass
class Servers:
    """The running servers."""

    directory: Path
    named: dict[int, str] = field(default_factory=dict[int, str])
    """PID → name of the server, including children after `find_children`."""
    _stack: ExitStack = field(default_factory=ExitStack)

    def start(
        self, name: str, command: Sequence[str | Path], user: str = "", end: signal.Signals = signal.SIGTERM
    ) -> None:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            user=user or None,
            group=user or None,
            extra_groups=[] if user else None,
        )
        self._stack.callback(tools.end, process, end)
        if name:
            self.named[process.pid] = name

    def find_children(self) -> None:
        """Add the child processes of known processes to `named`."""
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        for pid in sorted(parents):
            if parents[pid] in self.named:
                self.named.setdefault(pid, self.named[parents[pid]])

    def end(self) -> None:
        self._stack.close()

    def python(self, threads: int, busy: bool = False) -> None:
        for program in sorted({sys.executable, shutil.which("python3", path="/usr/bin") or sys.executable}):
            self.start("CPython", [program, "-c", PYTHON, str(threads), *(["busy"] if busy else [])])

    def redis(self, busy: bool = False) -> None:
        at = self.directory / "redis.sock"
        self.start(
            *("Redis", [need("redis-server", "redis-server"), "--port", "0", "--unixsocket", at, "--io-threads", "4"]),
        )
        wait_for(at.exists, "redis-server")
        if busy:
            self.start("", [need("redis-benchmark", "redis-tools"), "-s", at, "-l", "-c", "3", "-t", "set,get"])

    def nginx(self) -> None:
        configured = self.directory / "nginx.conf"
        configured.write_text(_NGINX.format(self.directory))
        self.start("nginx", [need("nginx", "nginx-light"), "-c", configured])

    def postgres(self, idle: int, busy: bool = False) -> None:
        data = self.directory / "postgres"
        done = run([of_postgres("initdb"), "-A", "trust", "--no-sync", "-D", data], "postgres")
        if not done:
            raise UnanswerableError("initdb failed")
        self.start(
            *("PostgreSQL", [of_postgres("postgres"), "-D", data, "-k", self.directory, "-c", "listen_addresses="]),
            user="postgres",
            end=signal.SIGINT,
        )
        to = ["-h", self.directory, "-U", "postgres"]
        wait_for(lambda: run(["psql", *to, "-c", "select 1"]), "postgres")
        run(["psql", *to, "-c", "create table t(a int)"])
        bench = need("pgbench", "postgresql-contrib")
        run([bench, *to, "-i", "-s", "2", "postgres"])
        if busy:
            self.start("", [bench, *to, "-c", "8", "-j", "2", "-T", "600", "postgres"])
        self.start("", [bench, *to, "-c", str(idle), "-R", "1", "-T", "600", "postgres"])
        for sql in ("select pg_sleep(600)", "begin; lock table t; select pg_sleep(600)", *3 * ["lock table t"]):
            self.start("", ["psql", *to, "-c", f"begin; {sql}; select pg_sleep(600)"])

    def empty_mariadb(self) -> list[str | Path]:
        """Start MariaDB without databases, and return the command of a client for it."""
        data, at = self.directory / "mariadb", self.directory / "mariadb.sock"
        if not run([need("mariadb-install-db", "mariadb-server"), "--user=mysql", f"--datadir={data}"]):
            raise UnanswerableError("mariadb-install-db failed")
        options = (
            "--no-defaults",
            "--skip-networking",
            "--connect-timeout=600",
            "--max-connections=999",
            "--innodb-lock-wait-timeout=600",
        )
        files = (f"--datadir={data}", f"--socket={at}", f"--pid-file={data}/pid", "--innodb-fast-shutdown=2")
        self.start("MariaDB", [need("mariadbd", "mariadb-server"), *options, *files], user="mysql")
        client = [need("mariadb", "mariadb-client"), "--no-defaults", "-S", at]
        wait_for(lambda: run([*client, "-e", "select 1"]), "mariadbd")
        return client

    def mariadb(self, idle: int, busy: bool = False) -> None:
        client, at = self.empty_mariadb(), self.directory / "mariadb.sock"
        table = "create database d; create table d.t(a int primary key, b int) engine=innodb;"
        run([*client, "-e", f"{table} insert into d.t select seq, 0 from seq_1_to_1000"])
        locks = "begin; update d.t set b = 1 where a = 7; select sleep(600)"
        for sql in (locks, *9 * ["select sleep(600)"], *9 * ["select get_lock('one', 600), sleep(600)"], *9 * [locks]):
            self.start("", [*client, "-e", sql])
        for _ in range(idle):
            connection = self._stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(str(at))
        if busy:
            updates = 'for n in $(seq 100000); do echo "update d.t set b = b + 1 where a = $((n % 50 + 10));"; done'
            for _ in range(4):
                self.start("", ["sh", "-c", f"{updates} | '{client[0]}' --no-defaults -S {at}"])


@contextmanager
def serving(directory: Path) -> Generator[Servers]:
    directory.chmod(0o777)
    servers = Servers(directory)
    try:
        yield servers
    finally:
        servers.end()


def of_postgres(name: str) -> str:
    """Return the path of a PostgreSQL program; Debian has a directory per version."""
    places = ":".join(str(path) for path in Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which(name, path=places) or shutil.which(name)
    if found is None:
        raise UnanswerableError(f"{name} is not installed (Debian's package postgresql)")
    return found


def run(command: Sequence[str | Path], user: str = "") -> bool:
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_BEGIN_S,
        cwd="/",
        user=user or None,
        group=user or None,
        extra_groups=[] if user else None,
    )
    return not done.returncode


def wait_for(is_there: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + _BEGIN_S
    while not is_there():
        if time.monotonic() > until_s:
            raise UnanswerableError(f"{what} does not answer")
        time.sleep(0.1)
