"""Write the man page, offtop(8), to stdout: `python packaging/manpage.py >offtop.8`.

Options come from the parsers; keys, filters and settings come from the tables that the screen and the config file use.
Everything else is in manpage.roff. Neither the terminal's width nor the time zone changes it.
"""

import os
import re
import sys
import time
from argparse import HelpFormatter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from argparse_manpage.manpage import Manpage  # pyright: ignore[reportMissingTypeStubs]

sys.path.insert(0, str(Path(__file__).parent))

from completions import parser_of_everything

from offtop import __version__
from offtop.settings import config
from offtop.ui.kit import keys
from offtop.ui.panes import help as helps

_DESCRIPTION = "top for waiting: where every thread's time goes while it is not running"


def page() -> str:
    parser, commands = parser_of_everything()
    for one in (parser, *commands):
        one.formatter_class = partial(HelpFormatter, width=80)  # otherwise as wide as the terminal
        one.description = one.epilog = None  # the page has its own description, and shows a command's above its usage
    made: Any = Manpage(
        parser,
        {
            "description": _DESCRIPTION,
            "project_name": "offtop",
            "version": __version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))),
            "manual_section": 8,
            "manual_title": "System Administration",
            "include": str(Path(__file__).with_name("manpage.roff")),
        },
        format="single-commands-section",
    )
    made.add_section("keys", ">", _listed(row for group in keys.grouped({}) for row in group.rows))
    made.add_section("filters", ">", "\n" + _listed(helps.words(helps.FILTERS)))
    made.add_section("settings", ">", "\n" + _listed((one.name, one.means) for one in config.SETTINGS))
    return _tidied(str(made))


def _listed(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f".TP\n.B {_escaped(term)}\n{_escaped(meaning)}" for term, meaning in rows)


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def _tidied(roff: str) -> str:
    """Remove what mandoc and groff warn about.

    That is: blank lines outside examples, an escaped date, and `…`.
    """
    lines: list[str] = []
    is_example = False
    for line in roff.replace("…", "...").splitlines():
        is_example = line == ".EX" or (is_example and line != ".EE")
        if line.strip() or is_example:
            lines.append(line.rstrip())
        elif not lines[-1].startswith("."):
            lines.append(".PP")
    lines[0] = lines[0].replace("\\-", "-")
    tidied = re.sub(r"(?m)^\.PP\n(?=\.)", "", "\n".join(lines))
    return re.sub(r"(?m)^\.RE\n([a-z].*)$", r".RE\n.PP\n.B \1", tidied) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
