"""Actions of the keys.

Most of them compute the next View from the current one and from what the screen shows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import Thread

from textual.message import Message

from offtop.export import folded
from offtop.model.aggregate import location
from offtop.model.aggregate import tree as trees
from offtop.model.aggregate.baseline_rows import BaselineOnly
from offtop.model.aggregate.filter import Filter, FilterError, of_program, parse, quoted
from offtop.model.aggregate.pool import Pool, family, parts
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.rows import NO_CGROUP, NOWHERE, STORM_OF, Key, Row
from offtop.model.aggregate.stack_problems import Problems, ProblemSummary
from offtop.model.aggregate.steps import NO_FRAMES, NO_THING, TURNS, WOKE, Path, Step
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import BELOW_REASON, NO_REASON, Reason
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import EXITED, UNNAMED
from offtop.model.values.wake import Object
from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.outlier_list import which
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import CATEGORIES, FLAME, LATENCY, LIST, OUTLIERS, SITE, STUCK, TREE
from offtop.model.windows.breakdown import ALL
from offtop.printable import printable
from offtop.ui.actions.base import ActionsBase
from offtop.ui.actions.display import refuse_without
from offtop.ui.actions.filters import set_measured_view
from offtop.ui.kit.lines import Line
from offtop.ui.panes import icicle, latency, outliers, stacks, stuck, wakers
from offtop.ui.panes.process_details import ProcessDetails
from offtop.ui.panes.stack_problems import StackProblems

_UNCUT_WIDTH = 10_000
"""Width of copied lines, so that they are not cut to the screen."""
_LINE_END = "\n"


class DetailsReady(Message):
    """The details of a process were read."""

    def __init__(self, pid: int, details: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.pid, self.details = pid, details


class KeyActions(ActionsBase):
    """Actions of the keys, for the app to inherit."""

    _problems: Problems

    # Moving

    def action_move(self, step: int) -> None:
        self._move(step)

    def action_page(self, pages: int) -> None:
        pane = self.layout.panels.get(self.view.focus)
        above = 1 if self.view.focus == CATEGORIES else 2
        self._move(pages * max(1, (pane.height if pane else 3) - above - 1))

    def action_first(self) -> None:
        self._move(-1_000_000)

    def action_last(self) -> None:
        self._move(1_000_000)

    def _move(self, step: int) -> None:
        """Move the cursor of the focused pane down by `step` rows, or up if negative."""
        picture, view = self.picture, self.view
        if picture is None:
            return
        if view.focus == CATEGORIES:
            keys = [ALL, *(row.key for row in picture.categories.rows if isinstance(row.key, str))]
            index = keys.index(view.category) if view.category in keys else 0
            self.set_view(drilling.at_category(view, keys[_within(index + step, keys)]))
        elif view.focus == LIST and picture.rows.rows:
            self.set_view(
                drilling.at_row(view, picture.rows.rows[_within(picture.cursor_row + step, picture.rows.rows)].key)
            )
        elif view.focus == TREE and picture.tree and picture.tree.branches:
            self._at_branch(picture, _within(picture.tree.cursor + step, picture.tree.branches))
        elif view.focus == SITE:
            pane = self.layout.panels.get(SITE)
            last = max(0, stacks.site_length(picture, self.pen(SITE)) - (pane.height - 1 if pane else 0))
            self.set_view(panes.scrolled_to(view, max(0, min(last, view.scrolled + step))))
        elif view.focus == LATENCY:
            self.set_view(views.at_cell(view, latency.moved(picture, 0, -step)))
        elif view.focus == STUCK:
            self._move_stuck(picture, step)
        elif view.focus == OUTLIERS:
            self._move_outlier(picture, step)
        elif view.focus == FLAME:
            for _ in range(min(abs(step), 20)):
                view = panes.at_box(view, icicle.neighbour(replace(picture, view=view), "down" if step > 0 else "up"))
            self.set_view(view)

    def _move_stuck(self, picture: Picture, step: int) -> None:
        """Move in the list of waits, or scroll the wait that fills the pane."""
        view, waits = self.view, picture.stuck.shown.waits
        if not waits:
            return
        if view.stuck.opened:
            pen = self.pen(STUCK)
            last = max(0, len(stuck.in_full(picture, pen)) - pen.height + 1)
            self.set_view(panes.stuck_opened(view, max(0, min(last, view.stuck.scrolled + step))))
        else:
            row = _within(picture.stuck.cursor + step, waits)
            self.set_view(panes.at_stuck(view, waits[row].site.thread))

    def _move_outlier(self, picture: Picture, step: int) -> None:
        """Move in the list of outliers, or scroll the one that fills the pane."""
        view, shown = self.view, picture.outliers
        if not shown.groups:
            return
        if view.outliers.opened:
            pen = self.pen(OUTLIERS)
            last = max(0, len(outliers.in_full(picture, pen)) - pen.height + 1)
            self.set_view(panes.outlier_opened(view, max(0, min(last, view.outliers.scrolled + step))))
        else:
            row = max(0, min(len(shown.groups) - 1, shown.cursor + step))
            self.set_view(panes.at_outlier(view, which(shown.groups[row])))

    def _enter_outlier(self, picture: Picture) -> None:
        """Show the outlier under the cursor in full; if it is shown already, go to its time."""
        shown = picture.outliers
        if shown.groups and self.view.outliers.opened:
            self.outlier_times.go_to(shown.groups[shown.cursor])
        elif shown.groups:
            self._move_outlier(picture, 0)
            self.set_view(panes.outlier_opened(self.view))

    def _at_branch(self, picture: Picture, index: int) -> None:
        shown = picture.tree
        if shown is None:
            return
        pane = self.layout.panels.get(TREE)
        lines = max(1, (pane.height if pane else 3) - 2)
        line = max(0, min(lines - 1, index - shown.first))
        self.set_view(panes.at_branch(self.view, shown.branches[index].path, line))

    def action_next_pane(self, step: int) -> None:
        self.set_view(views.next_pane(self.view, self.layout.panes, step))

    def action_drill(self) -> None:
        picture, view = self.picture, self.view
        if picture is None:
            return
        if view.focus == TREE:
            branch = self._branch()
            if branch is None:
                return
            if branch.more:
                self.action_open()
            else:
                self.set_view(drilling.entered(panes.at_branch(view, branch.path, view.tree.line), None))
        elif view.focus == STUCK:
            if picture.stuck.shown.waits and not view.stuck.opened:
                self._move_stuck(picture, 0)
                self.set_view(panes.stuck_entered(self.view, picture.stuck.alike(picture.stuck.cursor)))
        elif view.focus == OUTLIERS:
            self._enter_outlier(picture)
        elif view.focus == FLAME:
            self.set_view(panes.zoomed_in(view, icicle.chosen(picture)))
        elif view.focus == LATENCY:
            cell = latency.moved(picture, 0, 0)
            if cell and latency.is_measured(picture):
                self.set_view(replace(views.paused_at(view, cell.end_ns), zoomed=False))
            else:
                self.show_alert("nothing was measured then")
        else:
            key = self._key_under_cursor()
            self.set_view(drilling.entered(view, key))
            if isinstance(key, BaselineOnly):
                self.show_alert("this is only in the baseline: nothing waits there now")
            elif view.focus == LIST and isinstance(key, Object) and not key.kind:
                self.show_alert("the object of these waits is unknown: 1 shows where threads waited")

    def action_leave(self) -> None:
        self.set_view(drilling.left(self.view))

    def action_sideways(self, step: int) -> None:
        """Handle the arrow keys right (1) and left (-1)."""
        picture, focus = self.picture, self.view.focus
        if picture is None:
            return
        if focus == TREE:
            self.action_open() if step > 0 else self.action_close()
        elif focus == LATENCY:
            self.set_view(views.at_cell(self.view, latency.moved(picture, step, 0)))
        elif focus == FLAME:
            self.set_view(panes.at_box(self.view, icicle.neighbour(picture, "right" if step > 0 else "left")))
        elif step > 0:
            self.action_drill()
        else:
            self.action_leave()

    def _key_under_cursor(self) -> Key | None:
        picture = self.picture
        if picture is None or not picture.rows.rows:
            return None
        return picture.rows.rows[picture.cursor_row].key

    # The tree

    def action_open(self) -> None:
        if self.view.focus in (LIST, STUCK):
            self._fold(False)
            return
        branch = self._branch()
        if branch is not None and branch.openable:
            self.set_view(panes.branch_opened(self.view, branch.path))

    def action_close(self) -> None:
        """Close the branch; if it is not open, move to its parent."""
        if self.view.focus in (LIST, STUCK):
            self._fold(True)
            return
        branch, shown = self._branch(), self.picture.tree if self.picture else None
        if branch is None or shown is None:
            return
        if branch.opened:
            self.set_view(panes.branch_closed(self.view, branch.path))
        elif branch.first:
            self._at_branch_of(branch.path[: branch.first])

    def _fold(self, folded: bool) -> None:
        """List pools of threads, programs, or waits that look alike, as one row each, or what they consist of."""
        if self.view.focus == STUCK:
            self.set_view(drilling.programs_or_processes(self.view, folded))
        elif self.view.lists_threads:
            self.set_view(drilling.folded_or_not(self.view, not folded))
        elif self.view.lists_processes and self.view.program is None and (folded or self._lists_a_program):
            self.set_view(drilling.programs_or_processes(self.view, folded))
        elif self.view.lists_sleepers:
            self.show_alert("+ and - unfold and fold programs, and pools of threads: H lists those")
        else:
            self.show_alert("+ and - unfold and fold programs and pools of threads that wait: 1 lists them")

    @property
    def _lists_a_program(self) -> bool:
        picture = self.picture
        return picture is not None and any(isinstance(row.key, Program) for row in picture.rows.rows)

    def _at_branch_of(self, path: Path) -> None:
        picture = self.picture
        if picture and picture.tree:
            self._at_branch(picture, trees.index_of(picture.tree.branches, path))

    def action_open_all(self) -> None:
        if not refuse_without(self, "the stack tree: t shows it", TREE) and self.picture and self.picture.tree:
            self.set_view(panes.all_opened(self.view, trees.all_paths(self.picture.tree.root)))

    def _branch(self) -> trees.Branch | None:
        """Return the branch under the cursor; show an alert if there is none or the tree lacks the focus."""
        shown = self.picture.tree if self.picture else None
        if self.view.focus != TREE or shown is None or not shown.branches:
            empty = "there is no stack here" if self.view.focus == TREE else ""
            self.show_alert(empty or "this key is for the stack tree: t shows it")
            return None
        return shown.branches[shown.cursor]

    def _subject_pid(self) -> int:
        """Return the PID of the process under the cursor, or of the one drilled into; 0 if there is none."""
        picture, view = self.picture, self.view
        thread = self._stuck_thread()
        if thread is not None:
            return thread.pid
        if view.focus == LIST and picture and picture.rows.rows:
            return picture.rows.rows[picture.cursor_row].pid
        return view.subject_ids[0] or 0

    def action_process_details(self) -> None:
        pid = self._subject_pid()
        if not pid and self.view.focus == STUCK:
            self.show_alert("no process to show: this list is empty, or the thread has no process here")
        elif not pid:
            self.show_alert(f"Y shows details of the process under the cursor: {self._key_to_processes}")
        else:
            Thread(target=self._read_details, args=(pid,), name="offtop-facts", daemon=True).start()

    def _read_details(self, pid: int) -> None:
        """Fetch the details in a separate thread, because reading a command line may take long."""
        details = self._source.process_details(pid)
        self.post_message(DetailsReady(pid, details))

    def on_details_ready(self, message: DetailsReady) -> None:
        if len(self.screen_stack) == 1:
            title = f"process {message.pid}"
            self.push_screen(
                ProcessDetails(
                    title,
                    message.details or [("", "this process has exited, and nothing is stored about it")],
                    self.glyphs,
                )
            )

    def action_stack_problems(self) -> None:
        if self.picture is not None:
            self.push_screen(StackProblems(self._stack_problems, self.glyphs, self.picture.sampling is not None))

    def _stack_problems(self) -> tuple[ProblemSummary, int]:
        """Return the stack problems of the selection, and the ns that they were measured over."""
        picture = self.picture
        return (
            (self._problems.of(picture.sites, picture.catalog), picture.span_ns) if picture else (ProblemSummary(), 0)
        )

    def action_mute(self) -> None:
        try:
            what = self._under_cursor_as_filter()
        except FilterError as too_long:
            self.show_alert(str(too_long))
            return
        if what is None:
            self.show_alert("X mutes the category, program, process, pool or function under the cursor")
            return
        self.set_view(views.muted_or_not(self.view, what))
        if any(one.text == what.text for one in self.view.muted):
            self.show_alert(f"muted {what.text}; the header counts it. f unmutes it, W saves it")
        else:
            self.show_alert(f"unmuted {what.text}")

    def _under_cursor_as_filter(self) -> Filter | None:
        """Return a filter for the waits of what is under the cursor; None if there is none."""
        picture, view = self.picture, self.view
        if picture is None:
            return None
        if view.focus == CATEGORIES and view.category != ALL:
            return parse(f"cat={view.category}")
        if view.focus == LIST and picture.rows.rows:
            row = picture.rows.rows[picture.cursor_row]
            if isinstance(row.key, str):
                return parse(views.in_cgroup(row.key).text)
            if isinstance(row.key, Program):
                return parse(of_program(row.key).text)
            if isinstance(row.key, WakerKey):
                return parse(f"waker={quoted(row.key.name.removeprefix(STORM_OF))}")
            if isinstance(row.key, Object):
                return parse(f"object={quoted(row.key.label)}") if row.key.kind else None
            if isinstance(row.key, Reason):
                known = row.key not in (NO_REASON, BELOW_REASON)
                return parse(f"why={quoted(row.key.name)}") if known else None
            if row.pid:
                key = "thread" if isinstance(row.key, ThreadKey | Pool) else "proc"
                return parse(f"{key}={_family(row)}")
        path: Path = ()
        if view.focus == TREE and picture.tree and picture.tree.branches:
            path = picture.tree.branches[picture.tree.cursor].path
        elif view.focus == FLAME:
            path = icicle.chosen(picture)
        elif view.focus == SITE:
            path = view.path
        return _of_step(path[-1]) if path else None

    # The list

    def action_pin(self) -> None:
        view = self.view
        key = (
            self._stuck_thread()
            or (None if view.focus == LIST and not view.lists_sleepers else view.thread)
            or (self._key_under_cursor() if view.focus == LIST else view.pid or view.program or view.pin)
        )
        if isinstance(key, str | int | Program | ThreadKey) and key not in (
            EXITED,
            EXITED.pid,
            UNNAMED,
            UNNAMED.pid,
            NO_CGROUP,
        ):
            set_measured_view(self, self._source, views.pinned(self.view, key))
        elif isinstance(key, WakerKey) and key.pid:
            set_measured_view(
                self, self._source, views.pinned(self.view, ThreadKey(key.pid, key.tid) if key.tid else key.pid)
            )
        elif isinstance(key, Pool):
            self.show_alert("a pool cannot be pinned: ENTER shows its threads, and p pins one of them")
        elif isinstance(key, WakerKey):
            self.show_alert("this waker is neither a process nor a thread: p pins only those")
        else:
            self.show_alert(f"p pins a program, process, thread or cgroup: {self._key_to_processes}")

    @property
    def _key_to_processes(self) -> str:
        if isinstance(self._key_under_cursor(), Program) and self.view.focus == LIST:
            return "ENTER lists those of this program"
        return "TAB goes to their list" if self.view.lists_sleepers else "1 lists them"

    def _stuck_thread(self) -> ThreadKey | None:
        """Return the thread under the cursor of the waits in progress, if that pane has the focus."""
        shown = self.picture.stuck if self.picture else None
        if self.view.focus != STUCK or shown is None:
            return None
        if self.view.stuck.opened:
            return self.view.stuck.cursor
        return shown.shown.waits[shown.cursor].site.thread if shown.shown.waits else None

    def action_narrow(self) -> None:
        if self.view.pin is None:
            self.show_alert("F measures only what is pinned, and nothing is pinned: p pins")
            return
        if isinstance(self.view.pin, Program):
            self.show_alert("F measures only a process, thread or cgroup: pin one of those")
            return
        if self.view.pin == "/":
            self.show_alert("every process is in the cgroup / or below: F would exclude nothing")
            return
        set_measured_view(self, self._source, views.narrowed_or_widened(self.view))
        if self.view.narrowed:
            self.show_alert("from now on, only the pin is measured; F measures everything again")

    # Copying

    def action_copy(self) -> None:
        """Copy the chosen stack in folded form, or the row, to the terminal's clipboard."""
        text = self._to_copy()
        if not text:
            self.show_alert("y copies the row or the branch under the cursor: TAB goes to one")
            return
        self.copy_to_clipboard(text)
        self.show_alert(f"copied: {text.partition(_LINE_END)[0]}")

    def _to_copy(self) -> str:
        picture, view = self.picture, self.view
        if picture is None:
            return ""
        if view.focus in (TREE, SITE, FLAME):
            path, part = view.path, picture.latency
            if view.focus == FLAME and picture.flame:
                path = icicle.chosen(picture)
                part = next((box.part for box in picture.flame.boxes if box.path == path), part)
            elif view.focus == TREE and picture.tree and picture.tree.branches:
                branch = picture.tree.branches[picture.tree.cursor]
                path, part = branch.path, branch.part
            if not path:
                return ""
            path = path[::-1] if view.tree.shape.inverted else path
            return f"{folded.one_line(path)} {part.total_ns // 1000}"
        if view.focus == LIST and picture.rows.rows:
            row = picture.rows.rows[picture.cursor_row]
            many = f"x{row.processes}" if row.processes else row.pid
            key = printable(row.key) if isinstance(row.key, str) else many
            named = not isinstance(row.key, WakerKey | Object | Reason | BaselineOnly) or row.pid
            return f"{f'{key} ' if named else ''}{printable(self._text_of(row, picture))} {row.waiting:.2f}"
        if view.focus == OUTLIERS and picture.outliers.groups:
            return _text(outliers.in_full(picture, self.pen(OUTLIERS)._replace(width=_UNCUT_WIDTH)))
        if view.focus == STUCK and picture.stuck.shown.waits:
            return _text(stuck.in_full(picture, self.pen(STUCK)._replace(width=_UNCUT_WIDTH)))
        category = view.category
        return next((f"{row.name} {row.waiting:.2f}" for row in picture.categories.rows if row.key == category), "")

    def _text_of(self, row: Row, picture: Picture) -> str:
        if not self.view.lists_sleepers:
            return f"{row.name} {wakers.row_text(picture, row, self.pen(LIST))}"
        place = "" if row.top == NOWHERE else location.of_sleeper(picture.catalog, row.top, self.pen(LIST).names)
        return f"{row.title or row.name} {row.process} {place}"


def _text(lines: Iterable[Line]) -> str:
    return "\n".join("".join(text for text, _ in line.spans).rstrip() for line in lines)


def _of_step(step: Step) -> Filter | None:
    """Return a filter for waits through this step; None if no filter can name it."""
    if step in (trees.MORE, NO_FRAMES, NO_THING) or step in TURNS:
        return None
    if step.is_object:
        return parse(f"object={quoted(step.name)}")
    if step.is_waker:
        return parse(f"waker={quoted(step.name)}")
    if step.name.startswith(WOKE):
        return parse(f"proc={quoted(step.name.removeprefix(WOKE))}")
    return parse(f"stack={quoted(step.name)}")


def _within(index: int, rows: Sequence[object]) -> int:
    return max(0, min(len(rows) - 1, index))


def _family(row: Row) -> str:
    """Return a pattern for all threads whose names differ from this one only by numbers.

    A name that is only a number stays as it is.
    """
    shared = parts(row.key.family if isinstance(row.key, Pool) else family(row.name))
    return "*".join(quoted(part) if part else "" for part in shared) if any(shared) else quoted(row.name)
