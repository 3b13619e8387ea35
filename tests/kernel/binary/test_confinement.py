"""Test what a confined child can still do.

Each attempt is made inside a real child, as code that has taken it over would.
"""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from offtop.kernel import sandbox
from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.files import File, Files, Mapping
from offtop.kernel.doctor import host_checks
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.symbols.mappings import Processes
from offtop.model.aggregate.stack_problems import NOT_CONFINED
from tests import command
from tests.kernel.programs import build, make_readable_by_all, running

pytestmark = pytest.mark.kernel

_ROOT = Path(__file__).parents[3]
_CONFINED = """
import ctypes, mmap, os, signal, socket, sys
sys.path.append({root!r})
from offtop.kernel.binary.confinement import RefusedError, confine
libc = ctypes.CDLL(None, use_errno=True)
def called(*words):
    result = libc.syscall(*(ctypes.c_long(word) if isinstance(word, int) else word for word in words))
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
try:
    print(*confine(1 << 20, {readable!r}, {network!r}), flush=True)
except RefusedError as refused:
    sys.exit(str(refused))
try:
    {attempt}
except OSError as error:
    print(error.errno)
else:
    print(0)
"""
_EXECVE, _FORK, _PTRACE, _KILL, _READ_MEMORY = {"x86_64": (59, 57, 101, 62, 310), "aarch64": (221, 220, 117, 129, 270)}[
    os.uname().machine
]


def attempted(
    attempt: str, readable: Sequence[str] = (), network: bool = False, before: Sequence[str] = ()
) -> tuple[int, list[str]]:
    """Return a confined child's exit status and output lines.

    The lines are what is missing from its confinement, and the errno of `attempt`, or 0.
    """
    program = _CONFINED.format(root=str(_ROOT), readable=readable, network=network, attempt=attempt)
    done = subprocess.run(
        [*before, sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60, cwd="/"
    )
    return done.returncode, [*done.stdout.splitlines(), *done.stderr.splitlines()]


@pytest.fixture
def world_writable(tmp_path: Path) -> Path:
    """Return a file that others may read and write.

    This is by its mode and those of its directories.
    """
    file = tmp_path / "file"
    file.write_text("content")
    file.chmod(0o666)
    tmp_path.chmod(0o777)
    make_readable_by_all(file)
    return file


@pytest.mark.parametrize(
    "attempt",
    [
        'os.open("/etc/shadow", os.O_RDONLY)',
        'os.open("/etc/passwd", os.O_RDONLY)',
        'os.open("/proc/1/cmdline", os.O_RDONLY)',
        'os.open("/tmp/made-by-a-reader", os.O_WRONLY | os.O_CREAT)',
        'os.listdir("/")',
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    ],
)
def test_forbidden_calls_are_refused(attempt: str) -> None:
    status, (lacking, result) = attempted(attempt)
    assert (status, lacking) == (0, "")
    assert int(result) in (errno.EPERM, errno.EACCES)


@pytest.mark.parametrize(
    "attempt",
    [
        f"called({_EXECVE}, b'/bin/true', None, None)",
        f"called({_FORK}, 0, 0, 0, 0, 0)",
        f"called({_PTRACE}, 0, 0, 0, 0)",
        f"called({_KILL}, os.getppid(), 0)",
        f"called({_READ_MEMORY}, os.getppid(), None, 0, None, 0, 0)",
    ],
    ids=["execve", "fork", "ptrace", "kill", "process_vm_readv"],
)
@pytest.mark.parametrize("network", [False, True], ids=["reader", "fetcher"])
def test_a_call_that_only_an_intruder_makes_kills_the_child(attempt: str, network: bool) -> None:
    assert attempted(attempt, network=network) == (-signal.SIGSYS, [""])


def test_an_allowed_directory_is_readable_but_not_writable(world_writable: Path) -> None:
    readable = [str(world_writable.parent), "/nowhere"]
    assert attempted(f"os.open({str(world_writable)!r}, os.O_RDONLY)", readable) == (0, ["", "0"])
    assert attempted(f"os.open({str(world_writable)!r}, os.O_RDONLY)") == (0, ["", str(errno.EACCES)])
    assert attempted(f"os.open({str(world_writable)!r}, os.O_RDWR)", readable) == (0, ["", str(errno.EPERM)])


def test_the_fetcher_has_sockets_and_opens_no_file_for_writing(world_writable: Path) -> None:
    assert attempted("socket.socket()", network=True) == (0, ["", "0"])
    assert attempted('os.open("/etc/passwd", os.O_RDONLY)', network=True) == (0, ["", "0"])
    assert attempted(f"os.open({str(world_writable)!r}, os.O_WRONLY)", network=True) == (0, ["", str(errno.EACCES)])


def test_the_child_is_confined_with_capabilities_but_no_root() -> None:
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    held = ("--inh-caps=-all,+sys_ptrace", "--ambient-caps=-all,+sys_ptrace")
    status, (lacking, result) = attempted("called(0x7fff, 0)", before=(*user, *held))
    assert (status, lacking, result) == (0, "", str(errno.EPERM))
    effective = 'raise OSError(int(os.pread(status, 4096, 0).split(b"CapEff:")[1].split()[0], 16), "")'
    opened = f'status = os.open("/proc/self/status", os.O_RDONLY); {effective}'
    assert attempted(opened, readable=["/proc"], before=(*user, *held)) == (0, ["", "0"])


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (("setpriv", "--bounding-set=-setuid", "--inh-caps=-all"), "setresuid: Operation not permitted"),
        (("setpriv", "--bounding-set=-setgid", "--inh-caps=-all"), "setgroups: Operation not permitted"),
        (("unshare", "--user", "--map-root-user"), "setgroups: Operation not permitted"),
    ],
    ids=["no CAP_SETUID", "no CAP_SETGID", "nobody is not mapped"],
)
def test_a_child_that_cannot_drop_root_exits(before: Sequence[str], says: str) -> None:
    assert attempted("pass", before=before) == (1, [says])


WITHOUT_SETUID = ("setpriv", "--bounding-set=-setuid", "--inh-caps=-all")


def test_a_refused_reader_reads_no_file_and_is_not_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {" ".join(WITHOUT_SETUID)} {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sandbox, "sys", SimpleNamespace(executable=str(python)))
    reader, files = Binaries(10), Files()
    with running([build(tmp_path / "app", 'int main(void) { tell("main", main); next(); return 0; }')]) as app:
        (frame,) = Processes(files).frames(app.pid, [app.at["main"]])
        file = files.get(frame.file)
        assert file
        assert [reader.names(file, [frame.offset]), reader.symbols(file)] == [[""], ""]
    assert (reader.pid, reader.failures, file.unreadable) == (0, 0, NOT_CONFINED)
    assert reader.refused.startswith("setresuid: ")


def test_offtop_reports_that_names_are_off_and_the_fix() -> None:
    ended = command.run("-b", "-n", "1", "--probe", "auto", before=WITHOUT_SETUID)
    assert ended.status == 0
    assert ended.err.startswith("offtop: Function names and .eh_frame are off: the process that reads binaries cannot")
    assert "(setresuid: Operation not permitted). Give offtop CAP_SETUID and CAP_SETGID" in ended.err


def test_within_reports_why_it_reads_no_file() -> None:
    ended = command.run("-b", "-n", "1", "--within", "/bin/bash:main", before=WITHOUT_SETUID)
    assert "cannot stop being root (setresuid: Operation not permitted). Give offtop CAP_SETUID" in ended.sentence


def test_doctor_reports_which_confinement_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    check = host_checks.sandbox()
    assert (check.verdict, check.what) == (
        "ok",
        "files of programs are read as nobody, confined by seccomp and Landlock",
    )

    def without_landlock(_: Binaries) -> list[str]:
        return ["Landlock (Function not implemented)"]

    monkeypatch.setattr(Binaries, "begin", without_landlock)
    lacking = host_checks.sandbox()
    assert lacking.verdict == "warn"
    assert lacking.loses == "a second layer of isolation for the process that reads untrusted files"
    assert "not confined by Landlock (Function not implemented)" in lacking.what


def test_without_libseccomp_the_rest_is_active_and_the_gap_reported() -> None:
    without = "from offtop.kernel.binary import confinement; confinement._libseccomp = lambda: None\nlibc = "
    program = _CONFINED.format(root=str(_ROOT), readable=[], network=False, attempt='os.open("/etc/passwd", 0)')
    program = program.replace("libc = ", without)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["seccomp (libseccomp.so.2 is not installed)", str(errno.EACCES)]


def test_the_reader_has_seccomp_and_no_debuginfod_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1")
    reader = Binaries(10)
    try:
        assert reader.begin() == []
        proc = Path(f"/proc/{reader.pid}")
        assert "\nSeccomp:\t2\n" in (proc / "status").read_text()
        assert "libdw" in (proc / "maps").read_text()
        assert "libdebuginfod" not in (proc / "maps").read_text()
        assert b"DEBUGINFOD" not in (proc / "environ").read_bytes()
    finally:
        reader.end()


def test_a_debug_link_opens_only_world_readable_files_beside_the_binary(tmp_path: Path) -> None:
    binary, debug, secret = tmp_path / "app", tmp_path / "app.debug", tmp_path / "secret"
    debug.write_text("symbols")
    debug.chmod(0o644)
    secret.write_text("secret")
    secret.chmod(0o600)
    (tmp_path / "link").symlink_to(debug)
    os.mkfifo(tmp_path / "pipe", 0o644)
    (tmp_path / ".debug").mkdir()
    (tmp_path / ".debug" / "inner").write_text("others")
    (tmp_path / ".debug" / "inner").chmod(0o644)
    reads = GuardedReads()
    asking, app = Binaries(1.0, reads=reads), File("app", str(binary), "0:0", 1, Mapping(os.getpid(), 0, 0))
    opened = {
        name: asking._open_debug_file(app, name)  # pyright: ignore[reportPrivateUsage]
        for name in ("app.debug", "inner", "secret", "link", "pipe", "nowhere", "..", "../app.debug", "/etc/passwd", "")
    }
    reads.close()
    found = {name: os.pread(fd, 99, 0) for name, fd in opened.items() if fd is not None}
    for fd in filter(None, opened.values()):
        os.close(fd)
    assert found == {"app.debug": b"symbols", "inner": b"others"}
