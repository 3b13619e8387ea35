"""Stacks as the objects of JSON."""

from collections.abc import Sequence
from typing import Any, TypedDict, TypeVar

from offtop.model.aggregate import location
from offtop.model.values.catalog import Catalog
from offtop.model.values.io_stacks import IoStack, Stacks, StackTotals
from offtop.model.values.stack import Names
from offtop.printable import printable
from offtop.reports.objects import json_io

Key = TypeVar("Key")


class StackFields(TypedDict):
    kernel: list[str]
    user: list[str]
    user_end: str | None
    user_unsure: bool


def stack_fields(kernel: int, user: int, catalog: Catalog, names: Names) -> StackFields:
    of_user = catalog.stack(user)
    return StackFields(
        kernel=printable_names(location.kernel_names(catalog, kernel, names)),
        user=printable_names(location.user_names(catalog, user, names)),
        user_end=of_user.end if of_user.frames else None,
        user_unsure=of_user.is_guessed,
    )


def file_stacks(stacks: Stacks[Key], catalog: Catalog, names: Names) -> list[json_io.FileStack]:
    return [
        json_io.FileStack(**_io_fields(stack, totals, catalog, names), calls=totals.calls) for stack, totals in stacks
    ]


def request_stacks(stacks: Stacks[Key], catalog: Catalog, names: Names) -> list[json_io.RequestStack]:
    return [
        json_io.RequestStack(**_io_fields(stack, totals, catalog, names), requests=totals.calls)
        for stack, totals in stacks
    ]


def _io_fields(stack: IoStack[Any], totals: StackTotals, catalog: Catalog, names: Names) -> dict[str, Any]:
    return {
        **stack_fields(stack.kernel, stack.user, catalog, names),
        "bytes": totals.bytes,
        "total_ns": totals.total_ns,
        "max_ns": totals.max_ns,
    }


def printable_names(names: Sequence[str]) -> list[str]:
    return [printable(name) for name in names]
