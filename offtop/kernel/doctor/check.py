"""What a check of the doctor says, and what several of them go by."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from offtop.errors import KernelError
from offtop.kernel.bpf import features
from offtop.kernel.bpf.distribution import install
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.libbpf import KernelTypes

Verdict = Literal["ok", "warn", "FAIL"]
State = Literal["there", "missing", "unneeded", "unknown"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that offtop needs, or is better with."""

    name: str
    verdict: Verdict
    """`ok`; `warn`: offtop runs, and does without; `FAIL`: it cannot run."""
    what: str
    """What was found."""
    remedy: str = ""
    """The command, or the sentence, that mends it; empty when ok."""
    loses: str = ""
    """What offtop cannot do without it; empty when ok or unknown."""
    state: State | None = None
    """`unneeded`: it is not there, or is not used, and nothing is lost by that; `unknown`: it takes a privilege, or
    what failed before it, to tell. None: it is there where the verdict is ok, else it is missing."""


@cache
def kernel_types() -> KernelTypes | None:
    """None: they cannot be had, see btf()."""
    try:
        return KernelTypes()
    except KernelError:
        return None


@cache
def features_found() -> Features | None:
    """None: nobody can tell without the kernel's types."""
    types = kernel_types()
    try:
        return None if types is None else features.find(types)
    except KernelError:
        return None


def btf() -> Check:
    if kernel_types() is not None:
        return Check("BTF", "ok", "/sys/kernel/btf/vmlinux")
    if not Path("/sys/kernel").exists():
        what, remedy = "there is no /sys, where the kernel describes its types", "mount -t sysfs sysfs /sys"
    elif not Path("/sys/kernel/btf/vmlinux").exists():
        what, remedy = "the kernel does not describe its types", "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
    else:
        what, remedy = "it is there, and libbpf could not read it", install("libbpf1", "libbpf")
    return Check("BTF", "FAIL", what, remedy, "everything: where the kernel keeps a thread's state")


def unknown(name: str) -> Check:
    """Where the kernel's types would tell it."""
    return Check(name, "warn", "unknown without BTF", btf().remedy, state="unknown")
