"""The tables: the list of categories, and the list of programs, processes, threads and what else may be listed."""

from offtop.model.aggregate import location
from offtop.model.aggregate.baseline_rows import BaselineOnly
from offtop.model.aggregate.breakdown_rows import STORM_OF
from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.filter_syntax import of_program, parse, quoted
from offtop.model.aggregate.pool import Pool, family, parts
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.rows import NOWHERE, Key, Row
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import BELOW_REASON, NO_REASON, Reason
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.wake import Object
from offtop.model.viewmodel import drilling, view_changes
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import CATEGORIES, LIST
from offtop.model.windows.breakdown import ALL
from offtop.printable import printable
from offtop.ui.actions.display import Display
from offtop.ui.actions.pane import Pane, list_key, list_row, within
from offtop.ui.actions.sorting import Sorting
from offtop.ui.kit.columns import sort_at
from offtop.ui.kit.layout import Layout
from offtop.ui.kit.lines import Line, Pen
from offtop.ui.panes import tables, wakers
from offtop.ui.panes.tables import CATEGORY_MARK, LIST_MARK, category_columns, list_columns, seen_rows


class CategoriesPane(Pane):
    name = CATEGORIES
    highlights_matches = False
    title_lines = 1

    def __init__(self, display: Display, sorting: Sorting) -> None:
        super().__init__(display)
        self._sorting = sorting

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        return tables.categories(picture.categories, picture.common, pen)

    def move(self, picture: Picture, step: int) -> None:
        view = self._display.view
        keys = [ALL, *(row.key for row in picture.categories.ranking.rows if isinstance(row.key, str))]
        index = keys.index(view.category) if view.category in keys else 0
        self._display.set_view(drilling.at_category(view, keys[within(index + step, keys)]))

    def click(self, picture: Picture, x: int, y: int) -> bool:
        rows, seen = picture.categories.ranking.rows, picture.categories.seen
        keys = [ALL, *(row.key for row in rows[seen.first : seen.end])]
        if y == 0:
            columns = category_columns(picture.categories, picture.common, self._pen)
            self._sorting.sort_by_title(sort_at(columns, CATEGORY_MARK, x))
        elif y <= len(keys) and isinstance(key := keys[y - 1], str):
            is_selected = key == self._display.view.category and self._has_focus
            view = self._focused_view
            self._display.set_view(
                drilling.entered(view, None) if is_selected else drilling.at_category(view, key, max(0, y - 2))
            )
            return is_selected
        return False

    def as_filter(self, picture: Picture) -> Filter | None:
        category = self._display.view.category
        return parse(f"cat={category}") if category != ALL else None


class ListPane(Pane):
    name = LIST

    def __init__(self, display: Display, sorting: Sorting) -> None:
        super().__init__(display)
        self._sorting = sorting

    def _draw(self, picture: Picture, pen: Pen, layout: Layout) -> list[Line]:
        return tables.rows(picture.listed, picture.account, picture.common, pen)

    def move(self, picture: Picture, step: int) -> None:
        rows = picture.listed.ranking.rows
        if rows:
            key = rows[within(picture.listed.cursor + step, rows)].key
            self._display.set_view(drilling.at_row(self._display.view, key))

    def enter(self, picture: Picture) -> None:
        super().enter(picture)
        key = list_key(picture)
        if isinstance(key, Object) and not key.kind:
            self._display.show_alert("the object of these waits is unknown: 1 shows where threads waited")

    def open(self) -> None:
        self._fold(False)

    def close(self) -> None:
        self._fold(True)

    def _fold(self, folded: bool) -> None:
        """List pools of threads, or programs, as one row each, or what they consist of."""
        view, picture = self._display.view, self._display.picture
        rows = picture.listed.ranking.rows if picture else ()
        lists_a_program = any(isinstance(row.key, Program) for row in rows)
        if view.lists_threads:
            self._display.set_view(drilling.folded_or_not(view, not folded))
        elif view.lists_processes and view.program is None and (folded or lists_a_program):
            self._display.set_view(drilling.programs_or_processes(view, folded))
        elif view.lists_sleepers:
            self._display.show_alert("+ and - unfold and fold programs, and pools of threads: H lists those")
        else:
            self._display.show_alert("+ and - unfold and fold programs and pools of threads that wait: 1 lists them")

    def next_match(self, picture: Picture, word: str, step: int) -> bool:
        view = self._focused_view
        matches = {
            index: drilling.at_row(view, row.key)
            for index, row in enumerate(picture.listed.ranking.rows)
            if word in self._text_of(row, picture).casefold()
        }
        return self._go_to_match(matches, picture.listed.cursor, step)

    def process(self) -> int:
        row = list_row(self._display.picture)
        return row.pid if row else super().process()

    def key_to_pin(self) -> Key | None:
        view = self._display.view
        return (view.thread if view.lists_sleepers else None) or list_key(self._display.picture)

    def as_filter(self, picture: Picture) -> Filter | None:
        row = list_row(picture)
        if row is None:
            return None
        match row.key:
            case str(cgroup):
                return parse(view_changes.in_cgroup(cgroup).text)
            case Program():
                return parse(of_program(row.key).text)
            case WakerKey():
                return parse(f"waker={quoted(row.key.name.removeprefix(STORM_OF))}")
            case Object():
                return parse(f"object={quoted(row.key.label)}") if row.key.kind else None
            case Reason():
                known = row.key not in (NO_REASON, BELOW_REASON)
                return parse(f"why={quoted(row.key.name)}") if known else None
            case ThreadKey() | Pool():
                return parse(f"thread={_family(row)}") if row.pid else None
            case _:
                return parse(f"proc={_family(row)}") if row.pid else None

    def as_text(self, picture: Picture) -> str:
        row = list_row(picture)
        if row is None:
            return super().as_text(picture)
        many = f"x{row.processes}" if row.processes else row.pid
        key = printable(row.key) if isinstance(row.key, str) else many
        named = not isinstance(row.key, WakerKey | Object | Reason | BaselineOnly) or row.pid
        return f"{f'{key} ' if named else ''}{printable(self._text_of(row, picture))} {row.waiting:.2f}"

    def _text_of(self, row: Row, picture: Picture) -> str:
        if not self._display.view.lists_sleepers:
            return f"{row.name} {wakers.row_text(picture.common, row, self._pen)}"
        place = "" if row.top == NOWHERE else location.of_sleeper(picture.common.catalog, row.top, self._pen.names)
        return f"{row.title or row.name} {row.process} {place}"

    def click(self, picture: Picture, x: int, y: int) -> bool:
        head = 1 + picture.listed.account_lines
        line = y - head - 1
        if y == head:
            self._sorting.sort_by_title(sort_at(list_columns(picture.listed, picture.common, self._pen), LIST_MARK, x))
        elif 0 <= line < len(rows := seen_rows(picture.listed, self._pen)):
            key, view = rows[line].key, self._focused_view
            is_selected = picture.listed.first + line == picture.listed.cursor and self._has_focus
            self._display.set_view(drilling.entered(view, key) if is_selected else drilling.at_row(view, key, line))
            return is_selected
        return False


def _family(row: Row) -> str:
    """Return a pattern for all threads whose names differ from this one only by numbers.

    A name that is only a number stays as it is.
    """
    shared = parts(row.key.family if isinstance(row.key, Pool) else family(row.name))
    return "*".join(quoted(part) if part else "" for part in shared) if any(shared) else quoted(row.name)
