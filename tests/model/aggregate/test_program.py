"""Programs: three postgres, one psql, and kernel threads of a kind."""

import pytest

from offtop.model.aggregate.filter import Text
from offtop.model.aggregate.filter_syntax import of_program, parse
from offtop.model.aggregate.program import Program, program_folding, program_name, programs
from offtop.model.values.catalog import Catalog
from offtop.model.values.snapshot import EXITED, OUTSIDE, UNNAMED
from offtop.model.windows.stuck import Age

POSTGRES, KWORKERS = Program("postgres"), Program("kworker/*")
NAMES = {
    7: "postgres",
    8: "postgres",
    9: "postgres",
    5: "psql",
    20: "kworker/0:1",
    21: "kworker/u8:2-events_unbound",
    22: "ksoftirqd/0",
    30: "",
    31: "",
    EXITED.pid: "x",
    OUTSIDE: "x",
    UNNAMED.pid: "x",
}


def catalog() -> Catalog:
    made = Catalog()
    made.processes = dict(NAMES)
    return made


def test_processes_of_one_name_and_kworkers_are_programs() -> None:
    assert programs(NAMES, catalog()) == {POSTGRES: [7, 8, 9], KWORKERS: [20, 21]}
    assert programs([9, 5, 20], catalog()) == {}


@pytest.mark.parametrize(
    ("process", "program"),
    [
        ("postgres", "postgres"),
        ("python3", "python3"),
        ("kworker/3:0H", "kworker/*"),
        ("rcuop/1", "rcuop/*"),
        ("irq/9-acpi", "irq/9-acpi"),
        ("kworkerish", "kworkerish"),
        ("kworker/", "kworker/"),
        ("", ""),
    ],
)
def test_program_is_named_after_the_process_or_the_kind_of_kernel_thread(process: str, program: str) -> None:
    assert program_name(process) == program


def test_program_and_its_filter_match_only_processes_of_its_name() -> None:
    names = catalog()
    for program, pids in ((POSTGRES, {7, 8, 9}), (KWORKERS, {20, 21}), (Program("a*"), set[int]())):
        names.processes[40], names.processes[41] = "abc", "Postgres"
        assert {pid for pid in names.processes if program.holds(pid, names)} == pids
        (text,) = of_program(program).waits
        assert isinstance(text, Text)
        assert {pid for pid, name in names.processes.items() if text.matches(name)} == pids


def test_text_of_the_filter_of_a_program_can_be_parsed() -> None:
    for program, name, other in ((POSTGRES, "postgres", "psql"), (KWORKERS, "kworker/9:0", "kworker")):
        (text,) = parse(of_program(program).text).waits
        assert isinstance(text, Text) and text.matches(name) and not text.matches(other)


def test_row_of_a_program_is_the_sum_of_those_of_its_processes() -> None:
    made = program_folding(NAMES, catalog())
    table = {7: (1, 10, 9, 1), 8: (2, 20, 15, 1 << 64), 5: (1, 1, 1, 1), 20: (3, 3, 3, 3)}
    assert made.folded(table) == {-7: (3, 30, 15, 1 + (1 << 64)), 5: (1, 1, 1, 1), -20: (3, 3, 3, 3)}
    assert made.oldest({7: Age(3), 9: Age(5), 5: Age(4)}) == {-7: Age(5), 5: Age(4)}
    assert (made.group_of(9), made.group_of(5), made.code(KWORKERS)) == (POSTGRES, None, -20)
    assert made.sizes == {POSTGRES: 3, KWORKERS: 2}
