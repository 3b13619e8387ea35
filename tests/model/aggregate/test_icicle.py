"""Icicle: boxes as wide as their time, that neither overlap nor leave their parents, and what is not drawn."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate.icicle import Direction, Icicle, at, box_of, layout, neighbour
from offtop.model.aggregate.steps import Path
from offtop.model.aggregate.tree import Node
from tests.model.aggregate.test_tree import Waited, branches_of, grown, path_of, paths, selections, written


def drawn(icicle: Icicle, width: int) -> list[str]:
    """Each row: the last letter of a box's name in each of its cells."""
    rows = [[" "] * width for _ in range(icicle.rows)]
    for box in icicle.boxes:
        rows[box.depth][box.x : box.x + box.width] = box.name[-1] * box.width
    return ["".join(row) for row in rows]


def of(waited: Sequence[Waited], width: int = 10, rows: int = 9, zoom: str = "") -> Icicle:
    return layout(grown(waited), path_of(zoom), width, rows)


DATABASE = [("a b c", 1, 40), ("a b d", 1, 20), ("a e", 1, 10), ("f", 1, 30)]


# ---- the boxes


def test_box_is_as_wide_as_its_time_and_below_its_caller() -> None:
    icicle = of(DATABASE)
    assert drawn(icicle, 10) == [
        "aaaaaaafff",
        "bbbbbbe   ",
        "ccccdd    ",
    ]
    assert (icicle.rows, icicle.whole_ns) == (3, 100)
    assert (icicle.dropped, icicle.dropped_ns, icicle.dropped_deep, icicle.above) == (0, 0, 0, 0)
    first = icicle.boxes[0]
    assert (first.path, first.name, first.kernel, first.depth) == (path_of("a"), "a", False, 0)
    assert first.part.waits == 3


def test_siblings_are_sorted_by_name_with_the_kernel_last() -> None:
    assert drawn(of([("[k]a", 1, 1), ("c", 1, 1), ("b", 1, 3)], 5), 5) == ["bbbca"]
    assert drawn(of([("[k]a", 1, 3), ("c", 1, 1), ("b", 1, 1)], 5), 5) == ["bcaaa"]


def test_time_that_ends_in_a_function_has_no_box_below_it() -> None:
    assert drawn(of([("a", 1, 5), ("a b", 1, 5)]), 10) == ["aaaaaaaaaa", "bbbbb     "]


def test_spare_cells_go_to_the_largest_remainders() -> None:
    assert drawn(of([("a", 1, 34), ("b", 1, 33), ("c", 1, 33)]), 10) == ["aaaabbbccc"]
    assert drawn(of([("a", 1, 17), ("b", 1, 17), ("c", 1, 66)]), 10) == ["aabbcccccc"]
    assert drawn(of([("a", 1, 6), ("b", 1, 94)]), 10) == ["abbbbbbbbb"]


def test_box_without_a_whole_cell_is_dropped_and_counted_once() -> None:
    icicle = of([("a", 1, 960), ("b x", 1, 30), ("b y", 1, 5), ("c", 1, 5)])
    assert drawn(icicle, 10) == ["aaaaaaaaaa"]
    assert (icicle.dropped, icicle.dropped_ns) == (2, 40)
    icicle = of([(f"f{n}", 1, 4) for n in range(25)])
    assert (icicle.boxes, icicle.rows, icicle.dropped, icicle.dropped_ns) == ((), 0, 25, 100)


def test_boxes_below_the_last_row_are_counted() -> None:
    icicle = of(DATABASE, rows=2)
    assert drawn(icicle, 10) == ["aaaaaaafff", "bbbbbbe   "]
    assert (icicle.dropped_deep, icicle.dropped, icicle.rows) == (2, 0, 2)
    assert of([("a b c", 1, 1), ("a d", 1, 1), ("a e", 1, 1)], rows=1).dropped_deep == 3


def test_negative_time_of_an_evicted_thread_has_no_box() -> None:
    icicle = of([("a b", 1, 15), ("a c", 0, -5), ("d", 0, -1)])
    assert drawn(icicle, 10) == ["aaaaaaaaaa", "bbbbbbbbbb"]
    assert icicle.dropped == 0


def test_no_time_or_no_room_gives_no_boxes() -> None:
    assert of([]) == Icicle()
    assert of([("a b", 1, 0)]) == Icicle()
    assert of(DATABASE, width=0) == of(DATABASE, rows=0) == Icicle(whole_ns=100)


# ---- zoom


def test_zoomed_box_and_its_ancestors_have_the_full_width() -> None:
    icicle = of(DATABASE, zoom="a b")
    assert drawn(icicle, 10) == ["aaaaaaaaaa", "bbbbbbbbbb", "cccccccddd"]
    assert [box.part.total_ns for box in icicle.boxes] == [70, 60, 40, 20]
    assert icicle.whole_ns == 100


def test_zoom_on_a_branch_that_is_gone_moves_to_its_nearest_ancestor() -> None:
    assert of(DATABASE, zoom="a b x y") == of(DATABASE, zoom="a b")
    assert of(DATABASE, zoom="x") == of(DATABASE)
    assert of([], zoom="a") == of([])


def test_ancestors_leave_half_of_the_rows() -> None:
    icicle = of([("a b c d e f g h", 1, 1)], rows=4, zoom="a b c d e")
    assert "".join(box.name for box in icicle.boxes) == "defg"
    assert [box.depth for box in icicle.boxes] == [0, 1, 2, 3]
    assert (icicle.above, icicle.dropped_deep) == (3, 1)
    assert "".join(box.name for box in of([("a b c", 1, 1)], rows=1, zoom="a b").boxes) == "b"


# ---- keys and mouse


def test_keys_lead_to_the_next_box_the_parent_and_the_widest_child() -> None:
    icicle = of(DATABASE)
    moves: list[tuple[str, Direction, str]] = [
        ("a", "right", "f"),
        ("a", "left", "a"),
        ("a", "up", "a"),
        ("a", "down", "a b"),
        ("f", "left", "a"),
        ("f", "right", "f"),
        ("f", "down", "f"),
        ("a b d", "left", "a b c"),
        ("a b d", "up", "a b"),
        ("a e", "left", "a b"),
        ("a b gone", "right", "a e"),
        ("gone", "right", "f"),
    ]
    for start, direction, end in moves:
        found = neighbour(icicle, path_of(start), direction)
        assert found
        assert (start, direction, written(found.path)) == (start, direction, end)


def test_keys_skip_no_box() -> None:
    icicle = of([(name, 1, 1) for name in "abcde"])
    right, left = (neighbour(icicle, path_of("c"), direction) for direction in ("right", "left"))
    assert right and left
    assert (left.name, right.name) == ("b", "d")


def test_keys_lead_nowhere_without_boxes() -> None:
    assert neighbour(Icicle(), path_of("a"), "down") is None
    assert box_of(Icicle(), ()) is None
    assert at(Icicle(), 0, 0) is None


def test_mouse_points_at_the_box_in_its_cell() -> None:
    icicle = of(DATABASE)
    for row, cells in enumerate(drawn(icicle, 10)):
        for x, name in enumerate(cells):
            box = at(icicle, x, row)
            assert (box.name if box else " ") == name
    assert at(icicle, -1, 0) is at(icicle, 10, 0) is at(icicle, 0, -1) is at(icicle, 0, 3) is None


# ---- laws


sizes = st.tuples(st.integers(0, 40), st.integers(0, 8))


@given(selections, paths, sizes)
def test_boxes_stay_within_their_parents_and_beside_their_siblings(
    waited: list[Waited], zoom: Path, size: tuple[int, int]
) -> None:
    width, rows = size
    icicle = layout(grown(waited), zoom, width, rows)
    by_path = {box.path: box for box in icicle.boxes}
    for box in icicle.boxes:
        assert box.width >= 1
        assert box.x >= 0
        assert box.x + box.width <= width
        assert box.depth < icicle.rows <= rows
        parent = by_path.get(box.path[:-1])
        if parent is None:
            assert box.depth == 0
        else:
            assert box.depth == parent.depth + 1
            assert parent.x <= box.x
            assert box.x + box.width <= parent.x + parent.width
    for left, right in pairwise(icicle.boxes):
        assert left.depth < right.depth or (left.depth == right.depth and left.x + left.width <= right.x)


def existing(root: Node, path: Path) -> Path:
    """Return the longest prefix of `path` that is in the tree."""
    return max((one for one, _ in branches_of(root) if path[: len(one)] == one), key=len)


@given(selections, paths, sizes)
def test_width_is_off_by_less_than_a_cell(waited: list[Waited], zoom: Path, size: tuple[int, int]) -> None:
    root = grown(waited)
    icicle = layout(root, zoom, *size)
    by_path = {box.path: box for box in icicle.boxes}
    for path, node in branches_of(root):
        zoomed = existing(root, zoom)
        if len(path) <= len(zoomed) or path[: len(zoomed)] != zoomed or size[0] == 0:
            continue
        parent = by_path.get(path[:-1])
        whole = dict(branches_of(root))[path[:-1]].total_ns
        if parent is None and path[:-1] != ():
            assert path not in by_path
        elif whole and len(path) - icicle.above <= size[1]:
            share = node.total_ns * (parent.width if parent else size[0]) / whole
            cells = by_path[path].width if path in by_path else 0
            assert abs(cells - share) < 1
            assert cells or share < 1


def ended_ns(node: Node) -> int:
    return node.total_ns - sum(child.total_ns for child in node.children.values())


@given(selections, paths, sizes)
def test_all_time_is_in_a_box_or_counted(waited: list[Waited], zoom: Path, size: tuple[int, int]) -> None:
    width, rows = max(1, size[0]), max(1, size[1])
    root = grown(waited)
    icicle = layout(root, zoom, width, rows)
    nodes = dict(branches_of(root))
    zoomed = existing(root, zoom)
    below = [box for box in icicle.boxes if len(box.path) > len(zoomed)]
    ended = ended_ns(nodes[zoomed]) if len(zoomed) - icicle.above < rows else nodes[zoomed].total_ns
    for box in below:
        ended += box.part.total_ns if box.depth == rows - 1 else ended_ns(nodes[box.path])
    assert ended + icicle.dropped_ns == nodes[zoomed].total_ns
    assert icicle.dropped_ns == 0 or icicle.dropped > 0


@given(selections, paths, sizes, paths, st.sampled_from(["left", "right", "up", "down"]))
def test_key_leads_to_a_box_while_there_is_one(
    waited: list[Waited], zoom: Path, size: tuple[int, int], path: Path, direction: Direction
) -> None:
    icicle = layout(grown(waited), zoom, *size)
    assert (neighbour(icicle, path, direction) in icicle.boxes) == (icicle.boxes != ())
