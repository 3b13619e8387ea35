"""How much of the time has a complete user stack, and why the rest has not."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from offtop.model.values.stack import ENDS, FIRST_STACK, LINKED, WHOLE
from offtop.model.values.table import SITES, TOTAL_NS, Groups, table_of
from offtop.model.windows.window import Window

_MOST_SHOWN = 10
_LEAST_PART = 2000
"""Anything below one part in so many would be shown as 0.0%."""


class Ending(NamedTuple):
    """What incomplete or uncertain user stacks have in common."""

    end: str
    """One of stack.ENDS."""
    is_unsure: bool
    file: str
    """File of the outermost known frame; empty if frame pointers were followed."""


class Endings(NamedTuple):
    total_ns: int
    """Off-CPU time with a user stack."""
    whole_ns: int
    """Time of complete and certain stacks."""
    others: tuple[tuple[Ending, int], ...]
    """ns of the others, most first."""


def endings(windows: Iterable[Window]) -> Endings:
    """Sum up all sites of `windows`."""
    total_ns = whole_ns = 0
    others: dict[Ending, int] = {}
    for window in windows:
        sites = table_of(SITES, window.sites)
        still = window.still.ids
        stacks = Groups(np.append(sites.ids[:, 3], still[:, 3]))
        each_ns = np.append(sites.numbers[:, TOTAL_NS], np.full(len(still), window.span_ns))
        sums: list[int] = stacks.sums(each_ns).tolist()
        for number, ns in zip(stacks.codes.tolist(), sums, strict=True):
            stack = window.catalog.stack(number)
            if number < FIRST_STACK or not stack.frames:
                continue
            total_ns += ns
            if stack.end == WHOLE and not stack.is_unsure:
                whole_ns += ns
            else:
                file = "" if stack.end == LINKED else stack.frames[-1].file
                ending = Ending(stack.end, stack.is_unsure, file)
                others[ending] = others.get(ending, 0) + ns
    return Endings(total_ns, whole_ns, tuple(sorted(others.items(), key=lambda one: (-one[1], one[0]))))


def rows_of(some: Endings) -> list[tuple[str, str]]:
    """Return the share of complete stacks and the largest other parts, for display. Raw."""
    if not some.total_ns:
        return []
    rows = [("user stacks whole", f"{100 * some.whole_ns / some.total_ns:.1f}% of the time with a user stack")]
    for one, ns in some.others[:_MOST_SHOWN]:
        if ns * _LEAST_PART < some.total_ns:
            break
        why = [*(["callers guessed"] if one.is_unsure else []), *([ENDS[one.end]] if one.end != WHOLE else [])]
        file = f" in {one.file.rpartition('/')[2]}" if one.file else ""
        rows.append((f"{100 * ns / some.total_ns:.1f}% not", f"{', '.join(why)}{file}"))
    return rows
