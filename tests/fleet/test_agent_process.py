"""The agent as a process that others read: killed, with a clock that is set back, and attacked: `make fleet`.

It measures this machine: with BPF as root, otherwise from /proc.
"""

import base64
import contextlib
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path

import pytest

from tests import command
from tests.agent.test_web_config import TLS, USERS, certificate, written
from tests.command import QUICK
from tests.fleet.engines import Engine, free_port, prometheus, until

pytestmark = pytest.mark.fleet

_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    FILE *file = clock == CLOCK_REALTIME && !failed ? fopen(getenv("OFFSET_FILE"), "r") : NULL;
    if (file) {
        long offset_s = 0;
        if (fscanf(file, "%ld", &offset_s) == 1)
            now->tv_sec += offset_s;
        fclose(file);
    }
    return failed;
}
"""
"""Adds the seconds in a file to CLOCK_REALTIME, and to no other clock.

Debian's libfaketime 0.9.10 also changes the deadlines of clock_nanosleep() on CLOCK_MONOTONIC, whatever its settings
are: time.sleep() of Python 3.11 raises EINVAL then.
"""
_HOUR_S = 3600
_STORM_S = 15.0
_MOST_CONNECTIONS = 32
"""Of the agent, beside its own threads."""


@contextlib.contextmanager
def agent(port: int, *options: str, env: Mapping[str, str] | None = None) -> Generator[subprocess.Popen[bytes]]:
    """Run an agent until the block ends, from its first answer on."""
    process = command.start("agent", "--listen", f"127.0.0.1:{port}", "-d", "1", *QUICK, *options, env=env)
    try:
        assert process.stderr
        said = b""
        while b"ctrl-C ends it" not in said:
            line = process.stderr.readline()
            assert line, said.decode()
            said += line
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def reading(directory: Path, port: int, more: str = "") -> Generator[Engine]:
    """Run a Prometheus that scrapes it each second. `more`: how it is reached."""
    scrape = f"job_name: offtop, scrape_interval: 1s, static_configs: [{{targets: ['127.0.0.1:{port}']}}]{more}"
    with prometheus(directory, f"scrape_configs: [{{{scrape}}}]") as db:
        until(lambda: (value(db, "offtop_agent_ticks_total") or 0) > 2)
        yield db


def value(db: Engine, query: str) -> float | None:
    found = db.series(query)
    return float(found[0]["value"][1]) if found else None


def test_killed_agent_is_down_and_a_new_one_is_one_reset_and_no_wait(tmp_path: Path) -> None:
    port, began_s = free_port(), time.monotonic()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(agent(port))
        db = stack.enter_context(reading(tmp_path, port))
        until(lambda: value(db, "sum(rate(offtop_idle_wait_seconds_total[10s])) > 0") is not None)
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        until(lambda: value(db, "up") == 0)
        stack.enter_context(agent(port))
        until(lambda: value(db, "resets(offtop_agent_ticks_total[2m])") == 1)
        until(lambda: (value(db, "offtop_agent_ticks_total") or 0) > 5)
        increase = value(db, "increase(offtop_agent_ticks_total[2m])")
        assert increase and 5 < increase <= 1.5 * (time.monotonic() - began_s) + 5  # a tick is a second
        assert db.series("rate(offtop_idle_wait_seconds_total[2m]) < 0") == []


def test_clock_that_is_set_back_moves_no_counter(tmp_path: Path) -> None:
    """Only the agent sees another clock; its monotonic clock is the real one."""
    library, offset = tmp_path / "clock.so", tmp_path / "offset"
    compile_it = ["gcc", "-shared", "-fPIC", "-o", str(library), "-x", "c", "-", "-ldl"]
    subprocess.run(compile_it, input=_CLOCK.encode(), check=True, timeout=60)
    port, env = free_port(), {"LD_PRELOAD": str(library), "OFFSET_FILE": str(offset)}
    offset.write_text("0")
    with agent(port, env=env), reading(tmp_path, port) as db:
        ticked = "offtop_agent_last_tick_timestamp_seconds"
        assert abs((value(db, ticked) or 0) - time.time()) < 10
        offset.write_text(f"-{_HOUR_S}")
        until(lambda: abs((value(db, ticked) or 0) + _HOUR_S - time.time()) < 10)
        ticks = value(db, "offtop_agent_ticks_total")
        assert ticks
        until(lambda: (value(db, "offtop_agent_ticks_total") or 0) > ticks + 5)
        counters = '{__name__=~"offtop_.*_total",job="offtop"}'
        names = db.values(f"count by (__name__) ({counters})", "__name__").keys()
        assert len(names) > 10
        assert [one for one in names if db.series(f"resets({one}[2m]) > 0")] == []
        # A second has no more than one second of each thread.
        threads = sum(len(list(one.iterdir())) for one in Path("/proc").glob("[0-9]*/task"))
        rates = db.values("sum by (job) (rate(offtop_idle_wait_seconds_total[10s]))", "job")
        assert 0 < rates["offtop"] < 2 * threads


def test_go_tool_pprof_opens_a_profile_of_the_next_seconds(tmp_path: Path) -> None:
    port = free_port()
    with agent(port):
        command = ["go", "tool", "pprof", "-tags", f"http://127.0.0.1:{port}/debug/pprof/off_cpu?seconds=3"]
        began_s = time.monotonic()
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        )
    assert ran.returncode == 0, ran.stderr
    assert time.monotonic() - began_s > 2
    assert re.search(r"^ *category: Total ", ran.stdout, re.M) and re.search(r"^ *thread: Total ", ran.stdout, re.M)


def test_slow_huge_and_many_requests_are_bounded_and_the_agent_measures_on(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    config, port = written(tmp_path, TLS + USERS), free_port()
    scheme = f", scheme: https, tls_config: {{ca_file: {tmp_path}/server.crt}}"
    scheme += ", basic_auth: {username: ann, password: secret}"
    with agent(port, "--web.config.file", str(config)) as process, reading(tmp_path, port, scheme) as db:
        before, ticks = usage(process.pid), value(db, "offtop_agent_ticks_total")
        assert ticks
        most_threads, end_s = 0, time.monotonic() + _STORM_S
        attacks: Iterable[Callable[[int, float], None]] = [*[slow] * 80, *[huge] * 3, *[guesses] * 3]
        storm = [threading.Thread(target=one, args=(port, end_s), daemon=True) for one in attacks]
        for one in storm:
            one.start()
        while time.monotonic() < end_s:
            most_threads = max(most_threads, usage(process.pid)["Threads"])
            time.sleep(0.1)
        for one in storm:
            one.join(20)
        after = usage(process.pid)
        assert before["Threads"] < most_threads <= before["Threads"] + _MOST_CONNECTIONS + 1
        assert after["VmHWM"] - before["VmHWM"] < 40 << 10  # KB
        until(lambda: value(db, "up") == 1)
        until(lambda: (value(db, "offtop_agent_ticks_total") or 0) > ticks + _STORM_S * 0.7)
        assert value(db, "resets(offtop_agent_ticks_total[2m])") == 0
        until(lambda: usage(process.pid)["Threads"] <= before["Threads"] + 2)


def usage(pid: int) -> dict[str, int]:
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[0] in ("Threads:", "VmHWM:")}


def slow(port: int, end_s: float) -> None:
    """Send a byte of a handshake now and then; connect again when cut off."""
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
            while time.monotonic() < end_s:
                client.send(b"\x16")
                time.sleep(0.2)
        time.sleep(0.1)


def huge(port: int, end_s: float) -> None:
    """Send headers without an end."""
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), encrypted(port) as client:
            client.send(b"GET /metrics HTTP/1.1\r\n")
            while time.monotonic() < end_s:
                client.send(b"x: " + b"y" * 8000 + b"\r\n")
        time.sleep(0.05)


def guesses(port: int, end_s: float) -> None:
    """Try one password after another."""
    number = 0
    while time.monotonic() < end_s:
        number += 1
        word = base64.b64encode(f"ann:{number}".encode()).decode()
        with contextlib.suppress(OSError), encrypted(port) as client:
            client.send(f"GET /metrics HTTP/1.1\r\nAuthorization: Basic {word}\r\n\r\n".encode())
            assert b"offtop_" not in client.recv(1 << 16)
        time.sleep(0.02)


def encrypted(port: int) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 5))
