"""Test for loops that fall through into their own head, which older verifiers refuse.

In Linux 6.1, check_cfg() (kernel/bpf/verifier.c) follows the instructions depth first before it looks at anything else,
and allows only jumps to lead back to an instruction that it is still following. If clang enters a loop in its middle,
the code before that leads back by falling through. Newer kernels accept it, so no other test would notice.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from offtop import paths
from offtop.errors import KernelError
from offtop.kernel.bpf import compile as compiler
from offtop.kernel.bpf import features, libbpf, map_sizes, program
from offtop.kernel.bpf.program import Unwind, _defines  # pyright: ignore[reportPrivateUsage]

pytestmark = [pytest.mark.kernel, pytest.mark.variant]

JUMP, JUMP_32 = 5, 6
"""Instruction classes (include/uapi/linux/bpf.h)."""
ALWAYS, CALL, EXIT = 0x05, 0x85, 0x95

Code = Sequence[tuple[int, int]]
"""An instruction's opcode and jump offset."""


def falls_back(code: Code) -> list[int]:
    """Return instructions, other than jumps, whose successor is still being followed."""
    found: list[int] = []
    ways: dict[int, list[tuple[int, bool]]] = {0: _ways(code, 0)}
    path, done = [0], set[int]()
    while path:
        at = path[-1]
        if not ways[at]:
            done.add(path.pop())
            continue
        to, is_jump = ways[at].pop(0)
        if to not in ways:
            ways[to] = _ways(code, to)
            path.append(to)
        elif to not in done and not is_jump:
            found.append(at)
    return found


def _ways(code: Code, at: int) -> list[tuple[int, bool]]:
    """Return the successors in the order of check_cfg, and whether each is a jump."""
    what, far = code[at]
    if what == EXIT:
        return []
    if what & 7 not in (JUMP, JUMP_32) or what == CALL:
        return [(at + 1, False)]
    return [(at + 1 + far, True)] if what == ALWAYS else [(at + 1, True), (at + 1 + far, True)]


FUNCTIONS = {"kprobe": ("on_switch", "on_finish", "on_waking"), "switch": ("on_switch",)}


def compiled(probe: str, way: str) -> Mapping[str, Code]:
    """Return the code of each of FUNCTIONS."""
    known = replace(features.detect(libbpf.KernelTypes()), may_goto=False)
    unwind = Unwind(way=way)
    waking = probe == "switch"
    defines = {
        **_defines(probe, known, map_sizes.for_machine(), waking, in_hash=waking),
        **unwind.defines(known, probe),
    }
    flags = [f"-D{name}={value}" for name, value in defines.items()] + ["-DTYPED_WAKING=1"] * (not waking)
    bcc = compiler.import_bcc()
    module = bcc.BPF(
        text=compiler.inline_includes(paths.bpf() / "offcpu.c").encode(), cflags=[f"-I{paths.bpf()}", *flags]
    )
    found: dict[str, Code] = {}
    for function in FUNCTIONS[probe]:
        code = compiler._instructions(bcc.lib, module.module, function)  # pyright: ignore[reportPrivateUsage]
        found[function] = [(one.code, one.offset) for one in code]
    module.cleanup()
    return found


@pytest.mark.parametrize("way", ["auto", "fp"])
@pytest.mark.parametrize("probe", ["switch", "kprobe"])
def test_no_loop_falls_into_its_own_head(monkeypatch: pytest.MonkeyPatch, probe: str, way: str) -> None:
    monkeypatch.setitem(os.environ, "BCC_KERNEL_SOURCE", str(paths.bpf() / "headers"))
    for code in compiled(probe, way).values():
        assert len(code) > 500
        assert falls_back(code) == []


@pytest.mark.parametrize("may_goto", [True, False])
@pytest.mark.parametrize("functions", [{"TASK_FROM_PID": 1}, {}])
def test_programs_are_loaded_without_features_if_they_are_refused_with_them(
    monkeypatch: pytest.MonkeyPatch, may_goto: bool, functions: dict[str, int]
) -> None:
    tried: list[tuple[bool, bool]] = []

    def refuse(_probe: str, known: features.Features, *_: object) -> None:
        tried.append((bool(known.task_functions), known.may_goto))
        raise program._LoadError("refused", "refused")  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(program, "_attach_with_probe", refuse)
    every = features.detect(libbpf.KernelTypes())
    known = replace(every, may_goto=may_goto, task_functions=functions, switch_in_probes=("switch",))
    with pytest.raises(KernelError, match="refused"):
        program.attach(known, "switch", unwind=Unwind("off"))
    every_way = [(True, True), (False, True), (True, False), (False, False)]
    assert tried == [(lists, loops) for lists, loops in every_way if lists <= bool(functions) and loops <= may_goto]


def test_a_loop_entered_in_its_middle_is_found() -> None:
    step, leave, to_middle, back = (0x07, 0), (EXIT, 0), (ALWAYS, 1), (0x55, -3)
    assert falls_back([step, to_middle, step, step, step, back, leave]) == []
    assert falls_back([step, to_middle, step, step, (0x15, 1), (ALWAYS, -4), leave]) == [2]
    assert falls_back([step, leave]) == []
