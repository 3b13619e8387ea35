"""Linkers' names into those that people wrote: C++ by libstdc++'s own demangler, Rust old and new.

A symbol is a stranger's. libstdc++'s demangler takes exponential time and memory for names made to that end,
so a name whose substitutions could multiply that far is left mangled; no compiler's name comes near.
"""

import ctypes as ct
import re
from collections import Counter
from functools import cache
from math import prod

from offtop.kernel.binary import rust_names
from offtop.printable import printable

_LONGEST = 1000
_MOST_EXPANDED = 1 << 26
_SUBSTITUTION = re.compile(r"[ST][0-9A-Z]*_")
_CONVERSION = re.compile(r"cvT[0-9]*_")
_MOST_CONVERSIONS = 6
"""Each operator of a template type is parsed twice, and what it holds twice again."""
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}(?=$| \[clone|\.)")
_RUST_ESCAPE = re.compile(r"\$(SP|BP|RF|LT|GT|LP|RP|C|u[0-9a-f]{1,5})\$")
_RUST_GUARD = re.compile(r"(?<![^:])_\$")
_RUST_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}


def demangled(symbol: str) -> str:
    """What a person calls `symbol`, at most 1000 characters of it, printable. Never raises."""
    name = symbol.partition("@")[0] or symbol  # a version, as in nanosleep@GLIBC_2.2.5
    if name.startswith("_R"):
        name = rust_names.demangled(name) or name
    elif name.startswith("_Z") and not _is_explosive(name):
        name = _old_rust(_cxx(name) or name)
    return printable(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…")


def _is_explosive(name: str) -> bool:
    """Whether substitutions of substitutions might make more than 64 MB of it."""
    factors = (1 + times for times in Counter(_SUBSTITUTION.findall(name)).values())
    return len(name) * prod(factors) > _MOST_EXPANDED or len(_CONVERSION.findall(name)) > _MOST_CONVERSIONS


def _cxx(name: str) -> str | None:
    library = _library()
    if library is None or "\0" in name:
        return None
    buffer: int | None = library.__cxa_demangle(name.encode(errors="surrogatepass"), None, None, None)
    if not buffer:
        return None
    try:
        return ct.string_at(buffer).decode(errors="backslashreplace")
    finally:
        library.free(buffer)


def _old_rust(name: str) -> str:
    """Rust's first mangling is C++'s, with a hash behind and escapes for what C++ does not know."""
    plain, found = _RUST_HASH.subn("", name)
    if not found:
        return name
    plain = _RUST_GUARD.sub("$", plain)
    return _RUST_ESCAPE.sub(lambda m: _RUST_ESCAPES.get(m[1]) or chr(int(m[1][1:], 16)), plain).replace("..", "::")


@cache
def _library() -> ct.CDLL | None:
    """libstdc++, where there is one; without it C++ names stay mangled."""
    try:
        library = ct.CDLL("libstdc++.so.6")
    except OSError:
        return None
    library.__cxa_demangle.restype = ct.c_void_p
    library.__cxa_demangle.argtypes = [ct.c_char_p, ct.c_void_p, ct.c_void_p, ct.c_void_p]
    library.free.restype = None
    library.free.argtypes = [ct.c_void_p]
    return library
