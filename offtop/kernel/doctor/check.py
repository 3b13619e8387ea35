"""The result of a check of `offtop doctor`, and what several checks share."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from offtop.errors import KernelError
from offtop.kernel.bpf import features
from offtop.kernel.bpf.distribution import install_command
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.libbpf import KernelTypes

Verdict = Literal["ok", "warn", "FAIL"]
State = Literal["there", "missing", "unneeded", "unknown"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking one thing that offtop needs, or works better with."""

    name: str
    verdict: Verdict
    """`ok`; `warn`: offtop runs without it; `FAIL`: it cannot run."""
    what: str
    """What was found."""
    remedy: str = ""
    """The command or the sentence that fixes it; empty if ok."""
    loses: str = ""
    """What offtop cannot do without it; empty if ok or unknown."""
    state: State | None = None
    """`unneeded`: it is missing or unused, but nothing is lost by that; `unknown`: checking it needs a privilege, or
    something that failed before. None stands for `there` if the verdict is ok, and for `missing` otherwise."""


@cache
def kernel_types() -> KernelTypes | None:
    """The kernel's BTF; None if it cannot be read, see btf()."""
    try:
        return KernelTypes()
    except KernelError:
        return None


@cache
def features_found() -> Features | None:
    """Features of the kernel; None if unknown, because its types cannot be read."""
    types = kernel_types()
    try:
        return None if types is None else features.detect(types)
    except KernelError:
        return None


def btf() -> Check:
    if kernel_types() is not None:
        return Check("BTF", "ok", "/sys/kernel/btf/vmlinux")
    if not Path("/sys/kernel").exists():
        what, remedy = "/sys, where the kernel describes its types, is not mounted", "mount -t sysfs sysfs /sys"
    elif not Path("/sys/kernel/btf/vmlinux").exists():
        what, remedy = "the kernel does not describe its types", "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
    else:
        what, remedy = "it exists, but libbpf could not read it", install_command("libbpf1", "libbpf")
    return Check("BTF", "FAIL", what, remedy, "all BPF data: BTF says where the kernel keeps a thread's state")


def unknown(name: str) -> Check:
    """Result of a check that needs the kernel's types, if they cannot be read."""
    return Check(name, "warn", "unknown without BTF", btf().remedy, state="unknown")
