"""Test reading threads from made-up /proc trees."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offtop.errors import KernelError
from offtop.kernel.procfs import threads
from offtop.kernel.procfs.threads import Counters, ThreadScanner, ThreadState
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.stack import KERNEL, Frame
from offtop.units import NS_PER_S

KEY = ThreadKey(10, 11)
STAT = f"11 ({{name}}) {{state}} 1 1 1 0 -1 4194304 {'0 ' * 12} 1234 0"
"""A thread that started 1234 clock ticks after boot."""
STACK = "[<0>] futex_do_wait+0x61/0xb0\n[<0>] xfs_read+0x1/0x2 [xfs]\n"


def made(root: Path, key: ThreadKey, **files: str | bytes) -> None:
    directory = root / str(key.pid) / "task" / str(key.tid)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in {"schedstat": "1000 200 3\n", **files}.items():
        (directory / name).write_bytes(content.encode() if isinstance(content, str) else content)


def walked(tasks: ThreadScanner) -> tuple[dict[ThreadKey, Counters], list[ThreadKey]]:
    found, ended, _ = tasks.scan()
    return {one.key: threads.parse_counters(one.schedstat) for one in found}, ended


def wanting(*pids: int) -> Callable[[int], bool]:
    return lambda pid: pid in pids


def test_each_thread_of_the_wanted_processes_has_its_counters(tmp_path: Path) -> None:
    for key in (KEY, ThreadKey(10, 10), ThreadKey(20, 20)):
        made(tmp_path, key)
    (tmp_path / "self").mkdir()
    tasks = ThreadScanner(str(tmp_path), wanting(10))
    assert walked(tasks) == ({KEY: Counters(1000, 200, 3), ThreadKey(10, 10): Counters(1000, 200, 3)}, [])
    tasks.close()


def test_only_the_given_threads_are_read(tmp_path: Path) -> None:
    for key in (KEY, ThreadKey(10, 10)):
        made(tmp_path, key)
    tasks = ThreadScanner(str(tmp_path), wanting(10), [11])
    assert [*walked(tasks)[0]] == [KEY]
    tasks.close()


def test_a_new_thread_is_found_by_the_next_scan(tmp_path: Path) -> None:
    made(tmp_path, KEY)
    tasks = ThreadScanner(str(tmp_path), wanting(10))
    tasks.scan()
    made(tmp_path, ThreadKey(10, 12), schedstat="5 6 7\n")
    assert walked(tasks)[0][ThreadKey(10, 12)] == Counters(5, 6, 7)
    tasks.close()


def test_a_new_thread_is_found_by_the_scan_that_misses_an_old_one(tmp_path: Path) -> None:
    made(tmp_path, KEY)
    tasks = ThreadScanner(str(tmp_path), wanting(10))
    tasks.scan()
    made(tmp_path, KEY, schedstat="")
    (tmp_path / "10" / "task" / "11").rename(tmp_path / "gone")
    made(tmp_path, ThreadKey(10, 12))
    assert walked(tasks) == ({ThreadKey(10, 12): Counters(1000, 200, 3)}, [KEY])
    tasks.close()


def test_changes_of_the_process_filter_are_noticed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (10, 20):
        made(tmp_path, ThreadKey(pid, pid))
    pids = [10]
    tasks = ThreadScanner(str(tmp_path), lambda pid: pid in pids)
    assert [*walked(tasks)[0]] == [(10, 10)]
    pids[:] = [20]
    assert [*walked(tasks)[0]] == [(10, 10)]
    monkeypatch.setattr(threads, "_RECHECK_NS", 0)
    found, ended, left = tasks.scan()
    assert ([one.key for one in found], ended, left) == ([(20, 20)], [], [(10, 10)])
    pids[:] = [10, 20]
    assert [*walked(tasks)[0]] == [(20, 20), (10, 10)]
    tasks.close()


def test_a_thread_with_an_empty_file_has_exited(tmp_path: Path) -> None:
    made(tmp_path, KEY)
    tasks = ThreadScanner(str(tmp_path), wanting(10))
    tasks.scan()
    made(tmp_path, KEY, schedstat="")  # the kernel's file fails to read in the same way
    assert walked(tasks) == ({}, [KEY])
    tasks.close()


def test_without_free_descriptors_files_are_reopened_each_time(tmp_path: Path) -> None:
    made(tmp_path, KEY)
    tasks = ThreadScanner(str(tmp_path), wanting(10))
    tasks._most_open = 0  # pyright: ignore[reportPrivateUsage]
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(2):
        assert walked(tasks)[0] == {KEY: Counters(1000, 200, 3)}
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    tasks.close()


def test_a_waiting_thread_shows_name_state_call_and_stack(tmp_path: Path) -> None:
    call = "202 0x7f00 0x80 0x0 0x0 0x0 0xffffffffffffffff 0x7ffc00000000 0x7fb500000000\n"
    made(tmp_path, KEY, stat=STAT.format(name="a ) (b", state="S"), syscall=call, stack=STACK, wchan="futex_do_wait")
    assert _seen(tmp_path) == ThreadState(
        "a ) (b",
        "S",
        (Frame(KERNEL, 0, "futex_do_wait"), Frame("[xfs]", 0, "xfs_read")),
        202,
        (0x7F00, 0x80, 0, 0, 0, (1 << 64) - 1),
        has_stack=True,
    )


def test_without_a_stack_wchan_and_the_call_are_its_frames(tmp_path: Path) -> None:
    syscall = "0 0x1 0 0 0 0 0 0x7ffc00000000 0x7fb500000000\n"
    made(tmp_path, KEY, stat=STAT.format(name="a", state="D"), syscall=syscall, wchan="pipe_read")
    seen = threads.read_state(str(tmp_path), KEY)
    assert seen
    assert [frame.name for frame in seen.frames] == ["pipe_read", *([f"{threads.ENTRY}read"])]


@pytest.mark.parametrize(
    ("registers", "stack"),
    [
        ("0x7ffc00000000 0x7fb500000000", "[<0>] hrtimer_nanosleep+0x1/0x2\n[<0>] do_int80_emulation+0x1/0x2\n"),
        ("0x7ffc00000000 0x7fb500000000", "[<0>] __ia32_sys_nanosleep_time32+0x1/0x2\n"),
        ("0xffc00000 0xf7b50000", ""),
    ],
)
def test_a_32_bit_call_has_its_own_number_and_no_arguments(tmp_path: Path, registers: str, stack: str) -> None:
    """Number 162 is sync for 64-bit programs."""
    syscall = f"162 0x1 0 0 0 0 0 {registers}\n"
    made(tmp_path, KEY, stat=STAT.format(name="a", state="S"), syscall=syscall, wchan="hrtimer_nanosleep", stack=stack)
    seen = threads.read_state(str(tmp_path), KEY)
    assert seen
    assert (threads.call_name(seen.call), seen.arguments) == ("nanosleep", ())
    assert not [frame for frame in seen.frames if frame.name.startswith(threads.ENTRY)]


def test_unreadable_files_leave_fields_empty(tmp_path: Path) -> None:
    made(tmp_path, KEY, stat=STAT.format(name="a", state="S"), wchan="0")
    assert _seen(tmp_path) == ThreadState("a", "S")


def test_the_start_time_is_on_our_clock(tmp_path: Path) -> None:
    made(tmp_path, KEY, stat=STAT.format(name="a", state="S"))
    made(tmp_path, ThreadKey(10, 12), stat=STAT.format(name="a", state="R").replace(" 1234 ", " 1534 "))
    first, other = (threads.read_state(str(tmp_path), ThreadKey(10, tid)) for tid in (11, 12))
    assert first
    assert other
    passed_ns = 300 * NS_PER_S // os.sysconf("SC_CLK_TCK")
    assert abs(other.began_ns - first.began_ns - passed_ns) < passed_ns / 10
    before_ns = time.monotonic_ns()
    with subprocess.Popen(["sleep", "60"]) as child:
        after_ns = time.monotonic_ns()
        seen = threads.read_state("/proc", ThreadKey(child.pid, child.pid))
        child.kill()
    assert seen
    tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")
    assert before_ns - tick_ns <= seen.began_ns <= after_ns + tick_ns


def _seen(root: Path) -> ThreadState | None:
    seen = threads.read_state(str(root), KEY)
    return seen and seen._replace(began_ns=0)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_zombie_has_exited(tmp_path: Path, state: str) -> None:
    made(tmp_path, KEY, stat=STAT.format(name="a", state=state))
    assert threads.read_state(str(tmp_path), KEY) is None
    assert threads.read_state(str(tmp_path), ThreadKey(1, 1)) is None


def test_a_kernel_thread_is_in_no_system_call(tmp_path: Path) -> None:
    stat = STAT.format(name="kworker", state="I").replace("4194304", "69238880")
    made(tmp_path, KEY, stat=stat, syscall="0 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0\n", stack=STACK)
    seen = threads.read_state(str(tmp_path), KEY)
    assert seen
    assert (seen.call, seen.state, seen.bits) == (-1, "I", 0x402)


def test_switches_come_from_the_kernels_own_lines(tmp_path: Path) -> None:
    status = "Name:\tvoluntary_ctxt_switches:\t9\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n"
    made(tmp_path, KEY, status=status)
    assert threads.context_switches(str(tmp_path), KEY) == (3, 4)
    assert threads.context_switches(str(tmp_path), ThreadKey(1, 1)) is None


def test_a_kernel_without_sched_info_is_refused(tmp_path: Path) -> None:
    (tmp_path / "10").mkdir()
    (tmp_path / "self").symlink_to("10")
    for content in ("0 0 0\n", ""):
        (tmp_path / "self" / "schedstat").write_text(content)
        with pytest.raises(KernelError, match="CONFIG_SCHED_INFO"):
            threads.check_schedstat(str(tmp_path))


def test_a_proc_without_our_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="mount -t proc"):
        threads.check_schedstat(str(tmp_path))
