"""The keys, as a table: what the app binds, what the key bar, the palette and help name, and what can be remapped."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from textual.binding import Binding, BindingType

from offtop.errors import UsageError


class KeyRow(NamedTuple):
    id: str
    """What a config file calls it."""
    keys: str
    """As Textual names them, parted by commas."""
    action: str
    says: str = ""
    """What it does, for help and palette; empty: as the row before."""
    bar: str = ""
    """As the key bar names it; empty: it does not."""
    priority: bool = False
    """Whether it works in an input line too."""


KEYS = (
    KeyRow("down", "down,j", "move(1)", "move; on the heat map and among boxes, too"),
    KeyRow("up", "up,k", "move(-1)"),
    KeyRow("page_down", "pagedown", "page(1)", "move a page, to the first or to the last row"),
    KeyRow("page_up", "pageup", "page(-1)"),
    KeyRow("first", "home", "first"),
    KeyRow("last", "end", "last"),
    KeyRow("next_pane", "tab", "next_pane(1)", "to the next pane, or the one before"),
    KeyRow("previous_pane", "shift+tab", "next_pane(-1)"),
    KeyRow(
        "drill",
        "enter",
        "drill",
        "down: category, process, thread, stack tree, site; a box of the icicle: only it; a cell of the heat map: all "
        "panes as they were then",
        "ENTER drill",
    ),
    KeyRow("back", "escape,backspace", "leave", "up again; at the top: clear the filter", "ESC back"),
    KeyRow("right", "right", "aside(1)", "in tables down and up, in the tree open and close, else move"),
    KeyRow("left", "left", "aside(-1)"),
    KeyRow(
        "threads",
        "H",
        "look('threads')",
        "processes or threads, of those that wait or (2) of those that wake",
        "H threads",
    ),
    KeyRow("cgroups", "C", "look('cgroups')", "containers, units and other cgroups; ENTER on one: its processes"),
    KeyRow("account", "A", "look('account')", "the list: how long waits were, or where each second went", "A Account"),
    KeyRow("tree", "t,f5", "look('tree')", "the stack tree of the selection", "t Tree"),
    KeyRow("offcpu", "1", "mode('offcpu')", "off-CPU time: where threads wait; wakeups: who ended the waits"),
    KeyRow("wakeup", "2", "mode('wakeup')", bar="2 wakers"),
    KeyRow(
        "offwake", "3", "mode('offwake')", "both stacks, meeting in the middle; and the chain: who had woken the waker"
    ),
    KeyRow("chain", "4", "mode('chain')"),
    KeyRow("objects", "G", "objects", "what is waited on; ENTER: who waits there, or wakes (2)"),
    KeyRow("stuck", "5", "look('stuck')", "what is stuck now, and since when", "5 stuck"),
    KeyRow("outliers", "O", "look('outliers')", "what was caught: outliers, newest first", "O outliers"),
    KeyRow("triggers", "exclamation_mark", "triggers", "say what is caught: auto; lock.max > 500ms"),
    KeyRow("reasons", "L", "reasons", "what is waited for, as rules name it; ENTER: who waits for that", "L why"),
    KeyRow("flame", "g", "look('flame')", "the icicle (flame graph from the top) of the selection", "g Flame"),
    KeyRow("latency", "l", "latency", "latency of the selection: histogram, heat map, off", "l Latency"),
    KeyRow("zoom", "x", "look('zoom')", "this pane on the whole screen, and back"),
    KeyRow(
        "open",
        "plus",
        "open",
        "in the tree: open the branch, close it, open all; among threads: unfold, fold pools",
    ),
    KeyRow("close", "minus", "close"),
    KeyRow("open_all", "asterisk", "open_all"),
    KeyRow("invert", "v", "look('invert')", "tree and icicle: root first or leaf first"),
    KeyRow("kernel_frames", "K", "look('kernel_frames')", "tree and icicle: only the kernel's frames, or all"),
    KeyRow("user_frames", "U", "look('user_frames')", "tree and icicle: only the program's frames, or all"),
    KeyRow(
        "machinery", "full_stop", "look('machinery')", "tree and icicle: the scheduler's and the entry's frames, too"
    ),
    KeyRow("by_object", "J", "look('by_object')", "tree and icicle: by what is waited on, or all together"),
    KeyRow(
        "search",
        "slash,f3",
        "search",
        "search: marks what has the words; ENTER keeps them as a filter; !word excludes",
        "/ filter",
    ),
    KeyRow(
        "next_hit",
        "n",
        "next_hit(1)",
        "to the next or the previous line that the search found; without a search, outlier",
    ),
    KeyRow("previous_hit", "N", "next_hit(-1)"),
    KeyRow("filter", "backslash,f4,o", "filter", "filter: comm=mysql* max>10ms cat!=poll; empty: all"),
    KeyRow("user", "u", "user", "only one user's processes; empty: all"),
    KeyRow("states", "S", "states", "only waits in some states: R, S, D, T and so on"),
    KeyRow("rate", "Q", "rate", "requests a second of the process looked at: does it wait more than they explain?"),
    KeyRow("facts", "Y", "facts", "details of the process under the cursor: command line, user, start, files, limits"),
    KeyRow("stack_problems", "V", "stack_problems", "why user stacks are not whole, or lack names, and what to do"),
    KeyRow("mute", "X", "mute", "mute the category, thread group, waker or function under the cursor; f undoes it"),
    KeyRow("idle", "i", "look('idle')", "show idle-looking waits too, marked ~", "i Idle"),
    KeyRow("pin", "p", "pin", "pin the process, thread or cgroup under the cursor: it stays on top, marked *", "p Pin"),
    KeyRow("narrow", "F", "narrow", "let the kernel count only the pin, which costs less; again: all"),
    KeyRow("pause", "space,z,Z", "pause", "hold the picture; the measuring goes on, a recording waits", "SPACE pause"),
    KeyRow("tick_back", "left_square_bracket", "step(-1)", "one tick back or on, one minute; pauses", "[ ] Rewind"),
    KeyRow("tick_on", "right_square_bracket", "step(1)"),
    KeyRow("minute_back", "left_curly_bracket", "skip(-60)"),
    KeyRow("minute_on", "right_curly_bracket", "skip(60)"),
    KeyRow("go_to", "b", "go_to", "go to a time of day (02:10:55), or so far back or on (-5m, +30s)"),
    KeyRow("live", "0", "live", "live again; of a recording, to its end"),
    KeyRow("record", "a", "record", "record all that is measured to a file, from now on; again: end it"),
    KeyRow("snapshot", "s", "snapshot", "keep the last minutes, or what led to the picture that is held, in a file"),
    KeyRow("window", "w", "look('window')", "numbers over the last 1 s, 10 s, 60 s, or since the start", "w Window"),
    KeyRow("mark", "B", "mark", "what is on the screen, the last minute at least, is normal from now on"),
    KeyRow("diff", "D", "diff", "what changed since normal (B, --baseline); !: by more than normal itself strays"),
    KeyRow("reset", "r", "reset", "let the numbers since the start begin anew"),
    KeyRow("delay", "d", "delay", "seconds between two readings"),
    KeyRow("minimum", "m", "minimum", "from which length of wait on stacks are taken"),
    KeyRow("names", "c", "look('names')", "name, command line or container (unit, cgroup) of processes"),
    KeyRow("sort_waiting", "P", "sort('WAITING')", "sort by WAITING, MAX, total since the start, EV/S"),
    KeyRow("sort_max", "M", "sort('MAX')"),
    KeyRow("sort_total", "T", "sort('TOTAL')"),
    KeyRow("sort_events", "E", "sort('EV/S')"),
    KeyRow(
        "sort_left", "less_than_sign", "next_sort(-1)", "sort by the next column to the left or right, or choose it"
    ),
    KeyRow("sort_right", "greater_than_sign", "next_sort(1)"),
    KeyRow("sort_by", "f6", "sort_by"),
    KeyRow("reverse", "R,I", "reverse", "turn the order round"),
    KeyRow("setup", "f,f2", "setup", "choose columns and panes, and what stays muted"),
    KeyRow("copy", "y", "copy", "copy the row, or the stack in folded form, to the terminal's clipboard"),
    KeyRow("export", "e", "export", "write the selection to a file: flame graph, folded, speedscope, pprof, CSV"),
    KeyRow("write", "W", "write", "write these choices to the config file"),
    KeyRow("palette", "ctrl+p", "command_palette", "every action by name, themes, and the mouse switch"),
    KeyRow("screenshot", "f12", "save_screen", "write the screen to an SVG file in this directory"),
    KeyRow("help", "question_mark,h,f1", "help", "this help", "? Help"),
    KeyRow("redraw", "ctrl+l", "redraw", "draw the screen again"),
    KeyRow("suspend", "ctrl+z", "suspend_process", "suspend; fg comes back", priority=True),
    KeyRow("quit", "q,f10", "leave_offtop", "quit; in an overlay: close it", "q Quit"),
    KeyRow("interrupt", "ctrl+c,ctrl+q", "leave_offtop", priority=True),
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
"""Where hands that know another program want other keys."""

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
    """A key as help names it: `PgDn`, `Ctrl-L`, `F12`, `?`."""
    if key in _SHOWN:
        return _SHOWN[key]
    if key.startswith("ctrl+"):
        return f"Ctrl-{key[5:].upper()}"
    if key.startswith("shift+"):
        return f"Shift-{key[6:].capitalize()}"
    return key if len(key) == 1 else key.capitalize()


def keymap(preset: str, remapped: Mapping[str, str]) -> dict[str, str]:
    """Action → keys, where they are not those of KEYS. Raises UsageError for an action that there is not, and for a
    key that would do two things."""
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
    """Keys as people write them, as Textual names them."""
    names = {character: name for name, character in _SHOWN.items() if len(character) == 1}
    return ",".join(names.get(key, key) for key in (key.strip() for key in keys.split(",")) if key)


def told(chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(keys, what they do) for help, rows that belong together on one line."""
    keys: list[str] = []
    says = ""
    for row in (*KEYS, KeyRow("", "", "", " ")):
        if row.says and keys:
            yield " ".join(keys), says
            keys = []
        says = row.says or says
        keys += [shown(key) for key in chosen.get(row.id, row.keys).split(",")]
