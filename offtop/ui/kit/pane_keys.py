"""What keys do in each pane, for help and manual."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from offtop.model.viewmodel.view import CATEGORIES, DISKS, FILES, FLAME, LATENCY, LIST, OUTLIERS, SITE, STUCK, TREE
from offtop.ui.kit.keys import KEYS, keys_of


class PaneKeys(NamedTuple):
    title: str
    keys: tuple[tuple[str, str], ...]
    """(ids of KEYS, separated by commas; what these keys do in this pane)."""

    def rows(self, chosen: Mapping[str, str]) -> list[tuple[str, str]]:
        """(keys, what they do)."""
        named = {row.id: keys_of(row, chosen) for row in KEYS}
        return [(" ".join(named[one] for one in ids.split(",")), says) for ids, says in self.keys]


_STACKS = (
    ("invert", "start at the root or at the leaf"),
    ("kernel_frames,user_frames,machinery", "only kernel frames; only user frames; the scheduler's frames too"),
    ("by_object", "group stacks by object"),
    ("search,next_hit,previous_hit", "search for a function; go to the next or previous match"),
    ("mute", "mute the function under the cursor"),
    ("copy,export", "copy as folded stacks; write to a file"),
)
_SORTS = (
    "sort_waiting,sort_max,sort_total,sort_events,sort_left,sort_right,sort_by,reverse",
    "sort; reverse the order",
)
PANES: Mapping[str, PaneKeys] = MappingProxyType(
    {
        CATEGORIES: PaneKeys(
            "list of categories",
            (
                ("drill", "list the programs in this category; all other panes follow"),
                ("reasons,objects", "list causes, or objects, instead of processes"),
                ("tree,flame,latency", "stack tree, icicle, or latency of this category"),
                ("mute", "mute this category"),
                ("idle", "show idle waits too"),
                ("next_pane", "go to the list below"),
            ),
        ),
        LIST: PaneKeys(
            "list of programs, processes or threads",
            (
                ("drill", "go down: program, process, thread, stack tree"),
                ("threads,cgroups", "list threads or processes; list containers and units"),
                ("account", "show where each second went, instead of how long waits took"),
                ("open,close", "unfold or fold programs, and pools of threads"),
                ("pin,narrow", "pin this row; measure only the pinned process, thread or cgroup"),
                ("facts,stack_problems", "details of the process; why its user stacks are broken"),
                ("names", "names, command lines, or containers"),
                ("mute", "mute this program, process or pool"),
                _SORTS,
            ),
        ),
        TREE: PaneKeys(
            "stack tree",
            (
                ("drill", "show the whole stack, its category rule and its cause"),
                ("right,left", "open or close the branch"),
                ("open,close,open_all", "open the branch; close it; open all branches"),
                *_STACKS,
                ("tree", "leave the tree"),
            ),
        ),
        SITE: PaneKeys(
            "whole stack",
            (
                ("down,up,page_down,page_up", "scroll"),
                ("copy", "copy it as a folded stack"),
                ("back", "return to the tree"),
            ),
        ),
        FLAME: PaneKeys(
            "icicle",
            (
                ("down,up,left,right", "move between boxes"),
                ("drill,back", "zoom into the box; zoom out"),
                *_STACKS,
                ("flame", "leave the icicle"),
            ),
        ),
        LATENCY: PaneKeys(
            "heat map",
            (
                ("down,up,left,right", "move between cells"),
                ("drill,back", "show all panes as they were at that time; go back"),
                ("latency", "histogram, heat map, or neither"),
            ),
        ),
        STUCK: PaneKeys(
            "waits in progress",
            (
                ("drill,back", "list the waits of a row such as x10; show a whole wait; go back"),
                ("open,close", "list waits that look alike one by one, or as one row"),
                ("objects", "list objects, and the threads that hold them"),
                ("search,next_hit,previous_hit", "search; go to the next or previous match"),
                ("stuck", "leave the list"),
            ),
        ),
        OUTLIERS: PaneKeys(
            "outliers",
            (
                ("drill", "show the whole wait; again: all panes as they were at that time"),
                ("next_hit,previous_hit", "go to the next or previous outlier"),
                ("triggers", "choose what counts as an outlier"),
                ("snapshot", "save the minutes before it as a clip"),
                ("outliers", "leave the list"),
            ),
        ),
        FILES: PaneKeys(
            "file operations",
            (
                ("drill", "show this row with its stacks; again: where its process waits"),
                ("tree", "show the stack tree, of all rows or of the one that is shown; leave it"),
                ("latency", "show the heat map, of all rows or of the one that is shown; leave it"),
                ("export", "write these stacks to a file: flame graph, folded, speedscope, pprof or CSV"),
                _SORTS,
                ("filter", "filter, e.g. file=*.ibd op=fsync bytes>1M max>10ms"),
                ("search,next_hit,previous_hit", "search; go to the next or previous match"),
                ("window", "span of the numbers"),
                ("files", "leave the list, and stop counting"),
            ),
        ),
        DISKS: PaneKeys(
            "requests to disks",
            (
                ("drill", "show this row with its stacks; again: where its process or thread waits"),
                ("tree", "show the stack tree, of all rows or of the one that is shown; leave it"),
                ("latency", "show the heat map, of all rows or of the one that is shown; leave it"),
                ("export", "write these stacks to a file: flame graph, folded, speedscope, pprof or CSV"),
                _SORTS,
                ("threads", "list processes or threads"),
                ("filter", "filter, e.g. dev=sd* op=sync-write bytes>1M max>10ms"),
                ("search,next_hit,previous_hit", "search; go to the next or previous match"),
                ("window", "span of the numbers"),
                ("disks", "leave the list, and stop counting"),
            ),
        ),
    }
)
"""What keys do in one pane, by View.focus. Help shows the pane's own keys first."""
