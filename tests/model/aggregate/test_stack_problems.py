"""What user stacks lack, for each reason, and what is examined again when more is known."""

import pytest

from offtop.model.aggregate.stack_problems import (
    GUESSED,
    GUESSED_BAD_PC,
    MISPLACED,
    NO_MAP,
    NOT_KNOWN,
    OVERWRITTEN,
    REASONS,
    STRIPPED,
    UNSURE,
    Problem,
    Problems,
    ProblemSummary,
)
from offtop.model.values.catalog import Catalog
from offtop.model.values.snapshot import EXITED
from offtop.model.values.stack import (
    ANONYMOUS,
    BAD_PC,
    DEEP,
    ENDED,
    ENDS,
    FIRST_STACK,
    GONE,
    LINKED,
    MISPLACED_PYTHON,
    NO_STACK,
    NO_WAY,
    NOT_COPIED,
    STACK_LOST,
    WHOLE,
    Frame,
    Stack,
    nameless,
)
from offtop.model.windows.breakdown import PartTuple

S = 1_000_000_000
APP, LIBRARY, LIBC = "/opt/app/bin/app", "/usr/lib/libfoo.so.2", "/lib/x86_64-linux-gnu/libc.so.6"


class KnownNames:
    """Names that are resolved when a test says so, and why there are none."""

    def __init__(self) -> None:
        self.version = 0
        self.known: dict[Frame, str] = {}
        self.reasons: dict[str, str] = {}
        """By file."""
        self.asked = 0

    def of(self, frame: Frame) -> str:
        self.asked += 1
        return frame.name or self.known.get(frame) or nameless(frame)

    def why(self, frame: Frame) -> str:
        return self.reasons.get(frame.file, "")


class Machine:
    """Processes that waited: each `waits` is a stack, a time, and one of them."""

    def __init__(self) -> None:
        self.catalog, self.names = Catalog(), KnownNames()
        self.table: dict[tuple[int, ...], PartTuple] = {}
        self.problems = Problems(self.names, self.names.why)

    def waits(self, stack: Stack | int, ns: int, pid: int = 7, process: str = "app") -> None:
        number = stack if isinstance(stack, int) else FIRST_STACK + len(self.catalog.stacks)
        if isinstance(stack, Stack):
            self.catalog.stacks[number] = stack
        self.catalog.processes[pid] = process
        self.table[9, number, 0, pid] = (1, ns, ns, 0)

    @property
    def summary(self) -> ProblemSummary:
        return self.problems.of(self.table, self.catalog)


def named(file: str, at: int = 1) -> Frame:
    return Frame(file, at, f"function_{at}")


MAIN = (named(APP), named(LIBC))


def test_no_waits_have_no_problems() -> None:
    machine = Machine()
    assert machine.summary == ProblemSummary()
    machine.waits(NO_STACK, 5 * S)
    machine.waits(STACK_LOST, 5 * S)
    assert machine.summary == ProblemSummary()


def test_complete_and_named_stack_has_no_problem() -> None:
    machine = Machine()
    machine.waits(Stack(MAIN), 2 * S)
    assert machine.summary == ProblemSummary(2 * S, 2 * S, 2 * S)


def test_each_binary_and_reason_has_its_time_most_first() -> None:
    machine = Machine()
    machine.waits(Stack(MAIN), 39 * S)
    machine.waits(Stack((named(APP), named(LIBRARY)), end=NO_WAY), 21 * S)
    machine.waits(Stack((named(APP, 2), named(LIBRARY)), end=NO_WAY), 30 * S, pid=8)
    machine.waits(Stack(MAIN, end=NOT_COPIED), 10 * S)
    summary = machine.summary
    assert (summary.total_ns, summary.whole_ns, summary.named_ns) == (100 * S, 39 * S, 100 * S)
    first, second = summary.problems
    assert first[:5] == (LIBRARY, "", NO_WAY, 51 * S, 0.51)
    assert first.in_full == (
        "51% of the time with a user stack: libfoo.so.2: callers missing: no unwind information. Next: build it with "
        "-fasynchronous-unwind-tables and keep .eh_frame, or with -fno-omit-frame-pointer."
    )
    assert second[:5] == (LIBC, "", NOT_COPIED, 10 * S, 0.1)
    assert "--unwind-bytes" in second.remedy


def test_guess_is_listed_under_the_binary_without_unwind_information() -> None:
    machine = Machine()
    machine.waits(Stack(MAIN, is_unsure=True, guessed_in=LIBRARY), S)
    machine.waits(Stack(MAIN, is_unsure=True), 2 * S)
    summary = machine.summary
    assert (summary.whole_ns, summary.named_ns) == (0, 3 * S)
    assert [(one.binary, one.reason) for one in summary.problems] == [("", UNSURE), (LIBRARY, GUESSED)]
    assert summary.problems[0].in_full == (
        "67% of the time with a user stack: (any): callers guessed: the binary without unwind information is unknown."
    )


def test_python_functions_that_may_be_misplaced_are_a_problem_of_their_own() -> None:
    machine = Machine()
    machine.waits(Stack(MAIN, is_unsure=True, guessed_in=MISPLACED_PYTHON), S)
    (one,) = machine.summary.problems
    assert (one.reason, one.is_of_callers) == (MISPLACED, True)
    assert one.in_full == (
        "100% of the time with a user stack: (any): callers unsure: C functions may be between the wrong Python "
        "functions. Next: trust the Python functions: they are in order."
    )


def test_stack_that_lacks_two_things_counts_under_both() -> None:
    machine = Machine()
    machine.names.reasons[LIBRARY] = STRIPPED
    machine.waits(Stack((Frame(LIBRARY, 16), named(APP)), end=NOT_COPIED, is_unsure=True, guessed_in=APP), S)
    summary = machine.summary
    assert {(one.binary, one.reason, one.share) for one in summary.problems} == {
        (LIBRARY, NOT_COPIED, 1.0),
        (APP, GUESSED, 1.0),
        (LIBRARY, STRIPPED, 1.0),
    }
    assert (summary.whole_ns, summary.named_ns) == (0, 0)


def test_result_of_a_guess_is_listed_under_the_binary_that_required_it() -> None:
    machine = Machine()
    frames = named(LIBC), Frame(LIBRARY, 1), Frame(APP, 2)
    machine.names.known = {frames[1]: "in_library", frames[2]: "work"}
    machine.waits(Stack(frames, end=BAD_PC, is_unsure=True, guessed_in=LIBRARY), 3 * S)
    machine.waits(Stack(frames, end=BAD_PC), 2 * S)
    machine.waits(Stack(frames, end=NO_WAY, is_unsure=True, guessed_in=APP), S)
    assert [(one.binary, one.reason) for one in machine.summary.problems] == [
        (LIBRARY, GUESSED_BAD_PC),
        (APP, BAD_PC),
        (APP, NO_WAY),
    ]


def test_python_functions_are_no_binaries() -> None:
    machine = Machine()
    python = Frame("/usr/bin/python3.11", 1)
    machine.names.known[python] = "Py_RunMain"
    functions = Frame("/opt/app.py", 7, "serve (app.py:7)"), Frame("[python]", 0)
    machine.waits(Stack((named(LIBC), python, *functions), end=DEEP), S)
    assert [one.binary for one in machine.summary.problems] == ["/usr/bin/python3.11"]


def test_reason_of_a_missing_name_is_that_of_the_source() -> None:
    machine = Machine()
    machine.names.reasons = {APP: STRIPPED, LIBRARY: OVERWRITTEN}
    machine.waits(Stack((Frame(LIBRARY, 1), Frame(APP, 2), Frame(APP, 3), named(APP, 4), named(LIBC)), end=WHOLE), S)
    assert [(one.binary, one.reason) for one in machine.summary.problems] == [
        (APP, STRIPPED),
        (LIBRARY, OVERWRITTEN),
    ]


def test_pending_name_is_no_problem_and_is_looked_up_again() -> None:
    machine, frame = Machine(), Frame(APP, 16)
    machine.waits(Stack((frame, *MAIN)), S)
    assert (machine.summary.problems, machine.summary.named_ns) == ((), S)
    machine.names.reasons[APP] = STRIPPED
    assert [one.reason for one in machine.summary.problems] == [STRIPPED]
    machine.names.known[frame] = "work"
    machine.names.version += 1
    assert machine.summary.problems == ()


def test_known_stack_is_not_examined_again() -> None:
    machine = Machine()
    machine.names.known[Frame(APP, 16)] = "work"
    machine.waits(Stack((Frame(APP, 16), *MAIN)), S)
    assert machine.summary.problems == ()
    asked = machine.names.asked
    machine.names.version += 1
    assert machine.summary.problems == ()
    assert machine.names.asked == asked


def test_stacks_of_another_catalog_are_not_mixed_up() -> None:
    machine, other = Machine(), Machine()
    machine.waits(Stack(MAIN, end=DEEP), S)
    other.waits(Stack(MAIN), S)
    other.problems = machine.problems
    assert [one.reason for one in machine.summary.problems] == [DEEP]
    assert other.summary.problems == ()


def test_names_where_a_thread_begins_are_ignored_in_complete_stacks() -> None:
    machine = Machine()
    machine.names.reasons = {APP: STRIPPED, LIBC: STRIPPED}
    start = Frame(LIBC, 1), Frame(LIBC, 2), Frame(APP, 3)
    machine.waits(Stack((named(LIBC), named(APP), *start)), S)
    assert machine.summary.problems == ()
    machine.waits(Stack((named(LIBC), named(APP), *start), end=DEEP), S)
    assert {(one.binary, one.reason) for one in machine.summary.problems} == {
        (APP, DEEP),
        (LIBC, STRIPPED),
        (APP, STRIPPED),
    }


def test_missing_names_in_the_c_library_count_where_it_waits() -> None:
    machine = Machine()
    machine.names.reasons = {LIBC: STRIPPED}
    machine.waits(Stack((Frame(LIBC, 9), named(APP), named(LIBC), named(APP))), S)
    assert [(one.binary, one.reason) for one in machine.summary.problems] == [(LIBC, STRIPPED)]


def test_remedy_names_no_process_that_has_exited() -> None:
    machine = Machine()
    made = Stack((named(LIBC), Frame(ANONYMOUS, 0x7000), named("/usr/lib/libjvm.so"), named(APP)))
    machine.waits(made, S, pid=EXITED.pid, process="java")
    (one,) = [one for one in machine.summary.problems if one.reason == NO_MAP]
    assert "jcmd" not in one.remedy  # its 0 would be every Java machine there is


@pytest.mark.parametrize(
    ("file", "process", "remedy"),
    [
        ("/usr/lib/jvm/java-21/lib/server/libjvm.so", "http-server", "jcmd 8 Compiler.perfmap"),
        (APP, "java", "jcmd 8 Compiler.perfmap"),
        ("/usr/bin/node", "MainThread", "node --perf-basic-prof"),
        ("/opt/dotnet/shared/libcoreclr.so", "web", "DOTNET_PerfMapEnabled=1"),
        (APP, "javascript", "/tmp/perf-8.map"),
    ],
)
def test_remedy_for_jit_code_is_the_perf_map_of_its_runtime(file: str, process: str, remedy: str) -> None:
    machine = Machine()
    jit = Frame(ANONYMOUS, 0x7000), Frame(ANONYMOUS, 0x7010)
    machine.waits(Stack((named(LIBC), *jit, named(APP))), S, pid=8, process=process)
    machine.waits(Stack((named(LIBC), *jit, named(file), named(APP))), 2 * S, pid=8, process=process)
    machine.waits(Stack((named(LIBC), *jit, named(APP))), S, pid=9, process="other")
    theirs = next(one for one in machine.summary.problems if one.process == process)
    assert theirs[:5] == (ANONYMOUS, process, NO_MAP, 3 * S, 0.75)
    assert remedy in theirs.remedy
    assert theirs.label == f"[anon] of {process}"


def test_remedy_for_callers_of_jit_code_depends_on_the_runtime() -> None:
    machine = Machine()
    jit = Frame(ANONYMOUS, 0x7000)
    for pid, process in enumerate(("java", "node", "app"), 7):
        machine.waits(Stack((jit, *MAIN), is_unsure=True, guessed_in=ANONYMOUS), S, pid, process)
    remedies = {one.process: one.remedy for one in machine.summary.problems if one.reason == GUESSED}
    assert remedies == {
        "app": "have its runtime keep frame pointers",
        "java": "start it with -XX:+PreserveFramePointer, which makes them most likely right",
        "node": "trust them: V8's code keeps frame pointers",
    }
    machine.waits(Stack(MAIN, is_unsure=True, guessed_in="/usr/bin/node"), S)
    assert next(one.remedy for one in machine.summary.problems if "node" in one.binary) == remedies["node"]


def test_process_that_exited_lacks_everything_without_remedy() -> None:
    machine = Machine()
    machine.waits(Stack((Frame(GONE, 0),), end=ENDED), S, process="true")
    summary = machine.summary
    assert (summary.total_ns, summary.whole_ns, summary.named_ns) == (S, 0, 0)
    assert summary.problems == (Problem(GONE, "true", ENDED, S, 1.0, ""),)
    assert summary.problems[0].is_of_callers
    assert "Next" not in summary.problems[0].in_full


def test_unchecked_frame_pointers_are_listed_under_no_binary() -> None:
    machine = Machine()
    machine.waits(Stack(MAIN, end=LINKED), S)
    machine.waits(Stack((named(LIBRARY),), end=LINKED), S)
    (one,) = machine.summary.problems
    assert (one.binary, one.reason, one.total_ns) == ("", LINKED, 2 * S)


def test_file_names_are_escaped_for_the_screen() -> None:
    machine = Machine()
    machine.names.reasons["/tmp/\x1b[2Jit"] = NOT_KNOWN
    machine.waits(Stack((Frame("/tmp/\x1b[2Jit", 5), *MAIN)), S)
    (one,) = machine.summary.problems
    assert one.label == "\\x1b[2Jit"
    assert one.remedy == ""


def test_each_early_end_of_a_stack_is_a_reason() -> None:
    assert {*ENDS} - {WHOLE} <= {*REASONS}
    machine = Machine()
    for end in ENDS:
        machine.waits(Stack(MAIN, end=end), S)
    assert {one.reason for one in machine.summary.problems} == {*ENDS} - {WHOLE}
