"""Without BPF: offtop samples /proc and says what is missing, or refuses with the reason."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from offtop.kernel import live
from offtop.kernel.bpf import program
from tests import command

_WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
_LACKING = "unknown: wakers, user functions, and the stacks of waits shorter than the sampling interval"


@pytest.mark.kernel
def test_unprivileged_user_is_told_to_use_sudo_with_status_3() -> None:
    before = ["unshare", "--user"]  # as nobody, but able to read this checkout
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=before)
    assert ended.sentence.startswith("offtop needs root (or CAP_BPF")
    assert ended.sentence.endswith("Try: sudo offtop. See it without root: offtop demo")
    assert ended.status == 3


@pytest.mark.kernel
def test_root_without_capabilities_is_told_which_are_missing_with_status_3() -> None:
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=_WITHOUT_CAPABILITIES)
    assert "CAP_BPF, CAP_PERFMON" in ended.sentence
    assert ended.status == 3


@pytest.mark.kernel
def test_missing_bcc_is_reported_with_how_to_install_it_and_status_4(tmp_path: Path) -> None:
    found = "import sys, pathlib; sys.path += sys.argv[1:]; import bcc; print(pathlib.Path(bcc.__file__).parent)"
    places = ["/usr/lib/python3/dist-packages", *map(str, Path("/usr").glob("lib*/python3*/site-packages"))]
    bcc = subprocess.run([sys.executable, "-c", found, *places], capture_output=True, text=True, check=True, timeout=30)
    hide = f'mount --bind {tmp_path} {bcc.stdout.strip()} && exec "$@"'
    without, uncached = ["unshare", "--mount", "sh", "-c", hide, "sh"], {"OFFTOP_CACHE": ""}
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=without, env=uncached)
    assert ended.sentence.startswith("The Python module 'bcc' is missing.")
    assert "apt install python3-bpfcc" in ended.sentence
    assert ended.status == 4
    ended = command.run("-b", "-n", "1", "-d", "0.1", before=without, env=uncached)
    assert ended.status == 0
    assert ended.err.startswith("offtop: /proc is sampled without BPF (The Python module 'bcc' is")


def sampled_head(ended: command.Ended) -> str:
    assert ended.status == 0, ended.err
    head = ended.out.splitlines()[0]
    assert re.search(r" span \S+  SAMPLED ~\d+ Hz(, own processes only)?  WAITING ", head), head
    assert re.search(r"  waits up to [\d.]+m?s shorter, up to [\d.]+ elsewhere$", head), head
    return head


def test_source_proc_samples_and_reports_what_is_missing() -> None:
    ended = command.run("-b", "-n", "1", "-d", "0.3", "--source", "proc")
    assert ended.err.endswith(f"sampled; {_LACKING}\n")
    sampled_head(ended)


def test_unprivileged_user_gets_own_processes_and_the_reason() -> None:
    nobody = ("setpriv", "--reuid", "65534", "--clear-groups")
    if os.geteuid() or subprocess.run([*nobody, "test", "-r", __file__], check=False).returncode:
        pytest.skip("only root can run as nobody, and nobody must be able to read this checkout")
    with_sleeper = 'sleep 1000 >/dev/null 2>&1 & "$@"; status=$?; kill $!; exit $status'
    before = [*nobody, "sh", "-c", with_sleeper, "sh"]
    ended = command.run("-b", "-i", "-n", "1", "-d", "0.5", before=before, env={"OFFTOP_CONFIG": ""})
    why = "only your own processes are sampled without BPF (offtop needs root (or CAP_BPF"
    assert ended.err.startswith(f"offtop: {why}")
    assert ", own processes only  " in sampled_head(ended)
    sleepers = [line for line in ended.out.splitlines() if re.match(r" *\d+ +sleep ", line)]
    assert len(sleepers) == 1
    assert sleepers[0].endswith(("clock_nanosleep", "hrtimer_nanosleep"))
    assert "kthreadd" not in ended.out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--mode wakeup", "Mode wakeup needs BPF: sampling /proc cannot see wakers. Use mode offcpu"),
        (
            "--within bash:main",
            "--within needs BPF: sampling /proc cannot see user functions. Use -p instead",
        ),
        ("--state D", "--state needs BPF: sampling /proc cannot see single waits. Leave it out"),
        ("--max 5s", "--max needs BPF: sampling /proc cannot see single waits. Leave it out"),
        ("--probe exit", "--probe has no effect when sampling /proc. Omit it, or add --source bpf"),
        ("-p 4194303", "No process 4194303. Look it up with: pgrep NAME"),
    ],
)
def test_option_that_needs_bpf_is_refused_with_source_proc(arguments: str, error: str) -> None:
    ended = command.call("-b", "-n", "1", "--source", "proc", *arguments.split())
    assert (ended.status, ended.sentence) == (2, error)


def test_options_without_effect_on_sampling_are_reported() -> None:
    sampled = ("-b", "-n", "1", "-d", "0.1", "--source", "proc", "-p", str(os.getpid()))
    err = command.run(*sampled, "--min", "5ms", "--unwind", "fp", "--unwind-bytes", "8K", "--depth", "2").err
    assert err.splitlines()[:1] == [
        "offtop: without BPF these options have no effect: --min, --unwind, --unwind-bytes, --depth"
    ]
    assert len(command.run(*sampled).err.splitlines()) == 1


def test_triggers_that_need_bpf_say_so_without_it() -> None:
    sampled = ("-b", "-n", "1", "-d", "0.1", "--source", "proc", "-p", str(os.getpid()))
    ended = command.run(*sampled, "--trigger", "file.max > 1s", "--trigger", "lock.max > 1s")
    assert ended.status == 0
    assert (
        "offtop: triggers for file operations have no effect. They need BPF: sampling /proc cannot see single calls. "
        "See what is missing: offtop doctor\n"
    ) in ended.err
    assert "requests to disks" not in ended.err


def test_a_saved_trigger_counts_nothing_if_nothing_is_judged(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('trigger = ["file.max > 1s"]')
    saved = ("--config", str(tmp_path / "config.toml"), "--source", "proc", "-d", "0.1", "-n", "1")
    assert "have no effect" in command.run("-b", *saved).err
    ended = command.run("rules", *saved)
    assert ended.status == 0
    assert "have no effect" not in ended.err


def test_proc_of_another_pid_namespace_is_sampled_but_cost_is_our_own() -> None:
    unshare = ("unshare", "--pid", "--fork")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("only root can create a PID namespace")
    ended = command.run("--json", "-n", "1", "-d", "0.3", "--source", "proc", before=unshare)
    assert ended.status == 0, ended.err
    tick = json.loads(ended.out)
    assert tick["cost"]["rss_bytes"] > 1 << 20
    assert not tick["sampling"]["lost_known"] and not tick["sampling"]["container_only"]
    ended = command.run("--json", "-n", "1", "-d", "0.3", "--source", "proc", before=(*unshare, "--mount-proc"))
    assert not (sampling := json.loads(ended.out)["sampling"])["lost_known"] and sampling["container_only"]
    assert "only this container's processes are sampled" in ended.err


def test_root_in_a_user_namespace_sees_only_that_namespace() -> None:
    """It could not read where other users' threads wait."""
    unshare = ("unshare", "--map-root-user")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("user namespaces are not available here")
    with_sleeper = (*unshare, "sh", "-c", 'sleep 30 >/dev/null 2>&1 & "$@"; status=$?; kill $!; exit $status', "sh")
    ended = command.run("--json", "-i", "-n", "1", "-d", "0.5", "--source", "proc", before=with_sleeper)
    assert ended.status == 0, ended.err
    assert "only your own processes are sampled" in ended.err
    tick = json.loads(ended.out)
    assert tick["sampling"]["own_only"]
    assert "sleep" in {one["comm"] for one in tick["still_blocked"]}
    assert not [one for one in tick["still_blocked"] if one["category"] == "other"]


@pytest.mark.parametrize(
    ("mode", "added"),
    [("file", ""), ("disk", ""), ("wakeup", ". Mode wakeup needs BPF: sampling /proc cannot see wakers")],
)
def test_mode_whose_programs_the_kernel_refuses_says_so_in_one_sentence(
    mode: str, added: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise program._load_error("kprobe", "refused")  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(live, "LiveSource", refuse)
    ended = command.call("-b", "-n", "1", "--mode", mode)
    assert ended.status == 4
    assert ended.sentence.startswith("offtop's program could not be loaded with the switch-in probe 'kprobe': refused")
    assert f"See what is missing: offtop doctor{added}" in ended.sentence
    assert ended.sentence.endswith("offtop doctor" if not added else "Use mode offcpu")


@pytest.mark.kernel
def test_option_that_needs_bpf_explains_why_bpf_is_unavailable() -> None:
    for arguments in (["--mode", "wakeup"], ["--door", "exit"]):
        ended = command.run("-b", "-n", "1", *arguments, before=_WITHOUT_CAPABILITIES)
        assert ("Mode wakeup needs BPF" in ended.sentence) is ("wakeup" in arguments)
        assert "CAP_BPF, CAP_PERFMON" in ended.sentence
        assert ended.status == 3
