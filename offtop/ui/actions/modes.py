"""Actions of the mode keys.

The mode is shown at once; the source collects its data a little later.
"""

from threading import Lock, Thread, current_thread

from textual.message import Message

from offtop.errors import OfftopError
from offtop.model.values.wake import CHAIN, OFFCPU, OFFWAKE, WAKEUP
from offtop.model.viewmodel import drilling
from offtop.ui.actions.base import ActionsBase

_ALREADY = {
    OFFCPU: "this is off-CPU mode already: 2 lists wakers, 5 waits in progress",
    WAKEUP: "the wakers are listed already: 3 shows both stacks",
    OFFWAKE: "both stacks are shown already: 4 adds the chain of wakers",
    CHAIN: "the chains are shown already: 1 returns to off-CPU mode",
}
_ALREADY_SAMPLED = "this is off-CPU mode already: 5 lists waits in progress; wakers (2) need BPF"


class Refused(Message):
    """The source cannot collect the data of a mode."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


class ModeActions(ActionsBase):
    """Actions of the mode keys."""

    _requested_mode: tuple[str, int] | None = None
    """Mode and chain depth to request from the source next, or None."""
    _mode_lock = Lock()
    _mode_thread: Thread | None = None

    def action_mode(self, mode: str) -> None:
        """Show the current selection in `mode`."""
        view = drilling.in_mode(self.view, mode)
        if view == self.view:
            sampled = self.picture is not None and self.picture.sampling is not None
            self.show_alert(_ALREADY_SAMPLED if sampled and mode == OFFCPU else _ALREADY[mode])
            return
        changes = mode != self.view.mode
        self.set_view(view)
        if changes and not self._source.recorded:
            self._request_mode(mode)

    def on_refused(self, message: Refused) -> None:
        if self.picture and self.picture.sampling:  # sampling /proc never supports it
            self.set_view(drilling.in_mode(self.view, OFFCPU))
        self.show_alert(message.why)

    def _request_mode(self, mode: str) -> None:
        """Request the mode from the source, in a separate thread.

        The first time, loading the BPF programs takes a second.
        """
        with self._mode_lock:
            self._requested_mode = mode, self.view.depth
            if self._mode_thread is None:
                thread = Thread(target=self._request_modes, name="offtop-mode", daemon=True)
                thread.start()
                self._mode_thread = thread

    def _request_modes(self) -> None:
        try:
            while (request := self._take_request()) is not None:
                try:
                    self._source.set_mode(*request)
                except OfftopError as refused:
                    self.post_message(Refused(str(refused)))
        finally:  # even after an unexpected error, so that the mode keys keep working
            with self._mode_lock:
                if self._mode_thread is current_thread():
                    self._mode_thread = None

    def _take_request(self) -> tuple[str, int] | None:
        """Take the next request; None ends this thread.

        A new thread then handles later requests.
        """
        with self._mode_lock:
            request, self._requested_mode = self._requested_mode, None
            if request is None:
                self._mode_thread = None
        return request
