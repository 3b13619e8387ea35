"""The list of stuck waits on the screen, and threads of the scripted source that are in it."""

import re

from offtop.model.values.catalog import Details, ThreadKey
from offtop.model.viewmodel.view import STUCK as PANE
from offtop.ui.app import OfftopApp
from tests.ui.shown import rows_of, screen

CP, CONNECTION, GDB, PURGE = ThreadKey(900, 900), ThreadKey(4242, 4268), ThreadKey(901, 901), ThreadKey(4242, 4270)
NGINX, LATE = ThreadKey(700, 700), ThreadKey(800, 801)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
WHO = {
    4242: Details("mysql", "/usr/sbin/mysqld", "/system.slice/mysql.service", 27),
    900: Details("ann", "cp big small", "/user.slice", 1000),
}


def rows(app: OfftopApp) -> list[list[str]]:
    """Return the words of each line of the stuck list."""
    lines = screen(app)
    first = next(number for number, line in enumerate(lines) if line.split()[:2] == ["AGE", "TID"]) + 1
    listed = [line.removeprefix(">").split() for line in lines[first:-2]]
    end = next(
        (number for number, words in enumerate(listed) if len(words) < 2 or not words[1].lstrip("x").isdigit()), None
    )
    return listed[:end]


def tids(app: OfftopApp) -> list[int]:
    return [int(row[1]) for row in rows(app)]


def title(app: OfftopApp) -> str:
    return next(line for line in screen(app) if "stuck now" in line).strip("─ ")


def chosen(app: OfftopApp) -> ThreadKey:
    """Return the thread of the cursor line."""
    (line,) = [line for line in rows_of(app, PANE) if line.startswith(">") and not line.startswith(">=")]
    tid = int(line[1:].split()[1])
    return next(key for key in (CP, CONNECTION, GDB, PURGE, NGINX, LATE) if key.tid == tid)


def line_with(app: OfftopApp, text: str) -> str:
    return next(line for line in screen(app) if text in line)
