"""Actions of the keys that only change the view.

A key that would change nothing visible says so instead.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from offtop.model.values.wake import WAKEUP
from offtop.model.viewmodel import drilling, panes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.view import FLAME, LIST, SITE, TREE, View
from offtop.ui.actions.base import ActionsBase

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
_NEEDED_PANES: Mapping[str, tuple[str, ...]] = MappingProxyType(
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
"""Action → what it is for, and the panes of which one must be on the screen."""
_ONLY_FOR_SLEEPERS = MappingProxyType(
    {
        "account": "A shows the account of each second",
        "cgroups": "C lists the containers, units and cgroups",
        "names": "c shows command lines and cgroups",
    }
)
"""Alerts for a list of wakers or of objects. The list of cgroups replaces that of objects, so `cgroups` works there."""
OF_OBJECTS = "objects (locks, pipes, files) need BPF: 5 shows system calls, L causes"
"""Alert if /proc is sampled."""
_UNCHANGED = MappingProxyType(
    {
        "zoom": "this pane has the whole screen already",
    }
)
"""Alert if the next view would be the same."""


class ViewActions(ActionsBase):
    """Actions of the keys that change the view, for the app to inherit."""

    def _refuse_without(self, purpose: str, *panes: str) -> bool:
        """Return True, and show what the key is for, if none of `panes` is on the screen."""
        if not self.layout.panels.keys().isdisjoint(panes):
            return False
        self.show_alert(f"this key is for {purpose}")
        return True

    def action_change_view(self, what: str) -> None:
        if what in _NEEDED_PANES and self._refuse_without(*_NEEDED_PANES[what]):
            return
        view = self.view
        if what == "by_object" and self.picture and self.picture.sampling and not view.tree.shape.objects:
            self.show_alert(OF_OBJECTS)
            return
        if what in _ONLY_FOR_SLEEPERS and not view.lists_sleepers and (what != "cgroups" or view.mode == WAKEUP):
            self.show_alert(f"{_ONLY_FOR_SLEEPERS[what]} of waiting threads: 1 lists them")
            return
        if what == "account" and self.layout.calls:
            self.show_alert("with --within only a part of each second is counted, so there is no account")
            return
        view = VIEWS[what](self.view)
        if what in _UNCHANGED and view == self.view:
            self.show_alert(_UNCHANGED[what])
        else:
            self.set_view(view)
