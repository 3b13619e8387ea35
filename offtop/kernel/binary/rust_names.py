"""Demangles Rust's v0 symbols (`_RNvCs…`).

The result is a path, as `<v0::inner::S<5> as v0::inner::T>::go::{closure#0}`. The standard library has used this
mangling since 2025, and neither libstdc++ nor any small, maintained Python package supports it.
Grammar: https://doc.rust-lang.org/rustc/symbol-mangling/v0.html. Crate hashes and types of constants are left out, as
in rustc's short form.
"""

from collections.abc import Callable

_BASIC_TYPES = {
    "a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8", "i": "isize",
    "j": "usize", "l": "i32", "m": "u32", "n": "i128", "o": "u128", "p": "_", "s": "i16", "t": "u16",
    "u": "()", "v": "...", "x": "i64", "y": "u64", "z": "!",
}  # fmt: skip
_UNNAMED = "'_"
_BASE_62 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MOST_STEPS = 4000
"""Back references can expand a short symbol without end."""
_DEEPEST = 100


def demangled(symbol: str) -> str | None:
    """Demangle a v0 symbol; None if it is not valid, or expands too far."""
    if not symbol.startswith("_R") or not symbol.isascii():
        return None
    mangled = symbol[2:].partition(".")[0]
    try:
        return _Reader(mangled).path(in_value=True)
    except (ValueError, IndexError, OverflowError):
        return None


class _Reader:
    """Parses one symbol from left to right.

    Its methods raise ValueError or IndexError if the symbol does not follow the grammar.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._steps = 0
        self._depth = 0
        self._bound = 0
        """How many lifetimes the enclosing `for<…>` have bound."""

    def path(self, in_value: bool = False) -> str:
        """Parse a path. `in_value`: write generic arguments as `::<T>`, as in Rust expressions."""
        self._enter()
        kind = self._take()
        if kind == "C":
            self._disambiguator()
            text = self._identifier()
        elif kind in "MX":
            self._disambiguator()
            self.path()
            text = f"<{self._type()}>" if kind == "M" else f"<{self._type()} as {self.path()}>"
        elif kind == "Y":
            text = f"<{self._type()} as {self.path()}>"
        elif kind == "N":
            text = self._nested(in_value)
        elif kind == "I":
            text = f"{self.path(in_value)}{'::' if in_value else ''}<{', '.join(self._until_end(self._argument))}>"
        elif kind == "B":
            text = self._back(lambda: self.path(in_value))
        else:
            raise ValueError(kind)
        self._depth -= 1
        return text

    def _nested(self, in_value: bool) -> str:
        namespace = self._take()
        parent = self.path(in_value)
        number = self._disambiguator()
        name = self._identifier()
        if namespace.islower():
            return f"{parent}::{name}" if name else parent
        what = {"C": "closure", "S": "shim"}.get(namespace, namespace)
        return f"{parent}::{{{what}{':' if name else ''}{name}#{number}}}"

    def _argument(self) -> str:
        if self._accept("L"):
            return self._lifetime()
        return self._constant() if self._accept("K") else self._type()

    def _type(self) -> str:
        self._enter()
        kind = self._take()
        if kind in _BASIC_TYPES:
            text = _BASIC_TYPES[kind]
        elif kind == "A":
            text = f"[{self._type()}; {self._constant()}]"
        elif kind == "S":
            text = f"[{self._type()}]"
        elif kind == "T":
            types = self._until_end(self._type)
            text = f"({', '.join(types)}{',' if len(types) == 1 else ''})"
        elif kind in "RQ":
            lifetime = self._lifetime() if self._accept("L") else _UNNAMED
            lifetime = "" if lifetime == _UNNAMED else f"{lifetime} "
            text = f"&{lifetime}{'mut ' if kind == 'Q' else ''}{self._type()}"
        elif kind in "PO":
            text = f"*{'const' if kind == 'P' else 'mut'} {self._type()}"
        elif kind == "F":
            text = self._function()
        elif kind == "D":
            text = self._dyn()
        elif kind == "B":
            text = self._back(self._type)
        else:
            self._at -= 1
            text = self.path()
        self._depth -= 1
        return text

    def _function(self) -> str:
        bound = self._bound
        binder = self._binder()
        words = "unsafe " if self._accept("U") else ""
        if self._accept("K"):
            abi = "C" if self._accept("C") else self._identifier().replace("_", "-")
            words += f'extern "{abi}" '
        arguments = ", ".join(self._until_end(self._type))
        result = self._type()
        self._bound = bound
        return f"{binder}{words}fn({arguments}){'' if result == '()' else f' -> {result}'}"

    def _dyn(self) -> str:
        bound = self._bound
        binder = self._binder()
        traits = " + ".join(self._until_end(self._trait))
        self._bound = bound
        if self._take() != "L":
            raise ValueError("a dyn type without a lifetime")
        lifetime = self._lifetime()
        return f"dyn {binder}{traits}{'' if lifetime == _UNNAMED else f' + {lifetime}'}"

    def _trait(self) -> str:
        text = self.path()
        bindings: list[str] = []
        while self._accept("p"):
            bindings.append(f"{self._identifier()} = {self._type()}")
        if not bindings:
            return text
        return f"{text.removesuffix('>')}{', ' if text.endswith('>') else '<'}{', '.join(bindings)}>"

    def _constant(self) -> str:
        self._enter()
        kind = self._take()
        if kind == "B":
            text = self._back(self._constant)
        elif kind == "p":
            text = "_"
        elif kind in "hijlmnostxyabc":
            sign = "-" if self._accept("n") else ""
            end = self._text.index("_", self._at)
            number = int(self._text[self._at : end] or "0", 16)
            self._at = end + 1
            words = {"b": str(number == 1).lower(), "c": repr(chr(number)) if kind == "c" else ""}
            text = words.get(kind, f"{sign}{number}")
        else:
            raise ValueError(kind)
        self._depth -= 1
        return text

    def _binder(self) -> str:
        if not self._accept("G"):
            return ""
        count = self._base_62() + 1
        if count > 26:
            raise ValueError("more lifetimes than letters")
        self._bound += count
        return f"for<{', '.join(self._letter(n) for n in range(count - 1, -1, -1))}> "

    def _lifetime(self) -> str:
        index = self._base_62()
        return self._letter(index - 1) if index else _UNNAMED

    def _letter(self, inward: int) -> str:
        """Return the name of the lifetime bound `inward` levels outside of the innermost one."""
        number = self._bound - 1 - inward
        if number < 0:
            raise ValueError("a lifetime that nothing binds")
        return f"'{chr(ord('a') + number)}" if number < 26 else f"'_{number}"

    def _identifier(self) -> str:
        encoded = self._accept("u")
        length = self._decimal()
        self._accept("_")
        name = self._text[self._at : self._at + length]
        if len(name) != length:
            raise ValueError("an identifier that ends behind the symbol")
        self._at += length
        if not encoded:
            return name
        plain, _, digits = name.rpartition("_")
        return f"{plain}-{digits}".encode().decode("punycode") if plain else digits.encode().decode("punycode")

    def _disambiguator(self) -> int:
        return self._base_62() + 1 if self._accept("s") else 0

    def _decimal(self) -> int:
        start = self._at
        if self._accept("0"):
            return 0
        while self._text[self._at : self._at + 1].isdigit():
            self._at += 1
        return int(self._text[start : self._at][:9])

    def _base_62(self) -> int:
        end = self._text.index("_", self._at)
        digits, self._at = self._text[self._at : end][:12], end + 1
        number = 0
        for digit in digits:
            number = number * 62 + _BASE_62.index(digit)
        return number + 1 if digits else 0

    def _until_end(self, read: Callable[[], str]) -> list[str]:
        parts: list[str] = []
        while not self._accept("E"):
            parts.append(read())
        return parts

    def _back(self, read: Callable[[], str]) -> str:
        """Parse what a back reference refers to."""
        here = self._at - 1
        there = self._base_62()
        if there >= here:
            raise ValueError("a back reference that does not lead back")
        after, self._at = self._at, there
        text = read()
        self._at = after
        return text

    def _enter(self) -> None:
        self._steps += 1
        self._depth += 1
        if self._steps > _MOST_STEPS or self._depth > _DEEPEST:
            raise ValueError("endless")

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _accept(self, character: str) -> bool:
        is_there = self._text[self._at : self._at + 1] == character
        self._at += is_there
        return is_there
