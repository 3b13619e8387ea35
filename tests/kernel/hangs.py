"""Processes and file systems that hang their readers for as long as a test wants.

A watchdog in a session of its own thaws and unmounts if the test does not: it sees the end of a pipe.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kernel import programs

_LONGEST_S = 240
_WATCHDOG = """
import os, select, signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
select.select([0], [], [], float(sys.argv[1]))
for command in sys.argv[2:]:
    subprocess.run(command, shell=True, capture_output=True)
"""
STUCK = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static char *mapped;
__attribute__((noinline)) void nap(void)
{
	const struct timespec three_ms = {0, 3000000};
	nanosleep(&three_ms, 0);
	__asm__ volatile("");
}
static void *naps(void *unused)
{
	for (;;)
		nap();
}
static void *faults(void *unused)
{
	*(volatile char *)mapped = 1;
	return 0;
}
static void *unmaps(void *unused)
{
	munmap(mapped + (1 << 19), 1 << 19); /* the same mapping as the fault, but not the same page */
	return 0;
}
int main(int argc, char **argv)
{
	pthread_t thread;
	int fd = open(argv[1], O_RDWR);
	mapped = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || mapped == MAP_FAILED || *(volatile char *)mapped)
		return 1;
	pthread_create(&thread, 0, naps, 0);
	tell("nap", nap);
	next();
	/* The file system is frozen by now: the fault waits for it, and munmap waits for the fault. */
	pthread_create(&thread, 0, faults, 0);
	usleep(200000);
	pthread_create(&thread, 0, unmaps, 0);
	usleep(200000);
	puts("ready");
	fflush(stdout);
	for (;;)
		nap();
}
"""
"""Takes a file as its argument, and naps in two threads.

At its second stop its mmap_lock is held.
"""
FUSE_SERVER = r"""
import ctypes, os, signal, struct, sys
where, program = sys.argv[1], open(sys.argv[2], "rb").read()
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"offtop-test", where.encode(), b"fuse", 0, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
answers = True
def stop_answering(*_):
    global answers
    answers = False
    print("silent", flush=True)
signal.signal(signal.SIGUSR1, stop_answering)
print("mounted", flush=True)
def attributes(node):
    mode, size = (0o40755, 0) if node == 1 else (0o100755, len(program))
    blocks = (size + 511) // 512
    return struct.pack("=QQQQQQIIIIIIIIII", node, size, blocks, 1, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
while True:
    try:
        request = os.read(fd, 1 << 18)
    except FileNotFoundError:
        continue
    except OSError:
        break
    _, opcode, unique, node, _, _, _, _ = struct.unpack_from("=IIQQIIII", request)
    body, error, answer = request[40:], 0, b""
    if opcode in (2, 42):
        continue
    if not answers:
        continue
    if opcode == 26:
        answer = struct.pack("=IIIIHHIIHHI", 7, 31, 4096, 0, 0, 0, 4096, 1, 1, 0, 0) + bytes(24)
    elif opcode == 1:
        if body.rstrip(b"\0") == b"program":
            answer = struct.pack("=QQQQII", 2, 0, 0, 0, 0, 0) + attributes(2)
        else:
            error = -2
    elif opcode == 3:
        answer = struct.pack("=QII", 0, 0, 0) + attributes(node)
    elif opcode in (14, 27):
        answer = struct.pack("=QII", 1, 0, 0)
    elif opcode == 15:
        _, offset, size = struct.unpack_from("=QQI", body)
        answer = program[offset : offset + size]
    elif opcode in (18, 25, 29, 34):
        pass
    else:
        error = -38
    os.write(fd, struct.pack("=IiQ", 16 + len(answer), error, unique) + answer)
"""
"""A file system with one file, `program`.

After SIGUSR1 it takes requests and answers none.
"""


@contextmanager
def _watched(*commands: str) -> Generator[None]:
    """Run these commands at the end, whatever happens to this process."""
    watchdog = subprocess.Popen(
        [sys.executable, "-c", _WATCHDOG, str(_LONGEST_S), *commands], stdin=subprocess.PIPE, start_new_session=True
    )
    assert watchdog.stdin
    try:
        yield
    finally:
        watchdog.stdin.close()
        watchdog.wait(60)


@contextmanager
def frozen_ext4(directory: Path) -> Generator[Path]:
    """Mount an ext4 of its own, to be frozen with `freeze`; thaw and unmount it at the end."""
    image, mounted = directory / "image", directory / "frozen"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=60)
    with _watched(f"fsfreeze -u {mounted}", f"umount -l {mounted}"):
        subprocess.run(["mount", "-o", "loop", image, mounted], check=True, timeout=60)
        yield mounted


def freeze(mounted: Path) -> None:
    subprocess.run(["fsfreeze", "-f", mounted], check=True, timeout=30)


def thaw(mounted: Path) -> None:
    """Thaw a file system; may be called twice."""
    subprocess.run(["fsfreeze", "-u", mounted], check=False, timeout=30, capture_output=True)


@contextmanager
def stuck(directory: Path) -> Generator[programs.Program]:
    """Run a process whose mmap_lock is held until the end.

    Its program is on a frozen file system.
    """
    with frozen_ext4(directory) as mounted:
        binary = programs.build(mounted / "stuck", STUCK, "-pthread", "-D_GNU_SOURCE")
        (mounted / "data").write_bytes(bytes(1 << 20))
        os.sync()
        with programs.running([binary, mounted / "data"]) as child:
            try:
                freeze(mounted)
                child.go()
                yield child
            finally:
                thaw(mounted)


class Fuse:
    """A mounted FUSE file system with the file `program`."""

    def __init__(self, mounted: Path, server: subprocess.Popen[str]) -> None:
        self.mounted, self._server = mounted, server

    @property
    def program(self) -> Path:
        return self.mounted / "program"

    @property
    def pid(self) -> int:
        """PID of the server."""
        return self._server.pid

    def stop_answering(self) -> None:
        """Take requests from now on without answering: readers wait and cannot be killed."""
        assert self._server.stdout
        self._server.send_signal(signal.SIGUSR1)
        assert self._server.stdout.readline() == "silent\n"

    def stop(self) -> None:
        """Stop the server: it does not even take requests."""
        self._server.send_signal(signal.SIGSTOP)


@contextmanager
def fuse(directory: Path, program: Path) -> Generator[Fuse]:
    """Mount a FUSE file system with a copy of `program`.

    Every access that hangs on it fails at the end.
    """
    mounted = directory / "fuse"
    mounted.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-c", FUSE_SERVER, str(mounted), str(program)], stdout=subprocess.PIPE, text=True
    )
    with _watched(f"kill -9 {server.pid}", f"umount -l {mounted}"):
        try:
            assert server.stdout
            assert server.stdout.readline() == "mounted\n"
            yield Fuse(mounted, server)
        finally:
            server.kill()
            server.wait(10)


def hangs(path: Path, seconds: float = 0.5) -> bool:
    """Return whether a process that reads `path` is still blocked after so long."""
    reader = subprocess.Popen(["cat", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        reader.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    finally:
        reader.kill()
        with suppress(subprocess.TimeoutExpired):
            reader.wait(0.2)
    return False


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made, stuck(Path(made)) as child:
        print(
            child.pid,
            [
                name
                for name in ("maps", "cmdline", "environ", "stat", "status")
                if hangs(Path(f"/proc/{child.pid}/{name}"))
            ],
        )
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0)
