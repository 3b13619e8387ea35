"""The report of a recording lists waits in progress at its end, and wakers."""

import io
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from offtop.feed.suspect_watch import SuspectWatch
from offtop.model.classify.suspect import HOLDER, Found, Hop, Suspect
from offtop.model.classify.suspect_weights import Weights
from offtop.model.values.blockers import MUTEX
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.wake import TIMEOUT, Wake, Waker
from offtop.person import person
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.reports import recording_page
from offtop.units import NS_PER_S
from tests.recording import woken
from tests.recording.test_in_progress import FIRST_FIELDS
from tests.recording.woken import ANSWER, LOCK, READ, STORMS, WokenSource
from tests.ui.scripted import FUTEX, SHOP, STUCK, ScriptedSource, Waits
from tests.ui.shown import CATEGORIES
from tests.ui.test_suspects import TABLE, WEIGHTS, HeldSource

MINUTES = 60
HELD = Waits(
    *("db", 50, "session", 51, "lock", "futex_do_wait"),
    waits_on=True,
    older_ms=15 * MINUTES * 1000,
    call="futex",
    arguments=(FUTEX, 128, 2, 0, 0, 0),
    read=("lock_wait", "main"),
)
"""After five minutes it has waited for 20 minutes."""


def page(path: Path, *table: Waits, seconds: int, step: int = 1) -> list[str]:
    """Record `seconds` of `table` with a tick every `step` seconds, and return the report."""
    source = ScriptedSource(table, ticks=seconds)
    recorder = Recorder(path, source, person(), leave_bytes=0, whole_ns=5 * NS_PER_S)
    for second in range(0, seconds + 1, step):
        recorder.add(source.after(second))
    recorder.close()
    return written(path)


def written(path: Path, width: int = 0, weights: Weights | None = None) -> list[str]:
    """Return the lines of the report of a recording."""
    out = io.StringIO()
    with closing(RecordedSource(path, categories=CATEGORIES.ids)) as source:
        recording_page.write(source, path.name, CATEGORIES, width, out, weights=weights)
    return out.getvalue().splitlines()


def stuck_in(lines: list[str]) -> list[str]:
    """Return the section of waits in progress, which is the last."""
    (first,) = (number for number, line in enumerate(lines) if line.startswith("STUCK AT THE END, "))
    return [re.sub("STUCK AT THE END, ..:..:..: ", "", lines[first]), *lines[first + 1 :]]


def test_lock_held_for_20_minutes_is_still_blocked_at_the_end(tmp_path: Path) -> None:
    lines = page(tmp_path / "it", HELD, seconds=5 * MINUTES, step=30)
    call = "futex(0x7f1200004040, WAIT_PRIVATE, 2)"
    assert stuck_in(lines) == [
        "1 thread",
        "THREADS      AGE     PID     TID COMMAND          S CATEGORY        SYSCALL                   STACK",
        f"      1    20min      50      51 session          S lock            {call}  futex_do_wait < lock_wait < main",
    ]
    category = next(line for line in lines if line.startswith("lock "))
    process = next(line for line in lines if line.startswith("     50 "))
    assert category.split() == ["lock", "1.00", "100%", "20min"]
    assert process.split()[:5] == ["50", "db", "1.00", "100%", "20min"]
    assert not any(line.startswith("LONGEST WAITS") for line in lines)  # no wait has ended


def test_ages_have_bounds_and_the_oldest_is_first(tmp_path: Path) -> None:
    first, _, *rows = stuck_in(page(tmp_path / "it", *STUCK, seconds=12))
    assert first == "4 threads; 1 idle hidden"
    assert [row[:66].split() for row in rows] == [
        ["1", "<=112s", "900", "900", "cp", "D", "disk-read"],
        ["1", "12.5s", "4242", "4268", "connection", "S", "lock"],
        ["1", ">=12.0s", "901", "901", "gdb", "t", "stopped"],
        ["1", "2.00s", "4242", "4270", "purge", "D", "fsync"],
    ]


def test_finished_wait_is_among_the_longest_but_not_still_blocked(tmp_path: Path) -> None:
    lines = page(tmp_path / "it", *STUCK, seconds=12)
    assert not any(" late " in line for line in stuck_in(lines))
    longest = lines.index("LONGEST FINISHED WAITS, one per stack")
    assert lines[longest + 1].split()[1:4] == ["4.00s", "lock", "late(800)"]


def test_threads_of_a_process_with_the_same_stack_are_one_row_with_the_oldest_age(tmp_path: Path) -> None:
    again = [HELD._replace(tid=52 + n, older_ms=n * 1000, arguments=(n, 128, 2, 0, 0, 0)) for n in range(18)]
    other = HELD._replace(process="other", pid=60, tid=60, older_ms=0)
    elsewhere = HELD._replace(tid=90, older_ms=0, read=("sweep", "main"))
    first, _, *rows = stuck_in(page(tmp_path / "it", HELD, *again, other, elsewhere, seconds=20, step=10))
    assert first == "21 threads"
    assert [row.split()[:4] for row in rows] == [
        ["19", "15min", "50", "51"],
        ["1", "20.0s", "50", "90"],
        ["1", "20.0s", "60", "60"],
    ]
    assert "sweep" in rows[1]


def test_at_most_20_stacks_are_listed_and_the_others_counted(tmp_path: Path) -> None:
    processes = [HELD._replace(pid=1000 + n, tid=1000 + n, older_ms=n * 1000) for n in range(23)]
    twin = HELD._replace(pid=1000, tid=5000, older_ms=0)
    first, _, *rows = stuck_in(page(tmp_path / "it", *processes, twin, seconds=10, step=5))
    assert first == "24 threads"
    assert [row.split()[2] for row in rows[:20]] == [str(1022 - n) for n in range(20)]
    assert rows[20:] == ["      4          more, in 3 stacks"]


@pytest.mark.parametrize(
    ("seconds", "most"),
    [
        (12, ".* 1.00 at ..:..:12; 2.00 at ..:..:09, before standing waits were known"),
        (9, ".* 2.00 at ..:..:09"),
    ],
)
def test_most_waiting_says_whether_standing_waits_were_known(tmp_path: Path, seconds: int, most: str) -> None:
    reader = Waits("tail", 60, "tail", 60, "pipe", "pipe_read", waits_on=True, older_ms=5_000)
    page(tmp_path / "it", HELD, reader, seconds=seconds)
    lines = written(tmp_path / "it", weights=replace(WEIGHTS, settle_ns=10 * NS_PER_S))
    (line,) = (line for line in lines if line.startswith("most waiting"))
    assert re.fullmatch(most, line)


def test_recording_without_waits_in_progress_has_no_section(tmp_path: Path) -> None:
    lines = page(tmp_path / "it", *SHOP, seconds=10)
    assert stuck_in(lines) == ["0 threads; 1 idle hidden"]


def test_single_reading_has_waits_in_progress(tmp_path: Path) -> None:
    lines = page(tmp_path / "it", *STUCK, seconds=0)
    assert "The recording has only one reading; a tick needs two." in lines
    assert stuck_in(lines)[0] == "2 threads; 1 idle hidden"


def test_damage_does_not_change_the_end_of_the_recording(tmp_path: Path) -> None:
    page(tmp_path / "it", *STUCK, seconds=12)
    with sqlite3.connect(tmp_path / "it") as database:
        (last,) = database.execute("SELECT max(number) FROM ticks WHERE whole IS NOT NULL").fetchone()
        database.execute("UPDATE ticks SET change = x'00' WHERE number BETWEEN 3 AND ?", (last - 1,))
        database.execute("DELETE FROM ticks WHERE number > ?", (last,))
    database.close()
    first, _, *rows = stuck_in(written(tmp_path / "it"))
    assert first == "3 threads; 1 idle hidden"
    assert rows[1].split()[1:5] == ["10.5s", "4242", "4268", "connection"]


def test_old_recording_says_at_least_or_that_nothing_was_blocked() -> None:
    first, *rows = stuck_in(written(FIRST_FIELDS))
    assert (first, rows) == ("0 threads; 52 idle hidden", [])


def test_lines_are_cut_at_the_width(tmp_path: Path) -> None:
    page(tmp_path / "it", HELD, seconds=20)
    assert max(map(len, written(tmp_path / "it", 60))) == 60


def test_report_lists_top_wakers_and_wakeup_storms(tmp_path: Path) -> None:
    wakers = wakers_in(tmp_path / "it", WokenSource(10))
    storms = "door: 10 storms woke 1,000 threads, 100 at once; 900 slept again within 1ms: 1,800 switches"
    # In each of ten seconds worker-1 ends 0.2 s, the disk, the door and a child 0.1 s each; 0.5 s have no known waker.
    assert wakers == [
        " BLOCKED  WAKEUPS WAKER                    THROUGH",
        "   2.00s       10 worker\\x1b[31m\\udc80     futex_wake < unlock < serve < main",
        "   1.00s       10 irq (nvme_irq)           nvme_irq",
        "   1.00s       50 door                     sock_def_readable < send < main",
        "   1.00s       10 exit (child)             do_exit",
        "   5.00s       40 (unknown)",
        "WAKEUP STORMS",
        storms,
    ]


def test_unfinished_waits_that_are_not_idle_have_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(woken.ENDED_BY, ("worker-2", "lock"))
    wakers = wakers_in(tmp_path / "it", WokenSource(10))
    assert wakers[5] == "   2.00s          (still waiting)          in progress at the end"


def test_wakers_of_the_same_name_but_different_kind_are_two_rows(tmp_path: Path) -> None:
    source = WokenSource(10)
    wakes, door = source.after(0).catalog.wakes, source.worker._replace(comm="door")
    wakes[LOCK] = Wake(source.worker._replace(comm="timeout"))
    wakes[READ] = Wake(Waker(TIMEOUT))
    wakes[ANSWER] = Wake(source.worker._replace(comm="(unknown)"))
    wakes[STORMS] = Wake(source.worker._replace(comm="timeout", tid=999))
    wakers = wakers_in(tmp_path / "it", source)
    assert [line[:42].rstrip().split(maxsplit=2) for line in wakers[1:6]] == [
        ["2.00s", "10", "timeout (thread)"],
        ["1.00s", "10", "timeout"],
        ["1.00s", "50", "(unknown) (thread)"],
        ["1.00s", "10", "exit (child)"],
        ["5.00s", "40", "(unknown)"],
    ]
    assert wakers[7].startswith("timeout (thread): 10 storms woke 1,000 threads")
    wakes[READ] = Wake(door)
    wakers = wakers_in(tmp_path / "again", source)
    assert [line[18:].split()[0] for line in wakers[1:3]] == ["timeout", "door"], "nothing else is called so"


def test_suspect_of_many_ticks_comes_before_one_of_a_tick_with_more_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suspect(program: str, harm: float) -> Suspect:
        waits, holds = (
            Hop(ThreadKey(pid, pid), name, 1, 1, state, None, 0, via=via)
            for pid, name, state, via in ((7, program, "lock", MUTEX), (8, "holder", "sleep", ""))
        )
        return Suspect(HOLDER, (waits, holds), harm, harm)

    def found_in_tick(*_: object) -> Found:
        return next(ticks, Found())

    ticks = iter([Found([suspect("short", 5.0), suspect("long", 1.0)]), *[Found([suspect("long", 2.0)])] * 4])
    monkeypatch.setattr(SuspectWatch, "tick", found_in_tick)
    page(tmp_path / "it", *SHOP, seconds=9)
    lines = written(tmp_path / "it", weights=WEIGHTS)
    at = next(number for number, line in enumerate(lines) if line.startswith("SUSPECTS"))
    found = [re.sub(r"\d\d:\d\d:", "", line).split(" waits for ")[0] for line in lines[at + 1 : at + 3]]
    assert found == ["01-05  at 05: long(7)", "01-01  at 01: short(7)"]


def wakers_in(path: Path, source: WokenSource) -> list[str]:
    """Return the section of wakers in a report of ten seconds."""
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for second in range(11):
        recorder.add(source.after(second))
    recorder.close()
    lines = written(path)
    first = lines.index("WAKERS THAT ENDED MOST BLOCKED TIME")
    end = next(number for number, line in enumerate(lines) if line.startswith("STUCK AT THE END"))
    return [line.rstrip() for line in lines[first + 1 : end - 1]]


def test_report_without_wakers_has_no_section(tmp_path: Path) -> None:
    assert not {line for line in page(tmp_path / "it", *SHOP, seconds=3) if line.startswith(("WHO", "WAKEUP"))}


def test_report_says_what_others_waited_for_and_when(tmp_path: Path) -> None:
    path = tmp_path / "it"
    source = HeldSource(TABLE, ticks=6)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    for second in range(7):
        recorder.add(source.after(second))
    recorder.close()
    lines = written(path, weights=WEIGHTS)
    at = lines.index("SUSPECTS: what others waited for, most total harm first; each as of its worst moment")
    says = "..:..:01-..:..:06  at ..:..:06: 3 threads of shop wait for a mutex .11.0s., held by holder.50., which waits"
    assert re.match(says, lines[at + 1]), "with the age in the last tick"
    assert lines[at + 2] == ""
    assert at < next(number for number, line in enumerate(lines) if line.startswith("WAIT CATEGORY")), "causes first"
    assert "SUSPECTS" not in "\n".join(written(path))
