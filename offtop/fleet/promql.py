"""Write queries in PromQL, and read the filter that a person types."""

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from offtop.units import NS_PER_S

NOT_OF_HOSTS = frozenset({"category", "program", "unit", "why", "what", "who", "held_by", "le", "__name__"})
"""Labels of single series; a filter chooses hosts."""
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TERM = re.compile(r"([^=!]*)(!=|=)(.*)", re.S)
EXPECTED = "labels and values such as 'job=db env!=test db*'"


class Matcher(NamedTuple):
    label: str
    operator: str
    """One of PromQL's: `=`, `!=`, `=~`, `!~`."""
    value: str

    def __str__(self) -> str:
        return f"{self.label}{self.operator}{quoted(self.value)}"


Filter = tuple[Matcher, ...]


def parse_filter(text: str) -> Filter:
    """Parse `job=db env!=test db*`: labels and values with * and ?, and parts of names of hosts. All must match.

    An instance may be given without its port, as it is shown. Raises ValueError with what is expected.
    """
    try:
        words = shlex.split(text)
        text.encode()
    except ValueError:
        raise ValueError(EXPECTED) from None
    return tuple(map(_term, words))


def _term(word: str) -> Matcher:
    found = _TERM.fullmatch(word)
    if found is None:
        return Matcher("instance", "=~", f".*{_regex(word)}.*")
    label, operator, value = found.groups()
    if not _LABEL.fullmatch(label):
        raise ValueError(EXPECTED)
    if label in NOT_OF_HOSTS:
        raise ValueError(f"labels of hosts, such as 'job=db'; {label} is a label of single numbers")
    if label == "instance" and ":" not in value:
        return Matcher(label, f"{operator[:-1]}=~".replace("!=~", "!~"), f"{_regex(value)}(:[0-9]+)?")
    if "*" in value or "?" in value:
        return Matcher(label, "=~" if operator == "=" else "!~", _regex(value))
    return Matcher(label, operator, value)


def _regex(glob: str) -> str:
    """Return a pattern with * and ? as a regular expression of Prometheus (RE2)."""
    return "".join({"*": ".*", "?": "."}.get(one) or re.escape(one) for one in glob)


def quoted(text: str) -> str:
    """Return a string of PromQL, which has the escapes of Go."""
    shown = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(one if one >= " " else f"\\x{ord(one):02x}" for one in shown) + '"'


def one_of(label: str, values: Iterable[str]) -> Matcher:
    """Match any of these values. Each is a literal, which Prometheus finds by its index."""
    return Matcher(label, "=~", "|".join(map(re.escape, values)))


def selected(metric: str, matchers: Sequence[Matcher]) -> str:
    return f"{metric}{{{','.join(map(str, matchers))}}}" if matchers else metric


def over(span_ns: int) -> str:
    """Return a range: `[300s]`."""
    return f"[{max(1, round(span_ns / NS_PER_S))}s]"
