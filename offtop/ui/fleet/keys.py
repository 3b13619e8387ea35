"""Table of the keys of `offtop fleet`; help and manual list them. They mean what they mean on the other screen."""

from textual.binding import Binding, BindingType

from offtop.ui.kit.keys import KeyRow, shown

KEYS = (
    KeyRow("down", "down,j", "move"),
    KeyRow("up", "up,k"),
    KeyRow("page_down", "pagedown", "move by a page, to the first row, to the last row"),
    KeyRow("page_up", "pageup"),
    KeyRow("first", "home"),
    KeyRow("last", "end"),
    KeyRow(
        "drill",
        "enter",
        "show the programs of the host; again: that host live, or its recording, over ssh",
        bar="ENTER programs",
    ),
    KeyRow("back", "escape,backspace", "go back to the hosts; there: clear the filter", bar="ESC back"),
    KeyRow("shorter", "minus", "average over a shorter or longer range", bar="- + range"),
    KeyRow("longer", "plus,equals_sign"),
    KeyRow("step_back", "left_square_bracket", "go back or forward by a fifth of the range", bar="[ ] Rewind"),
    KeyRow("step_on", "right_square_bracket"),
    KeyRow("range_back", "left_curly_bracket", "go back or forward by the range"),
    KeyRow("range_on", "right_curly_bracket"),
    KeyRow("go_to", "b", "jump to a time of day (02:10), a date (2026-11-21T02:10), or back or forward (-5m, +30s)"),
    KeyRow("now", "0", "return to now", bar="0 now"),
    KeyRow(
        "filter",
        "backslash,slash,f4,o",
        "only hosts whose labels match, e.g. job=db env!=test db*; empty: all",
        bar="\\ filter",
    ),
    KeyRow("sort_left", "less_than_sign", "sort by the column to the left or right", bar="< > sort"),
    KeyRow("sort_right", "greater_than_sign"),
    KeyRow("reverse", "R,I", "reverse the sort order"),
    KeyRow("refresh", "r,f5", "ask again now"),
    KeyRow("help", "question_mark,h,f1", "show this help", bar="? Help"),
    KeyRow("redraw", "ctrl+l", "redraw the screen"),
    KeyRow("suspend", "ctrl+z", "suspend; fg resumes", priority=True),
    KeyRow("quit", "q,f10", "quit; in help: close it", bar="q Quit"),
    KeyRow("interrupt", "ctrl+c,ctrl+q", priority=True),
)

BINDINGS: list[BindingType] = [
    Binding(row.keys, row.action, row.says, show=False, priority=row.priority, id=row.id) for row in KEYS
]


def rows() -> list[tuple[str, str]]:
    """Return (keys, what they do). Rows that share a text are one row."""
    found: list[tuple[str, str]] = []
    for row in KEYS:
        keys = " ".join(map(shown, row.keys.split(",")))
        if row.says:
            found.append((keys, row.says))
        else:
            before, says = found.pop()
            found.append((f"{before} {keys}", says))
    return found
