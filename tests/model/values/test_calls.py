"""System calls as text: only arguments that say something by themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values.calls import ARGUMENTS, call_text

MINUS_1 = (1 << 64) - 1
"""As a register has it."""
GARBAGE = 0xDEAD_BEEF_0000_0000
"""Above an int a register may hold anything."""


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("read", (3, 0x7FFE_0000_0000, 4096), "read(3)"),
        ("write", (GARBAGE + 1, 0x7FFE_0000_0000, 4096), "write(1)"),
        ("fsync", (7,), "fsync(7)"),
        ("recvfrom", (4, 0x7FFE_0000_0000, 512), "recvfrom(4)"),
        ("connect", (5, 0x7FFE_0000_0000, 16), "connect(5)"),
        ("accept4", (3,), "accept4(3)"),
        ("openat", (MINUS_1 - 99, 0x5500_0000_0000), "openat(AT_FDCWD)"),
        ("ioctl", (0, 0x5401, 0x7FFE_0000_0000), "ioctl(0, 0x5401)"),
        ("sendfile", (5, 6), "sendfile(5, 6)"),
        ("splice", (5, 0x7FFE_0000_0000, 6), "splice(5, 6)"),
        ("flock", (3, 1), "flock(3, SH)"),
        ("flock", (3, 2), "flock(3, EX)"),
        ("flock", (3, 2 | 4), "flock(3, EX|NB)"),
        ("flock", (3, 77), "flock(3, 73|NB)"),
        ("fcntl", (3, 7, 0x7FFE_0000_0000), "fcntl(3, SETLKW)"),
        ("fcntl", (3, 38), "fcntl(3, OFD_SETLKW)"),
        ("fcntl", (3, 4242), "fcntl(3, 4242)"),
        ("poll", (0x7FFE_0000_0000, 3, MINUS_1), "poll(n=3, timeout=-1)"),
        ("poll", (0x7FFE_0000_0000, 3, 0xFFFF_FFFF), "poll(n=3, timeout=-1)"),
        ("poll", (0, 0, 0), "poll(n=0, timeout=0)"),
        ("ppoll", (0x7FFE_0000_0000, 2), "ppoll(n=2)"),
        ("pselect6", (12,), "pselect6(n=12)"),
        ("epoll_wait", (5, 0x7FFE_0000_0000, 64, 1000), "epoll_wait(5, timeout=1000ms)"),
        ("epoll_pwait", (5, 0x7FFE_0000_0000, 64, MINUS_1), "epoll_pwait(5, timeout=-1)"),
        ("io_uring_enter", (4, 0, 1), "io_uring_enter(4, min=1)"),
        ("io_uring_enter", (4, 8, 1), "io_uring_enter(4, submit=8, min=1)"),
        ("io_uring_enter", (0, 0, 1, 17), "io_uring_enter(0, min=1, REGISTERED_RING)"),
        ("io_getevents", (0x7F00_0000_0000, 1, 64), "io_getevents(min=1)"),
        ("clock_nanosleep", (1, 0), "clock_nanosleep(MONOTONIC)"),
        ("clock_nanosleep", (0, 1), "clock_nanosleep(REALTIME, ABSTIME)"),
        ("clock_nanosleep", (MINUS_1 - 5, 0), "clock_nanosleep(-6)"),
        ("wait4", (MINUS_1,), "wait4(-1)"),
        ("wait4", (4242,), "wait4(4242)"),
        ("waitid", (1, 4242), "waitid(PID, 4242)"),
        ("semop", (65_536, 0x7FFE_0000_0000, 1), "semop(65536)"),
    ],
)
def test_arguments_are_shown_by_call(name: str, args: tuple[int, ...], text: str) -> None:
    assert call_text(name, args + (0,) * (ARGUMENTS - len(args))) == text


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (0, "WAIT"),
        (128, "WAIT_PRIVATE"),
        (GARBAGE + 128, "WAIT_PRIVATE"),
        (128 | 9, "WAIT_BITSET_PRIVATE"),
        (256 | 128 | 9, "WAIT_BITSET_PRIVATE|CLOCK_REALTIME"),
        (128 | 6, "LOCK_PI_PRIVATE"),
        (13, "LOCK_PI2"),
        (14, "0xe"),
        (0xFFFF_FFFF, "0xffffffff"),
    ],
)
def test_futex_shows_the_lock_and_the_operation(operation: int, text: str) -> None:
    assert call_text("futex", (0x7F12_0000_4040, operation, 2, 0, 0, 0)) == f"futex(0x7f1200004040, {text}, 2)"


def test_names_of_32_bit_variants_are_treated_alike() -> None:
    assert call_text("futex_time64", (0x4040, 128, 2, 0, 0, 0)) == "futex_time64(0x4040, WAIT_PRIVATE, 2)"
    assert call_text("clock_nanosleep_time64", (1, 0, 0, 0, 0, 0)) == "clock_nanosleep_time64(MONOTONIC)"


def test_call_with_only_pointers_shows_its_name() -> None:
    args = (0x7FFE_0000_0000,) * ARGUMENTS
    assert [call_text(name, args) for name in ("nanosleep", "pause", "munmap", "syscall 999", "")] == [
        "nanosleep",
        "pause",
        "munmap",
        "syscall 999",
        "",
    ]


def test_call_without_arguments_shows_its_name() -> None:
    assert call_text("read", ()) == "read"
    assert call_text("", ()) == ""


@given(
    st.sampled_from(["read", "futex", "poll", "flock", "fcntl", "waitid", "epoll_wait", "io_uring_enter", "ioctl"]),
    st.lists(st.integers(), max_size=8),
)
def test_numbers_of_a_recording_are_harmless(name: str, args: list[int]) -> None:
    text = call_text(name, args)
    assert text.startswith(name)
    assert text.isascii() and text.isprintable()
    assert len(text) < 120
