"""A theme is data: a TOML file in themes/ with Textual's colours, and a look for each token that offtop draws."""

import tomllib
from pathlib import Path
from typing import Any

from textual.theme import Theme

from offtop import paths
from offtop.errors import UsageError

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
)
"""What a text is, which is all that Python knows of its look. The words: `head` heads a column and `sorted`
the one that rows are sorted by; `cursor` is the row that the keys are on, `cursor-away` the chosen row of the
pane that they are not in."""

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

_ANSI = {
    "ansi-background": "ansi_default",
    "ansi-foreground": "ansi_default",
    "input-cursor-background": "ansi_default",
    "input-cursor-foreground": "ansi_default",
    "input-cursor-text-style": "reverse",
}
"""What Textual wants to know of a theme that draws with the terminal's own colours."""


def names() -> list[str]:
    """The themes there are."""
    return sorted(path.stem for path in paths.themes().glob("*.toml"))


def load(name: str) -> Theme:
    """The theme of that name. Raises UsageError if there is none, or if its file lacks something."""
    path = paths.themes() / f"{Path(name).name}.toml"
    try:
        return parse(path.read_text(encoding="utf-8"), name)
    except FileNotFoundError:
        raise UsageError(f"There is no theme {name!r}: choose one of {', '.join(names())}.") from None
    except (tomllib.TOMLDecodeError, ValueError) as wrong:
        raise UsageError(f"{path}: {wrong}") from None


def parse(text: str, name: str) -> Theme:
    """A theme file's text. Raises ValueError that says what is missing, or unknown."""
    file = tomllib.loads(text)
    colours: dict[str, str] = file.get("colours", {})
    tokens: dict[str, dict[str, str]] = file.get("tokens", {})
    for kind, given, known in (("colour", set(colours), _COLOURS), ("token", set(tokens), set(TOKENS))):
        if given != known:
            raise ValueError(f"missing or unknown {kind}: {', '.join(sorted(given ^ known))}")
    variables: dict[str, str] = {}
    for token, look in tokens.items():
        if unknown := set(look) - set(_LOOK):
            raise ValueError(f"{token}: unknown {', '.join(sorted(unknown))}")
        for part, value in {**_LOOK, "color": colours["foreground"], **look}.items():
            variables[f"{token}-{part}"] = value
    options: dict[str, Any] = {"dark": bool(file.get("dark", True)), "ansi": bool(file.get("ansi", False))}
    if options["ansi"]:
        variables |= _ANSI
    return Theme(name=name, variables=variables, **colours, **options)


def css() -> str:
    """A component class for each token."""
    return "\n".join(
        f"Panel > .panel--{t} {{ color: ${t}-color; background: ${t}-background; text-style: ${t}-style; }}"
        for t in TOKENS
    )
