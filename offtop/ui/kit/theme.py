"""A theme is data: a TOML file in themes/ with Textual's colours, and a look for each token that offtop draws."""

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
"""`cat-` and the id of a category."""
HEAT_TOKENS = ("heat-1", "heat-2", "heat-3", "heat-4", "heat-5", "heat-6")
"""From few waits to many."""
USER_FLAMES = ("flame-user-1", "flame-user-2", "flame-user-3")
"""Boxes of a program's functions: beside each other, two differ."""
KERNEL_FLAMES = ("flame-kernel-1", "flame-kernel-2", "flame-kernel-3")
CHANGED_FLAMES = ("flame-grew", "flame-shrank", "flame-same")
"""Boxes beside a baseline."""

TOKENS = (
    "text",
    "dim",
    "title",
    "tab",
    "head",
    "sorted",
    "value",
    "waiting",
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
"""What a text is, which is all that Python knows of its look. The words: `head` heads a column and `sorted` the one
that rows are sorted by; `cursor` is the row that the keys are on, `cursor-away` the chosen row of the pane that they
are not in; `bar-mark` a percentile in a histogram; `kernel` and `user` whose function it is; `grew` and `shrank` what
changed since the baseline; `fold` the signs that open and close a branch; `border` the lines between panes."""

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
"""Of a theme's file: `says` what it is for in a sentence; `ansi` draws with the terminal's own 16 colours; and
`[palette]` gives names to colours, for the other two tables to write `$name`."""
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
"""Textual's variables that would be a colour of its choice where a theme leaves the colours to the terminal."""
_ANSI = dict.fromkeys(_OWN_COLOURS, "ansi_default") | {
    "block-cursor-text-style": "bold underline",
    "block-cursor-blurred-text-style": "underline",
    "input-cursor-text-style": "reverse",
    "input-selection-text-style": "reverse",
}
"""What Textual wants to know of a theme that draws with the terminal's own colours. What is chosen is told by a
style, which can be seen on every terminal; of `reverse`, Textual's lists know nothing (Widget.get_visual_style)."""

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
"""What no variable reaches in Textual's own widgets: colours that even a theme without colours would have, green
for borders that cannot be seen among them; explanations too dim to read; and an emoji, of whose width terminals
have different opinions."""


def load(name: str) -> Theme:
    """The theme of that name. Raises UsageError if there is none, or if its file lacks something."""
    return _made(_file(name), name)


@cache
def says(name: str) -> str:
    """What that theme is for, in a sentence of at most 60 letters. Raises UsageError as `load` does."""
    return _file(name)["says"]


def parse(text: str, name: str) -> Theme:
    """A theme file's text. Raises ValueError that says what is missing, unknown, or no colour."""
    return _made(_checked(text), name)


def look(chosen: Theme, token: str) -> Style:
    """How a text that is a `token` is drawn, on the theme's background where it has none of its own."""
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
    """What the file says, the names of its palette replaced by their colours."""
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
            raise ValueError(f"{token}: no style: {', '.join(sorted(wrong))}")
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
        raise ValueError(f"{where}: {colour!r} is no colour") from None
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
