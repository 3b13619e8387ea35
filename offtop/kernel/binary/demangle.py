"""Demangles symbols: C++ with libstdc++'s demangler, and Rust's legacy and v0 manglings.

Symbols are untrusted. libstdc++'s demangler takes exponential time and memory for names crafted for that, so a name
whose substitutions could multiply that far stays mangled. No compiler emits names that come near that limit.
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
"""A conversion operator to a template type is parsed twice, and each one nested in it twice again."""
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}(?=$| \[clone|\.)")
_RUST_ESCAPE = re.compile(r"\$(SP|BP|RF|LT|GT|LP|RP|C|u[0-9a-f]{1,5})\$")
_RUST_GUARD = re.compile(r"(?<![^:])_\$")
_RUST_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}


def demangled(symbol: str) -> str:
    """Demangle `symbol`: at most 1000 characters, printable. Never raises."""
    name = symbol.partition("@")[0] or symbol  # without the version, as in nanosleep@GLIBC_2.2.5
    if name.startswith("_R"):
        name = rust_names.demangled(name) or name
    elif name.startswith("_Z") and not _is_explosive(name):
        name = _old_rust(_cxx(name) or name)
    return printable(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…")


def _is_explosive(name: str) -> bool:
    """Whether nested substitutions could expand the name to more than 64 MB."""
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
    """Decode Rust's legacy mangling.

    It is C++'s, with a hash at the end and escapes for characters that C++ names cannot have.
    """
    plain, found = _RUST_HASH.subn("", name)
    if not found:
        return name
    plain = _RUST_GUARD.sub("$", plain)
    return _RUST_ESCAPE.sub(lambda m: _RUST_ESCAPES.get(m[1]) or chr(int(m[1][1:], 16)), plain).replace("..", "::")


@cache
def _library() -> ct.CDLL | None:
    """libstdc++, or None if it is not installed; C++ names stay mangled then."""
    try:
        library = ct.CDLL("libstdc++.so.6")
    except OSError:
        return None
    library.__cxa_demangle.restype = ct.c_void_p
    library.__cxa_demangle.argtypes = [ct.c_char_p, ct.c_void_p, ct.c_void_p, ct.c_void_p]
    library.free.restype = None
    library.free.argtypes = [ct.c_void_p]
    return library
