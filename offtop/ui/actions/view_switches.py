"""Switching what is shown: panes, columns, the form of stacks, the span.

A key that would change nothing visible says so instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from offtop.model.values.wake import WAKEUP
from offtop.model.viewmodel import drilling, panes, view_changes
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.view import CATEGORIES, FLAME, LATENCY, LIST, SITE, TREE, View
from offtop.printable import printable
from offtop.ui.actions.display import Display, refuse_without
from offtop.ui.panes.chooser import Choice, Chooser
from offtop.ui.panes.tables import CHOOSABLE

_HIDEABLE_PANES = ("timeline", "latency", "tree")
"""The latency pane is hidden by View.latency = OFF, the others by View.hidden."""
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
        "idle": view_changes.idle_or_not,
        "window": view_changes.next_span,
        "names": view_changes.next_names,
    }
)
THE_LIST = "the list, which is not on the screen"
_STACKS = ("the stack tree and the icicle: t and g show them", TREE, SITE, FLAME)
_NEEDED_PANES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "account": (THE_LIST, LIST),
        "names": (THE_LIST, LIST),
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
OBJECTS_NEED_BPF = "objects (locks, pipes, files) need BPF: 5 shows system calls, L causes"
"""Alert if /proc is sampled."""
_UNCHANGED = MappingProxyType(
    {
        "zoom": "this pane has the whole screen already",
    }
)
"""Alert if the next view would be the same."""


class ViewSwitches:
    def __init__(self, display: Display) -> None:
        self._display = display

    def change(self, what: str) -> None:
        """Change the view by the function `what` of VIEWS."""
        display = self._display
        needed = _NEEDED_PANES.get(what)
        if needed and not (needed is _STACKS and display.view.has_io_tree) and refuse_without(display, *needed):
            return
        view, picture = display.view, display.picture
        if what == "by_object" and picture and picture.common.sampling and not view.tree.shape.objects:
            display.show_alert(OBJECTS_NEED_BPF)
            return
        if what in _ONLY_FOR_SLEEPERS and not view.lists_sleepers and (what != "cgroups" or view.mode == WAKEUP):
            display.show_alert(f"{_ONLY_FOR_SLEEPERS[what]} of waiting threads: 1 lists them")
            return
        if what == "account" and display.layout.calls:
            display.show_alert("with --within only a part of each second is counted, so there is no account")
            return
        changed = VIEWS[what](view)
        if what in _UNCHANGED and changed == view:
            display.show_alert(_UNCHANGED[what])
        else:
            display.set_view(changed)

    def show_next_latency(self) -> None:
        """Show the next form of the latency pane.

        If the focused pane leaves no room for it, focus the categories. Lists that are not of waits have their own.
        """
        if self._display.view.io_list:
            self._display.set_view(panes.heat_map_or_rows(self._display.view))
            return
        view = self._display.view
        if LATENCY not in self._display.layout.panels:
            view = replace(view, came_from=panes.came_from(view))  # Esc leads back there
        view = view_changes.next_latency(view, self._display.layout.latency)
        if view.latency != views.OFF and not self._has_room_for_latency(view):
            view = replace(view_changes.in_pane(view, CATEGORIES), zoomed=False)
            if not self._has_room_for_latency(view):
                self._display.show_alert("no room for the latency pane: it needs a taller terminal")
                return
        self._display.set_view(view)

    def _has_room_for_latency(self, view: View) -> bool:
        return LATENCY in self._display.layout_of(view).panels

    def list_objects(self) -> None:
        view, picture = self._display.view, self._display.picture
        if picture and picture.common.sampling and not view.lists_objects:
            self._display.show_alert(OBJECTS_NEED_BPF)
            return
        self._display.set_view(drilling.objects_or_not(view))

    def list_reasons(self) -> None:
        self._display.set_view(drilling.reasons_or_not(self._display.view))

    def choose_columns_and_panes(self) -> None:
        self._display.open_overlay(
            Chooser("columns, panes, mutes", self._choices, self._switch_choice, self._display.glyphs)
        )

    def _choices(self) -> list[Choice]:
        view = self._display.view
        columns = [Choice(f"column {title}", f"column {title}", title not in view.hidden) for title in CHOOSABLE]
        panes = [Choice(f"pane {title}", f"pane {title}", _is_shown(title, view)) for title in _HIDEABLE_PANES]
        muted = [Choice(f"muted {one.text}", f"muted {printable(one.text)}", True) for one in view.muted]
        return [*columns, *panes, *muted]

    def _switch_choice(self, choice: str) -> None:
        kind, _, title = choice.partition(" ")
        view = self._display.view
        if kind == "muted":
            view = view_changes.muted_or_not(view, next(one for one in view.muted if one.text == title))
        elif kind == "pane" and title == "latency":
            view = view_changes.with_latency(view, views.OFF if view.latency != views.OFF else views.AUTO)
        else:
            view = view_changes.shown_or_hidden(view, title)
        self._display.set_view(view)


def _is_shown(pane: str, view: View) -> bool:
    return view.latency != views.OFF if pane == "latency" else pane not in view.hidden
