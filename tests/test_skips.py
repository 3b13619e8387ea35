"""CI accepts a skipped kernel test only for a feature that the kernel was built without, if the machine is able."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import machine_is_able

_ROOT = Path(__file__).parents[1]
_TESTS = """
import pytest
from tests.conftest import lacks

@pytest.mark.kernel
def test_excused():
    pytest.skip("bcc would not load")

@pytest.mark.kernel
def test_lacking():
    lacks("kprobes")

def test_elsewhere():
    pytest.skip("no colour here")

@pytest.mark.kernel
def test_run():
    pass
"""


def outcome(directory: Path, require: str) -> tuple[int, str]:
    """Run `_TESTS` in a separate pytest and return its exit status and last line."""
    (directory / "test_made.py").write_text(_TESTS)
    environment = os.environ | {"OFFTOP_REQUIRE_KERNEL": require, "PYTHONPATH": str(_ROOT)}
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", _ROOT / "pyproject.toml", "--rootdir", directory]
    options += ["--basetemp", directory / "made"]  # otherwise it warns of what other runs have left behind
    command = [sys.executable, "-m", "pytest", *options, directory]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    return child.returncode, child.stdout.splitlines()[-1]


def test_skipped_kernel_test_fails_only_in_ci(tmp_path: Path) -> None:
    if not machine_is_able():
        pytest.skip("needs root and a kernel with BPF")
    status, closing = outcome(tmp_path, require="")
    assert (status, closing.split(" in ")[0]) == (0, "1 passed, 3 skipped")
    status, closing = outcome(tmp_path, require="1")
    assert (status, closing.split(" in ")[0]) == (1, "1 failed, 1 passed, 2 skipped")
