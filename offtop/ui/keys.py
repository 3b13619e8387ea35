"""The keys, as a table: what the app binds, what the key bar names and what help explains."""

from typing import NamedTuple

from textual.binding import Binding, BindingType


class KeyRow(NamedTuple):
    keys: str
    """As Textual names them, parted by commas."""
    action: str
    shown: str
    """As help names them."""
    says: str
    bar: str = ""
    """As the key bar names it; empty: it does not."""
    priority: bool = False
    """Whether it works in an input line too."""


KEYS = (
    KeyRow("down,j", "move(1)", "arrows j k", "move"),
    KeyRow("up,k", "move(-1)", "", ""),
    KeyRow("pagedown", "page(1)", "PgUp PgDn Home End", "move a page, to the first or to the last row"),
    KeyRow("pageup", "page(-1)", "", ""),
    KeyRow("home", "first", "", ""),
    KeyRow("end", "last", "", ""),
    KeyRow("tab,shift+tab", "other_pane", "TAB", "to the other table and back"),
    KeyRow("enter,right", "enter", "ENTER", "down: category, process, thread, and where it waits", "ENTER drill"),
    KeyRow("escape,backspace,left", "leave", "ESC", "up again", "ESC back"),
    KeyRow("H", "threads", "H", "processes or threads", "H threads"),
    KeyRow("p", "pin", "p", "pin the process or thread under the cursor: it stays on top, marked *", "p Pin"),
    KeyRow("F", "narrow", "F", "let the kernel count only the pin, which costs less; again: all", ""),
    KeyRow("space,z,Z", "pause", "SPACE z", "hold the picture; the measuring goes on", "SPACE pause"),
    KeyRow("w", "span", "w", "numbers over the last 1 s, 10 s, 60 s, or since the start", "w Window"),
    KeyRow("d", "delay", "d", "seconds between two readings"),
    KeyRow("m", "minimum", "m", "from which length of wait on stacks are taken"),
    KeyRow("i", "idle", "i", "show idle-looking waits too, marked ~", "i Idle"),
    KeyRow("P", "sort('WAITING')", "P M T E", "sort by WAITING, MAX, total since the start, EV/S"),
    KeyRow("M", "sort('MAX')", "", ""),
    KeyRow("T", "sort('TOTAL')", "", ""),
    KeyRow("E", "sort('EV/S')", "", ""),
    KeyRow("less_than_sign", "next_sort(-1)", "< >", "sort by the next column to the left or right"),
    KeyRow("greater_than_sign", "next_sort(1)", "", ""),
    KeyRow("R", "reverse", "R", "turn the order round"),
    KeyRow("question_mark,h,f1", "help", "? h F1", "this help", "? Help"),
    KeyRow("ctrl+l", "redraw", "Ctrl-L", "draw the screen again"),
    KeyRow("ctrl+z", "suspend_process", "Ctrl-Z", "suspend; fg comes back", priority=True),
    KeyRow("q,f10", "leave_offtop", "q F10 Ctrl-C Ctrl-Q", "quit", "q Quit"),
    KeyRow("ctrl+c,ctrl+q", "leave_offtop", "", "", priority=True),
)

BINDINGS: list[BindingType] = [
    Binding(row.keys, row.action, row.says, show=False, priority=row.priority) for row in KEYS
]
