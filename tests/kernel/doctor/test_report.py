"""Test the doctor here, and without privileges, bcc or its own PID namespace."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from offtop.kernel.bpf import privileges, probes
from offtop.kernel.bpf.switch_maps import Allocator, MapInternals
from offtop.kernel.doctor import host_checks, kernel_checks, report
from offtop.kernel.doctor.check import Check
from tests import command
from tests.kernel import outside

_ROOT = Path(__file__).parents[3]
_PRINT = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r})\n"
    "from offtop.kernel.bpf.privileges import capabilities\n"
    "from offtop.kernel.doctor import host_checks, kernel_checks, report\n"
    "print(report.as_json(%s))"
)
_ALL = _PRINT % "report.checks()"


def checked(*wrapper: str, program: str = _ALL, **environment: str) -> dict[str, Check]:
    """Return the checks, by name, of a child Python that runs under `wrapper`.

    All of them take 3 s of CPU if BPF works, because the BPF programs are compiled.
    """
    line = [*wrapper, "env", *(f"{k}={v}" for k, v in environment.items()), sys.executable, "-c", program]
    return by_name(subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout)


def check_under(*wrapper: str, call: str, **environment: str) -> Check:
    """Return one check of a child Python that runs under `wrapper`."""
    (check,) = checked(*wrapper, program=_PRINT % f"[{call}]", **environment).values()
    return check


def by_name(answer: str) -> dict[str, Check]:
    return {check["name"]: Check(**check) for check in json.loads(answer)}


def test_no_checks_mean_a_healthy_machine() -> None:
    assert report.status([]) == 0
    assert report.render([]) == "offtop runs here, with all its features"
    assert report.as_json([]) == "[]"


@pytest.mark.parametrize(
    ("failed", "status"), [((), 0), (("bcc",), 4), (("privileges",), 3), (("bcc", "privileges"), 3)]
)
def test_exit_status_is_3_for_a_missing_privilege_else_4(failed: tuple[str, ...], status: int) -> None:
    found = [Check(name, "FAIL" if name in failed else "ok", "-") for name in ("privileges", "kernel", "bcc")]
    assert report.status(found) == status
    assert report.status([*found, Check("libdw", "warn", "-")]) == status


def test_a_failed_check_prints_its_cost_and_its_fix() -> None:
    found = [Check("BTF", "ok", "there"), Check("libdw", "warn", "missing", "sudo apt install libdw1", "names")]
    assert report.render(found).splitlines() == [
        "ok    BTF                  there",
        "warn  libdw                missing",
        "                           without it: names",
        "                           -> sudo apt install libdw1",
        "offtop runs here; it would be better with: libdw",
    ]
    refused, there = Check("bcc", "FAIL", "-"), Check("schedstat", "ok", "-")
    assert report.render([refused]).endswith("offtop cannot run here: bcc")
    assert report.render([refused, Check("schedstat", "ok", "-", state="unneeded")]).endswith("cannot run here: bcc")
    assert report.render([refused, there]).endswith("offtop cannot use BPF here, and samples /proc instead: bcc")
    assert report.render([Check("libdw", "FAIL", "-"), there]).endswith("samples /proc instead: libdw")
    assert report.render([Check("pid namespace", "FAIL", "-"), there]).endswith("cannot run here: pid namespace")


@pytest.fixture(scope="module")
def found() -> list[Check]:
    """The checks of this process, and attaching, which is not tried after another failure."""
    conditions = report.conditions()
    return [*conditions, host_checks.attaching([*conditions, Check("kernel", "FAIL", "-")])]


def test_check_names_are_unique_and_ok_has_no_remedy(found: list[Check]) -> None:
    names = {check.name for check in found}
    assert len(names) == len(found) and {"character set", "terminal"} <= names
    for check in found:
        if check.verdict == "ok":
            assert not check.remedy and not check.loses, check
        else:
            assert check.remedy, check


def test_json_has_a_state_for_each_check(found: list[Check]) -> None:
    made_up = [
        Check("BTF", "ok", "there"),
        Check("libdw", "warn", "missing", "install it", "names"),
        Check("kprobes", "ok", "none", state="unneeded"),
        Check("wakers", "warn", "unknown without BTF", "mend that", state="unknown"),
    ]
    states = by_name(report.as_json(made_up))
    assert [one.state for one in states.values()] == ["there", "missing", "unneeded", "unknown"]
    for one in by_name(report.as_json(found)).values():
        assert one.loses if one.state == "missing" else not one.loses, one


@pytest.mark.parametrize(
    ("waking", "switch_in_probes", "waking_type", "verdict"),
    [
        (False, ("exit", "switch"), 7, "ok"),
        (True, ("exit", "switch"), None, "ok"),
        (False, ("switch",), None, "ok"),
        (False, ("kprobe", "switch"), None, "warn"),
    ],
)
def test_wakers_need_a_described_tracepoint_or_one_in_use(
    monkeypatch: pytest.MonkeyPatch,
    waking: bool,
    switch_in_probes: tuple[str, ...],
    waking_type: int | None,
    verdict: str,
) -> None:
    found = SimpleNamespace(needs_waking=waking, switch_in_probes=switch_in_probes, waking_type=waking_type)
    monkeypatch.setattr(kernel_checks, "features_found", lambda: found)
    check = kernel_checks.wakers()
    assert check.verdict == verdict
    assert ("offtop --mode offcpu" in check.remedy) == (verdict == "warn")


@pytest.mark.parametrize(
    ("allocator", "spinlocks_sleep", "machine", "verdict", "reason"),
    [
        ("bpf_mem_alloc", False, "x86_64", "ok", "threads' records are in task storage (bpf_mem_alloc)"),
        ("kmalloc", False, "x86_64", "warn", "kmalloc, which may deadlock"),
        ("kmalloc", True, "x86_64", "warn", "kmalloc, which may deadlock"),
        ("kmalloc_nolock", True, "x86_64", "ok", "fails there on a real-time kernel"),
        ("kmalloc_nolock", False, "riscv64", "ok", "fails on riscv64"),
    ],
)
def test_task_storage_is_reported_as_used_or_with_the_reason_against(
    allocator: Allocator, spinlocks_sleep: bool, machine: str, verdict: str, reason: str
) -> None:
    check = kernel_checks.task_storage_of(MapInternals(allocator, "raw_spinlock_t", spinlocks_sleep), machine)
    assert check.verdict == verdict
    assert reason in check.what
    assert ("preallocated table" in check.what) == (check.what.startswith("creating it is not safe"))


def test_lists_that_the_kernel_cannot_count_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = kernel_checks.file_operations, kernel_checks.disk_requests
    assert [check().verdict for check in checks] == ["ok", "ok"]
    lacking = SimpleNamespace(files={}, disks={}, paths={}, registers={})
    monkeypatch.setattr(kernel_checks, "features_found", lambda: lacking)
    for check in checks:
        found = check()
        assert (found.verdict, found.remedy.startswith("use Linux 5.15 or newer")) == ("warn", True)


def test_a_kernel_without_tracepoints_at_page_faults_and_io_uring_still_counts_file_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = kernel_checks.features_found()
    assert known is not None
    monkeypatch.setattr(kernel_checks, "features_found", lambda: replace(known, mappings={}, rings={}))
    check = kernel_checks.file_operations()
    assert check.verdict == "ok"
    assert "; without page faults on mapped files: this kernel has no tracepoint" in check.what
    assert "; without requests to io_uring: this kernel does not report" in check.what
    monkeypatch.setattr(kernel_checks, "features_found", lambda: known)
    assert kernel_checks.file_operations().what == "can be counted (7, --mode file)"


def test_a_real_time_kernel_with_sleeping_ring_buffers_gets_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for lock, verdict in (("spinlock_t", "warn"), ("raw_spinlock_t", "ok")):
        found = MapInternals("bpf_mem_alloc", lock, spinlocks_sleep=True)
        monkeypatch.setattr(kernel_checks, "map_internals", lambda _types, found=found: found)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        monkeypatch.setattr(probes, "ring_buffer", lambda: 0)
        monkeypatch.setattr(probes, "array_map", lambda size: 0)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        check = kernel_checks.ring_buffer(frozenset(privileges.NEEDED))
        assert check.verdict == verdict
        assert check.loses.startswith("single outliers, and user stacks by .eh_frame") == (verdict == "warn")


def test_a_kernel_below_5_14_fails() -> None:
    for release, verdict in (("5.13.19-generic", "FAIL"), ("5.14.0-503.el9.x86_64", "ok"), ("7.0.1", "ok")):
        check = kernel_checks.kernel(release)
        assert (check.verdict, release in check.what) == (verdict, True)
        assert check.remedy == ("update the kernel" if verdict == "FAIL" else "")


@pytest.mark.kernel
def test_this_machine_can_run_offtop() -> None:
    healthy = command.run("doctor", "--json")
    assert healthy.status == 0, healthy.err
    found = by_name(healthy.out)
    assert [check for check in found.values() if check.verdict == "FAIL"] == []
    assert found["kernel"].what.split()[1] == Path("/proc/sys/kernel/osrelease").read_text().strip()
    assert "/bcc/__init__.py" in found["bcc"].what
    assert found["wakers"].what.startswith("at sched_waking, ")
    assert found["attaching"].verdict == "ok" and found["attaching"].what.endswith("which is called")
    assert not found["attaching"].remedy and not found["attaching"].loses
    needed = ("raw tracepoints", "ring buffer", "other processes")
    assert {found[name].state for name in (*needed, *privileges.CAPABILITIES)} == {"there"}


@pytest.mark.kernel
def test_kernel_probes_report_what_is_missing() -> None:
    assert probes.raw_tracepoint("sched_switch") == 0
    assert probes.raw_tracepoint("sched_no_such_thing") == errno.ENOENT
    assert probes.array_map(8) == probes.ring_buffer() == 0
    assert probes.memory_of(os.getppid()) == 0
    assert probes.memory_of(1 << 22) == errno.ESRCH  # no PID is this high


@pytest.mark.kernel
def test_without_capabilities_only_the_privileges_check_fails() -> None:
    found = checked("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    assert {check.name for check in found.values() if check.verdict == "FAIL"} == {"privileges"}
    assert found["privileges"].remedy == "sudo offtop"
    assert "CAP_BPF" in found["privileges"].what
    assert found["kernel symbols"].what == "/proc/kallsyms shows no addresses"
    assert found["bpf(2)"].what == "unknown without CAP_BPF"
    for name in ("raw tracepoints", "ring buffer"):
        assert (found[name].state, found[name].what) == ("unknown", "unknown without CAP_BPF, CAP_PERFMON")
    assert "--cap-add BPF, or SYS_ADMIN" in found["CAP_BPF"].remedy
    assert found["CAP_SYSLOG"].state == "missing" and found["CAP_SYSLOG"].remedy.endswith("--cap-add SYSLOG")


@pytest.mark.kernel
@pytest.mark.variant
def test_four_capabilities_are_enough_but_for_the_cost() -> None:
    found = checked("setpriv", "--bounding-set=-all,+bpf,+perfmon,+sys_ptrace,+syslog", "--inh-caps=-all")
    assert found["privileges"].verdict == "ok"
    assert found["bpf(2)"].verdict == "ok"
    assert found["kernel symbols"].verdict == "ok"
    assert found["own cost"].verdict == "warn"
    missing = {name for name in privileges.CAPABILITIES if found[name].state == "missing"}
    assert missing == {"CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH", "CAP_CHECKPOINT_RESTORE"}
    assert found["attaching"].verdict == "ok"


@pytest.mark.kernel
def test_root_of_a_user_namespace_is_not_root_and_is_told_to_run_outside() -> None:
    found = checked("unshare", "--user", "--map-root-user")
    assert found["privileges"].verdict == "FAIL"
    assert found["privileges"].what == "root of a user namespace only"
    assert "rootless" in found["privileges"].remedy
    for name in ("privileges", "bpf(2)", "own cost", "kernel symbols", "other processes"):
        assert found[name].verdict != "ok" and found[name].remedy.startswith("sudo offtop, outside of it"), found[name]


@pytest.mark.kernel
def test_without_cap_sys_ptrace_other_users_processes_are_closed() -> None:
    nobody = "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"
    check = check_under(*nobody, call="kernel_checks.other_processes(capabilities())")
    assert (check.verdict, check.remedy) == ("warn", "sudo offtop")


@pytest.mark.kernel
def test_a_containers_pid_namespace_is_distinguished() -> None:
    call = "host_checks.pid_namespace()"
    assert host_checks.pid_namespace().what == "the host's"
    inside = check_under("unshare", "--pid", "--fork", "--mount-proc", call=call)
    assert inside.verdict == ("ok" if outside.is_counted() else "warn")
    assert ("(outside)" if outside.is_counted() else "not counted") in inside.what
    with_another_s_proc = check_under("unshare", "--pid", "--fork", call=call)
    assert with_another_s_proc.verdict == "FAIL"
    assert "--mount-proc" in with_another_s_proc.remedy


@pytest.mark.kernel
@pytest.mark.variant
def test_a_bcc_from_pypi_is_ignored_and_a_missing_bcc_fails(tmp_path: Path) -> None:
    (tmp_path / "bcc.py").write_text("__version__ = 'of lattices'")
    pypi = check_under("env", "-C", str(tmp_path), call="host_checks.bcc()", PYTHONPATH=str(tmp_path))
    assert pypi.verdict == "ok"
    hidden = f'mount -t tmpfs none /usr/lib/python3/dist-packages/bcc && exec {sys.executable} -c "$0"'
    if not Path("/usr/lib/python3/dist-packages/bcc").is_dir():
        pytest.skip("bcc is not where Debian has it")

    def without(cache: str) -> dict[str, Check]:
        child = subprocess.run(
            ["unshare", "--mount", "env", f"OFFTOP_CACHE={cache}", "sh", "-c", hidden, _ALL],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return by_name(child.stdout)

    found = without("")
    assert report.status([*found.values()]) == 4
    assert found["bcc"].verdict == "FAIL"
    assert "python3-bpfcc" in found["bcc"].remedy and "PyPI" in found["bcc"].remedy
    assert found["attaching"].what == "not tried"
    kept = str(tmp_path / "kept")
    started = [sys.executable, "-m", "offtop", "-b", "-n", "1"]
    subprocess.run(started, env={**os.environ, "OFFTOP_CACHE": kept}, check=True, capture_output=True, timeout=60)
    found = without(kept)
    assert report.status([*found.values()]) == 0
    assert found["bcc"].verdict == "warn" and "no earlier start" in found["bcc"].loses
    assert found["attaching"].what.startswith("cached by an earlier start")


@pytest.mark.kernel
def test_the_command_prints_the_checks_and_sets_the_exit_status() -> None:
    refused = command.run("doctor", before=("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    assert refused.status == 3
    assert refused.out.startswith("FAIL  privileges")


def test_the_cache_directory_is_reported_or_why_it_is_unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, new, others, file = (tmp_path / name for name in ("ours", "new", "others", "file"))
    ours.mkdir()
    others.mkdir()
    others.chmod(0o777)
    file.touch()
    (tmp_path / "link").symlink_to(ours)
    unneeded, half = "unneeded", "half of the startup time: the BPF programs are compiled at each start"
    for place, verdict, what in (
        (ours, "ok", f"in {ours}"),
        (new, "ok", f"in {new}"),
        (others, "warn", f"none, in {others}: other users can write to it"),
        (file, "warn", f"none, in {file}: it is not a directory"),
        (tmp_path / "link", "warn", f"none, in {tmp_path / 'link'}: it is not a directory"),
        (new / "deeper", "warn", f"none, in {new / 'deeper'}: it cannot be created"),
        ("rel", "warn", "none, in rel: its path is not absolute"),
        ("", "ok", "none by OFFTOP_CACHE"),
    ):
        monkeypatch.setenv("OFFTOP_CACHE", str(place))
        found = host_checks.kept_programs()
        assert (found.verdict, found.what) == (verdict, what)
        assert found.loses == (half if verdict == "warn" else "")
        assert (found.state == unneeded) == (place == "")
    assert {one.name for one in tmp_path.iterdir()} == {"ours", "others", "file", "link"}


def test_sudo_needs_the_path_of_offtop_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sudo").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host_checks, "_SECURE_PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for started, remedy in (
        ("./offtop 1.pyz", f"sudo '{tmp_path}/offtop 1.pyz'"),
        (".venv/bin/offtop", 'sudo "$(command -v offtop)", or make install'),
    ):
        monkeypatch.setattr(sys, "argv", [started])
        assert host_checks.sudo_path().remedy == remedy


def test_without_libdw_the_sandbox_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Check("libdw", "FAIL", "libdw.so.1 is missing", "sudo apt install libdw1")
    monkeypatch.setattr(host_checks, "libdw", lambda: lacking)
    found = host_checks.sandbox()
    assert (found.what, found.remedy, found.state) == ("unknown without libdw", lacking.remedy, "unknown")


def test_ascii_locale_is_reported() -> None:
    prints = "from offtop.kernel.doctor import host_checks as h; print(h.character_set().verdict)"
    for variables, verdict in (({"LC_ALL": "C", "PYTHONUTF8": "0"}, "warn"), ({"LC_ALL": "C.UTF-8"}, "ok")):
        environment = {**os.environ, "PYTHONCOERCECLOCALE": "0", **variables}
        done = subprocess.run(
            [sys.executable, "-c", prints], cwd=_ROOT, env=environment, capture_output=True, text=True
        )
        assert (done.stdout, done.stderr) == (f"{verdict}\n", "")


@pytest.mark.parametrize(("kind", "verdict"), [("dumb", "warn"), ("", "warn"), ("xterm", "ok")])
def test_dumb_terminal_is_reported(kind: str, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", kind)
    assert host_checks.terminal().verdict == verdict


def test_a_program_on_a_dead_file_system_does_not_stop_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a FUSE mount whose server died, every access to the file fails."""
    stat = Path.stat

    def failing_stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == "exe":
            raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", failing_stat)
    assert any(name.startswith("python") for names in host_checks.programs_by_unwind_information() for name in names)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("[none] integrity confidentiality\n", "ok"),
        ("none [integrity] confidentiality\n", "ok"),
        ("none integrity [confidentiality]\n", "FAIL"),
    ],
)
def test_only_confidentiality_lockdown_forbids_bpf(tmp_path: Path, text: str, verdict: str) -> None:
    (tmp_path / "lockdown").write_text(text)
    assert kernel_checks.lockdown(str(tmp_path / "lockdown")).verdict == verdict
    assert kernel_checks.lockdown(str(tmp_path / "absent")).verdict == "ok"


def test_capabilities_are_read_bit_by_bit(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    assert privileges.capabilities(str(status)) == frozenset()
    status.write_text(f"CapEff:\t{1 << 39 | 1 << 34:016x}\n")
    assert privileges.capabilities(str(status)) == {"CAP_BPF", "CAP_SYSLOG"}
    status.write_text(f"CapEff:\t{1 << 21:016x}\n")
    brought = {"CAP_BPF", "CAP_PERFMON", "CAP_CHECKPOINT_RESTORE"}
    assert privileges.capabilities(str(status)) == {"CAP_SYS_ADMIN", *brought}
    status.write_text(f"CapEff:\t{1 << 1:016x}\n")
    assert privileges.capabilities(str(status)) == {"CAP_DAC_READ_SEARCH"}
