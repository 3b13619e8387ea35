"""Field types that several JSON objects share, and the ids of a thread."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from offtop.model.values.stack import ENDS


def one_of(*values: str | None) -> Meta:
    return Meta(extra_json_schema={"enum": [*values]})


def meaning(values: Mapping[str, str], null: str = "") -> Meta:
    """Describe each value; `null`: what null means, if it is allowed."""
    meanings = [f"{value}: {text.removeprefix('whole: ')}" for value, text in values.items()]
    described = "; ".join([*meanings, f"null: {null}"] if null else meanings)
    return Meta(description=described, extra_json_schema={"enum": [*values, None] if null else [*values]})


def about(description: str) -> Meta:
    return Meta(description=description)


Count = Annotated[int, Meta(ge=0)]
Ns = Annotated[int, about("ns")]
Frames = Annotated[list[str], about("Leaf first.")]
Histogram = Annotated[
    list[tuple[Count, Count]], about("[low_ns, count] for each power of two that has waits, shortest first.")
]
StackEnd = Annotated[str | None, meaning(ENDS, null="there is no user stack")]
IsUnsure = Annotated[
    bool, about("Callers may be wrong: they were found by frame pointers, or guessed from values on the stack.")
]
CauseId = Annotated[str | None, about("Cause of most of it: the id of one of `diagnoses`; null: no rule matches.")]


class Tid(Struct, frozen=True):
    """A thread's ids and name."""

    pid: Count
    tid: Count
    comm: str


class NamedTid(Tid, frozen=True):
    """A thread's ids and name, and its process's name."""

    process: str
    """The process's name."""
