"""Test the checks before loading.

These are the kernel's version, and the name of its switch-in function.
"""

import time
from pathlib import Path

import pytest

from offtop.errors import KernelError
from offtop.kernel.bpf import features, libbpf
from offtop.kernel.bpf.features import kprobe_symbol, why_too_old


def test_kernels_below_5_14_are_refused_with_an_alternative() -> None:
    for release in ("5.13.19-generic", "5.10.0-30-amd64", "4.18.0-553.el8_10.x86_64", "5.4"):
        assert why_too_old(release).startswith(
            f"This kernel is Linux {release}, and offtop traces Linux 5.14 and newer. "
        )
        assert why_too_old(release).endswith("offtop --source proc")
    for release in ("5.14.0-503.el9.x86_64", "5.15.0-131-generic", "6.1.0-50-cloud-amd64", "7.0-rc1", "10.2", "odd"):
        assert why_too_old(release) == ""


def test_the_types_of_an_old_kernel_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features.platform, "release", lambda: "5.10.0-30-amd64")
    with pytest.raises(KernelError, match=r"^This kernel is Linux 5\.10\.0-30-amd64"):
        features.detect(object.__new__(libbpf.KernelTypes))


@pytest.mark.parametrize(
    ("names", "probed"),
    [
        ((), ""),
        (("finish_task_switch",), "finish_task_switch"),
        (("finish_task_switch.isra.0.cold", "finish_task_switch.isra.0"), "finish_task_switch.isra.0"),
        (("finish_task_switch.cold", "finish_task_switch.part.0", "finish_task_switch_x"), ""),
        (("finish_task_switch.llvm.8123456789012345678",), "finish_task_switch.llvm.8123456789012345678"),
        (("finish_task_switch.constprop.0.isra.0",), "finish_task_switch.constprop.0.isra.0"),
    ],
)
def test_the_whole_function_is_probed_under_its_compiled_name(
    names: tuple[str, ...], probed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kallsyms = tmp_path / "kallsyms"
    kallsyms.write_text("".join(f"ffffffff81000000 t {name}\n" for name in ("schedule", *names)))
    monkeypatch.setattr(features, "KPROBES", tmp_path)
    assert kprobe_symbol(str(kallsyms)) == probed
    monkeypatch.setattr(features, "KPROBES", tmp_path / "absent")
    assert kprobe_symbol(str(kallsyms)) == ""


@pytest.mark.kernel
def test_run_delay_is_found_if_the_kernel_keeps_it() -> None:
    """/proc/PID/schedstat counts, in the same struct, how often a thread was given a CPU."""

    def turns() -> int:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[2])

    if features.detect(libbpf.KernelTypes()).run_delay is not None:
        before = turns()
        time.sleep(0.002)
        assert turns() > before
