"""The keys that need nothing but the view; one that would change nothing that can be seen says so instead."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from offtop.model.values.wake import WAKEUP
from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.view import FLAME, LIST, SITE, TREE, View
from offtop.ui.actions.rewind import Rewind
from offtop.ui.kit.layout import Layout

VIEWS: Mapping[str, Callable[[View], View]] = MappingProxyType(
    {
        "threads": drilling.threads_or_processes,
        "account": drilling.account_or_not,
        "cgroups": drilling.cgroups_or_not,
        "tree": panes.tree_or_list,
        "flame": panes.flame_or_not,
        "stuck": panes.stuck_or_not,
        "outliers": panes.outliers_or_not,
        "zoom": panes.zoomed_or_not,
        "invert": panes.inverted,
        "kernel_frames": lambda view: panes.only_frames(view, "kernel"),
        "user_frames": lambda view: panes.only_frames(view, "user"),
        "machinery": panes.machinery_or_not,
        "by_object": panes.by_object_or_not,
        "idle": views.idle_or_not,
        "window": views.next_span,
        "names": views.next_names,
    }
)
FOR_LIST = "the list, which is not on the screen"
_STACKS = ("the stack tree and the icicle: t and g show them", TREE, SITE, FLAME)
_FOR: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "account": (FOR_LIST, LIST),
        "names": (FOR_LIST, LIST),
        "invert": _STACKS,
        "kernel_frames": _STACKS,
        "user_frames": _STACKS,
        "machinery": _STACKS,
        "by_object": _STACKS,
    }
)
"""What some are for, and the panes of which one must be on the screen."""
_OF_SLEEPERS = MappingProxyType(
    {
        "account": "A tells where each second went",
        "cgroups": "C lists the containers, units and cgroups",
        "names": "c tells command lines and cgroups",
    }
)
"""What is said where the list is of wakers, or of what is waited on. Cgroups take the place of the latter."""
OF_OBJECTS = "which lock, pipe or file a wait is on needs BPF: 5 shows its system call, L what waits are for"
"""Said where /proc is sampled."""
_SAME = MappingProxyType(
    {
        "zoom": "this pane has the whole screen already",
    }
)
"""What is said where the next view would be the same."""


class Looks(Rewind):
    """The actions of these keys. Whoever shows the screen gives them what is on it."""

    @property
    def _layout(self) -> Layout:
        raise NotImplementedError

    def _arranged(self, view: View) -> Layout:
        """The layout that `view` would have."""
        raise NotImplementedError

    def _lacks(self, said: str, *panes: str) -> bool:
        """Whether none of these panes is on the screen; then the person is told what the key is for."""
        if not self._layout.panels.keys().isdisjoint(panes):
            return False
        self._say(f"this key is for {said}")
        return True

    def action_look(self, what: str) -> None:
        if what in _FOR and self._lacks(*_FOR[what]):
            return
        view = self._view
        if what == "by_object" and self._picture and self._picture.sampling and not view.tree.shape.objects:
            self._say(OF_OBJECTS)
            return
        if what in _OF_SLEEPERS and not view.lists_sleepers and (what != "cgroups" or view.mode == WAKEUP):
            self._say(f"{_OF_SLEEPERS[what]} of those that wait: 1 lists them")
            return
        if what == "account" and self._layout.calls:
            self._say("with --within only a part of each second is counted, so that there is no account of them")
            return
        view = VIEWS[what](self._view)
        if what in _SAME and view == self._view:
            self._say(_SAME[what])
        else:
            self._look(view)
