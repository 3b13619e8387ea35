"""Themes: TOML files in themes/ that define Textual's colours and the look of each token."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from offtop import paths
from offtop.errors import UsageError

CATEGORY_TOKENS = (
    "cat-lock",
    "cat-kernel-lock",
    "cat-net-recv",
    "cat-net-send",
    "cat-connect",
    "cat-accept",
    "cat-poll",
    "cat-disk-read",
    "cat-disk-write",
    "cat-fsync",
    "cat-page-fault",
    "cat-swap",
    "cat-reclaim",
    "cat-pipe",
    "cat-sleep",
    "cat-child",
    "cat-signal",
    "cat-tty",
    "cat-stopped",
    "cat-throttle",
    "cat-run-queue",
    "cat-kthread-idle",
    "cat-io-uring",
    "cat-device",
    "cat-rcu",
    "cat-short",
    "cat-other",
    "cat-filtered",
)
"""`cat-` and the id of each category."""
HEAT_TOKENS = ("heat-1", "heat-2", "heat-3", "heat-4", "heat-5", "heat-6")
"""Cells of the heat map, from few waits to many."""
USER_FLAMES = ("flame-user-1", "flame-user-2", "flame-user-3")
"""Icicle boxes of user functions; several colours, so that neighbours differ."""
KERNEL_FLAMES = ("flame-kernel-1", "flame-kernel-2", "flame-kernel-3")
CHANGED_FLAMES = ("flame-grew", "flame-shrank", "flame-same")
"""Icicle boxes when compared with a baseline."""

TOKENS = (
    "text",
    "dim",
    "title",
    "tab",
    "head",
    "sorted",
    "value",
    "waiting",
    "waiting-bar",
    "spark",
    "name",
    "where",
    "idle",
    "pin",
    "cursor",
    "cursor-away",
    "lost",
    "paused",
    "live",
    "alert",
    "key",
    "rule",
    *CATEGORY_TOKENS,
    *HEAT_TOKENS,
    *USER_FLAMES,
    *KERNEL_FLAMES,
    *CHANGED_FLAMES,
    "flame-cursor",
    "flame-match",
    "grew",
    "shrank",
    "bar",
    "bar-mark",
    "match",
    "kernel",
    "user",
    "fold",
    "muted",
    "crumb",
    "filter",
    "border",
    "menu",
    "menu-chosen",
)
"""Tokens: the kinds of text on the screen. The code only names the token; the theme defines its look.

`head` is a column title, `sorted` the title of the sort column. `cursor` is the selected row of the focused pane,
`cursor-away` that of another pane. `waiting-bar` is the part of a WAITING cell that a bar fills. `bar-mark` is a
percentile in a histogram. `kernel` and `user` are functions.
`grew` and `shrank` are changes since the baseline. `fold` is a sign that opens or closes a branch. `border` is a line
between panes.
"""

_LOOK = {"color": "", "background": "transparent", "style": "none"}
_COLOURS = {
    "primary",
    "secondary",
    "warning",
    "error",
    "success",
    "accent",
    "foreground",
    "background",
    "surface",
    "panel",
}
_PARTS = {"says", "dark", "ansi", "palette", "colours", "tokens"}
"""Top-level keys of a theme file.

`says` describes the theme in one sentence. `ansi` draws with the terminal's own 16 colours. `[palette]` names colours
that the other two tables use as `$name`.
"""
_STYLES = {"none", "bold", "dim", "italic", "underline", "reverse", "strike"}

_OWN_COLOURS = (
    "ansi-background",
    "ansi-foreground",
    "block-cursor-background",
    "block-cursor-foreground",
    "block-cursor-blurred-background",
    "block-cursor-blurred-foreground",
    "border",
    "border-blurred",
    "footer-key-foreground",
    "input-cursor-background",
    "input-cursor-foreground",
    "input-selection-background",
    "input-selection-foreground",
    "link-background-hover",
    "link-color",
    "link-color-hover",
    *(f"markdown-h{level}-color" for level in range(1, 7)),
    "screen-selection-background",
    "screen-selection-foreground",
    "scrollbar",
    "scrollbar-active",
    "scrollbar-background",
    "scrollbar-background-active",
    "scrollbar-background-hover",
    "scrollbar-hover",
)
"""Textual's variables that would get a colour of Textual's choice even if the theme uses the terminal's colours."""
_ANSI = dict.fromkeys(_OWN_COLOURS, "ansi_default") | {
    "block-cursor-text-style": "bold underline",
    "block-cursor-blurred-text-style": "underline",
    "input-cursor-text-style": "reverse",
    "input-selection-text-style": "reverse",
}
"""Textual's variables for a theme that draws with the terminal's own colours.

The selection is marked by a style, which every terminal can show. Textual's lists do not support `reverse`
(Widget.get_visual_style).
"""

TEXTUAL = """
Input > .input--cursor {
    color: $input-cursor-foreground; background: $input-cursor-background; text-style: $input-cursor-text-style;
}
Input > .input--selection {
    color: $input-selection-foreground; background: $input-selection-background;
    text-style: $input-selection-text-style;
}
CommandPalette SearchIcon { display: none; }
CommandPalette > .command-palette--help-text { text-style: not bold; }
CommandPalette #--input { border: hkey $border; }
CommandInput, CommandInput:focus { border: blank $border; }
CommandList { border-top: blank $border; border-bottom: hkey $border; }
CommandList > .option-list--option-highlighted {
    color: $block-cursor-foreground; background: $block-cursor-background; text-style: $block-cursor-text-style;
}
"""
"""CSS for what no variable changes in Textual's own widgets.

These are colours that would appear even in a theme without colours, such as green borders; explanations too dim to
read; and an emoji whose width differs between terminals.
"""


def load(name: str) -> Theme:
    """Return the theme `name`. Raises UsageError if it does not exist or its file is invalid."""
    return _made(_file(name), name)


@cache
def says(name: str) -> str:
    """Return the theme's description, a sentence of at most 60 letters.

    Raises UsageError as `load` does.
    """
    return _file(name)["says"]


def parse(text: str, name: str) -> Theme:
    """Parse the text of a theme file.

    Raises ValueError that names what is missing, unknown or not a colour.
    """
    return _made(_checked(text), name)


def style_of(chosen: Theme, token: str) -> Style:
    """Return the style of `token`, on the theme's background unless it has its own."""
    color, background, style = (chosen.variables[f"{token}-{part}"] for part in _LOOK)
    under = Color.parse(chosen.background) + Color.parse(background)
    return Style.parse(style) + Style.from_color((under + Color.parse(color)).rich_color, under.rich_color)


def _file(name: str) -> dict[str, Any]:
    path = paths.themes() / f"{Path(name).name}.toml"
    try:
        return _checked(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"There is no theme {name!r}: choose one of {', '.join(paths.theme_names())}.") from None
    except ValueError as wrong:
        raise UsageError(f"{path}: {wrong}") from None


def _checked(text: str) -> dict[str, Any]:
    """Parse and check the file, and replace palette names by their colours."""
    file = tomllib.loads(text)
    palette: dict[str, str] = file.get("palette", {})
    colours: dict[str, str] = file.get("colours", {})
    tokens: dict[str, dict[str, str]] = file.get("tokens", {})
    for kind, differing in (
        ("part", set(file) - _PARTS | {"says"} - set(file)),
        ("colour", set(colours) ^ _COLOURS),
        ("token", set(tokens) ^ set(TOKENS)),
    ):
        if differing:
            raise ValueError(f"missing or unknown {kind}: {', '.join(sorted(differing))}")
    for token, look in tokens.items():
        if unknown := set(look) - set(_LOOK):
            raise ValueError(f"{token}: unknown {', '.join(sorted(unknown))}")
        if wrong := set(look.get("style", "none").split()) - _STYLES:
            raise ValueError(f"{token}: unknown style: {', '.join(sorted(wrong))}")
    return {
        **file,
        "colours": {kind: _colour(kind, colour, palette) for kind, colour in colours.items()},
        "tokens": {
            token: {part: value if part == "style" else _colour(token, value, palette) for part, value in look.items()}
            for token, look in tokens.items()
        },
    }


def _colour(where: str, colour: str, palette: dict[str, str]) -> str:
    if colour.startswith("$"):
        try:
            colour = palette[colour[1:]]
        except KeyError:
            raise ValueError(f"{where}: {colour} is not in the palette") from None
    try:
        Color.parse(colour)
    except ColorParseError:
        raise ValueError(f"{where}: {colour!r} is not a colour") from None
    return colour


def _made(file: dict[str, Any], name: str) -> Theme:
    colours: dict[str, str] = file["colours"]
    tokens: dict[str, dict[str, str]] = file["tokens"]
    options: dict[str, Any] = {"dark": bool(file.get("dark", True)), "ansi": bool(file.get("ansi", False))}
    variables = {"scrollbar": colours["secondary"], "input-selection-text-style": "none"}
    if options["ansi"]:
        variables |= _ANSI
    for token, look in tokens.items():
        for part, value in {**_LOOK, "color": colours["foreground"], **look}.items():
            variables[f"{token}-{part}"] = value
    return Theme(name=name, variables=variables, **colours, **options)
