"""An untrusted name cannot move a cursor, colour a line or reverse it."""

from hypothesis import given
from hypothesis import strategies as st

from offtop.printable import printable


def test_plain_name_is_unchanged() -> None:
    assert printable("") == ""
    assert printable("G1 Young#3 [bold]") == "G1 Young#3 [bold]"
    assert printable("Größe") == "Größe"


def test_control_characters_are_escaped() -> None:
    assert printable("\x1b[2Jevil") == r"\x1b[2Jevil"
    assert printable("a\tb\nc\x7f\x9b") == r"a\x09b\x0ac\x7f\x9b"


def test_bidirectional_and_invisible_characters_are_escaped() -> None:
    assert printable("a\u202eb") == r"a\u202eb"
    assert printable("a\u200bb\ud800\U000e0001") == r"a\u200bb\ud800\U000e0001"


def test_ascii_only_escapes_everything_else() -> None:
    assert printable("Größe", ascii_only=True) == r"Gr\xf6\xdfe"


@given(st.text())
def test_no_unreadable_character_remains(text: str) -> None:
    assert all(c.isprintable() or c == "\u00a0" or c.isspace() for c in printable(text))
    assert not set(printable(text)) & set(map(chr, range(32)))
    assert printable(text, ascii_only=True).isascii()
