"""Stack tree: its sums, its visible lines, and that opened branches stay open."""

from collections.abc import Iterator, Mapping, Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from offtop.model.aggregate.steps import Path, Shape, Step, passes, steps_of
from offtop.model.aggregate.tree import (
    MORE,
    MOST_LINES,
    Branch,
    Node,
    all_paths,
    closed,
    flatten,
    index_of,
    opened_by_share,
    opened_with,
    tree_of,
)
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import FIRST_STACK, KERNEL, Frame, Stack
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.breakdown import PartTuple, total

Waited = tuple[str, int, int]
"""Where, as functions from the root on, `[k]` before the kernel's; how many waits; how many ns."""
FROM_THE_ROOT = Shape()


class FixedNames:
    version = 0

    def of(self, frame: Frame) -> str:
        return frame.name


def path_of(where: str) -> Path:
    return tuple(Step(name.removeprefix("[k]"), name.startswith("[k]")) for name in where.split())


def written(path: Path, between: str = " ") -> str:
    return between.join(f"[k]{step.name}" if step.kernel else step.name for step in path)


def measured(waited: Sequence[Waited]) -> tuple[Catalog, dict[tuple[int, ...], PartTuple]]:
    """A catalog and its places, each of them distinct."""
    catalog, places = Catalog(), dict[tuple[int, ...], PartTuple]()
    for number, (where, waits, ns) in enumerate(waited, FIRST_STACK):
        kernel_id, user_id = 2 * number, 2 * number + 1
        functions = path_of(where)[::-1]
        kernel = tuple(Frame(KERNEL, 0, step.name) for step in functions if step.kernel)
        user = tuple(Frame("/bin/it", 7, step.name) for step in functions if not step.kernel)
        catalog.stacks[kernel_id], catalog.stacks[user_id] = Stack(kernel), Stack(user)
        places[kernel_id, user_id, NO_WAKE] = waits, ns, ns // 2, waits * log2.of(ns)
    return catalog, places


def grown(waited: Sequence[Waited], shape: Shape = FROM_THE_ROOT) -> Node:
    catalog, places = measured(waited)
    return tree_of(places, catalog, FixedNames(), shape)


def shown(branches: Sequence[Branch]) -> list[str]:
    """Each line: `+` can be opened, `-` is open; its functions; its time."""
    lines: list[str] = []
    for branch in branches:
        mark = "-" if branch.opened else "+" if branch.openable else " "
        functions = written(branch.path[branch.first :], " › ")
        lines.append(f"{'  ' * branch.depth}{mark} {functions} {branch.part.total_ns}")
    return lines


def branches_of(root: Node) -> Iterator[tuple[Path, Node]]:
    pending: list[tuple[Path, Node]] = [((), root)]
    while pending:
        path, node = pending.pop()
        yield path, node
        pending += [((*path, step), child) for step, child in node.children.items()]


DATABASE = [
    ("main query commit [k]sys_futex [k]futex_wait", 9, 60),
    ("main query read [k]sys_read [k]io_wait", 3, 25),
    ("main net [k]sys_recv", 1, 10),
    ("[k]kthread [k]worker", 0, 5),
]

functions = st.lists(st.sampled_from(["a", "b", "c"]), max_size=4)
stacks = st.tuples(functions, functions).map(
    lambda halves: " ".join((*halves[0], *(f"[k]{name}" for name in halves[1])))
)
selections = st.lists(st.tuples(stacks, st.integers(0, 5), st.just(0) | st.integers(0, 1000)), max_size=12)
shapes = st.builds(Shape, st.booleans(), st.sampled_from(["both", "kernel", "user"]), st.booleans())
paths = stacks.map(path_of) | st.tuples(stacks, st.just((MORE,))).map(lambda two: path_of(two[0]) + two[1])


# ---- the tree


def test_stacks_are_merged_by_function_name() -> None:
    root = grown([("main read", 2, 10), ("main write", 1, 40), ("main read", 3, 20), ("[k]main", 1, 1)])
    assert root.part == (7, 71, 20, 2 * log2.of(10) + log2.of(40) + 3 * log2.of(20) + log2.of(1))
    read = root.children[Step("main", False)].children[Step("read", False)]
    assert read.part == (5, 30, 10, 2 * log2.of(10) + 3 * log2.of(20))
    assert root.children[Step("main", True)].part.total_ns == 1


@given(selections, shapes)
def test_branch_has_the_time_of_the_stacks_through_it(waited: list[Waited], shape: Shape) -> None:
    catalog, places = measured(waited)
    of_place = steps_of(catalog, FixedNames(), shape)
    for path, node in branches_of(tree_of(places, catalog, FixedNames(), shape)):
        through = [part for place, part in places.items() if passes(of_place(place), path)]
        assert node.part == total(through)


def test_tree_without_waits_is_empty() -> None:
    root = grown([])
    assert root.part == (0, 0, 0, 0)
    assert flatten(root, (), 0) == []
    assert flatten(root, [path_of("main")], 0) == []
    assert opened_by_share(root) == all_paths(root) == frozenset()
    assert index_of([], path_of("main")) == 0


# ---- the lines


def test_closed_tree_is_its_outermost_functions_most_time_first() -> None:
    assert shown(flatten(grown(DATABASE), (), 0)) == ["+ main 95", "  [k]kthread › [k]worker 5"]


def test_open_tree_shows_chains_of_single_children_as_one_line() -> None:
    root = grown(DATABASE)
    assert shown(flatten(root, all_paths(root), 0)) == [
        "- main 95",
        "  - query 85",
        "      commit › [k]sys_futex › [k]futex_wait 60",
        "      read › [k]sys_read › [k]io_wait 25",
        "    net › [k]sys_recv 10",
        "  [k]kthread › [k]worker 5",
    ]


def test_equal_times_are_sorted_by_name() -> None:
    assert shown(flatten(grown([("c", 1, 5), ("a", 1, 5), ("b", 1, 5)]), (), 0)) == ["  a 5", "  b 5", "  c 5"]


def test_chain_ends_where_time_ends() -> None:
    root = grown([("main loop poll", 1, 10), ("main loop", 0, 1)])
    assert shown(flatten(root, all_paths(root), 0)) == ["- main › loop 11", "    poll 10"]


SMALL = [("main", 1, 900), ("main read", 1, 50), *((f"main f{n} g", 1, n) for n in range(1, 5))]


def test_small_branches_are_one_line_that_can_be_opened() -> None:
    root = grown(SMALL)
    opened = {path_of("main")}
    branches = flatten(root, opened, 5)
    assert shown(branches) == ["- main 960", "    read 50", "  + … 10"]
    assert branches[-1].more == 4
    assert branches[-1].part == (4, 10, 2, sum(map(log2.of, range(1, 5))))
    assert shown(flatten(root, opened_with(opened, branches[-1].path), 5))[2:] == [
        "  - … 10",
        "      f4 › g 4",
        "      f3 › g 3",
        "      f2 › g 2",
        "      f1 › g 1",
    ]


def test_each_summary_line_is_opened_on_its_own() -> None:
    root = grown([(f"{caller} f{n}", 1, n) for caller in ("a", "b") for n in range(1, 4)])
    opened = {path_of("a"), path_of("b"), (*path_of("b"), MORE)}
    assert shown(flatten(root, opened, 4)) == [
        "- a 6",
        "  + … 6",
        "- b 6",
        "  - … 6",
        "      f3 3",
        "      f2 2",
        "      f1 1",
    ]


def test_single_small_branch_is_shown_unchanged() -> None:
    assert shown(flatten(grown(SMALL), {path_of("main")}, 2))[-1] == "    f1 › g 1"


def test_negative_time_of_an_evicted_thread_is_small_even_without_summary_lines() -> None:
    root = grown([("a", 1, 10), ("b", 0, -2), ("c", 0, -3)])
    assert shown(flatten(root, (), 0)) == ["  a 10", "+ … -5"]


@given(selections, shapes, st.lists(paths, max_size=5), st.integers(0, 300))
def test_outermost_lines_add_up_to_the_selection(
    waited: list[Waited], shape: Shape, opened: list[Path], least_ns: int
) -> None:
    root = grown(waited, shape)
    branches = flatten(root, opened, least_ns)
    assert total(branch.part for branch in branches if branch.depth == 0) == root.part


@given(selections, shapes)
def test_fully_opened_tree_has_each_function_in_one_line_below_its_caller(waited: list[Waited], shape: Shape) -> None:
    root = grown(waited, shape)
    branches = flatten(root, all_paths(root), 0)
    folded = [branch.path[:length] for branch in branches for length in range(branch.first + 1, len(branch.path) + 1)]
    assert sorted(folded) == sorted(path for path, _ in branches_of(root) if path)
    nodes = dict(branches_of(root))
    for branch in branches:
        for length in range(branch.first + 1, len(branch.path)):
            assert len(nodes[branch.path[:length]].children) == 1
        for length in range(branch.first + 1, len(branch.path) + 1):
            assert nodes[branch.path[:length]].part[:2] == branch.part[:2]
        above = [other for other in branches[: branches.index(branch)] if other.depth < branch.depth]
        assert branch.path[: branch.first] == (above[-1].path if above else ())


@given(selections, st.lists(paths, max_size=5), st.integers(0, 300))
def test_opened_branch_stays_open_whatever_the_numbers(waited: list[Waited], opened: list[Path], least_ns: int) -> None:
    for branch in flatten(grown(waited), opened, least_ns):
        within = any(path[: len(branch.path)] == branch.path for path in opened)
        assert branch.opened == (branch.openable and within)


def test_open_branch_stays_open_when_its_chain_grows_and_splits() -> None:
    opened = {path_of("a b")}
    assert shown(flatten(grown([("a b c", 1, 1), ("a b d", 1, 2)]), opened, 0)) == ["- a › b 3", "    d 2", "    c 1"]
    assert shown(flatten(grown([("a b d", 1, 2)]), opened, 0)) == ["  a › b › d 2"]
    assert shown(flatten(grown([("a b c", 1, 9), ("a b d", 1, 2), ("a x", 1, 1)]), opened, 0)) == [
        "- a 12",
        "  - b 11",
        "      c 9",
        "      d 2",
        "    x 1",
    ]


# ---- opening and closing


def test_branches_with_a_tenth_of_the_time_are_open_at_first() -> None:
    assert opened_by_share(grown(DATABASE)) == {path_of("main"), path_of("main query")}
    assert opened_by_share(grown(DATABASE), 0.9) == {path_of("main")}
    assert opened_by_share(grown([("a b", 0, 0), ("a c", 0, 0)])) == frozenset()


def test_closing_a_branch_closes_everything_in_it_and_nothing_else() -> None:
    root = grown([("a b c d", 1, 4), ("a b c e", 1, 3), ("a b f", 1, 2), ("a g", 1, 1)])
    opened = opened_with((), path_of("a b c"))
    assert [branch.opened for branch in flatten(root, opened, 0)] == [True, True, True, False, False, False, False]
    without = closed(opened, path_of("a b c"))
    assert shown(flatten(root, without, 0)) == ["- a 10", "  - b 9", "    + c 7", "      f 2", "    g 1"]
    assert shown(flatten(root, closed(opened, path_of("a")), 0)) == ["+ a 10"]
    assert closed(without, path_of("a b c")) == without
    assert closed(opened, path_of("x y")) == opened


@given(selections, st.lists(paths, max_size=5), st.integers(0, 300), st.data())
def test_closing_a_line_leaves_the_others_unchanged(
    waited: list[Waited], opened: list[Path], least_ns: int, data: st.DataObject
) -> None:
    root = grown(waited)
    before = flatten(root, opened, least_ns)
    assume(before)
    chosen = data.draw(st.sampled_from(before))
    after = flatten(root, closed(opened, chosen.path), least_ns)
    line = before.index(chosen)
    below = next((i for i in range(line + 1, len(before)) if before[i].depth <= chosen.depth), len(before))
    assert after == [*before[:line], chosen._replace(opened=False), *before[below:]]


@given(selections, st.lists(paths, max_size=5), st.integers(0, 300), st.data())
def test_opening_a_line_opens_it(waited: list[Waited], opened: list[Path], least_ns: int, data: st.DataObject) -> None:
    root = grown(waited)
    before = flatten(root, opened, least_ns)
    assume(before)
    chosen = data.draw(st.sampled_from(before))
    after = flatten(root, opened_with(opened, chosen.path), least_ns)
    assert after[before.index(chosen)] == chosen._replace(opened=chosen.openable)


def test_too_large_tree_opens_what_has_most_time() -> None:
    root = grown([(f"f{n // 2} g{n}", 1, 10_000 - n) for n in range(2 * MOST_LINES)])
    assert len(root.children) == MOST_LINES
    assert all_paths(root) == frozenset()
    root = grown([(f"main f{n // 2} g{n}", 1, 10_000 - n) for n in range(1400)])
    opened = all_paths(root)
    assert len(flatten(root, opened, 0)) == 1 + 700 + 2 * 649
    assert path_of("main f0") in opened
    assert path_of("main f699") not in opened


def test_deepest_stacks_need_no_recursion() -> None:
    root = grown([(" ".join(f"f{n}" for n in range(depth)), 1, 1) for depth in range(1, 255)])
    branches = flatten(root, all_paths(root), 0)
    assert [branch.depth for branch in branches] == [*range(254)]
    assert branches[-1].part.total_ns == 1


# ---- the cursor


def test_cursor_stays_on_its_branch_or_goes_to_the_nearest_ancestor() -> None:
    root = grown(DATABASE)
    branches = flatten(root, all_paths(root), 0)
    where: Mapping[str, int] = {
        "": 0,
        "main": 0,
        "main query": 1,
        "main query commit [k]sys_futex": 2,
        "main query commit [k]sys_futex [k]futex_wait [k]gone": 2,
        "main query read [k]sys_write": 3,
        "main query gone": 1,
        "main gone": 0,
        "[k]kthread": 5,
        "gone": 0,
    }
    assert {path: index_of(branches, path_of(path)) for path in where} == where


def test_cursor_on_a_branch_that_became_small_goes_to_its_summary_line() -> None:
    root = grown(SMALL)
    branches = flatten(root, {path_of("main")}, 5)
    assert index_of(branches, path_of("main f2 g")) == 2
    assert index_of(branches, (*path_of("main"), MORE)) == 2
    assert index_of(branches, path_of("main read")) == 1
    assert index_of(branches, path_of("gone f2")) == 0
    assert index_of(branches, path_of("main")) == 0
    branches = flatten(root, {(*path_of("main"), MORE)}, 5)
    assert index_of(branches, path_of("main f2 g")) == 5
    assert index_of(branches, path_of("main gone")) == 0


@given(selections, st.lists(paths, max_size=5), st.integers(0, 300), paths)
def test_any_path_has_a_line_and_each_line_has_its_own_path(
    waited: list[Waited], opened: list[Path], least_ns: int, path: Path
) -> None:
    branches = flatten(grown(waited), opened, least_ns)
    assert 0 <= index_of(branches, path) <= max(0, len(branches) - 1)
    for line, branch in enumerate(branches):
        for length in range(branch.first + 1, len(branch.path) + 1):
            if not branch.more or length == len(branch.path):
                assert index_of(branches, branch.path[:length]) == line
