"""The first sentence about an incident names program, reason and holder; programs that are well are not accused.

`make incidents` runs these tests; they need Debian's postgresql and nginx. Other programs may run beside them, so only
suspects of the programs of the test count.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bench import servers
from bench.servers import Servers
from tests.command import OFFTOP
from tests.incidents.test_incidents import silent_name_server, started
from tests.kernel import hangs, waits

pytestmark = pytest.mark.incident

_TICKS = 8
_LATE = 3
"""Ticks at the end in which the suspect must be named: peers of sockets are found within seconds."""
_LARGE = 12
"""Ticks for a program of 100 MB, whose names take longer."""
_NO_ROWS = "--filter", "proc=none-of-them"
"""Suspects are not filtered, and the rest of a tick of a busy machine is large."""
_CPU = Path("/sys/fs/cgroup/cpu")


def ticks(*options: str, count: int = _TICKS) -> list[list[dict[str, Any]]]:
    """Return the suspects of each tick."""
    command = [OFFTOP, "--json", "-n", str(count), *_NO_ROWS, *options]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    return [json.loads(line)["suspects"] for line in text.splitlines()]


def of(programs: set[str], found: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Return the suspects in whose chain one of the programs is."""
    return [[one for one in tick if programs & {hop["process"] for hop in one["hops"]}] for tick in found]


def named(programs: set[str], count: int = _TICKS) -> list[dict[str, Any]]:
    """Return the first suspect of the last ticks that is about one of the programs."""
    every = of(programs, ticks(count=count))
    assert all(every[-_LATE:]), [[one["text"] for one in tick] for tick in every]
    return [tick[0] for tick in every[-_LATE:]]


@contextmanager
def python(*lines: str, name: str = "", cwd: Path | None = None) -> Generator[subprocess.Popen[bytes]]:
    """Run a Python program whose process has that name."""
    rename = f"open('/proc/self/comm', 'w').write({name!r})\n" if name else ""
    with started("/usr/bin/python3", "-c", rename + "\n".join(lines), cwd=cwd) as process:
        yield process


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Generator[Servers]:
    directory = tmp_path_factory.mktemp("postgres")
    for parent in (directory, *directory.parents[:2]):
        parent.chmod(0o755)
    data = directory / "data"
    with servers.serving(directory) as serving:
        assert servers.run([servers.of_postgres("initdb"), "-A", "trust", "--no-sync", "-D", data], "postgres")
        options = ["-k", directory, "-c", "listen_addresses=", "-c", "max_connections=60"]
        serving.start("PostgreSQL", [servers.of_postgres("postgres"), "-D", data, *options], user="postgres")
        to = ["-h", str(directory), "-U", "postgres"]
        servers.wait_for(lambda: servers.run(["psql", *to, "-c", "select 1"]), "postgres")
        assert servers.run(
            ["psql", *to, "-c", "create table pile(a int, b int)", "-c", "insert into pile values (1, 0)"]
        )
        yield serving


@contextmanager
def session(at: Servers, sql: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a session whose client stays after `sql`."""
    client = subprocess.Popen(
        ["psql", "-q", "-h", str(at.directory), "-U", "postgres"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert client.stdin
    try:
        client.stdin.write(f"{sql}\n".encode())
        client.stdin.flush()
        yield client
    finally:
        client.kill()
        client.stdin.close()
        client.wait()


def test_session_idle_in_transaction_is_likely_the_holder(postgres: Servers) -> None:
    with ExitStack() as stack:
        stack.enter_context(session(postgres, "begin; update pile set b = 1 where a = 1;"))
        time.sleep(1)
        for _ in range(12):
            stack.enter_context(session(postgres, "begin; update pile set b = b + 1 where a = 1;"))
        time.sleep(2)
        for one in named({"postgres"}):
            assert one["text"].startswith("12 postgres wait for a row or table lock ("), one["text"]
            assert "), likely held by postgres(" in one["text"]
            assert ", idle in transaction. Next: " in one["text"]
            assert one["hops"][-1]["title"].endswith("idle in transaction")


def test_sleep_that_inherited_a_lock_file_holds_it(tmp_path: Path) -> None:
    lock = tmp_path / "job.lock"
    with ExitStack() as stack:
        stack.enter_context(started("sh", "-c", f"exec 9>{lock}; flock 9; sleep 600 & exit"))
        time.sleep(0.5)
        for _ in range(3):
            stack.enter_context(started("flock", lock, "true"))
        time.sleep(2)
        for one in named({"flock"}):
            assert one["text"].startswith("3 flock wait for job.lock ("), one["text"]
            assert "), held by sleep(" in one["text"]
            assert not one["likely"]


def test_two_programs_that_lock_two_files_in_the_other_order_are_a_deadlock(tmp_path: Path) -> None:
    takes = (
        "import fcntl, time, sys",
        "one, other = open('x.lock' if {0} else 'y.lock', 'w'), open('y.lock' if {0} else 'x.lock', 'w')",
        "fcntl.flock(one, fcntl.LOCK_EX); time.sleep(1); fcntl.flock(other, fcntl.LOCK_EX)",
    )
    with ExitStack() as stack:
        for first in (0, 1):
            lines = [line.format(first) for line in takes]
            stack.enter_context(python(*lines, name=f"taker{first}", cwd=tmp_path))
        time.sleep(3)
        for one in named({"taker0", "taker1"}):
            assert (one["kind"], {hop["process"] for hop in one["hops"]}) == ("deadlock", {"taker0", "taker1"})
            assert "wait for each other: a deadlock" in one["text"]
            assert {hop["what"] for hop in one["hops"]} == {"x.lock", "y.lock"}


def test_reader_that_sleeps_is_behind_a_full_pipe() -> None:
    with started("sh", "-c", "yes | sleep 600"):
        time.sleep(2)
        for one in named({"yes"}):
            assert one["text"].startswith("yes("), one["text"]
            assert "waits for room in a pipe" in one["text"]
            assert "to sleep(" in one["text"]
            assert "which sleeps" in one["text"]


def test_stopped_reader_is_behind_a_full_pipe() -> None:
    with started("sh", "-c", "yes | cat >/dev/null") as shell:
        time.sleep(0.5)
        listed = subprocess.run(
            ["pgrep", "-s", str(shell.pid), "-x", "cat"], capture_output=True, text=True, check=True
        )
        os.kill(int(listed.stdout), signal.SIGSTOP)
        time.sleep(2)
        for one in named({"yes"}):
            assert "waits for room in a pipe" in one["text"]
            assert "to cat(" in one["text"]
            assert "which is stopped" in one["text"]


def test_upstream_of_a_proxy_is_named(tmp_path: Path) -> None:
    port = 18099
    configured = tmp_path / "nginx.conf"
    configured.write_text(
        f"daemon off; worker_processes 1; pid {tmp_path}/pid; error_log {tmp_path}/error.log; user root;\n"
        "events { worker_connections 64; }\n"
        f"http {{ access_log off; server {{ listen 127.0.0.1:18080; location / {{ proxy_pass http://127.0.0.1:{port};"
        f" proxy_read_timeout 600s; }} }} proxy_temp_path {tmp_path}/b; client_body_temp_path {tmp_path}/a;"
        f" fastcgi_temp_path {tmp_path}/c; uwsgi_temp_path {tmp_path}/d; scgi_temp_path {tmp_path}/e; }}\n"
    )
    app = (
        "import http.server, time",
        "class Handler(http.server.BaseHTTPRequestHandler):",
        "    def do_GET(self): time.sleep(600)",
        f"http.server.HTTPServer(('127.0.0.1', {port}), Handler).serve_forever()",
    )
    with ExitStack() as stack:
        stack.enter_context(python(*app, name="upstream"))
        stack.enter_context(started(servers.need("nginx", "nginx-light"), "-c", configured))
        time.sleep(1)
        for _ in range(8):
            stack.enter_context(started("curl", "-s", "http://127.0.0.1:18080/"))
        time.sleep(2)
        for one in named({"nginx"}):
            chain = r"nginx\(\d+\)(, which)? waits for an answer.*, likely from upstream\(\d+\), which sleeps"
            assert re.search(chain, one["text"]), one["text"]


@pytest.mark.parametrize(
    "client",
    [
        ("curl", "-s"),
        ("wget", "-q", "-O", "/dev/null"),
        ("/usr/bin/python3", "-c", "import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=600).read()"),
    ],
    ids=["poll", "select", "python"],
)
def test_server_that_has_stopped_is_behind_its_clients(client: tuple[str, ...]) -> None:
    lines = (
        "import os, signal, socket",
        "server = socket.create_server(('127.0.0.1', 18097))",
        "os.kill(os.getpid(), signal.SIGSTOP)",
    )
    with ExitStack() as stack:
        stack.enter_context(python(*lines, name="halted"))
        time.sleep(1)
        for _ in range(6):
            stack.enter_context(started(*client, "http://127.0.0.1:18097/"))
        time.sleep(2)
        for one in named({"halted"}):
            assert re.search(r"^[56] \S+ wait for an .* from halted\(\d+\), which is stopped", one["text"]), one["text"]


def test_pool_whose_workers_all_wait_for_the_pool_is_named() -> None:
    lines = (
        "from concurrent.futures import ThreadPoolExecutor",
        "pool = ThreadPoolExecutor(6)",
        "def outer(): return pool.submit(pow, 2, 3).result()",
        "import threading; ready = threading.Barrier(6)",
        "def all_at_once(): ready.wait(); return outer()",
        "tasks = [pool.submit(all_at_once) for _ in range(6)]",
        "[task.result() for task in tasks]",
    )
    with python(*lines, name="pooled"):
        time.sleep(2)
        for one in named({"pooled"}):
            assert one["text"].startswith("6 threads of pooled wait for the result of another task ("), one["text"]


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Servers, list[str | Path]]]:
    directory = tmp_path_factory.mktemp("mariadb")
    for parent in (directory, *directory.parents[:2]):
        parent.chmod(0o755)
    with servers.serving(directory) as serving:
        yield serving, serving.empty_mariadb()


def test_queries_behind_an_alter_wait_for_a_metadata_lock(mariadb: tuple[Servers, list[str | Path]]) -> None:
    _, client = mariadb
    assert servers.run(
        [*client, "-e", "create or replace database d; create table d.t (a int); insert into d.t values (1)"]
    )
    with ExitStack() as stack:
        for many, sql in (
            (1, "select a, sleep(600) from d.t"),
            (1, "alter table d.t add b int"),
            (10, "select * from d.t"),
        ):
            for _ in range(many):
                stack.enter_context(started(*client, "-e", sql))
            time.sleep(1)
        found = named({"mariadbd"}, _LARGE)
        for one in found:
            assert re.match(r"\d+ threads of mariadbd wait for a metadata lock \(", one["text"]), one["text"]
        # Each of the eleven waits anew once a second, and is left out while its wait is younger than 0.1 s.
        assert 9 <= max(one["hops"][0]["threads"] for one in found) <= 11


def test_lookups_of_a_silent_name_server_wait_for_dns(tmp_path: Path) -> None:
    with silent_name_server(tmp_path, many=3):
        for one in named({"getent"}):
            assert one["text"].startswith("3 getent wait for DNS ("), one["text"]


def test_readers_of_a_silent_file_system_wait_for_its_server(tmp_path: Path) -> None:
    with ExitStack() as stack, hangs.fuse(tmp_path, Path("/bin/true")) as mounted:
        mounted.stop()
        for _ in range(3):
            stack.enter_context(started("cat", mounted.program))
        time.sleep(2)
        for one in named({"cat"}):
            assert one["text"].startswith("2 cat wait for a file's lock in the kernel ("), one["text"]
            assert ", likely held by cat(" in one["text"]
            assert ", which waits for a FUSE file system, likely from python" in one["text"]
            assert "which is stopped" in one["text"]
            assert one["hops"][-1]["pid"] == mounted.pid


JAVA = """
public class Monitor {
    static final Object lock = new Object();
    static void enter() { synchronized (lock) { try { Thread.sleep(600_000); } catch (InterruptedException e) { } } }
    public static void main(String[] words) {
        for (int n = 0; n < 8; n++) new Thread(Monitor::enter, "worker-" + n).start();
    }
}
"""


def test_threads_behind_a_java_monitor_are_named(tmp_path: Path) -> None:
    source = tmp_path / "Monitor.java"
    source.write_text(JAVA)
    subprocess.run([servers.need("javac", "default-jdk-headless"), "-d", tmp_path, source], check=True, timeout=120)
    with started(servers.need("java", "default-jdk-headless"), "-cp", tmp_path, "Monitor"):
        time.sleep(3)
        for one in named({"java"}, _LARGE):
            # One of the seven looks from time to time whether it may go on.
            assert re.match(r"[67] threads of java wait for a Java monitor \(", one["text"]), one["text"]


NODE = """
const { pbkdf2 } = require('crypto')
require('http').createServer((request, response) => {
  pbkdf2('a', 'b', 30000000, 64, 'sha512', () => response.end('done\\n'))
}).listen(18098, '127.0.0.1')
"""


def test_clients_of_a_server_without_cpu_wait_for_it(tmp_path: Path) -> None:
    script = tmp_path / "server.js"
    script.write_text(NODE)
    client = (
        "import threading, urllib.request",
        "def ask(): urllib.request.urlopen('http://127.0.0.1:18098/').read()",
        "for _ in range(20): threading.Thread(target=ask).start()",
    )
    with started(servers.need("node", "nodejs"), script):
        time.sleep(2)
        with python(*client, name="clients"):
            time.sleep(3)
            for one in named({"clients"}, _LARGE):
                assert re.match(r"\d\d threads of clients wait for .* from node\(", one["text"]), one["text"]
                assert re.search(r", which (runs|wants a CPU)", one["text"]), one["text"]


def test_programs_beside_a_noisy_neighbour_wait_for_a_cpu() -> None:
    burn = "while True: pass"
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(python(burn, name="noisy"))
        for _ in range(3):
            stack.enter_context(python(burn, name="victim"))
        time.sleep(2)
        for one in named({"victim"}):
            assert one["kind"] == "cpu", one["text"]
            assert "victim" in one["text"].partition("wait")[0]
            assert "noisy" in one["text"].partition("wait")[2]


def test_program_above_its_cpu_quota_waits_for_it(tmp_path: Path) -> None:
    if not (_CPU / "cpu.cfs_quota_us").exists() and not _CPU.exists():
        pytest.skip("no cgroup v1 with the cpu controller")
    group = _CPU / f"offtop-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("20000")
        with python("while True: pass", name="throttled") as busy:
            (group / "cgroup.procs").write_text(str(busy.pid))
            time.sleep(1)
            for one in named({"throttled"}):
                assert one["kind"] == "quota", one["text"]
                assert "waits for the CPU quota" in one["text"]
    finally:
        for _ in range(50):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def others_left_out(found: list[list[dict[str, Any]]]) -> list[list[str]]:
    """Return the sentences, without those about CPUs: other programs may run beside the test."""
    return [[one["text"] for one in tick if one["kind"] != "cpu"] for tick in found]


def test_healthy_postgresql_is_not_accused(postgres: Servers) -> None:
    to = ["-h", str(postgres.directory), "-U", "postgres"]
    bench = servers.need("pgbench", "postgresql-contrib")
    assert servers.run([bench, *to, "-i", "-s", "4", "postgres"])
    with started(bench, *to, "-c", "4", "-T", "60", "postgres"), session(postgres, "select 1;"):
        time.sleep(2)
        assert others_left_out(of({"postgres", "pgbench", "psql"}, ticks(count=15))) == [[]] * 15


def test_build_and_busy_programs_are_not_accused(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all: $(patsubst %,%.o,$(shell seq 300))\n%.o:\n\tgcc -O2 -c -o $@ one.c\n")
    functions = "\n".join(f"int f{n}(int a) {{ return a * {n} + (a >> {n % 8}); }}" for n in range(3000))
    (tmp_path / "one.c").write_text(functions)
    with started("make", "-j2", cwd=tmp_path), python("while True: pass", name="burner"):
        time.sleep(2)
        assert others_left_out(of({"make", "gcc", "cc1", "as", "burner"}, ticks(count=15))) == [[]] * 15


def test_frozen_file_system_is_named(tmp_path: Path) -> None:
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as out:
        out.truncate(64 << 20)
    with ExitStack() as stack:
        for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, place], ["fsfreeze", "-f", place]):
            subprocess.run(command, check=True, timeout=60)
            if command[0] == "mount":
                stack.callback(subprocess.run, ["umount", place], check=True, timeout=60)
        with ExitStack() as writers:
            for number in range(3):
                writers.enter_context(started("dd", "if=/dev/zero", f"of={place / str(number)}", "bs=1k", "count=9"))
            writers.callback(subprocess.run, ["fsfreeze", "-u", place], check=True, timeout=60)
            for one in named({"dd"}):
                assert re.match(r"3 dd wait for a frozen file system \(.*\)\. Next: what takes a snapshot", one["text"])


def test_slow_disk_is_named() -> None:
    disk = Path("/sys/dev/block", waits.disk_of(Path("/var/tmp"))).resolve().name
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(waits.running("read-direct", times=100, each_ms=1700)).go()
        for one in named({"waits"}):
            assert re.match(rf"(3|2) waits wait for the disk to read \(.*\), on {disk}\. Next: ", one["text"])
            assert (one["hops"][-1]["process"], one["hops"][-1]["state"]) == (disk, "disk")


def test_nginx_under_load_is_not_accused(tmp_path: Path) -> None:
    with servers.serving(tmp_path) as serving:
        serving.nginx()
        servers.wait_for((tmp_path / "nginx.sock").exists, "nginx")
        load = f"while :; do curl -s -o /dev/null --unix-socket {tmp_path}/nginx.sock http://it/; done"
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(started("sh", "-c", load))
            time.sleep(2)
            assert others_left_out(of({"nginx", "curl"}, ticks(count=12))) == [[]] * 12


def test_suspect_is_an_outlier_on_request(tmp_path: Path) -> None:
    lock = tmp_path / "job.lock"
    with started("flock", lock, "sleep", "600"), started("flock", lock, "true"), started("flock", lock, "true"):
        time.sleep(2)
        command = [OFFTOP, "--json", "-n", "6", *_NO_ROWS, "--trigger", "suspect", "--fail-on-trigger"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        found = [one for line in done.stdout.splitlines() for one in json.loads(line)["outliers"]]
        assert done.returncode == 5
        assert [(one["rule"], one["metric"]) for one in found if one["process"] in ("flock", "sleep")] == [
            ("suspect", "harm")
        ]
