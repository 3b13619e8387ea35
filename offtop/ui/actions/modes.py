"""Switching between the modes: where threads wait, and who wakes them.

The mode is shown at once; the source collects its data a little later.
"""

from collections.abc import Callable
from functools import partial
from threading import Lock, Thread, current_thread

from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.outliers.trigger import io_modes
from offtop.model.values.disks import DISK, LIST_NOUNS, LIST_UNITS
from offtop.model.values.files import FILE
from offtop.model.values.wake import CHAIN, OFFCPU, OFFWAKE, WAKEUP
from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel.view import MODE_OF_LIST, View
from offtop.ui.actions.display import Display

_ALREADY = {
    OFFCPU: "this is off-CPU mode already: 2 lists wakers, 5 waits in progress",
    WAKEUP: "the wakers are listed already: 3 shows both stacks",
    OFFWAKE: "both stacks are shown already: 4 adds the chain of wakers",
    CHAIN: "the chains are shown already: 1 returns to off-CPU mode",
}
_ALREADY_SAMPLED = "this is off-CPU mode already: 5 lists waits in progress; wakers (2) need BPF"


class Modes:
    def __init__(self, display: Display, source: Source) -> None:
        self._display, self._source = display, source
        self._requested: dict[str, Callable[[], None]] = {}
        """What to request from the source next, by kind: the later of two requests replaces the earlier one."""
        self._counted = {display.view.focus} & {*MODE_OF_LIST}
        self._refused = set[str]()
        """Kinds that the source refused when they were last requested."""
        self._lock = Lock()
        self._thread: Thread | None = None
        self.follow(display.view)

    def show(self, mode: str) -> None:
        """Show the current selection in `mode`."""
        display = self._display
        view = drilling.in_mode(display.view, mode)
        if view == display.view:
            sampled = display.picture is not None and display.picture.common.sampling is not None
            display.show_alert(_ALREADY_SAMPLED if sampled and mode == OFFCPU else _ALREADY[mode])
            return
        changes = mode != display.view.mode
        display.set_view(view)
        if changes and not self._source.recorded:
            self._request("mode", partial(self._source.set_mode, mode, view.depth))

    def show_files(self) -> None:
        """Show file operations, or return to the panes of off-CPU time."""
        self._show_list(FILE, panes.files_or_not(self._display.view))

    def show_disks(self, near_pid: int) -> None:
        """Show requests to disks, at first those of `near_pid`, or return to the panes of off-CPU time."""
        self._show_list(DISK, panes.disks_or_not(self._display.view, near_pid))

    def _show_list(self, mode: str, view: View) -> None:
        display, recorded, noun = self._display, self._source.recorded, LIST_NOUNS[mode]
        if recorded and mode not in recorded.lists:
            display.show_alert(f"no {noun} in this recording: offtop record --mode {mode} keeps them")
        elif display.picture and display.picture.common.sampling:
            display.show_alert(f"{noun} need BPF: sampling /proc cannot see single {LIST_UNITS[mode]}")
        else:
            display.set_view(view)

    def follow(self, view: View) -> None:
        """Have file operations and requests to disks counted while a list or a trigger needs them, and only then."""
        judged = io_modes(view.triggers)
        wanted = {one for one, mode in MODE_OF_LIST.items() if one == view.focus or mode in judged}
        if view.focus in self._refused:  # the list is opened again
            self._counted.discard(view.focus)
            self._refused.discard(view.focus)
        for one in wanted ^ self._counted:
            self._request(one, partial(self._source.set_counted, MODE_OF_LIST[one], one in wanted))
        self._counted = wanted

    def _request(self, kind: str, request: Callable[[], None]) -> None:
        """Request it from the source, in a separate thread.

        The first time, loading the BPF programs takes a second.
        """
        with self._lock:
            self._requested[kind] = request
            if self._thread is None:
                thread = Thread(target=self._send_requests, name="offtop-mode", daemon=True)
                thread.start()
                self._thread = thread

    def _send_requests(self) -> None:
        try:
            while (request := self._take_request()) is not None:
                try:
                    request[1]()
                except OfftopError as refused:
                    self._refused.add(request[0])
                    self._display.run_later(partial(self._show_refusal, request[0], str(refused)))
        finally:  # even after an unexpected error, so that the mode keys keep working
            with self._lock:
                if self._thread is current_thread():
                    self._thread = None

    def _take_request(self) -> tuple[str, Callable[[], None]] | None:
        """Take the next request; None ends this thread.

        A new thread then handles later requests.
        """
        with self._lock:
            if self._requested:
                return self._requested.popitem()
            self._thread = None
        return None

    def _show_refusal(self, kind: str, reason: str) -> None:
        if kind in MODE_OF_LIST:
            if self._display.view.focus == kind:
                self._display.set_view(panes.off_cpu_panes(self._display.view))
        elif self._display.picture and self._display.picture.common.sampling:  # sampling /proc never supports it
            self._display.set_view(drilling.in_mode(self._display.view, OFFCPU))
        self._display.show_alert(reason)
