"""The layout gives the categories what they need, and the rest to the list and the tree."""

import pytest

from offtop.model.viewmodel.view import CATEGORIES, HEATMAP, LATENCY, LIST, TREE, View
from offtop.ui.kit.layout import LEAST_LIST, Layout, arrange


def heights(made: Layout, *panels: str) -> tuple[int, ...]:
    return tuple(made.panels[panel].height for panel in panels)


@pytest.mark.parametrize(
    ("categories", "rows"), [(0, 0), (1, 2), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6), (7, 7), (30, 7)]
)
def test_categories_have_an_even_number_of_rows_up_to_a_limit(categories: int, rows: int) -> None:
    made = arrange(80, 24, categories=categories, cost=False)
    assert heights(made, CATEGORIES, LIST) == (2 + rows, 24 - 4 - 2 - (2 + rows)), "column titles and the sum"


def test_unknown_number_of_categories_gets_all_lines_there_are_for_them() -> None:
    assert arrange(80, 24).panels[CATEGORIES] == arrange(80, 24, categories=100).panels[CATEGORIES]


@pytest.mark.parametrize("size", [(80, 12), (80, 24), (100, 40), (160, 50), (220, 60)])
def test_most_categories_do_not_depend_on_how_many_there_are(size: tuple[int, int]) -> None:
    assert len({arrange(*size, categories=categories).room.categories for categories in (None, 0, 3, 8, 100)}) == 1


def test_zoomed_categories_have_the_whole_body() -> None:
    made = arrange(80, 24, View(zoomed=True), categories=3, cost=False)
    assert heights(made, CATEGORIES) == (24 - 4 - 2,)
    assert made.room.categories == 24 - 4 - 2 - 2


def test_line_about_what_is_not_exact_is_there_if_needed_and_if_there_is_room() -> None:
    needed, exact = (arrange(80, 24, categories=4, cost=cost) for cost in (True, False))
    assert (needed.cost, exact.cost) == (True, False)
    assert heights(needed, "head", CATEGORIES, LIST) == (5, 6, 11)
    assert heights(exact, "head", CATEGORIES, LIST) == (4, 6, 12)
    assert not arrange(80, 19, cost=True).cost


def test_tree_is_below_the_list_up_to_199_columns_and_beside_it_from_200() -> None:
    for width in (160, 199):
        below = arrange(width, 50, categories=5, cost=False).panels
        assert (below[LIST].width, below[TREE].width) == (width, width)
        assert below[TREE].y == below[LIST].y + below[LIST].height
    beside = arrange(200, 50, categories=5, cost=False).panels
    assert beside[LIST].y == beside[TREE].y
    assert beside[TREE].x == beside[LIST].width + 1


def test_latency_beside_few_categories_has_room_for_its_rows() -> None:
    histogram = arrange(160, 50, categories=2, cost=False)
    assert heights(histogram, CATEGORIES, LATENCY) == (9, 9)
    two_histograms = arrange(160, 50, within=True, categories=2, cost=False)
    assert heights(two_histograms, LATENCY) == (16,), "a third of the screen"
    heat_map = arrange(160, 50, View(latency=HEATMAP), categories=2, cost=False)
    assert heights(heat_map, LATENCY) == (16,)


@pytest.mark.parametrize("height", range(8, 25))
def test_list_is_on_the_screen_only_if_it_has_room_for_rows(height: int) -> None:
    for categories in range(8):
        for focus in (CATEGORIES, LIST):
            panels = arrange(80, height, View(focus=focus), categories=categories).panels
            assert focus in panels
            assert LIST not in panels or panels[LIST].height >= LEAST_LIST
