"""Test which user stacks that were read count: none of a thread that ran meanwhile.

A process whose memory cannot be read does not hold up others.
"""

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from offtop.kernel.binary.files import Files
from offtop.kernel.bpf.layout import ScannedStack
from offtop.kernel.bpf.scan_rows import REGISTERS_ROW, Rows
from offtop.kernel.unwind import user_stacks
from offtop.kernel.unwind.cpu_allowance import Allowance
from offtop.kernel.unwind.unwinder import UNREAD, Unwinder, UnwoundStack
from offtop.kernel.unwind.user_stacks import UserStacks
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Waiting
from offtop.model.values.stack import NO_STACK
from offtop.model.values.waits import WaitList
from tests.kernel import programs, watch
from tests.kernel.reads import GUARDED
from tests.kernel.sleeping_and_spinning import SLEEPS, build_all
from tests.kernel.test_counts import wait_until_asleep
from tests.kernel.watch import S

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the programs."""
    return build_all(tmp_path_factory.mktemp("stacks"), {"sleeps": SLEEPS})


def registers_of(tid: int) -> Rows:
    """Return what the scan would report of a thread that is in a system call."""
    number, *arguments, sp, ip = Path(f"/proc/{tid}/syscall").read_text().split()
    registers = np.zeros(1, REGISTERS_ROW)
    registers["pcount"] = int(Path(f"/proc/{tid}/schedstat").read_text().split()[2])
    registers["call"], registers["sp"], registers["ip"] = int(number), int(sp, 16), int(ip, 16)
    registers["arguments"] = [int(word, 16) for word in arguments]
    return registers


class Watched(Unwinder):
    """An Unwinder that calls `before` before it unwinds each thread, and `after` afterwards."""

    def __init__(self, before: Callable[[int], object], after: Callable[[], object]) -> None:
        super().__init__(Files(GUARDED), "fp", None)
        self._calls = before, after

    def another(self) -> Unwinder:
        return Watched(*self._calls)

    def unwind_thread(
        self, key: ThreadKey, stack: ScannedStack, is_32_bit_program: bool, has_run: Callable[[], bool]
    ) -> UnwoundStack | None:
        before, after = self._calls
        before(key.tid)

        def ran() -> bool:
            after()
            return has_run()

        return super().unwind_thread(key, stack, is_32_bit_program, ran)


def found_of(tid: int, meanwhile: Callable[[], None], age_ns: int = S) -> list[int]:
    """Return the threads whose stacks are read if `meanwhile` happens during that."""
    key = ThreadKey(tid, tid)
    goes_on = threading.Event()

    def walked() -> None:
        meanwhile()
        goes_on.set()

    reader = UserStacks(Watched(lambda _: None, walked), Allowance(5))
    one = Waiting(watch.SiteKey(tid, tid, 3, NO_STACK), 5 * S, 5 * S)
    reader.note_waits(WaitList.of([one]).rows, registers_of(tid))
    found = reader.read({key: one}, 5 * S + age_ns)
    if goes_on.wait(1 if age_ns >= S // 5 else 0.1):
        for _ in range(100):
            found = found or reader.read({}, 0)
            if found:
                break
            time.sleep(0.002)
    reader.close()
    return [tid for one in found for tid in one.ids[:, 1].tolist()]


def test_a_stack_is_discarded_if_its_thread_ran_while_it_was_read(built: Path) -> None:
    with programs.running([built / "sleeps"]) as child:
        wait_until_asleep(child.pid)

        def runs() -> None:
            child.go()
            wait_until_asleep(child.pid)

        assert found_of(child.pid, lambda: None) == [child.pid]
        assert found_of(child.pid, lambda: None, age_ns=S // 5 - 1) == []  # too young to be worth a look
        assert found_of(child.pid, runs) == []
        assert found_of(child.pid, lambda: None) == [child.pid]

    def ends() -> None:
        gone.kill()
        gone.wait(10)

    with subprocess.Popen(["sleep", "1000"]) as gone:
        wait_until_asleep(gone.pid)
        assert found_of(gone.pid, ends) == []


class Refusing(Unwinder):
    """An Unwinder that cannot read any stack in time."""

    def __init__(self) -> None:
        super().__init__(Files(GUARDED), "fp", None)
        self.asked: list[int] = []

    def unwind_thread(
        self, key: ThreadKey, stack: ScannedStack, is_32_bit_program: bool, has_run: Callable[[], bool]
    ) -> UnwoundStack:
        self.asked.append(key.tid)
        return UNREAD


def test_a_sample_of_alike_waits_that_cannot_be_read_is_asked_for_again(built: Path) -> None:
    with programs.running([built / "sleeps"]) as child:
        wait_until_asleep(child.pid)
        tids = [child.pid + 1_000_000 + number for number in range(8)]
        waiting = {
            ThreadKey(child.pid, tid): Waiting(watch.SiteKey(child.pid, tid, 3, NO_STACK), 5 * S, 5 * S) for tid in tids
        }
        unwinder = Refusing()
        reader = UserStacks(unwinder, Allowance(100))
        reader.note_waits(WaitList.of(waiting.values()).rows, np.repeat(registers_of(child.pid), len(tids)))
        programs.until(lambda: sorted(unwinder.asked) == tids)
        assert reader.followed() == []
        reader.read(waiting, 7 * S)
        programs.until(lambda: sorted(unwinder.asked) == sorted([*tids, *tids]))
        reader.close()


def test_a_process_with_unreadable_memory_does_not_block_others_for_long(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_stacks, "_HUNG_S", 0.1)
    let_go = threading.Event()
    with programs.running([built / "sleeps"]) as hung, programs.running([built / "sleeps"]) as child:
        for one in (hung, child):
            wait_until_asleep(one.pid)

        def hangs(tid: int) -> None:
            if tid == hung.pid:
                let_go.wait(30)

        reader = UserStacks(Watched(hangs, lambda: None), Allowance(5))
        waiting = {
            ThreadKey(one.pid, one.pid): Waiting(watch.SiteKey(one.pid, one.pid, 3, NO_STACK), 5 * S, 5 * S)
            for one in (hung, child)
        }

        def read() -> set[int]:
            for key, one in waiting.items():
                reader.note_waits(WaitList.of([one]).rows, registers_of(key.tid))
            return {pid for one in reader.read(waiting, 7 * S) for pid in one.ids[:, 0].tolist()}

        assert read() == set()
        time.sleep(0.15)
        found, requests = set[int](), 0
        while not found and requests < 100:
            found, requests = read(), requests + 1
        assert (found, reader.hung) == ({child.pid}, 1)
        let_go.set()
        while reader.hung and requests < 200:
            time.sleep(0.01)
            requests += 1
        assert read() | read() >= {hung.pid}
        reader.close()
