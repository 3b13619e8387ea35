"""What all tests share: whether this machine lets the kernel tests run, and what it means when one is skipped.

With OFFTOP_REQUIRE_KERNEL=1, as in CI, a machine that is able must run them: there, a kernel test that
is skipped is a failure. Only what the kernel itself was built without (`lacks`) may be skipped.
"""

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

# How long an example takes is the machine's matter, and others may be at work on it.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

ANN = 54321
"""The uid and gid of somebody whom this machine does not know."""
LAW_BROKEN = 10
"""How a run ends in which a law of accounting did not hold: no second run excuses that (kernel/run.sh)."""
_BROKEN_LAW = "broken law"
_LACKS = "this kernel lacks "
_laws_broken: list[str] = []


@cache
def bpf_reason() -> str | None:
    """Why the kernel tests cannot run here, in one sentence; None where they can.

    By the machine's conditions only: that offtop's program would not load is what the tests are to find.
    """
    from offtop.kernel.doctor import report as doctor  # not above: the model's tests must run when this room is broken

    failed = [check for check in doctor.conditions() if check.verdict == "FAIL"]
    return f"{failed[0].name}: {failed[0].what} -> {failed[0].remedy}" if failed else None


@cache
def machine_is_able() -> bool:
    """Root, types and BPF: whatever else is missing can be installed, and so is no excuse."""
    from offtop.kernel.bpf import privileges
    from offtop.kernel.doctor import kernel_checks

    held = privileges.capabilities()
    return (
        {"CAP_BPF", "CAP_PERFMON"} <= held
        and Path("/sys/kernel/btf/vmlinux").exists()
        and kernel_checks.bpf(held).verdict != "FAIL"
    )


def lacks(feature: str) -> NoReturn:
    """Skip this test, for the kernel was built without `feature`: the one reason that CI takes."""
    pytest.skip(_LACKS + feature)


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("kernel") for item in items):
        return
    reason = bpf_reason()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("kernel"):
            item.add_marker(pytest.mark.skip(reason=reason))


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
            report.longrepr = f"This machine has BPF, so that no kernel test may be skipped: {reason}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _laws_broken.extend(str(where) for what, where in report.user_properties if what == _BROKEN_LAW)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _laws_broken and session.exitstatus == pytest.ExitCode.TESTS_FAILED:
        session.exitstatus = LAW_BROKEN


@pytest.fixture(scope="session", autouse=True)
def signals_reach_children() -> None:
    """Have SIGINT and SIGHUP end what the tests start, also where pytest has inherited them as ignored.

    That is so under nohup and in the background of a script. pytest itself goes on ignoring them: unlike SIG_IGN,
    a handler is reset to the default in a child that calls exec.
    """

    def do_nothing(_number: int, _frame: FrameType | None) -> None:
        pass

    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, do_nothing)


@pytest.fixture
def ann() -> Generator[Person]:
    """Somebody whom this machine does not know, with a home; as root it is theirs."""
    home = Path(tempfile.mkdtemp(prefix="offtop-ann-"))
    uid = gid = os.geteuid()
    if uid == 0:
        uid = gid = ANN
        os.chown(home, uid, gid)
    yield Person(uid, gid, home, "ann")
    shutil.rmtree(home)
