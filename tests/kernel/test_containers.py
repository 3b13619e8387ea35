"""Test what containers are made of.

That is few capabilities, namespaces, a read-only root, and a hidden /sys.
"""

import json
from typing import Any

import pytest

from offtop.model.values.snapshot import OUTSIDE
from tests import command
from tests.kernel import outside

pytestmark = pytest.mark.kernel

FOUR = ("bpf", "perfmon", "sys_ptrace", "syslog")
DOCKER_S = (
    *("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service"),
    *("net_raw", "sys_chroot", "mknod", "audit_write", "setfcap"),
)
"""The capabilities that docker and podman leave to a container's root."""
NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--uts", "--ipc", "--cgroup")
READ_ONLY = "mount --make-rprivate / && mount -o remount,bind,ro /"
COMPILED = {"OFFTOP_CACHE": ""}


def with_only(*capabilities: str) -> tuple[str, ...]:
    held = "".join(f",+{name}" for name in capabilities)
    return "setpriv", f"--bounding-set=-all{held}", "--inh-caps=-all"


def mounted(script: str) -> tuple[str, ...]:
    """Return a command prefix that runs a program after `script` has changed its mounts."""
    return "unshare", "--mount", "sh", "-c", f'{script} && exec "$0" "$@"'


@pytest.mark.variant
def test_a_container_with_four_more_capabilities_lacks_nothing() -> None:
    before = (*NAMESPACES, *mounted(READ_ONLY), *with_only(*DOCKER_S, *FOUR))
    ended = command.run("-b", "--json", "-n", "1", before=before, env=COMPILED)
    assert (ended.status, ended.err) == (0, "")
    tick: dict[str, Any] = json.loads(ended.out)
    others = {thread["process"] for thread in tick["threads"] if thread["pid"] == OUTSIDE}
    assert others == ({"(outside)"} if outside.is_counted() else set())
    named = [site for site in tick["sites"] if site["category"] not in ("other", "run-queue")]
    assert bool(named) == outside.is_counted()  # nothing else runs in this container
    assert all("(hidden)" not in site["kernel"] for site in tick["sites"])


@pytest.mark.variant
def test_on_a_read_only_root_it_compiles_and_finds_wakers() -> None:
    line = ("-b", "--json", "-n", "1", "--mode", "wakeup")
    ended = command.run(*line, before=mounted(READ_ONLY), env=COMPILED)
    assert (ended.status, ended.err) == (0, "")
    assert json.loads(ended.out)["mode"] == "wakeup"


def test_a_containers_root_without_capabilities_is_told_which_it_needs() -> None:
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=with_only(*DOCKER_S))
    assert ended.sentence.startswith("offtop lacks CAP_BPF, CAP_PERFMON, which tracing the kernel needs")
    assert "CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYSLOG" in ended.sentence
    assert ended.status == 3


@pytest.mark.parametrize(
    ("hidden", "says"),
    [
        ("/sys/kernel/btf", "This kernel does not describe its types"),
        ("/sys", "There is no /sys here"),
        ("/proc", "There is no /proc here"),
    ],
)
def test_hidden_directories_are_reported_in_one_sentence_with_status_4(hidden: str, says: str) -> None:
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=mounted(f"mount -t tmpfs none {hidden}"))
    assert ended.sentence.startswith(says)
    assert "mount" in ended.sentence.lower()
    assert ended.status == 4


def test_without_bpf_and_proc_it_reports_why_bpf_is_missing() -> None:
    ended = command.run("-b", "-n", "1", before=mounted("mount -t tmpfs none /proc"))
    assert ended.sentence.startswith("There is no /proc here")
    assert ended.status == 4


@pytest.mark.variant
def test_it_runs_without_tracefs_and_cgroups() -> None:
    script = "umount -l /sys/fs/cgroup; umount -l /sys/kernel/tracing; umount -l /sys/kernel/debug; true"
    ended = command.run("-b", "-n", "1", before=mounted(f"({script}) 2>/dev/null"))
    assert (ended.status, ended.err) == (0, "")
