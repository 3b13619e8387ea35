"""The agent on the real kernel: counters grow by what children wait, suspects have names, and it ends cleanly."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from tests import command
from tests.agent.serving import Samples, samples_of, sums
from tests.command import QUICK
from tests.kernel import waits
from tests.kernel.test_suspects import started

pytestmark = pytest.mark.kernel

_SECONDS = 60.0


class Agent:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stderr
        line = process.stderr.readline().decode()
        found = re.fullmatch(r"offtop: http://(127\.0\.0\.1):(\d+)/metrics; ctrl-C ends it\n", line)
        assert found, line + process.stderr.read().decode()
        self.port = int(found[2])

    def get(self, path: str) -> bytes:
        client = HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        client.request("GET", path)
        answer = client.getresponse()
        content = answer.read()
        client.close()
        return content if answer.status == 200 else b""

    def samples(self) -> Samples:
        return samples_of(self.get("/metrics"))

    def until(self, holds: Callable[[Samples], bool]) -> Samples:
        deadline = time.monotonic() + _SECONDS
        while not holds(samples := self.samples()):
            assert time.monotonic() < deadline, samples
            time.sleep(0.2)
        return samples

    def after_ticks(self, count: int) -> Samples:
        ticks = self.samples().get(("offtop_agent_ticks_total", ()), 0)
        return self.until(lambda samples: samples.get(("offtop_agent_ticks_total", ()), 0) >= ticks + count)


@contextmanager
def running(*arguments: str) -> Generator[Agent]:
    process = command.start("agent", "--listen", "127.0.0.1:0", "-d", "0.5", *arguments)
    try:
        yield Agent(process)
    finally:
        process.kill()
        process.communicate()


def test_counters_grow_by_the_waits_of_a_child_and_never_fall() -> None:
    with waits.running("flock", times=23, each_ms=20) as child, running("-p", str(child.pid), *QUICK) as agent:
        before = agent.after_ticks(2)
        child.go()
        child.finish()
        during = agent.after_ticks(1)
        after = agent.after_ticks(3)
        lock_s = sums(after, "offtop_wait_seconds_total", "category")["lock"]
        assert 23 * 0.02 <= lock_s <= child.took_ns / 1e9
        (name,) = sums(after, "offtop_wait_seconds_total", "program")
        assert name == "waits"
        assert after["offtop_wait_duration_seconds_bucket", (("category", "lock"), ("le", "+Inf"))] == 23
        assert after["offtop_wait_duration_seconds_bucket", (("category", "lock"), ("le", "0.016777216"))] == 0
        causes = sums(after, "offtop_cause_wait_seconds_total", "why")
        assert causes["file-lock"] == pytest.approx(lock_s, rel=0.01)
        for earlier, later in ((before, during), (during, after)):
            assert all(later[key] >= value for key, value in earlier.items() if key[0].endswith(("_total", "_bucket")))
        assert not any(value for (name, _), value in after.items() if name == "offtop_lost_records_total")


@pytest.mark.variant
def test_idle_waits_of_a_child_have_all_of_its_time() -> None:
    """It is in poll all the time: one thread for one second each second."""
    with subprocess.Popen(["/usr/bin/python3", "-c", "import select; select.poll().poll()"]) as child:
        try:
            with running("-p", str(child.pid), *QUICK) as agent:
                first = agent.after_ticks(2)
                second = agent.after_ticks(6)
                idle = [sums(one, "offtop_idle_wait_seconds_total", "category")["poll"] for one in (first, second)]
                assert 1.0 <= idle[1] - idle[0] <= 10.0
                ticks_s = (
                    second["offtop_agent_last_tick_timestamp_seconds", ()]
                    - first["offtop_agent_last_tick_timestamp_seconds", ()]
                )
                assert idle[1] - idle[0] == pytest.approx(ticks_s, abs=0.6)  # it is a tick late
        finally:
            child.kill()


@contextmanager
def _once_held(lock: Path) -> Generator[None]:
    """Start a waiter for a file lock once another program has it."""
    while subprocess.run(["flock", "-n", lock, "true"], timeout=10).returncode == 0:
        time.sleep(0.05)
    with started("flock", lock, "true"):
        yield


def test_whole_machine_has_suspects_stuck_threads_profiles_and_units(tmp_path: Path) -> None:
    lock = tmp_path / "agent.lock"  # the programs of other tests are counted, too
    # On a machine that other tests keep busy, the agent's budget of 1 % would leave out scans for some time.
    with started("flock", lock, "sleep", "600"), _once_held(lock), running("--exact-stacks") as agent:
        agent.until(
            lambda samples: any(
                name == "offtop_suspect_threads"
                and dict(labels) == {"what": "agent.lock", "who": "flock", "held_by": "sleep"}
                for name, labels in samples
            )
        )
        # The lock of another test's program may have been stuck for a while before.
        agent.until(lambda samples: samples.get(("offtop_stuck_oldest_seconds", (("category", "lock"),)), 0.0) >= 10)
        samples = agent.after_ticks(2)
        assert samples["offtop_run_queue_seconds_total", ()] > 0
        assert samples["offtop_context_switches_total", ()] > 0
        assert samples["offtop_agent_cpu_seconds_total", ()] > 0
        (suspect, *_) = json.loads(agent.get("/suspects"))
        assert "wait" in suspect["text"]
        profile = tmp_path / "it.pb.gz"
        profile.write_bytes(agent.get("/debug/pprof/off_cpu?seconds=2"))
        of_flock = ["go", "tool", "pprof", "-tagfocus", "comm=flock", "-tags", profile]
        tags = subprocess.run(of_flock, capture_output=True, text=True, timeout=60)
        took = re.search(r"([\d.]+)s \([ \d.]+%\): lock", tags.stdout)
        assert took and 1.9 <= float(took[1]) <= 4.5, tags.stdout + tags.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.variant)])
def test_a_signal_ends_it_and_detaches_its_probes(number: signal.Signals, tmp_path: Path) -> None:
    with running("--directory", str(tmp_path), *QUICK) as agent:
        agent.after_ticks(2)
        assert agent.samples()["offtop_agent_recording", ()] == 1
        programs = command.programs_of(agent.process.pid)
        assert programs
        agent.process.send_signal(number)
        ended = command.ended(agent.process)
        assert (ended.status, ended.out) == (128 + number, "")
        assert re.search(r"^offtop: recorded \d+ ticks", ended.err, re.M)
        assert command.still_loaded(programs) == set()
    (recording,) = tmp_path.glob("offtop-*.offtop")
    assert command.run("replay", str(recording), "--json", "-n", "1").status == 0


@pytest.mark.variant
@pytest.mark.parametrize(("mode", "key"), [(FILE, "files"), (DISK, "disks")])
def test_file_operations_and_requests_to_disks_are_counted_only_for_a_recording(
    mode: str, key: str, tmp_path: Path
) -> None:
    with running("--mode", mode, *QUICK) as agent:
        agent.after_ticks(1)
        counting = len(command.programs_of(agent.process.pid))
    with running("--mode", mode, "--directory", str(tmp_path), *QUICK) as agent:
        agent.after_ticks(2)
        assert len(command.programs_of(agent.process.pid)) > counting
        agent.process.send_signal(signal.SIGTERM)
        command.ended(agent.process)
    (recording,) = tmp_path.glob("offtop-*.offtop")
    replayed = command.run("replay", str(recording), "--json", "-n", "1")
    assert key in json.loads(replayed.out)


def test_it_ends_when_what_it_measures_has_exited() -> None:
    with subprocess.Popen(["sleep", "600"]) as child, running("-p", str(child.pid), *QUICK) as agent:
        agent.after_ticks(1)
        child.kill()
        child.wait()
        ended = command.ended(agent.process)
    assert (ended.status, ended.err) == (0, "offtop: all measured processes have exited\n")


def test_a_taken_port_is_refused_before_anything_is_attached() -> None:
    with running(*QUICK) as agent:
        refused = command.run("agent", "--listen", f"127.0.0.1:{agent.port}")
        assert refused.status == 1
        assert "cannot be listened on (Address already in use)" in refused.sentence
