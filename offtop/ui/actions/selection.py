"""What is done to the row or branch under the cursor: pin it, mute it, copy it."""

from offtop.feed.source import Source
from offtop.model.aggregate.filter_syntax import FilterError
from offtop.model.aggregate.pool import Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.row_names import NO_CGROUP
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import EXITED, UNNAMED
from offtop.model.viewmodel import view_changes
from offtop.ui.actions.display import Display
from offtop.ui.actions.filters import set_measured_view
from offtop.ui.actions.pane import Panes, hint_at_processes

_UNKNOWN = (EXITED, EXITED.pid, UNNAMED, UNNAMED.pid, NO_CGROUP)
"""Rows that stand for more than one process, thread or cgroup."""


class Selection:
    def __init__(self, display: Display, panes: Panes, source: Source) -> None:
        self._display, self._panes, self._source = display, panes, source

    def mute(self) -> None:
        picture, display = self._display.picture, self._display
        try:
            what = self._panes.focused.as_filter(picture) if picture else None
        except FilterError as too_long:
            display.show_alert(str(too_long))
            return
        if what is None:
            display.show_alert("X mutes the category, program, process, pool or function under the cursor")
            return
        display.set_view(view_changes.muted_or_not(display.view, what))
        if any(one.text == what.text for one in display.view.muted):
            display.show_alert(f"muted {what.text}; the header counts it. f unmutes it, W saves it")
        else:
            display.show_alert(f"unmuted {what.text}")

    def pin(self) -> None:
        key = self._panes.focused.key_to_pin()
        if isinstance(key, WakerKey) and key.pid:
            key = ThreadKey(key.pid, key.tid) if key.tid else key.pid
        elif key in _UNKNOWN:
            key = None
        if isinstance(key, str | int | Program | ThreadKey):
            set_measured_view(self._display, self._source, view_changes.pinned(self._display.view, key))
        elif isinstance(key, Pool):
            self._display.show_alert("a pool cannot be pinned: ENTER shows its threads, and p pins one of them")
        elif isinstance(key, WakerKey):
            self._display.show_alert("this waker is neither a process nor a thread: p pins only those")
        else:
            self._display.show_alert(f"p pins a program, process, thread or cgroup: {hint_at_processes(self._display)}")

    def measure_only_pinned(self) -> None:
        if self._display.view.pin is None:
            self._display.show_alert("F measures only what is pinned, and nothing is pinned: p pins")
            return
        if isinstance(self._display.view.pin, Program):
            self._display.show_alert("F measures only a process, thread or cgroup: pin one of those")
            return
        if self._display.view.pin == "/":
            self._display.show_alert("every process is in the cgroup / or below: F would exclude nothing")
            return
        set_measured_view(self._display, self._source, view_changes.narrowed_or_widened(self._display.view))
        if self._display.view.narrowed:
            self._display.show_alert("from now on, only the pin is measured; F measures everything again")

    def copy(self) -> None:
        """Copy the chosen stack in folded form, or the row, to the terminal's clipboard."""
        text = self._panes.focused.as_text(self._display.picture) if self._display.picture else ""
        if not text:
            self._display.show_alert("y copies the row or the branch under the cursor: TAB goes to one")
            return
        self._display.copy_to_clipboard(text)
        first_line, *_ = text.split("\n")
        self._display.show_alert(f"copied: {first_line}")
