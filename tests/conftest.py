"""Fixtures for all tests, and the rules for skipping kernel tests.

With OFFTOP_REQUIRE_KERNEL=1, as in CI, a machine that can run the kernel tests must run them: a skipped kernel test
is a failure there. Only tests of features that the kernel was built without (`lacks`) may be skipped.
"""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from offtop.person import Person

EXAMPLES = int(os.environ.get("OFFTOP_EXAMPLES", "25"))
"""How many examples each property test draws: others in each run, and many in `make examples`."""
# How long an example takes depends on the machine, which may be busy with other work.
settings.register_profile(
    "busy",
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy")
# Collecting makes millions of objects that stay: the garbage collector would visit all of them again and again.
gc.disable()

ANN = 54321
"""The uid and gid of a user without an account on this machine."""
LAW_BROKEN = 10
"""Exit status of a run in which an accounting invariant failed; run.sh does not repeat such a run."""
_BROKEN_LAW = "broken law"
_LACKS = "this kernel lacks "
_laws_broken: list[str] = []
_TESTS = Path(__file__).parent
_KERNEL_TESTS = _TESTS / "kernel", _TESTS / "cli"
"""All kernel tests are in these; the Makefile names them."""


@cache
def bpf_reason() -> str | None:
    """Return why the kernel tests cannot run here, in one sentence; None if they can.

    Checks only the machine: a BPF program of offtop that does not load is for the tests to find.
    """
    from offtop.kernel.doctor import report as doctor  # here, so that the model's tests run if this package is broken

    failed = [check for check in doctor.conditions() if check.verdict == "FAIL"]
    return f"{failed[0].name}: {failed[0].what} -> {failed[0].remedy}" if failed else None


@cache
def machine_is_able() -> bool:
    """Check for root, BTF and BPF; anything else can be installed and is no reason to skip."""
    from offtop.kernel.bpf import privileges
    from offtop.kernel.doctor import kernel_checks

    held = privileges.capabilities()
    return (
        {"CAP_BPF", "CAP_PERFMON"} <= held
        and Path("/sys/kernel/btf/vmlinux").exists()
        and kernel_checks.bpf(held).verdict != "FAIL"
    )


@pytest.fixture(scope="session", autouse=True)
def _started_before(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Nothing is written into the home of the user who runs the tests, and no screen greets a new user."""
    state = tmp_path_factory.mktemp("state")
    (state / "offtop").mkdir()
    (state / "offtop" / "started").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        yield


def lacks(feature: str) -> NoReturn:
    """Skip this test: the kernel lacks `feature`, which is the only reason that CI accepts."""
    pytest.skip(_LACKS + feature)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    ours = {item.path for item in items if item.get_closest_marker("kernel") and item.path.is_relative_to(_TESTS)}
    if misplaced := {str(path) for path in ours if not any(map(path.is_relative_to, _KERNEL_TESTS))}:
        raise pytest.UsageError(f"`make test` does not look for kernel tests in {', '.join(sorted(misplaced))}")
    yield  # -m deselects
    kernel = [item for item in items if item.get_closest_marker("kernel")]
    reason = bpf_reason() if kernel else None
    if reason is None:
        return
    for item in kernel:
        item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what the tests are made of, and run as rarely as in offtop."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and call.excinfo.typename == "LawError":
        report.user_properties.append((_BROKEN_LAW, item.nodeid))
    if report.skipped and item.get_closest_marker("kernel") and os.environ.get("OFFTOP_REQUIRE_KERNEL") == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if _LACKS not in reason and machine_is_able():
            report.outcome = "failed"
            report.longrepr = f"This machine has BPF, so kernel tests must not be skipped: {reason}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _laws_broken.extend(str(where) for what, where in report.user_properties if what == _BROKEN_LAW)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _laws_broken and session.exitstatus == pytest.ExitCode.TESTS_FAILED:
        session.exitstatus = LAW_BROKEN


@pytest.fixture(scope="session", autouse=True)
def signals_reach_children() -> None:
    """Let SIGINT and SIGHUP end child processes even if pytest inherited them as ignored.

    They are ignored under nohup and in the background of a script. pytest itself goes on ignoring them: unlike
    SIG_IGN, a handler is reset to the default in a child that calls exec.
    """

    def do_nothing(_number: int, _frame: FrameType | None) -> None:
        pass

    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, do_nothing)


@pytest.fixture
def ann() -> Generator[Person]:
    """A user without an account on this machine, with a home directory.

    They own it if the tests run as root.
    """
    home = Path(tempfile.mkdtemp(prefix="offtop-ann-"))
    uid = gid = os.geteuid()
    if uid == 0:
        uid = gid = ANN
        os.chown(home, uid, gid)
    yield Person(uid, gid, home, "ann")
    shutil.rmtree(home)
