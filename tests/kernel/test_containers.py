"""In what containers are made of: few capabilities, namespaces, a root where nothing can be written, a hidden /sys."""

import json
from typing import Any

import pytest

from offtop.model.values.snapshot import OUTSIDE
from tests import command

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
    """What a program is started with for which `script` has changed what is mounted where."""
    return "unshare", "--mount", "sh", "-c", f'{script} && exec "$0" "$@"'


def test_in_a_container_s_namespaces_with_its_capabilities_and_four_more_nothing_is_missing() -> None:
    before = (*NAMESPACES, *mounted(READ_ONLY), *with_only(*DOCKER_S, *FOUR))
    ended = command.run("-b", "--json", "-n", "1", before=before, env=COMPILED)
    assert (ended.status, ended.err) == (0, "")
    tick: dict[str, Any] = json.loads(ended.out)
    outside = [thread for thread in tick["threads"] if thread["pid"] == OUTSIDE]
    assert outside and {thread["process"] for thread in outside} == {"(outside)"}
    named = [site for site in tick["sites"] if site["category"] not in ("other", "run-queue")]
    assert named and all("(hidden)" not in site["kernel"] for site in tick["sites"])


def test_where_nothing_can_be_written_it_compiles_and_finds_wakers_as_anywhere() -> None:
    line = ("-b", "--json", "-n", "1", "--mode", "wakeup")
    ended = command.run(*line, before=mounted(READ_ONLY), env=COMPILED)
    assert (ended.status, ended.err) == (0, "")
    assert json.loads(ended.out)["mode"] == "wakeup"


def test_a_container_s_root_without_more_capabilities_is_told_which_it_needs() -> None:
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=with_only(*DOCKER_S))
    assert ended.sentence.startswith("offtop lacks CAP_BPF, CAP_PERFMON, without which")
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
def test_what_is_hidden_is_said_in_one_sentence_with_status_4(hidden: str, says: str) -> None:
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=mounted(f"mount -t tmpfs none {hidden}"))
    assert ended.sentence.startswith(says)
    assert "mount" in ended.sentence.lower()
    assert ended.status == 4


def test_without_bpf_and_without_proc_it_is_said_why_there_is_no_bpf() -> None:
    ended = command.run("-b", "-n", "1", before=mounted("mount -t tmpfs none /proc"))
    assert ended.sentence.startswith("There is no /proc here")
    assert ended.status == 4


def test_without_tracefs_and_control_groups_it_runs() -> None:
    script = "umount -l /sys/fs/cgroup; umount -l /sys/kernel/tracing; umount -l /sys/kernel/debug; true"
    ended = command.run("-b", "-n", "1", before=mounted(f"({script}) 2>/dev/null"))
    assert (ended.status, ended.err) == (0, "")
