"""Test debug files from a debuginfod server.

They are fetched only on request, and a bad server costs nothing but their names.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from offtop.errors import OfftopError, UsageError
from offtop.kernel.binary import debuginfod as debuginfod_module
from offtop.kernel.binary.debuginfod import DebugFiles, servers
from offtop.kernel.binary.files import File, Files
from offtop.kernel.symbols.mappings import Processes
from offtop.kernel.symbols.names import NameWorker
from offtop.model.values.stack import Frame
from tests import command
from tests.kernel.binary.test_inlines import INLINE, SOURCE, WHOLE
from tests.kernel.programs import build, make_readable_by_all, running

NOBODY_LISTENS = "http://127.0.0.1:1"


class Server(ThreadingHTTPServer):
    """A debuginfod server on this machine alone."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files: dict[str, bytes] = {}
        """File contents by path."""
        self.asked: list[str] = []
        self.cut_bytes = 0
        """How many bytes each file is cut short by."""
        self.answering = threading.Event()
        """The server does not answer until this is set."""
        self.answering.set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.answering.wait(60)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(OSError):  # the client has gone
            self.wfile.write(content[: len(content) - self.server.cut_bytes])

    def log_message(self, *args: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Log nothing."""


@pytest.fixture
def server() -> Generator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.answering.set()
    made.shutdown()
    made.server_close()


def stripped(path: Path) -> tuple[str, bytes]:
    """Strip a binary; return the debug file's path on a server, and its contents."""
    debug = path.with_suffix(".away")
    subprocess.run(["objcopy", "--only-keep-debug", path, debug], check=True)
    subprocess.run(["strip", path], check=True)
    notes = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True).stdout
    (build_id,) = (line.split()[-1] for line in notes.splitlines() if "Build ID" in line)
    return f"/buildid/{build_id}/debuginfo", debug.read_bytes()


class Seen:
    """A program whose debug file only a server has, and its frame inside inlined functions."""

    def __init__(self, path: Path) -> None:
        self.asked, self.debug = stripped(build(path, SOURCE, "-g", "-Wl,--build-id"))
        self.files = Files()
        with running([path]) as app:
            (self.frame,) = Processes(self.files).frames(app.pid, [app.at["inside"]])
        self.nameless = f"app+0x{self.frame.offset:x}"

    def named(self, debug_files: DebugFiles | None, seconds: float, answering: threading.Event | None = None) -> str:
        """Return the frame's name once it is WHOLE, or after so many seconds.

        `answering` belongs to a server that is silent until the frame has a name.
        """
        worker = NameWorker(self.files, debug_files)
        try:
            assert worker.wait({self.frame}, 60)
            version = worker.version
            if answering:
                answering.set()
            deadline = time.monotonic() + seconds
            while worker.of(self.frame) != WHOLE and time.monotonic() < deadline:
                time.sleep(0.01)
            assert worker.version > version or worker.of(self.frame) != WHOLE
            return worker.of(self.frame)
        finally:
            worker.close()


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(tmp_path / "app")


def until_scanned(debug_files: DebugFiles, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in debug_files.summary:
        assert time.monotonic() < deadline, debug_files.summary
        time.sleep(0.01)


def fetched(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_a_debug_file_from_a_server_names_functions(seen: Seen, server: Server) -> None:
    server.files[seen.asked] = seen.debug
    server.answering.clear()
    debug_files = DebugFiles([server.address])
    assert seen.named(debug_files, 60, server.answering) == WHOLE
    assert server.asked == [seen.asked]
    assert debug_files.summary == f"1 fetched, 0 failed, 0 not found; {server.address}"
    assert len(fetched(debug_files.directory)) == 1
    debug_files.close()
    debug_files.close()
    assert not debug_files.directory.exists()


def test_no_server_is_asked_without_an_opt_in(seen: Seen, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", server.address)
    server.files[seen.asked] = seen.debug
    assert seen.named(None, 0.5) == seen.nameless
    assert server.asked == []


def test_a_file_with_debug_information_is_not_fetched(tmp_path: Path, server: Server) -> None:
    debug_files, files = DebugFiles([server.address]), Files()
    worker = NameWorker(files, debug_files)
    with running([build(tmp_path / "app", SOURCE, "-g")]) as app:
        (frame,) = Processes(files).frames(app.pid, [app.at["inside"]])
    assert worker.wait({frame}, 60)
    assert worker.of(frame) == WHOLE
    worker.close()
    debug_files.close()
    assert server.asked == []


def test_a_missing_debug_file_is_asked_for_once(seen: Seen, server: Server) -> None:
    debug_files = DebugFiles([server.address, f"{server.address}/"])
    assert seen.named(debug_files, 1) == seen.nameless
    assert seen.named(debug_files, 0) == seen.nameless
    until_scanned(debug_files, "0 fetched, 0 failed, 1 not found")
    assert server.asked == [seen.asked, seen.asked]  # once per server
    assert fetched(debug_files.directory) == []
    debug_files.close()


def test_the_next_server_is_asked_if_one_fails(seen: Seen, server: Server) -> None:
    server.files[seen.asked] = seen.debug
    server.answering.clear()
    debug_files = DebugFiles([NOBODY_LISTENS, "http://[", server.address])
    assert seen.named(debug_files, 60, server.answering) == WHOLE
    debug_files.close()


@pytest.mark.parametrize("flaw", ["cut off", "too large", "no ELF file", "nobody listens"])
def test_a_failing_server_costs_no_name(seen: Seen, server: Server, monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    server.files[seen.asked] = b"<html>" if flaw == "no ELF file" else seen.debug
    server.cut_bytes = 1000 if flaw == "cut off" else 0
    if flaw == "too large":
        monkeypatch.setattr(debuginfod_module, "_MOST_BYTES", len(seen.debug) - 1)
    debug_files = DebugFiles([NOBODY_LISTENS if flaw == "nobody listens" else server.address])
    assert seen.named(debug_files, 1) == seen.nameless
    until_scanned(debug_files, "1 fetched" if flaw == "no ELF file" else "0 fetched, 1 failed")
    debug_files.close()


def test_a_silent_server_delays_neither_names_nor_the_exit(seen: Seen, server: Server) -> None:
    server.answering.clear()
    debug_files = DebugFiles([server.address])
    began_s = time.monotonic()
    assert seen.named(debug_files, 0.1) == seen.nameless
    while not server.asked:
        assert time.monotonic() < began_s + 60
        time.sleep(0.01)
    debug_files.close()
    assert time.monotonic() < began_s + 15
    assert not debug_files.directory.exists()


@pytest.mark.kernel
def test_the_fetcher_runs_as_nobody_without_capabilities(seen: Seen, server: Server) -> None:
    server.answering.clear()
    debug_files = DebugFiles([server.address])
    assert seen.named(debug_files, 0) == seen.nameless
    while not server.asked:
        time.sleep(0.01)
    (status,) = (one for one in statuses() if one["Name"] == "offtop-fetch" and one["PPid"] == str(os.getpid()))
    nobody = "65534 65534 65534 65534"
    assert (status["Uid"], status["Gid"], status["Groups"], status["NoNewPrivs"]) == (nobody, nobody, "", "1")
    assert [int(status[held], 16) for held in ("CapPrm", "CapEff", "CapInh", "CapAmb")] == [0, 0, 0, 0]
    debug_files.close()


def statuses() -> list[Mapping[str, str]]:
    found: list[Mapping[str, str]] = []
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = path.read_text(errors="replace").splitlines()  # process names are untrusted
        except OSError:
            continue
        found.append({key: " ".join(value.split()) for key, _, value in (line.partition(":") for line in lines)})
    return found


@pytest.mark.parametrize("build_id", ["", "../../etc", "AB" * 20, "0" * 4, "a/b" * 10])
def test_an_invalid_build_id_is_not_asked_for(server: Server, build_id: str) -> None:
    debug_files, arrived = DebugFiles([server.address]), threading.Event()
    debug_files.want(build_id, arrived.set)
    debug_files.want("ab" * 20, arrived.set)
    until_scanned(debug_files, "1 not found")
    assert server.asked == [f"/buildid/{'ab' * 20}/debuginfo"]
    assert not arrived.is_set()
    debug_files.close()


def test_servers_come_from_the_environment_or_else_from_etc(tmp_path: Path) -> None:
    (tmp_path / "b.urls").write_text("https://b.example.org\n")
    (tmp_path / "a.urls").write_text("ima:enforcing https://a.example.org \n http://a2.example.org/x\n")
    (tmp_path / "other").write_text("https://no.example.org\n")
    of_etc = ["https://a.example.org", "http://a2.example.org/x", "https://b.example.org"]
    assert servers("auto", {}, tmp_path) == of_etc
    assert servers("auto", {"DEBUGINFOD_URLS": " "}, tmp_path) == of_etc
    assert servers("auto", {"DEBUGINFOD_URLS": "https://me.example.org file:///x"}, tmp_path) == [
        "https://me.example.org"
    ]
    assert servers("https://x.example.org, http://y", {"DEBUGINFOD_URLS": "https://me"}, tmp_path) == [
        "https://x.example.org",
        "http://y",
    ]
    with pytest.raises(UsageError, match="Name one, as: --debuginfod https"):
        servers("auto", {}, tmp_path / "nowhere")


def test_an_exited_program_keeps_its_names_when_its_debug_file_arrives(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "app"
    url_path, debug = stripped(build(path, SOURCE, "-g", "-Wl,--build-id", "-rdynamic"))
    server.files[url_path] = debug
    server.answering.clear()
    debug_files, files = DebugFiles([server.address]), Files()
    worker = NameWorker(files, debug_files)
    with running([path]) as app:
        (frame,) = Processes(files).frames(app.pid, [app.at["inside"]])
        assert worker.wait({frame}, 60)
    path.write_bytes(b"")
    asked_anew, read = threading.Event(), worker._binaries.names  # pyright: ignore[reportPrivateUsage]

    def names(file: File, offsets: Sequence[int]) -> list[str]:
        found = read(file, offsets)
        asked_anew.set()
        return found

    monkeypatch.setattr(worker._binaries, "names", names)  # pyright: ignore[reportPrivateUsage]
    server.answering.set()
    assert asked_anew.wait(60)
    worker.close()
    assert worker.of(frame) == "outer"
    debug_files.close()


def test_an_unusable_tmpdir_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(OfftopError, match="TMPDIR=DIRECTORY"):
        DebugFiles([NOBODY_LISTENS])


def test_other_files_are_named_while_a_server_is_silent(seen: Seen, server: Server, tmp_path: Path) -> None:
    server.answering.clear()
    debug_files = DebugFiles([server.address])
    worker = NameWorker(seen.files, debug_files)
    assert worker.wait({seen.frame}, 60)
    with running([build(tmp_path / "other", SOURCE, "-g")]) as app:
        (frame,) = Processes(seen.files).frames(app.pid, [app.at["inside"]])
    assert worker.wait({frame, Frame("[anon]", 1)}, 60)
    assert worker.of(frame) == WHOLE
    worker.close()
    debug_files.close()


NAPS = rf"""
#include <sys/syscall.h>
#include <time.h>
static const struct timespec ten_ms = {{0, 10000000}};
{INLINE} int inner(int a) {{ for (;;) {{ syscall(SYS_nanosleep, &ten_ms, 0); a++; }} }}
__attribute__((noipa)) int outer(int a) {{ return inner(a) + 1; }}
int main(void) {{ next(); return outer(1); }}
"""


@pytest.mark.kernel
@pytest.mark.variant
def test_late_names_are_in_later_ticks_and_in_the_whole_recording(tmp_path: Path, server: Server) -> None:
    path, recording = tmp_path / "app", tmp_path / "it.offtop"
    url_path, debug = stripped(build(path, NAPS, "-g", "-Wl,--build-id", "-fno-omit-frame-pointer", "-rdynamic"))
    server.files[url_path] = debug
    with running([path]) as app:
        app.go_on_alone()
        options = ("-n", "4", "-d", "0.5", "-p", str(app.pid), "--record", str(recording))
        place = tmp_path / "place"
        place.mkdir()
        make_readable_by_all(place / "it")
        live = command.run("--json", *options, "--debuginfod", server.address, env={"TMPDIR": str(place)})
    replayed = command.run("replay", str(recording), "--json")
    assert (live.status, replayed.status) == (0, 0), live.err
    first, *_, last = ([site["user"] for site in json.loads(line)["sites"]] for line in replayed.out.splitlines())
    for users in (first, last, [site["user"] for site in json.loads(live.out.splitlines()[-1])["sites"]]):
        assert [one for one in users if "inner (inlined)" in one and one[one.index("inner (inlined)") + 1] == "outer"]
    assert [*place.iterdir()] == []
