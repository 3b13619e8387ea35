"""Test demangling: readable names, and no name that can do harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.binary import rust_names
from offtop.kernel.binary.demangle import demangled
from offtop.printable import printable

CORE = "NtCsgEmfK2I1SDS_4core"


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("", ""),
        ("main", "main"),
        ("_Z3foov", "foo()"),
        ("_ZN2ns3BoxIiE4waitEi", "ns::Box<int>::wait(int)"),
        ("_ZN12_GLOBAL__N_13runEv.part.0", "(anonymous namespace)::run() [clone .part.0]"),
        ("nanosleep@GLIBC_2.2.5", "nanosleep"),
        ("clock_nanosleep@@GLIBC_2.17", "clock_nanosleep"),
        ("_Zq", "_Zq"),
        ("_ZN5alloc5boxed14box_new_uninit17h56b444452b7a1985E", "alloc::boxed::box_new_uninit"),
        (
            "_ZN54_$LT$$LP$$RP$$u20$as$u20$std..process..Termination$GT$6report17ha41301767528028cE",
            "<() as std::process::Termination>::report",
        ),
        ("_RNvCskwGfYPst2Cb_3foo16example_function", "foo::example_function"),
        (f"_RNv{CORE}3mem4swap.llvm.1234", "core::mem::swap"),
        (f"_RINv{CORE}3mem4swapReE", "core::mem::swap::<&str>"),
        (
            "_RNCNvXNtCsfq2Zq5gqAK1_2v05innerINtB4_1SKj5_ENtB4_1T2go0B6_",
            "<v0::inner::S<5> as v0::inner::T>::go::{closure#0}",
        ),
        ("_RMCs4fqI2P2rA04_13const_genericINtB0_8UnsignedKhb_E", "<const_generic::Unsigned<11>>"),
        ("_RINvC1a1fbKb1_Kc61_Klna_E", "a::f::<bool, true, 'a', -10>"),
        ("_RINvC1a1fRL0_aE", "_RINvC1a1fRL0_aE"),  # a lifetime that nothing binds
        ("_RINvC1a1fTjEAhj3_RaQhPuOzSdE", "a::f::<(usize,), [u8; 3], &i8, &mut u8, *const (), *mut !, [f64]>"),
        ("_RINvC1a1fFG_UKCRL0_hEbE", "a::f::<for<'a> unsafe extern \"C\" fn(&'a u8) -> bool>"),
        ("_RINvC1a1fDNtC1b1Tp1ObEL_E", "a::f::<dyn b::T<O = bool>>"),
        ("_RINvC1a1fFG0_RL0_hRL1_hEuE", "a::f::<for<'a, 'b> fn(&'b u8, &'a u8)>"),
        ("_RNvC1au9bcher_kva", "a::bücher"),
    ],
)
def test_a_symbol_demangles_to_its_source_name(symbol: str, name: str) -> None:
    assert demangled(symbol) == name


def bomb(times: int) -> str:
    """Return a C++ name that doubles with each of its substitutions."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1AIiE" + "".join(f"S_IS{digits[n]}_S{digits[n]}_E" for n in range(times))


def test_a_name_that_doubles_a_few_times_is_truncated() -> None:
    assert demangled(bomb(2)) == "f(A<int>, A<A<int>, A<int> >, A<A<A<int>, A<int> >, A<A<int>, A<int> > >)"
    assert len(demangled(bomb(8))) == 1001  # 1000 and the truncation mark


def test_a_name_that_would_fill_memory_stays_mangled() -> None:
    assert demangled(bomb(36)) == bomb(36)  # 2^36 × 6 bytes
    conversions = "_ZN1Acv" + 200 * "T_IN1Acv"  # parsed twice at each step
    assert demangled(conversions).startswith("_ZN1AcvT_I")


def rust_bomb(times: int) -> str:
    """Return a Rust name whose every tuple holds the previous one twice."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    name, last = "INvC1a1fTuuE", 8
    for _ in range(times):
        back = f"B{digits[(last - 1) // 62] if last > 62 else ''}{digits[(last - 1) % 62]}_"
        name, last = f"{name}T{back}{back}E", len(name)
    return f"_R{name}E"


def test_an_exploding_rust_name_stays_mangled() -> None:
    assert demangled(rust_bomb(1)) == "a::f::<((), ()), (((), ()), ((), ()))>"
    assert demangled(rust_bomb(40)) == rust_bomb(40)


@pytest.mark.parametrize("symbol", ["_R", "_RB_", "_RNvB_1a", "_RIC1aB_E", "_R" + 400 * "Nv" + "C1a", "_RNvC1a99b"])
def test_a_broken_rust_name_stays_mangled(symbol: str) -> None:
    assert demangled(symbol) == symbol


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "\x9bm", "a\x00b", "\u202egnp.exe", "\udc80", "_Z\x1b", "_Z3\u202ev"])
def test_demangled_names_are_printable(name: str) -> None:
    assert printable(demangled(name)) == demangled(name)


FRAGMENTS = [
    "_Z",
    "_R",
    "N",
    "I",
    "E",
    "S_",
    "S0_",
    "T_",
    "B_",
    "B0_",
    "cv",
    "1a",
    "17h0123456789abcdef",
    "$u7f$",
    "$LT$",
    "..",
    "Nv",
    "C1a",
    "K",
    "u",
    "9",
    "G_",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join) | st.text())
def test_no_name_makes_it_fail(symbol: str) -> None:
    for name in (symbol, f"_Z{symbol}", f"_ZN{symbol}17h0123456789abcdefE", f"_R{symbol}"):
        assert printable(demangled(name)) == demangled(name)
        assert len(demangled(name)) <= 10_010  # 1000 characters, each of which may be escaped
        rust_names.demangled(name)
