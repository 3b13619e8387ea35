"""Child processes of the tests do not ignore signals that pytest inherited as ignored, as under nohup."""

import re
import signal
import subprocess
import sys


def test_children_do_not_ignore_sigint_and_sighup() -> None:
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    (ignored,) = re.findall(r"^SigIgn:\t(\w+)$", status, re.MULTILINE)
    assert not int(ignored, 16) & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGHUP - 1))


def test_children_do_not_ignore_signals_that_pytest_inherited_as_ignored() -> None:
    ignoring = "trap '' INT HUP; exec \"$@\""
    child_test = f"{__file__}::{test_children_do_not_ignore_sigint_and_sighup.__name__}"
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", child_test]
    ended = subprocess.run(["sh", "-c", ignoring, "sh", *pytest], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout
