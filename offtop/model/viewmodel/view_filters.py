"""The filters that a view chooses."""

from collections.abc import Sequence

from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.filter_syntax import parse, quoted
from offtop.model.viewmodel.view import View


def user_filter(user: str) -> Filter:
    """Return the filter for the processes of one user; an empty name chooses all."""
    return parse(f"user={quoted(user)}" if user else "")


def row_filters(view: View) -> Sequence[Filter]:
    """Return what chooses rows that are not about waits."""
    return [view.filter, user_filter(view.user)] if view.user else [view.filter]
