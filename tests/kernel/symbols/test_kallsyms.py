"""Test the kernel's symbols, against /proc/kallsyms and against awkward lists."""

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.errors import KernelError, OfftopError, PrivilegeError
from offtop.kernel.bpf import layout
from offtop.kernel.symbols import kallsyms
from offtop.kernel.symbols.kallsyms import KernelSymbols
from offtop.model.classify import wakers
from offtop.model.values.stack import Frame
from offtop.units import NS_PER_S

CORE = """\
ffffffff81000000 T _stext
ffffffff81000010 t schedule_alias
ffffffff81000010 T schedule
ffffffff81000100 T __sched_text_start
ffffffff81000100 t down_write
ffffffff81000200 D some_table
ffffffff81000300 W weak_one
ffffffff81000400 T _etext
"""
MODULES = """\
ffffffffc0002000 t ext4_map_blocks\t[ext4]
ffffffffc0001000 t nfs_wait\t[nfs]
"""


def listed(directory: Path, text: str) -> KernelSymbols:
    path = directory / "kallsyms"
    path.write_text(text)
    return KernelSymbols.read(str(path))


@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (("nfs 20480 0", "dlm 8192 0"), ("nfs", "dlm")),
        (("nfs 20480 0", "nfs 24576 0"), ("nfs_wait", "nfs_wait_anew")),
        (("nfs 20480 0", "nfs 20480 7"), None),
    ],
    ids=["another", "another with its name", "the same, in use"],
)
def test_a_module_loaded_over_another_has_its_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: tuple[str, str], names: tuple[str, str] | None
) -> None:
    kallsyms_path, modules_path = tmp_path / "kallsyms", tmp_path / "modules"
    kallsyms_path.write_text(CORE + MODULES)
    modules_path.write_text("ext4 100 1 - Live 0xffffffffc0002000\nnfs 20480 0 - Live 0xffffffffc0001000 (OE)\n")
    symbols = KernelSymbols.read(str(kallsyms_path), str(modules_path))
    assert symbols.lookup(0xFFFFFFFFC0001010) == Frame("[nfs]", 0, "nfs_wait")
    listed_now = MODULES.replace(*names or ("nfs", "not read"))
    kallsyms_path.write_text(CORE + listed_now)
    modules_path.write_text(modules_path.read_text().replace(*modules))
    assert not symbols.modules_changed(), "too early"
    now_ns = time.monotonic_ns() + 10 * NS_PER_S
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    assert symbols.modules_changed() is (names is not None)
    module, name = "nfs", "nfs_wait"
    if names:
        module, name = module.replace(*names), name.replace(*names)
    assert symbols.lookup(0xFFFFFFFFC0001010) == Frame(f"[{module}]", 0, name)
    assert not symbols.modules_changed()


def test_a_list_that_cannot_be_read_now_is_read_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kallsyms_path, modules_path = tmp_path / "kallsyms", tmp_path / "modules"
    kallsyms_path.write_text(CORE + MODULES)
    modules_path.write_text("nfs 20480 0 - Live 0xffffffffc0001000\n")
    symbols = KernelSymbols.read(str(kallsyms_path), str(modules_path))
    kallsyms_path.unlink()
    modules_path.write_text("dlm 20480 0 - Live 0xffffffffc0001000\n")
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    now_ns += 10 * NS_PER_S
    assert not symbols.modules_changed()
    kallsyms_path.write_text(CORE + MODULES.replace("nfs", "dlm"))
    now_ns += 10 * NS_PER_S
    assert symbols.modules_changed()
    assert symbols.lookup(0xFFFFFFFFC0001010) == Frame("[dlm]", 0, "dlm_wait")


def kernel(name: str) -> Frame:
    return Frame("[kernel]", 0, name)


def nameless(address: int) -> Frame:
    return Frame("[kernel]", address, "")


@pytest.mark.kernel
def test_every_500th_function_of_this_kernel_has_its_listed_name() -> None:
    symbols = KernelSymbols.read()
    lines = [line.split() for line in Path("/proc/kallsyms").read_text().splitlines() if "[" not in line]
    functions = [(int(address, 16), name) for address, kind, name in lines if kind in "tTwW"]
    first_at = dict(reversed(functions))
    starts = [address for address in sorted(first_at) if first_at[address] not in ("_etext", "_einittext")]
    assert len(starts) > 10_000
    for address in starts[::500]:
        assert symbols.lookup(address) == kernel(first_at[address])
    assert (symbols.address_of("__sched_text_start"), "__sched_text_start") in functions


@pytest.mark.kernel
def test_addresses_outside_the_kernels_text_have_no_name() -> None:
    symbols = KernelSymbols.read()
    first, end = symbols.address_of("_stext"), symbols.address_of("_etext")
    assert first
    assert end
    for address in (0, 0x400000, first - 1, end, end + 0x10000, (1 << 64) - 1):
        assert symbols.lookup(address) == nameless(address)


def test_a_function_extends_to_the_next_symbol_of_any_kind(tmp_path: Path) -> None:
    symbols = listed(tmp_path, CORE)
    assert symbols.lookup(0xFFFFFFFF81000010) == kernel("schedule_alias")  # the first of two at one address
    assert symbols.lookup(0xFFFFFFFF810000FF) == kernel("schedule_alias")
    assert symbols.lookup(0xFFFFFFFF810001FF) == kernel("__sched_text_start")
    assert symbols.lookup(0xFFFFFFFF81000200) == nameless(0xFFFFFFFF81000200)
    assert symbols.lookup(0xFFFFFFFF810002FF) == nameless(0xFFFFFFFF810002FF)
    assert symbols.lookup(0xFFFFFFFF81000300) == kernel("weak_one")
    assert symbols.lookup(0xFFFFFFFF81000400) == nameless(0xFFFFFFFF81000400)


def test_a_name_resolves_to_its_address(tmp_path: Path) -> None:
    symbols = listed(tmp_path, CORE + MODULES)
    assert symbols.address_of("_stext") == 0xFFFFFFFF81000000
    assert symbols.address_of("down_write") == 0xFFFFFFFF81000100
    assert [symbols.address_of(name) for name in ("down", "write", "some_table", "", "\n")] == [None] * 5


def test_modules_are_distinguished_in_any_order(tmp_path: Path) -> None:
    symbols = listed(tmp_path, CORE + MODULES)
    assert symbols.lookup(0xFFFFFFFFC0001FFF) == Frame("[nfs]", 0, "nfs_wait")
    assert symbols.lookup(0xFFFFFFFFC0002000) == Frame("[ext4]", 0, "ext4_map_blocks")


def test_the_last_function_before_a_gap_does_not_fill_it(tmp_path: Path) -> None:
    symbols = listed(tmp_path, CORE + MODULES)
    assert symbols.lookup(0xFFFFFFFFC0002000 + 0x1000) == Frame("[ext4]", 0, "ext4_map_blocks")
    assert symbols.lookup(0xFFFFFFFFC0002000 + 0x100000) == nameless(0xFFFFFFFFC0102000)


def test_a_module_loaded_later_is_found_by_reading_the_list_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    symbols = listed(tmp_path, CORE)
    (tmp_path / "kallsyms").write_text(CORE + MODULES)
    assert symbols.lookup(0xFFFFFFFFC0001000) == nameless(0xFFFFFFFFC0001000)  # too soon after the first read
    monkeypatch.setattr(kallsyms, "_REREAD_NS", 0)
    assert symbols.lookup(0xFFFFFFFFC0001000) == Frame("[nfs]", 0, "nfs_wait")


def test_an_address_that_stays_unknown_rereads_the_list_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    symbols, readings = listed(tmp_path, CORE), itertools.count(1)
    read = symbols.refresh

    def counted() -> None:
        next(readings)
        read()

    monkeypatch.setattr(symbols, "refresh", counted)
    monkeypatch.setattr(kallsyms, "_REREAD_NS", 0)
    for _ in range(3):
        symbols.lookup(0xFFFFFFFFC0001000)
        symbols.lookup(0xFFFFFFFFC0002000)
        symbols.lookup(0x400000)  # no kernel address: no reason to read at all
        symbols.lookup(0xFFFFFFFF81000200)  # neither is one within the core kernel
    assert next(readings) == 1 + 2


ENTRIES = """\
ffffffff81000000 T _stext
ffffffff81000010 t do_things
ffffffff81000100 T asm_sysvec_one
ffffffff81000120 T asm_sysvec_two
ffffffff81000140 t asm_exc_page_fault
ffffffff81000160 T asm_common_interrupt
ffffffff81000170 T asm_spurious_interrupt
ffffffff81000190 T asm_sysvec_three
ffffffff810001b0 t asm_sysvec
ffffffff81000200 t not_asm_sysvec_four
ffffffff81000400 T _etext
"""


def test_adjacent_ranges_of_a_kind_are_joined_largest_first(tmp_path: Path) -> None:
    symbols = listed(tmp_path, ENTRIES)
    prefixes = ("asm_sysvec_", "asm_common_interrupt", "asm_spurious")
    assert symbols.ranges(prefixes, lambda _: True) == [(0xFFFFFFFF81000160, 0x50), (0xFFFFFFFF81000100, 0x40)]
    assert symbols.ranges(prefixes, lambda name: name.endswith("two")) == [(0xFFFFFFFF81000120, 0x20)]
    assert symbols.ranges(("nothing", "s.sysvec"), lambda _: True) == []


@pytest.mark.kernel
def test_interrupt_entries_of_this_kernel_fit_into_two_ranges() -> None:
    symbols = KernelSymbols.read()
    found = symbols.ranges(wakers.INTERRUPTS, wakers.is_interrupt)
    assert found
    inside = 0
    for line in Path("/proc/kallsyms").read_text().splitlines():
        address, kind, name = line.split()[:3]
        is_within = any(start <= int(address, 16) < start + size for start, size in found[: layout.INTERRUPTS])
        if kind in "tT" and "[" not in line and wakers.is_interrupt(name):
            assert is_within, name
        inside += is_within and kind in "tT"
        assert not is_within or wakers.is_interrupt(name), name
    assert inside >= 5


@pytest.mark.kernel
def test_thread_return_paths_of_this_kernel_fit_into_four_ranges() -> None:
    found = KernelSymbols.read().ranges(wakers.RETURNS, wakers.is_return)
    assert 1 <= len(found) <= layout.RETURNS


def test_a_list_that_disappears_leaves_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = listed(tmp_path, CORE)
    (tmp_path / "kallsyms").unlink()
    monkeypatch.setattr(kallsyms, "_REREAD_NS", 0)
    assert symbols.lookup(0xFFFFFFFFC0001000) == nameless(0xFFFFFFFFC0001000)
    assert symbols.lookup(0xFFFFFFFF81000010) == kernel("schedule_alias")


def test_hidden_addresses_raise_a_privilege_error(tmp_path: Path) -> None:
    with pytest.raises(PrivilegeError, match=r"CAP_SYSLOG|kptr_restrict"):
        listed(tmp_path, "0000000000000000 T _stext\n0000000000000000 T schedule\n")


def test_a_missing_or_empty_list_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="CONFIG_KALLSYMS"):
        KernelSymbols.read(str(tmp_path / "none"))
    with pytest.raises(KernelError, match="is empty"):
        listed(tmp_path, "")


def test_a_hostile_module_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    symbols = listed(tmp_path, "ffffffffc0000000 t evil\x1b[2J\t[m\x07]\n")
    assert symbols.lookup(0xFFFFFFFFC0000000) == Frame("[m\\x07]", 0, "evil\\x1b[2J")


@given(
    st.lists(st.sampled_from(["ffffffff8100000", "0", "1", " t ", " T", " D", "x", "\n", "\t[m]", " "]), max_size=30)
)
def test_any_list_is_read_or_refused_with_a_message(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "kallsyms"
    path.write_text("".join(parts))
    try:
        symbols = KernelSymbols.read(str(path))
    except OfftopError as error:
        assert str(path) in str(error) or isinstance(error, PrivilegeError)
        return
    for address in (0, 0xFFFFFFFF81000000, 0xFFFFFFFF81000001, (1 << 64) - 1):
        assert symbols.lookup(address).file


def test_variables_have_names_and_are_no_functions(tmp_path: Path) -> None:
    symbols = listed(
        tmp_path, CORE + "ffffffff82000000 B rtnl_mutex\nffffffff82000040 d table\nffffffffc0003000 b lock\t[nfs]\n"
    )
    names = [symbols.variable(at) for at in (0xFFFFFFFF82000000, 0xFFFFFFFF82000048, 0xFFFFFFFFC0003008)]
    assert names == ["rtnl_mutex", "table+0x8", "lock+0x8 [nfs]"]
    assert symbols.variable(0xFFFFFFFF81000010) == "", "a function"
    assert symbols.variable(0xFFFF888100000000) == symbols.variable(0) == "", "allocated memory"
    assert symbols.lookup(0xFFFFFFFF82000000) == nameless(0xFFFFFFFF82000000)
    assert symbols.address_of("rtnl_mutex") is None
