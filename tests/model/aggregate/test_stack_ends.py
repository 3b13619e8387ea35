"""How much of the time has a complete user stack, for each way in which a stack may end."""

from dataclasses import replace

import pytest

from offtop.model.aggregate.stack_ends import Ending, endings, rows_of
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.snapshot import SiteTotals
from offtop.model.values.stack import ENDS, FIRST_STACK, LINKED, NO_STACK, NO_WAY, WHOLE, Frame, Stack
from offtop.model.values.table import SITES, SiteKeys, integers
from offtop.model.windows.window import Window

S = 1_000_000_000


def window(*stacks: tuple[Stack | None, int]) -> Window:
    """Waits at such user stacks, for so many ns; None: without one."""
    catalog, sites = Catalog(), dict[SiteKey, SiteTotals]()
    for number, (stack, ns) in enumerate(stacks, FIRST_STACK):
        if stack is not None:
            catalog.stacks[number] = stack
        sites[SiteKey(7, 7, number, NO_STACK if stack is None else number)] = SiteTotals(1, ns)
    return Window(0, 0, S, threads={}, sites=sites, catalog=catalog)


def of(end: str = WHOLE, file: str = "/bin/it", unsure: bool = False) -> Stack:
    return Stack((Frame("/lib/libc.so", 1), Frame(file, 2)), end=end, is_unsure=unsure)


def test_complete_share_comes_first_and_the_rest_by_binary() -> None:
    some = endings(
        [
            window((of(), 60 * S), (of(NO_WAY, "/lib/libfoo.so"), 5 * S), (None, 1000 * S)),
            window((of(LINKED), 10 * S), (of(NO_WAY, "/lib/libfoo.so"), 15 * S), (of(unsure=True), 10 * S)),
        ]
    )
    assert (some.total_ns, some.whole_ns) == (100 * S, 60 * S)
    assert some.others == (
        (Ending(NO_WAY, False, "/lib/libfoo.so"), 20 * S),
        (Ending(LINKED, False, ""), 10 * S),
        (Ending(WHOLE, True, "/bin/it"), 10 * S),
    )
    assert rows_of(some) == [
        ("user stacks whole", "60.0% of the time with a user stack"),
        ("20.0% not", "no unwind information in libfoo.so"),
        ("10.0% not", "frame pointers, not checked"),
        ("10.0% not", "callers guessed in it"),
    ]


def test_wait_that_went_on_counts_with_the_whole_span() -> None:
    some = window((of(NO_WAY), S // 2))
    still = replace(some, sites={}, still=SiteKeys(integers([SiteKey(7, 7, FIRST_STACK, FIRST_STACK)], SITES.width)))
    assert endings([still]).total_ns == S
    assert endings([still]).others == ((Ending(NO_WAY, False, "/bin/it"), S),)


def test_no_waits_have_no_text() -> None:
    assert rows_of(endings([])) == rows_of(endings([window((None, S))])) == []


@pytest.mark.parametrize("end", ENDS)
def test_each_way_to_end_has_a_text(end: str) -> None:
    assert rows_of(endings([window((of(end), S))]))[0][1].startswith("100.0%" if end == WHOLE else "0.0%")
