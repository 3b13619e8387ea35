"""Test the IDs of stacks and sites, against made-up BPF maps."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from offtop.kernel.bpf import layout
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.bpf.scan_rows import STACK_ROW, Rows
from offtop.kernel.resolve.sites import Sites
from offtop.kernel.resolve.stacks import Stacks
from offtop.kernel.resolve.user_frames import UserFrames
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.stack import ENDED, GONE, KERNEL, LINKED, MISPLACED_PYTHON, NO_STACK, STACK_LOST, Frame
from offtop.model.values.table import SITES
from offtop.model.values.waits import KERNEL as KERNEL_ID
from tests.kernel import watch


class FixedFrames(UserFrames):
    """User frames without processes."""

    def __init__(self, frames: Callable[[int, Sequence[int]], tuple[Frame, ...]] = lambda _pid, _addresses: ()) -> None:
        self._frames = frames

    def frames(self, pid: int, addresses: Sequence[int]) -> tuple[Frame, ...]:
        return self._frames(pid, addresses)

    def copied(self, raw_id: int) -> None:
        return None

    def has_rule(self, frame: Frame) -> bool:
        return True

    def program_number(self, pid: int) -> None:
        return None

    def with_python(
        self, pid: int, frames: tuple[Frame, ...], of_python: Sequence[int], is_whole: bool
    ) -> tuple[tuple[Frame, ...], bool]:
        return (*frames, *(Frame("it.py", 0, "main (it.py:1)") for _ in of_python)), bool(of_python)


def made(
    table: Map,
    catalog: Catalog,
    frame: Callable[[int], Frame] | None = None,
    user_frames: UserFrames | None = None,
) -> Stacks:
    """Return stacks whose raw ids are all in `table`."""
    symbols = cast(Any, SimpleNamespace(lookup=frame))
    maps = {"kernel_stacks": table, "user_stacks": table}
    return Stacks(maps, catalog, watch.rules(), symbols, user_frames or FixedFrames())


def scanned_rows(*parts: list[int]) -> Rows:
    """Return stacks of a task scan from their frames and __sched functions in turn.

    Beyond their frames, buffers have old contents.
    """
    rows = np.full(len(parts) // 2, 7, np.uint64).astype(STACK_ROW)
    for row, (frames, sched) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        rows["depth"][row] = len(frames)
        rows["frames"][row] = row + 1
        rows["frames"][row, : len(frames)] = frames[: layout.SHORT_FRAMES]
        rows["sched"][row] = [*sched, *[0] * (layout.SCHED_FRAMES - len(sched))]
    return rows


def resolved(stacks: Stacks, *raw: tuple[int, ...]) -> list[SiteKey]:
    return [*map(SITES.key, stacks.sites(np.array(raw, np.uint64)).tolist())]


def test_a_tid_reused_in_another_process_has_another_site() -> None:
    stacks = made(cast(Map, None), Catalog())  # IDs that mean "no stack" are not looked up
    assert stacks.site(7, 100, NO_STACK, NO_STACK) == SiteKey(7, 100, NO_STACK, NO_STACK)
    assert stacks.site(100, 100, NO_STACK, NO_STACK) == SiteKey(100, 100, NO_STACK, NO_STACK)
    assert stacks.site(7, 100, NO_STACK, NO_STACK) == SiteKey(7, 100, NO_STACK, NO_STACK)


def test_a_lost_stack_copy_counts_once_per_tick() -> None:
    stacks = made(cast(Map, SimpleNamespace(entries=100)), Catalog())
    raw = (7, 100, NO_STACK, layout.COPIED | 5)
    for tick in (1, 2):
        sites = [stacks.site(*raw), *resolved(stacks, (*raw, 0))]  # as a first wait, and as the site where it ended
        assert sites == [SiteKey(7, 100, NO_STACK, STACK_LOST)] * 2
        assert stacks.unread == tick
        stacks.make_room(at_once=False)


def test_an_exited_process_is_read_once_per_tick_and_python_still_shows() -> None:
    code, pids_read, catalog = 0x7F00_0000, list[int](), Catalog()

    def lookup(key: bytes) -> bytes:
        number = int.from_bytes(key, "little")
        of_python = number % 2
        end = layout.END_LINKED | of_python << layout.END_PYTHON_SHIFT
        addresses = [code + number, *[1 << 40 | 8] * of_python]
        return layout.STACK.pack(len(addresses), end, *addresses, *[0] * (layout.FRAMES + 1 - len(addresses)))

    def frames(pid: int, addresses: Sequence[int]) -> tuple[Frame, ...]:
        pids_read.append(pid)
        return (Frame(GONE, 0),) if pid == 7 else tuple(Frame("/bin/it", one) for one in addresses)

    def names_of(pid: int) -> list[list[str]]:
        ids = [stacks.site(pid, pid, NO_STACK, layout.FIRST_ID + number).user for number in range(4)]
        return [[frame.file for frame in catalog.stacks[one].frames] for one in ids]

    kept = cast(Map, SimpleNamespace(entries=100, value_bytes=layout.STACK.size, lookup=lookup))
    stacks = made(kept, catalog, user_frames=FixedFrames(frames))
    for expected in ([7, 8, 8, 8, 8], [7], [7]):  # the mappings of 8 are known by then
        assert names_of(7) == [[GONE], [GONE, "it.py"]] * 2
        assert names_of(8) == [["/bin/it"], ["/bin/it", "it.py"]] * 2
        assert pids_read == expected
        pids_read.clear()
        stacks.make_room(at_once=False)
        if expected != [7]:
            stacks.forget_thread(ThreadKey(7, 7))
    ends = {(*(frame.file for frame in one.frames),): (one.end, one.guessed_in) for one in catalog.stacks.values()}
    assert ends[GONE,] == ends[GONE, "it.py"] == (ENDED, ""), "Python's functions do not make it complete"
    assert (ends["/bin/it",], ends["/bin/it", "it.py"]) == ((LINKED, ""), (LINKED, MISPLACED_PYTHON))


def test_the_same_addresses_are_another_stack_after_a_module_change() -> None:
    address = 0xFFFF_FFFF_C000_1010
    value = layout.STACK.pack(1, 0, address, *[0] * layout.FRAMES)
    catalog, names = Catalog(), {address: "nfs_wait"}

    def lookup(_: bytes) -> bytes:
        return value

    def frame(address: int) -> Frame:
        return Frame("[module]", 0, names[address])

    def shown() -> list[str]:
        scanned = stacks.scanned(scanned_rows([address], []))
        ids = stacks.site(7, 100, layout.FIRST_ID, NO_STACK).kernel, *scanned
        return [catalog.stack(one).frames[0].name for one in ids]

    kept = cast(Map, SimpleNamespace(entries=100, value_bytes=len(value), lookup=lookup))
    stacks = made(kept, catalog, frame)
    assert shown() == ["nfs_wait"] * 2
    names[address] = "dlm_wait"
    assert shown() == ["nfs_wait"] * 2
    stacks.forget_kernel_names()
    assert shown() == ["dlm_wait"] * 2


@pytest.mark.parametrize(
    ("names", "of_those_without"),
    [
        (["__schedule", "__cond_resched", "task_work_run", "do_syscall_64"], "run-queue"),
        (["__schedule", "preempt_schedule_irq", "throttle_cfs_rq_work", "task_work_run"], "throttle"),
        (["__schedule", "exit_to_user_mode_loop", "do_syscall_64"], "run-queue"),
    ],
)
def test_only_a_process_with_a_quota_waits_for_it_if_the_stack_may_also_be_that_of_a_preempted_one(
    names: list[str], of_those_without: str
) -> None:
    value = layout.STACK.pack(len(names), 0, *range(1, len(names) + 1), *[0] * (layout.FRAMES + 1 - len(names)))

    def lookup(_: bytes) -> bytes:
        return value

    def frame(address: int) -> Frame:
        return Frame(KERNEL, 0, names[address - 1])

    def has_quota(pid: int) -> bool:
        return pid == 7

    kept = cast(Map, SimpleNamespace(entries=100, value_bytes=len(value), lookup=lookup))
    catalog, quotas = Catalog(), cast(Any, SimpleNamespace(has_quota=has_quota))
    sites = Sites(made(kept, catalog, frame), cast(Any, None), catalog, quotas)
    raw = np.array([(pid, pid, layout.FIRST_ID, NO_STACK, 0) for pid in (7, 8, 7)], np.uint64)
    categories = [catalog.stack(site[KERNEL_ID]).category for site in sites.every(raw).tolist()]
    of_those_with = "run-queue" if "exit_to_user_mode_loop" in names else "throttle"
    assert categories == [of_those_with, of_those_without, of_those_with]
    one_by_one = [
        catalog.stack(sites.site(pid, pid, layout.FIRST_ID, NO_STACK, 0).kernel).category for pid in (7, 8, 7)
    ]
    assert one_by_one == categories


def test_a_repeated_scheduler_function_is_left_from_an_earlier_call() -> None:
    catalog = Catalog()
    names = {
        1: "__schedule",
        2: "schedule",
        3: "do_nanosleep",
        5: "__schedule",
        6: "do_nanosleep",
        9: "hrtimer_nanosleep",
    }
    stacks = made(cast(Map, None), catalog, lambda address: Frame(KERNEL, 0, names[address]))
    found = stacks.scanned(scanned_rows([9], [1, 2, 3], [9], [1, 2, 3, 5], [9], [1, 2, 3, 6], [9], [])).tolist()
    assert found[0] == found[1] == found[2] != found[3]
    frames = [[frame.name for frame in catalog.stacks[one].frames] for one in found[2:]]
    assert frames == [["__schedule", "schedule", "do_nanosleep", "hrtimer_nanosleep"], ["hrtimer_nanosleep"]]


def test_a_deep_stack_continues_in_its_other_frames() -> None:
    catalog, depth = Catalog(), layout.SHORT_FRAMES + 3
    before = {*catalog.stacks}
    stacks = made(cast(Map, None), catalog, lambda address: Frame(KERNEL, 0, f"f{address}"))
    deep = [*range(1, depth + 1)]
    more = np.array([*deep[layout.SHORT_FRAMES :], 77, 77], np.uint64)
    (alone,) = stacks.scanned(scanned_rows(deep, []), {0: more}).tolist()
    assert {*catalog.stacks} - before == {alone}, "there is no stack of its first frames only"
    short, found = stacks.scanned(scanned_rows(deep[: layout.SHORT_FRAMES], [], deep, []), {1: more}).tolist()
    assert found == alone
    assert [frame.name for frame in catalog.stacks[found].frames] == [f"f{one}" for one in deep]
    assert len(catalog.stacks[short].frames) == layout.SHORT_FRAMES


def test_frames_of_an_exited_process_are_not_shown_for_a_reused_pid() -> None:
    """The first one's stack is looked up when its wait ended, before the process has exited."""
    files, catalog = [GONE], Catalog()
    value = layout.STACK.pack(1, layout.END_LINKED, 0x7F00_0000, *[0] * layout.FRAMES)

    def lookup(_: bytes) -> bytes:
        return value

    def frames(_pid: int, _addresses: Sequence[int]) -> tuple[Frame, ...]:
        return (Frame(files[0], 0),)

    kept = cast(Map, SimpleNamespace(entries=100, value_bytes=len(value), lookup=lookup))
    stacks = made(kept, catalog, user_frames=FixedFrames(frames))
    for file in (GONE, "/bin/it", "/bin/it"):
        files[:] = [file]
        sites = [stacks.site(7, 7, NO_STACK, layout.FIRST_ID), *resolved(stacks, (7, 7, NO_STACK, layout.FIRST_ID, 0))]
        assert [catalog.stack(site.user).frames[0].file for site in sites] == [file, file]
        stacks.make_room(at_once=False)
