"""How complete the user stacks are, and what they lack."""

from typing import Annotated

from msgspec import Meta, Struct

from offtop.model.aggregate.stack_problems import REASONS
from offtop.model.values.stack import ANONYMOUS, CLOSED, DROPPED, ENDS, GONE, UNREAD
from offtop.reports.objects.shared_fields import IsUnsure, Ns, about, meaning, one_of


class StackEndTime(Struct, frozen=True, kw_only=True):
    """The time of user stacks that end alike."""

    end: Annotated[str, one_of(*ENDS)]
    """As user_end of a site."""
    unsure: IsUnsure
    file: str
    """File of the outermost known frame."""
    total_ns: Ns


class UserStacks(Struct, frozen=True, kw_only=True):
    """How much time has whole user stacks."""

    total_ns: int
    """Off-CPU time with a user stack."""
    whole_ns: int
    """Off-CPU time with a user stack that is whole and not guessed."""
    others: list[StackEndTime]
    """The rest, most first."""


class StackProblem(Struct, frozen=True, kw_only=True):
    """What user stacks lack."""

    binary: Annotated[
        str | None,
        about(
            f"In brackets if there is no file: {ANONYMOUS} generated at run time, {GONE} no longer known, {CLOSED} in "
            f"a process that offtop may not read, {UNREAD} in a process that was not read in time, {DROPPED} used too "
            "long ago; "
            "null: unknown, or any file."
        ),
    ]
    """If callers are missing: file of the outermost known frame. If callers were guessed, or a guess failed: file of
    the innermost frame whose caller was guessed. If names are missing: file of the frame."""
    process: str | None
    """Name of the process if binary is in brackets; null: binary is a file."""
    reason: Annotated[str, meaning(REASONS)]
    total_ns: Ns
    share: Annotated[float, Meta(ge=0, le=1)]
    """Part of the matching time with a user stack."""
    remedy: str | None
    """How to fix it; null: there is no known fix."""
