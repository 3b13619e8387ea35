"""A stranger's name cannot move a cursor, colour a line or turn it round."""

from hypothesis import given
from hypothesis import strategies as st

from offtop.model.printable import printable


def test_a_plain_name_stays_as_it_is() -> None:
    assert printable("") == ""
    assert printable("G1 Young#3 [bold]") == "G1 Young#3 [bold]"
    assert printable("Größe") == "Größe"


def test_controls_are_written_out() -> None:
    assert printable("\x1b[2Jevil") == r"\x1b[2Jevil"
    assert printable("a\tb\nc\x7f\x9b") == r"a\x09b\x0ac\x7f\x9b"


def test_what_turns_text_round_or_cannot_be_seen_is_written_out() -> None:
    assert printable("a\u202eb") == r"a\u202eb"
    assert printable("a\u200bb\ud800\U000e0001") == r"a\u200bb\ud800\U000e0001"


def test_in_ascii_all_else_is_written_out() -> None:
    assert printable("Größe", ascii_only=True) == r"Gr\xf6\xdfe"


@given(st.text())
def test_nothing_that_is_not_for_reading_comes_through(text: str) -> None:
    assert all(c.isprintable() or c == "\u00a0" or c.isspace() for c in printable(text))
    assert not set(printable(text)) & set(map(chr, range(32)))
    assert printable(text, ascii_only=True).isascii()
