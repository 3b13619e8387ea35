"""Overlays about what is selected: the details of its process, and the problems of its user stacks."""

from collections.abc import Sequence
from functools import partial
from threading import Thread

from offtop.feed.source import Source
from offtop.model.aggregate.stack_problems import Problems, ProblemSummary
from offtop.model.viewmodel.view import STUCK
from offtop.ui.actions.display import Display
from offtop.ui.actions.pane import Panes, hint_at_processes
from offtop.ui.panes.process_details import ProcessDetails
from offtop.ui.panes.stack_problems import StackProblems


class Details:
    def __init__(self, display: Display, panes: Panes, source: Source) -> None:
        self._display, self._panes, self._source = display, panes, source
        self._problems = Problems(source.names, source.why_nameless)

    def show_process(self) -> None:
        pid = self._panes.focused.process()
        if not pid and self._display.view.focus == STUCK:
            self._display.show_alert("no process to show: this list is empty, or the thread has no process here")
        elif not pid:
            hint = hint_at_processes(self._display)
            self._display.show_alert(f"Y shows details of the process under the cursor: {hint}")
        else:
            Thread(target=self._read_process, args=(pid,), name="offtop-facts", daemon=True).start()

    def _read_process(self, pid: int) -> None:
        """Read the details in a separate thread, because reading a command line may take long."""
        details = self._source.process_details(pid)
        self._display.run_later(partial(self._open_process, pid, details))

    def _open_process(self, pid: int, details: Sequence[tuple[str, str]]) -> None:
        if not self._display.has_overlay:
            details = details or [("", "this process has exited, and nothing is stored about it")]
            self._display.open_overlay(ProcessDetails(f"process {pid}", details, self._display.glyphs))

    def show_stack_problems(self) -> None:
        picture = self._display.picture
        if picture is not None:
            sampled = picture.common.sampling is not None
            self._display.open_overlay(StackProblems(self._stack_problems, self._display.glyphs, sampled))

    def _stack_problems(self) -> tuple[ProblemSummary, int]:
        """Return the stack problems of the selection, and the ns that they were measured over."""
        picture = self._display.picture
        if picture is None:
            return ProblemSummary(), 0
        return self._problems.of(picture.causes.sites, picture.common.catalog), picture.common.span_ns
