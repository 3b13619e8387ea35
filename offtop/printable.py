"""Escape untrusted text so that it cannot move the cursor or mislead the reader."""

import unicodedata
from functools import lru_cache

_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode general categories that are not readable text: controls, formats (such as right-to-left overrides), lone
surrogates, private use, unassigned, line and paragraph separators."""
_SHORT = 256
"""Longer texts are rare, and not cached."""


def printable(text: str, ascii_only: bool = False) -> str:
    r"""Return `text` with unreadable characters escaped: `\x1b`, `\u202e`.

    A backslash is not escaped: the result is for people, not for a parser. `ascii_only` also escapes everything outside
    ASCII. A combining mark at the start gets a dotted circle as its base.
    """
    if text.isascii() and text.isprintable():
        return text
    return _of_short(text, ascii_only) if len(text) <= _SHORT else _shown(text, ascii_only)


def _shown(text: str, ascii_only: bool) -> str:
    shown = "".join(_escaped(c) if _must_escape(c, ascii_only) else c for c in text)
    return f"◌{shown}" if shown and unicodedata.combining(shown[0]) else shown


_of_short = lru_cache(maxsize=16_384)(_shown)


def _must_escape(character: str, ascii_only: bool) -> bool:
    if ascii_only and not character.isascii():
        return True
    return unicodedata.category(character) in _HARMFUL


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
