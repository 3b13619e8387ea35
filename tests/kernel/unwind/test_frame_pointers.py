"""Test user stacks of blocked threads, read from outside.

They must be what the kernel itself finds.
"""

import ctypes as ct
import mmap
import os
import platform
import shutil
import struct
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop import paths
from offtop.kernel.bpf import program as program_module
from offtop.kernel.bpf.layout import FRAMES
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.procfs.memory import Memory
from offtop.kernel.procfs.syscalls import name_of
from offtop.kernel.unwind import frame_pointers
from tests.kernel.programs import Program, build, running

IP = 0x5555_0000_1000
X86, ARM = "x86_64", "aarch64"
MACHINE = platform.machine()


def walk(tid: int, ip: int, bp: int, machine: str = MACHINE) -> tuple[int, ...]:
    """Unwind a thread; one that exited, or whose memory is unreadable, has only its leaf."""
    try:
        with Memory(tid) as memory:
            return frame_pointers.unwind(memory, ip, bp, machine)
    except OSError:
        return (ip,)


MACHINES = pytest.mark.parametrize("machine", [X86, ARM])

CHAIN = r"""
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
static void gamma(int n) {
    static struct pollfd input = {.fd = 0, .events = POLLIN};
    tell("frame", __builtin_frame_address(0));
    next();
    syscall(SYS_ppoll, &input, 1, 0, 0, 0);
    next();
    next();
}
static void beta(int by_signal) {
    if (by_signal)
        syscall(SYS_tgkill, getpid(), getpid(), SIGUSR1);
    else
        gamma(1);
}
static void alpha(int by_signal) { beta(by_signal); }
int main(int count, char **words) {
    stack_t other = {.ss_sp = malloc(65536), .ss_size = 65536};
    struct sigaction action = {.sa_handler = gamma, .sa_flags = SA_ONSTACK};
    sigaltstack(&other, 0);
    sigaction(SIGUSR1, &action, 0);
    tell("main", main);
    alpha(count > 1);
    return 0;
}
"""
HOSTILE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
typedef unsigned long u64;
static const struct timespec long_time = {.tv_sec = 1000000};
static char names[64][32];
static volatile int asleep;
static void *sleeper(void *frame) {
    tell(names[asleep], (void *)syscall(SYS_gettid));
    asleep++;
#ifdef __x86_64__
    __asm__ volatile("mov %0, %%rbp; syscall; hlt" :: "r"(frame), "a"(SYS_nanosleep), "D"(&long_time), "S"(0L));
#else
    register long number __asm__("x8") = SYS_nanosleep;
    register const void *time __asm__("x0") = &long_time;
    register long rest __asm__("x1") = 0;
    __asm__ volatile("mov x29, %0; svc 0; brk 0" :: "r"(frame), "r"(number), "r"(time), "r"(rest));
#endif
    return 0;
}
/* A thread that sleeps with that frame pointer. */
static void with(const char *name, void *frame) {
    pthread_t thread;
    int before = asleep;
    snprintf(names[before], sizeof(names[before]), "%s", name);
    printf("frame-of-%s %lx\n", name, (u64)frame);
    fflush(stdout);
    pthread_create(&thread, 0, sleeper, frame);
    while (asleep == before)
        usleep(100);
}
int main(void) {
    u64 page = sysconf(_SC_PAGESIZE), bytes = 64 * page;
    char *room = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    u64 *low = (u64 *)room, *high = (u64 *)(room + 40 * page), *last = (u64 *)(room + 60 * page - 16);
    madvise(room, bytes, MADV_NOHUGEPAGE);
    munmap(room + 60 * page, page);
    low[0] = (u64)low, low[1] = 0x1111;
    low[2] = (u64)high, low[3] = 0x2222, high[0] = (u64)(low + 2), high[1] = 0x3333;
    low[4] = (u64)high + 17, low[5] = 0x4444, high[2] = 0, high[3] = 0x5555;
    low[6] = (u64)last, low[7] = 0x6666, last[0] = (u64)last + 8, last[1] = 0x7777;
    low[8] = (u64)(room + 50 * page), low[9] = 0x8888;
    low[10] = -8ul, low[11] = 0x9999;
    with("itself", low);
    with("round", low + 2);
    with("down", high);
    with("odd", low + 4);
    with("past-the-end", low + 6);
    with("not-in-memory", low + 8);
    with("to-the-last", low + 10);
    with("the-last", (void *)-8);
    with("kernel", (void *)0xffffffff81000000);
    with("not-canonical", (void *)0x8000000000000000);
    with("none", 0);
    with("one", (void *)1);
    next();
    pthread_exit(0);
}
"""
HOSTILE_RETURNS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "itself": (126 * [0x1111], [0x1111]),
    "round": (63 * [0x2222, 0x3333], [0x2222, 0x3333]),
    "down": (63 * [0x3333, 0x2222], [0x3333]),
    "odd": ([0x4444, 0x55], [0x4444]),
    "past-the-end": ([0x6666, 0x7777], [0x6666, 0x7777]),
    "not-in-memory": ([0x8888], [0x8888]),
    "to-the-last": ([0x9999], [0x9999]),
    "the-last": ([], []),
    "kernel": ([], []),
    "not-canonical": ([], []),
    "none": ([], []),
    "one": ([], []),
}
"""Return addresses of each thread by the rules of x86_64 and of aarch64.

x86_64 follows a frame pointer wherever it goes; aarch64 requires it aligned and larger than the last.
"""
FAULT = r"""
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
int main(void) {
    char *room = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register all = {.range = {(unsigned long)room, 65536}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    alarm(30); /* limits the wait of everything that reads this memory */
    tell("room", fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &all) ? 0 : room);
    next();
    return 0;
}
"""


class Registers(NamedTuple):
    ip: int
    sp: int


def registers(tid: int, call: str) -> Registers:
    """Return a thread's registers once it is blocked in the system call `call`."""
    while True:
        number, *rest = Path(f"/proc/{tid}/syscall").read_text().split()
        if number != "running" and name_of(int(number)) == call:
            return Registers(int(rest[-1], 16), int(rest[-2], 16))
        time.sleep(0.001)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the programs `chain`, `hostile` and `fault`, and return their directory."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc: sudo apt install gcc libc6-dev")
    directory = tmp_path_factory.mktemp("userwalk")
    for name, source in (("chain", CHAIN), ("hostile", HOSTILE), ("fault", FAULT)):
        build(directory / name, source, "-O0", "-fno-omit-frame-pointer", "-pthread")
    return directory


class Functions:
    """The functions of a running program, by the addresses of their code."""

    def __init__(self, path: Path, child: Program) -> None:
        listed = subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listed.splitlines()]
        starts = {row[3]: (int(row[0], 16), int(row[1], 16)) for row in rows if len(row) == 4 and row[2] in "tT"}
        moved = child.at["main"] - starts["main"][0]
        self._ranges = {name: (start + moved, start + size + moved) for name, (start, size) in starts.items()}
        maps = [line.split() for line in Path(f"/proc/{child.pid}/maps").read_text().splitlines()]
        code = [row for row in maps if "x" in row[1] and row[-1] == str(path)]
        self._code = [tuple(int(word, 16) for word in row[0].split("-")) for row in code]

    def of(self, address: int) -> str:
        """Return the function's name, or nothing for code outside the program."""
        found = [name for name, (start, end) in self._ranges.items() if start < address <= end]
        assert bool(found) == any(start <= address < end for start, end in self._code)
        return found[0] if found else ""


def blocked(child: Program) -> tuple[int, ...]:
    """Return the stack of the program `chain`, once it waits for input."""
    child.go_on_alone()
    return walk(child.pid, registers(child.pid, "ppoll").ip, child.at["frame"])


def test_a_stack_has_the_callers_of_the_waiting_function(built: Path) -> None:
    with running([built / "chain"]) as child:
        addresses = blocked(child)
        functions = Functions(built / "chain", child)
        names = [functions.of(address) for address in addresses]
        assert addresses[0] == registers(child.pid, "ppoll").ip
        assert names[:4] == ["", "beta", "alpha", "main"]  # libc's system call, and after it what gamma returns to
        assert not any(names[4:])


def test_unwinding_continues_from_a_signal_stack_to_the_interrupted_one(built: Path) -> None:
    with running([built / "chain", "by-signal"]) as child:
        addresses = blocked(child)
        functions = Functions(built / "chain", child)
        names = [functions.of(address) for address in addresses]
        if MACHINE == X86:
            assert names[:4] == ["", "", "alpha", "main"]  # gamma returns to libc's signal trampoline
        assert "alpha" in names


@pytest.fixture(scope="module")
def hostile(built: Path) -> Generator[Program]:
    with running([built / "hostile"]) as child:
        yield child


def walked(child: Program, name: str, machine: str = MACHINE) -> tuple[int, ...]:
    """Return the stack found for the thread `name` of the program `hostile`."""
    tid = child.at[name]
    ip = registers(tid, "nanosleep").ip
    addresses = walk(tid, ip, child.at[f"frame-of-{name}"], machine)
    assert addresses[0] == ip
    return addresses[1:]


@pytest.mark.parametrize("name", HOSTILE_RETURNS)
def test_invalid_frame_pointers_end_by_each_machines_rules(hostile: Program, name: str) -> None:
    by_x86, by_arm = HOSTILE_RETURNS[name]
    assert walked(hostile, name, X86) == tuple(by_x86)
    assert walked(hostile, name, ARM) == tuple(by_arm)


def test_the_worst_stack_costs_a_few_reads_per_frame(hostile: Program) -> None:
    fastest_ns = dict.fromkeys(HOSTILE_RETURNS, 1 << 62)
    for _ in range(10):
        for name in HOSTILE_RETURNS:
            tid, frame = hostile.at[name], hostile.at[f"frame-of-{name}"]
            ip = registers(tid, "nanosleep").ip
            began_ns = time.perf_counter_ns()
            walk(tid, ip, frame)
            fastest_ns[name] = min(fastest_ns[name], time.perf_counter_ns() - began_ns)
    assert max(fastest_ns.values()) < 10_000_000, fastest_ns


def test_memory_is_readable_after_the_main_thread_exited(built: Path) -> None:
    with running([built / "hostile"]) as child:
        before = walked(child, "past-the-end")
        child.go_on_alone()
        while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        assert walked(child, "past-the-end") == before
        assert walk(child.pid, IP, child.at["frame-of-itself"]) == (IP,)


def test_an_exited_or_stackless_thread_has_only_its_leaf() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait(10)
    for tid in (ended.pid, 2, 0, -1, 1 << 30):
        assert walk(tid, IP, 1 << 20) == (IP,)


def test_on_an_unknown_machine_a_stack_is_only_its_leaf(hostile: Program) -> None:
    frame = hostile.at["frame-of-itself"]
    assert walk(hostile.pid, IP, frame, "i386") == (IP,)


def test_memory_that_is_not_present_is_not_waited_for(built: Path) -> None:
    with running([built / "fault"]) as child:
        room = child.at["room"]
        if not room:
            pytest.skip("no userfaultfd for this user")
        began_s = time.monotonic()
        assert walk(child.pid, IP, room) == (IP,)
        assert time.monotonic() - began_s < 10  # it never arrives; the program exits after 30 s


class Room:
    """Memory of our own, all of it present, except for its last page, which cannot be read."""

    def __init__(self, pages: int) -> None:
        self.bytes = (pages - 1) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.write(bytes(pages * mmap.PAGESIZE))
        self.at = ct.addressof(ct.c_char.from_buffer(self._map))
        assert not ct.CDLL(None).mprotect(ct.c_void_p(self.at + self.bytes), ct.c_size_t(mmap.PAGESIZE), 0)

    def put(self, offset: int, *words: int) -> None:
        struct.pack_into(f"={len(words)}Q", self._map, offset, *words)

    def words(self, offset: int) -> tuple[int, ...]:
        return struct.unpack_from("=QQ", self._map, offset)

    def empty(self) -> None:
        self._map[: self.bytes] = bytes(self.bytes)


@pytest.fixture(scope="module")
def room() -> Room:
    return Room(8)


@MACHINES
def test_frames_far_above_the_stack_pointer_are_read(room: Room, machine: str) -> None:
    room.empty()
    step = (room.bytes - 64) // 10 // 16 * 16
    for n in range(10):
        room.put(n * step, room.at + (n + 1) * step if n < 9 else 0, 0x1000 + n)
    assert walk(os.getpid(), IP, room.at, machine) == (IP, *range(0x1000, 0x100A))


@MACHINES
def test_a_frame_at_the_very_end_of_readable_memory_is_read(room: Room, machine: str) -> None:
    room.empty()
    last = room.bytes - 16
    room.put(last, room.at + room.bytes, 0x1234)  # the next would be where nothing can be read
    assert walk(os.getpid(), IP, room.at + last, machine) == (IP, 0x1234)


@MACHINES
def test_a_stack_has_no_more_frames_than_the_kernel_keeps(room: Room, machine: str) -> None:
    room.empty()
    for n in range(200):
        room.put(n * 16, room.at + n * 16 + 16, n)
    assert walk(os.getpid(), IP, room.at, machine) == (IP, *range(FRAMES - 1))


def test_without_a_frame_pointer_a_stack_is_only_its_leaf() -> None:
    assert walk(os.getpid(), IP, 0) == (IP,)
    assert walk(os.getpid(), 0, (1 << 64) - 1) == (0,)


def test_signatures_of_return_addresses_are_stripped_on_arm_only(room: Room) -> None:
    room.empty()
    signed = 0x002A_0000_0000_0000 | IP
    room.put(0, 0, signed)
    assert walk(os.getpid(), IP, room.at, ARM) == (IP, IP)
    assert walk(os.getpid(), IP, room.at, X86) == (IP, signed)


OFFSETS = st.integers(0, 7 * mmap.PAGESIZE - 16)


@given(
    st.dictionaries(OFFSETS, st.tuples(OFFSETS | st.sampled_from([-(1 << 47), 1 << 47, 1 << 63]), st.integers(0, 99))),
    OFFSETS,
)
def test_unwinding_follows_the_rules_whatever_the_frames(
    room: Room, frames: Mapping[int, tuple[int, int]], bp: int
) -> None:
    room.empty()
    for offset, (above, address) in frames.items():
        room.put(offset, (room.at + above) % (1 << 64), address)

    outside = set[str]()

    def followed(machine: str) -> Generator[int]:
        at, is_arm = bp, machine == ARM
        while not (is_arm and (room.at + at) % 16):
            if not 0 <= at <= room.bytes - 16:
                outside.add(machine)
                return
            above, address = room.words(at)
            yield address & 0x7FFF_FFFF_FFFF if is_arm else address
            if is_arm and above <= room.at + at:
                return
            at = above - room.at

    for machine in (X86, ARM):
        expected = [address for address, _ in zip(followed(machine), range(FRAMES - 1), strict=False)]
        walked = walk(os.getpid(), IP, room.at + bp, machine)
        if machine in outside:  # there may be other memory of this process
            walked = walked[: 1 + len(expected)]
        assert walked == (IP, *expected)


class Leaving(NamedTuple):
    """A thread's registers and user stack as the kernel had them at its last switch-out."""

    ip: int
    sp: int
    bp: int
    addresses: tuple[int, ...]


@pytest.fixture(scope="module")
def switch_out_registers() -> Generator[Map]:
    """Yield a map of these by thread, from here on."""
    registers_at = {X86: (128, 152, 32), ARM: (256, 248, 232)}[MACHINE]
    request = {
        "source": str(Path(__file__).with_name("user_stacks.c")),
        "headers": str(paths.bpf() / "headers"),
        "flags": [f"-DUSER_{name}={at}" for name, at in zip(("IP", "SP", "FP"), registers_at, strict=True)],
        "raw_tracepoints": {"on_switch": "sched_switch"},
        "kprobes": {},
        "iterators": {},
        "random_maps": [],
        "shared_maps": {},
        "typed_tracepoints": {},
        "uprobes": {},
        "maps": ["left"],
        "cache_file": "",
    }
    answer, fds, output = program_module._compile(request)  # pyright: ignore[reportPrivateUsage]
    assert "error" not in answer, f"{answer} {output}"
    yield Map(dict(zip(answer["fds"], fds, strict=True))["map left"])
    for fd in fds:
        os.close(fd)


def leaving(switch_out_registers: Map, tid: int) -> Leaving:
    value = switch_out_registers.lookup(tid.to_bytes(4, "little"))
    assert value
    ip, sp, bp, size, *addresses = struct.unpack(f"=QQQq{FRAMES}Q", value)
    return Leaving(ip, sp, bp, tuple(addresses[: size // 8]))


@pytest.mark.kernel
def test_the_kernels_own_unwinding_at_switch_out_agrees(built: Path, switch_out_registers: Map) -> None:
    with running([built / "hostile"]) as astray, running([built / "chain"]) as child:
        blocked(child)
        frames = {astray.at[name]: astray.at[f"frame-of-{name}"] for name in HOSTILE_RETURNS}
        frames[child.pid] = child.at["frame"]
        for tid, frame in frames.items():
            ip, sp = registers(tid, "ppoll" if tid == child.pid else "nanosleep")
            seen = leaving(switch_out_registers, tid)
            assert seen == (ip, sp, frame, walk(tid, ip, frame))
