"""Test run.sh, which runs the tests.

A failed test is run again alone and reported as flaky; a broken law is final.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LAW_BROKEN

RUN = Path(__file__).parent / "run.sh"
ROOT = RUN.parents[1]
LAW = "class LawError(AssertionError): ...\n"


def ends(tmp_path: Path, first: int, second: int = 0) -> tuple[int, int]:
    """Return run.sh's exit status, and how often it ran a command.

    The command exits with `first`, and then with `second`.
    """
    fake, runs = tmp_path / "pytest", tmp_path / "arguments"
    fake.write_text(
        f'#!/bin/sh\necho "$@" >>{runs}\ncase "$*" in *--last-failed*) exit {second};; esac\nexit {first}\n'
    )
    fake.chmod(0o755)
    status = subprocess.run([RUN, fake], timeout=20).returncode
    return status, len(runs.read_text().splitlines())


def test_a_passing_run_is_not_repeated(tmp_path: Path) -> None:
    assert ends(tmp_path, 0) == (0, 1)


@pytest.mark.parametrize("alone", [0, 1])
def test_a_failing_run_is_repeated_and_the_second_result_holds(tmp_path: Path, alone: int) -> None:
    assert ends(tmp_path, 1, alone) == (alone, 2)


def test_flaky_tests_are_listed_just_above_the_closing_line(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os\ndef test_steady(): pass\ndef test_flaky(): assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
    )
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    command = [RUN, sys.executable, "-m", "pytest", "-n", "2"]
    ended = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout
    *_, flaky, closing = ended.stdout.splitlines()
    assert flaky == "PASSED test_it.py::test_flaky"
    assert "1 passed" in closing and "failed" not in closing


@pytest.mark.parametrize("status", [2, 3, 4, 5, LAW_BROKEN])
def test_any_other_status_is_final(tmp_path: Path, status: int) -> None:
    assert ends(tmp_path, status) == (status, 1)


@pytest.mark.parametrize("how", [(), ("-n", "1")], ids=["alone", "with other workers"])
@pytest.mark.parametrize(("what", "status"), [("AssertionError", 1), ("LawError", LAW_BROKEN)])
def test_a_broken_law_has_another_exit_status_than_other_failures(
    tmp_path: Path, what: str, status: int, how: tuple[str, ...]
) -> None:
    (tmp_path / "test_it.py").write_text(f"{LAW}def test_it():\n    raise {what}\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *how, "test_it.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (status, "")
