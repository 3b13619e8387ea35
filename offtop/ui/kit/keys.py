"""Table of all keys.

The app binds them; key bar, palette, help and manual describe them; a config file can remap them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from textual.binding import Binding, BindingType

from offtop.errors import UsageError


class KeyRow(NamedTuple):
    id: str
    """Its name in the config file."""
    keys: str
    """Textual's names of the keys, separated by commas."""
    says: str = ""
    """What the key does, for help, palette and manual; empty: the row before describes it too."""
    bar: str = ""
    """Its text in the key bar; empty: it is not in the bar."""
    group: str = ""
    """Heading above it in help and manual; empty: as the row before."""
    priority: bool = False
    """Whether the key also works in an input line."""

    @property
    def action(self) -> str:
        """The action that Textual binds the keys to. It looks for a key of its palette by the name of that action."""
        return "command_palette" if self.id == "palette" else f"perform('{self.id}')"


KEYS = (
    KeyRow("down", "down,j", "move, also on the heat map and between boxes of the icicle", group="Move"),
    KeyRow("up", "up,k"),
    KeyRow("page_down", "pagedown", "move by a page, to the first row, to the last row"),
    KeyRow("page_up", "pageup"),
    KeyRow("first", "home"),
    KeyRow("last", "end"),
    KeyRow("next_pane", "tab", "go to the next pane, or to the previous one"),
    KeyRow("previous_pane", "shift+tab"),
    KeyRow(
        "drill",
        "enter",
        "go one level down: category, program, process, thread, stack tree, whole stack",
        bar="ENTER drill",
    ),
    KeyRow("back", "escape,backspace", "go one level up; at the top: clear the filter", bar="ESC back"),
    KeyRow(
        "right",
        "right",
        "in tables: one level down or up; in the tree: open or close a branch; elsewhere: move",
    ),
    KeyRow("left", "left"),
    KeyRow(
        "threads",
        "H",
        "list processes or threads; with 2: processes or threads that woke others",
        bar="H threads",
        group="Views",
    ),
    KeyRow(
        "cgroups",
        "C",
        "list containers, units and other cgroups; Enter on one lists its processes",
    ),
    KeyRow("account", "A", "list how long waits took, or where each second went", bar="A Account"),
    KeyRow("tree", "t,f5", "show the stack tree of the selection", bar="t Tree"),
    KeyRow("offcpu", "1", "mode: where threads wait; who woke them"),
    KeyRow("wakeup", "2", bar="2 wakers"),
    KeyRow("offwake", "3", "mode: both stacks, joined; the chain of wakers"),
    KeyRow("chain", "4"),
    KeyRow(
        "objects",
        "G",
        "list objects that threads wait on: locks, sockets, pipes, files; Enter lists the threads",
    ),
    KeyRow("stuck", "5", "list waits in progress, oldest first", bar="5 stuck"),
    KeyRow(
        "suspects",
        "6",
        "show what others wait for, hop by hop; Enter shows that thread",
    ),
    KeyRow("files", "7", "list file operations, on which file and how slow; they are counted while the list is open"),
    KeyRow(
        "disks",
        "8",
        "list requests to disks, whose they are and how slow; they are counted while the list is open",
    ),
    KeyRow("outliers", "O", "list outliers, newest first", bar="O outliers"),
    KeyRow(
        "triggers",
        "exclamation_mark",
        "choose what counts as an outlier: auto, or rules such as lock.max > 500ms",
    ),
    KeyRow(
        "reasons",
        "L",
        "list causes, named by the cause rules; Enter lists the threads",
        bar="L why",
    ),
    KeyRow(
        "flame",
        "g",
        "show the icicle of the selection: a flame graph with the root on top",
        bar="g Flame",
    ),
    KeyRow("latency", "l", "show latency as a histogram, as a heat map, or not at all", bar="l Latency"),
    KeyRow("zoom", "x", "zoom this pane to the whole screen, or back"),
    KeyRow(
        "open",
        "plus",
        "tree: open a branch, close it, open all branches; list: unfold or fold programs, and pools of threads",
    ),
    KeyRow("close", "minus"),
    KeyRow("open_all", "asterisk"),
    KeyRow("invert", "v", "tree and icicle: start at the root or at the leaf"),
    KeyRow("kernel_frames", "K", "tree and icicle: show only kernel frames, or all"),
    KeyRow("user_frames", "U", "tree and icicle: show only user frames, or all"),
    KeyRow(
        "machinery",
        "full_stop",
        "tree and icicle: show or hide frames of the scheduler and of kernel entry",
    ),
    KeyRow("by_object", "J", "tree and icicle: group stacks by object, or not"),
    KeyRow(
        "search",
        "slash,f3",
        "search: highlights matches; Enter turns the word into a filter; !word excludes",
        bar="/ filter",
        group="Select",
    ),
    KeyRow(
        "next_hit",
        "n",
        "go to the next or previous match, once Enter has made the search a filter; without a search: outlier",
    ),
    KeyRow("previous_hit", "N"),
    KeyRow("filter", "backslash,f4,o", "filter, e.g. comm=mysql* max>10ms cat!=poll; empty: show everything"),
    KeyRow("user", "u", "show only one user's processes; empty: all users"),
    KeyRow("states", "S", "measure only waits that begin in some thread states: R, S, D, T and so on"),
    KeyRow("rate", "Q", "enter this process's request rate, to see whether it waits more than its requests explain"),
    KeyRow(
        "facts",
        "Y",
        "show details of this process: command line, user, start, files, memory, limits",
    ),
    KeyRow(
        "stack_problems",
        "V",
        "show which binaries have broken or unnamed user stacks, why, and the fix",
    ),
    KeyRow(
        "mute",
        "X",
        "mute the category, program, process, thread pool, waker or function under the cursor; f unmutes",
    ),
    KeyRow("idle", "i", "show or hide idle waits (marked ~)", bar="i Idle"),
    KeyRow(
        "pin",
        "p",
        "pin the program, process, thread or cgroup: it stays on top, marked *; again: unpin",
        bar="p Pin",
    ),
    KeyRow("narrow", "F", "measure only the pinned process, thread or cgroup, which costs less; again: all"),
    KeyRow(
        "pause",
        "space,z,Z",
        "pause the screen; measuring goes on, a replay waits",
        bar="SPACE pause",
        group="Time",
    ),
    KeyRow(
        "tick_back",
        "left_square_bracket",
        "pause, and step one tick or one minute back or forward",
        bar="[ ] Rewind",
    ),
    KeyRow("tick_on", "right_square_bracket"),
    KeyRow("minute_back", "left_curly_bracket"),
    KeyRow("minute_on", "right_curly_bracket"),
    KeyRow("go_to", "b", "jump to a time of day (02:10:55), or back or forward (-5m, +30s)"),
    KeyRow("live", "0", "return to live; in a replay: to its end"),
    KeyRow("record", "a", "start recording everything to a file; again: stop", group="Keep"),
    KeyRow("snapshot", "s", "save a clip: a recording of the last minutes, or of those before a paused screen"),
    KeyRow(
        "window",
        "w",
        "numbers over the last 1 s, 10 s, 60 s, or since the start",
        bar="w Window",
        group="Time",
    ),
    KeyRow("mark", "B", "baseline: what is shown now, at least the last minute, is normal"),
    KeyRow("diff", "D", "compare with the baseline, or stop; ! marks a change larger than normal variation"),
    KeyRow("reset", "r", "reset the cumulative numbers"),
    KeyRow("delay", "d", "set the seconds between ticks"),
    KeyRow("minimum", "m", "set the shortest wait that gets a stack; a bare number is ms"),
    KeyRow(
        "names",
        "c",
        "show processes by name, by command line, or by container (unit, cgroup)",
        group="Sort and columns",
    ),
    KeyRow("sort_waiting", "P", "sort by WAITING, by MAX, by total since the start, by EV/S"),
    KeyRow("sort_max", "M"),
    KeyRow("sort_total", "T"),
    KeyRow("sort_events", "E"),
    KeyRow("sort_left", "less_than_sign", "sort by the column to the left, to the right, or choose one"),
    KeyRow("sort_right", "greater_than_sign"),
    KeyRow("sort_by", "f6"),
    KeyRow("reverse", "R,I", "reverse the sort order"),
    KeyRow("setup", "f,f2", "choose columns and panes, and unmute"),
    KeyRow("copy", "y", "copy the row, or the folded stack, to the terminal's clipboard"),
    KeyRow("export", "e", "write the selection to a file: flame graph, folded, speedscope, pprof or CSV"),
    KeyRow("write", "W", "save the current settings to the config file"),
    KeyRow(
        "palette",
        "ctrl+p",
        "open the command palette: every action by name, themes, mouse on or off",
        group="offtop",
    ),
    KeyRow("screenshot", "f12", "save the screen as an SVG file in the current directory", group="Keep"),
    KeyRow("help", "question_mark,h,f1", "show this help; / searches in it", bar="? Help", group="offtop"),
    KeyRow("redraw", "ctrl+l", "redraw the screen"),
    KeyRow("suspend", "ctrl+z", "suspend; fg resumes", priority=True),
    KeyRow("quit", "q,f10", "quit; in an overlay: close it", bar="q Quit"),
    KeyRow("interrupt", "ctrl+c,ctrl+q", priority=True),
)

PRESETS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "top": {},
        "atop": {
            "tick_on": "t,right_square_bracket",
            "tick_back": "T,left_square_bracket",
            "tree": "f5",
            "sort_total": "ctrl+t",
            "delay": "i",
            "idle": "ctrl+n",
            "reverse": "R",
            "threads": "y,H",
            "copy": "Y",
            "facts": "f9",
        },
        "vim": {
            "left": "left,h",
            "right": "right,l",
            "help": "question_mark,f1",
            "latency": "L",
            "reasons": "ctrl+w",
            "page_down": "pagedown,ctrl+f,ctrl+d",
            "page_up": "pageup,ctrl+b,ctrl+u",
            "last": "end,G",
            "objects": "ctrl+g",
        },
    }
)
"""Key mappings for users of other programs."""

_SHOWN = {
    "pagedown": "PgDn",
    "pageup": "PgUp",
    "question_mark": "?",
    "exclamation_mark": "!",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "full_stop": ".",
    "slash": "/",
    "backslash": "\\",
    "plus": "+",
    "minus": "-",
    "asterisk": "*",
    "escape": "Esc",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
}

BINDINGS: list[BindingType] = [
    Binding(row.keys, row.action, row.says, show=False, priority=row.priority, id=row.id) for row in KEYS
]


def shown(key: str) -> str:
    """Return a key as help names it: `PgDn`, `Ctrl-L`, `F12`, `?`."""
    if key in _SHOWN:
        return _SHOWN[key]
    if key.startswith("ctrl+"):
        return f"Ctrl-{key[5:].upper()}"
    if key.startswith("shift+"):
        return f"Shift-{key[6:].capitalize()}"
    return key if len(key) == 1 else key.capitalize()


def keymap(preset: str, remapped: Mapping[str, str]) -> dict[str, str]:
    """Return action → keys, for actions whose keys differ from KEYS.

    Raises UsageError for an unknown action, and for a key that would have two actions.
    """
    ids = {row.id for row in KEYS}
    for action in remapped:
        if action not in ids:
            raise UsageError(f"[keys] has no action '{action}'. There are: {', '.join(row.id for row in KEYS)}")
    chosen = {**PRESETS[preset], **{action: _named(keys) for action, keys in remapped.items()}}
    owner: dict[str, str] = {}
    for row in KEYS:
        for key in filter(None, chosen.get(row.id, row.keys).split(",")):
            if key in owner:
                raise UsageError(
                    f"[keys] gives {shown(key)} to both {owner[key]} and {row.id}. Give one of them another key"
                )
            owner[key] = row.id
    return chosen


def _named(keys: str) -> str:
    """Translate keys as people write them into Textual's names."""
    names = {character: name for name, character in _SHOWN.items() if len(character) == 1}
    return ",".join(names.get(key, key) for key in (key.strip() for key in keys.split(",")) if key)


class Group(NamedTuple):
    title: str
    rows: list[tuple[str, str]]
    """(keys, what they do)."""


def grouped(chosen: Mapping[str, str]) -> list[Group]:
    """KEYS as help and manual list them. Rows that share a text are one row.

    `chosen` maps actions to their keys, if these differ from KEYS.
    """
    groups: dict[str, Group] = {}
    title = ""
    for row in KEYS:
        title = row.group or title
        rows = groups.setdefault(title, Group(title, [])).rows
        keys = keys_of(row, chosen)
        if row.says:
            rows.append((keys, row.says))
        else:
            before, says = rows.pop()
            rows.append((f"{before} {keys}", says))
    return list(groups.values())


def keys_of(row: KeyRow, chosen: Mapping[str, str]) -> str:
    return " ".join(shown(key) for key in chosen.get(row.id, row.keys).split(","))
