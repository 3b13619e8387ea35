"""Calls of the --within function, added up."""

from offtop.model.values import histogram as log2
from offtop.model.values.within import Calls


def test_parts_of_calls_add_up() -> None:
    one = Calls(2, 1, 100, 60, 10, 70, log2.of(30, 70), 3, 40)
    two = Calls(1, 0, 50, 20, 5, 50, log2.of(50), 1, 9)
    both = one.plus(two)
    assert both == Calls(3, 1, 150, 80, 15, 70, log2.of(30, 70, 50), 1, 9)
    assert both.since(one)._replace(max_ns=50) == two
    assert (both.running_ns, both.blocked_ns) == (70, 65)
    assert Calls().plus(Calls()) == Calls()
    assert one.are_fewer(two) is False
    assert two.are_fewer(one) is True
