"""Each theme styles every token, is readable, and keeps categories distinct for the colour-blind, too."""

from collections.abc import Iterator
from itertools import combinations, pairwise, product
from typing import Any

import pytest
from rich.color import ColorType
from rich.style import Style
from textual.app import App, ComposeResult
from textual.color import Color
from textual.command import CommandList
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from offtop.errors import UsageError
from offtop.model.viewmodel.view import View
from offtop.model.windows.breakdown import FILTERED, RUN_QUEUE, SHORT
from offtop.ui.app import OfftopApp
from offtop.ui.kit import theme
from offtop.ui.kit.lines import Line, Panel
from tests.ui.scripted import ScriptedSource
from tests.ui.shown import CATEGORIES, asynchronous, coloured, running, screen, shown, until

COLOURED = ("colourblind", "contrast", "dark", "light")
KINDS_OF_COLOURS = {"ansi": {ColorType.DEFAULT, ColorType.STANDARD}, "mono": {ColorType.DEFAULT}}
NOT_READ = {*theme.HEAT_TOKENS, "rule", "border"}
"""Tokens of shapes, for which WCAG requires a contrast of only 3:1."""
FAMILIES = (
    ("lock", "kernel-lock"),
    ("disk-read", "disk-write", "fsync", "page-fault"),
    ("net-recv", "net-send"),
    ("pipe",),
    ("run-queue", "throttle"),
    ("sleep",),
)
"""The twelve most common categories; those in one group may look similar, but not the same."""
NOTICEABLE = 0.02
"""The just noticeable difference in Oklab, from CSS Color 4."""

# Machado, Oliveira, Fernandes 2009: red, green and blue light as seen without one kind of cone.
SEES_ALL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
PROTAN = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
DEUTAN = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
TRITAN = ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900))
# Ottosson 2020: light to cone responses, and their cube roots to Oklab.
CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)

Three = tuple[float, float, float]
Matrix = tuple[Three, Three, Three]


def times(matrix: Matrix, vector: Three) -> Three:
    one, two, three = (sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix)
    return one, two, three


def light(colour: str) -> Three:
    """Return the linear red, green and blue light of a colour."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in Color.parse(colour).normalized
    )
    return red, green, blue


def luminance(colour: str) -> float:
    red, green, blue = light(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def distance(one: str, other: str, eyes: Matrix = SEES_ALL) -> float:
    def seen(colour: str) -> Three:
        red, green, blue = (min(1.0, max(0.0, part)) for part in times(eyes, light(colour)))
        long, medium, short = (cone ** (1 / 3) for cone in times(CONES, (red, green, blue)))
        return times(OKLAB, (long, medium, short))

    return sum((a - b) ** 2 for a, b in zip(seen(one), seen(other), strict=True)) ** 0.5


def colour_vision_of(name: str) -> tuple[Matrix, ...]:
    """Return the kinds of colour vision that a theme is made for."""
    return (SEES_ALL, DEUTAN, PROTAN, TRITAN) if name == "colourblind" else (SEES_ALL, DEUTAN, PROTAN)


class TokenStyles:
    """A theme's styles by token."""

    def __init__(self, name: str) -> None:
        self.theme = theme.load(name)

    def colour(self, token: str) -> str:
        return self.theme.variables[f"{token}-color"]

    def background(self, token: str) -> str:
        background = self.theme.variables[f"{token}-background"]
        return (self.theme.background or "") if background == "transparent" else background

    def style(self, token: str) -> str:
        return self.theme.variables[f"{token}-style"]


DARK = (theme.paths.themes() / "dark.toml").read_text()


def test_helpers_compute_known_distances_and_contrasts() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert distance("#000000", "#ffffff") == pytest.approx(1, abs=0.001)
    assert distance("#123456", "#123456") == 0
    assert distance("#ff0000", "#00ff00") > 0.5
    assert distance("#b04000", "#707000", DEUTAN) < 0.5 * distance("#b04000", "#707000")


def test_there_are_six_themes() -> None:
    assert theme.paths.theme_names() == ["ansi", "colourblind", "contrast", "dark", "light", "mono"]


@pytest.mark.parametrize("name", theme.paths.theme_names())
def test_theme_styles_each_token(name: str) -> None:
    made = theme.load(name)
    wanted = {f"{token}-{part}" for token in theme.TOKENS for part in ("color", "background", "style")}
    assert wanted <= made.variables.keys()
    assert len(set(theme.TOKENS)) == len(theme.TOKENS)


def test_each_category_has_a_token() -> None:
    ids = {*CATEGORIES.ids, SHORT, FILTERED, RUN_QUEUE}
    assert set(theme.CATEGORY_TOKENS) == {f"cat-{category}" for category in ids}
    assert {category for family in FAMILIES for category in family} <= ids


@pytest.mark.parametrize("name", theme.paths.theme_names())
def test_theme_describes_itself_in_one_sentence(name: str) -> None:
    description = theme.says(name)
    assert 10 < len(description) <= 60
    assert description.endswith(".")


def test_missing_or_unknown_token_is_an_error() -> None:
    with pytest.raises(ValueError, match="token: lost"):
        theme.parse("\n".join(line for line in DARK.splitlines() if not line.startswith("lost")), "broken")
    with pytest.raises(ValueError, match="token: sparkle"):
        theme.parse(DARK + "\nsparkle = {}\n", "broken")
    with pytest.raises(ValueError, match=r"token: .*cat-lock.*value"):
        theme.parse(DARK.partition("[tokens]")[0], "broken")


@pytest.mark.parametrize(
    ("written", "instead", "wrong"),
    [
        ('live = { color = "$blue"', 'live = { blink = "yes"', "live: unknown blink"),
        ('live = { color = "$blue"', 'live = { color = "$bleu"', r"live: \$bleu is not in the palette"),
        ('primary = "$blue"', 'primary = "$bleu"', r"primary: \$bleu is not in the palette"),
        ('blue = "#5fafff"', 'blue = "#5fafzz"', "primary: '#5fafzz' is not a colour"),
        ('bar = { color = "$blue" }', 'bar = { style = "bold loud" }', "bar: unknown style: loud"),
        ('primary = "$blue"', "", "colour: primary"),
        ("says =", "said =", "part: said, says"),
        ("[palette]", "[pallet]", "part: pallet"),
        ("dark = true", "dark = ", "Invalid value"),
    ],
)
def test_error_in_a_theme_is_named(written: str, instead: str, wrong: str) -> None:
    assert written in DARK
    with pytest.raises(ValueError, match=wrong):
        theme.parse(DARK.replace(written, instead), "broken")


def test_palette_is_optional() -> None:
    mono = (theme.paths.themes() / "mono.toml").read_text()
    assert "[palette]" not in mono
    assert theme.parse(mono, "mono") == theme.load("mono")


def test_unknown_theme_is_a_usage_error_that_lists_the_themes() -> None:
    named = r"choose one of .*dark.*light.*mono"
    for ask in (theme.load, theme.says):
        with pytest.raises(UsageError, match=named):
            ask("../dark x")
    with pytest.raises(UsageError, match=named):
        OfftopApp(ScriptedSource(), View(), CATEGORIES, theme_name="../dark x")


@pytest.mark.parametrize("name", COLOURED)
def test_text_has_enough_contrast_to_its_background(name: str) -> None:
    styles = TokenStyles(name)
    least = 7.0 if name == "contrast" else 4.5
    for token in theme.TOKENS:
        has = contrast(styles.colour(token), styles.background(token))
        assert has >= (3.0 if token in NOT_READ else least), f"{token}: {has:.2f}"


@pytest.mark.parametrize("name", COLOURED)
def test_common_categories_are_distinct_for_the_colour_blind(name: str) -> None:
    styles = TokenStyles(name)
    family_of = {category: family for family in FAMILIES for category in family}
    for eyes in colour_vision_of(name):
        for one, other in combinations(family_of, 2):
            delta = distance(styles.colour(f"cat-{one}"), styles.colour(f"cat-{other}"), eyes) / NOTICEABLE
            assert delta >= (2.5 if family_of[one] == family_of[other] else 3.0), f"{one}, {other}: {delta:.2f}"


@pytest.mark.parametrize("name", COLOURED)
def test_heat_map_contrast_grows_with_the_number_of_waits(name: str) -> None:
    styles = TokenStyles(name)
    stands_out = [contrast(styles.colour(token), styles.theme.background or "") for token in theme.HEAT_TOKENS]
    assert all(more >= 1.2 * less for less, more in pairwise(stands_out))
    for one, other in pairwise(theme.HEAT_TOKENS):
        assert all(
            distance(styles.colour(one), styles.colour(other), eyes) >= 2 * NOTICEABLE
            for eyes in (SEES_ALL, DEUTAN, PROTAN, TRITAN)
        )


@pytest.mark.parametrize("name", COLOURED)
def test_flame_colours_are_distinct_and_kernel_differs_from_user(name: str) -> None:
    styles = TokenStyles(name)
    for eyes in colour_vision_of(name):
        for flames in (theme.USER_FLAMES, theme.KERNEL_FLAMES):
            for one, other in combinations(flames, 2):
                assert distance(styles.background(one), styles.background(other), eyes) >= 2 * NOTICEABLE
        for one, other in product(
            (*theme.USER_FLAMES, *theme.KERNEL_FLAMES, "flame-match"), ("flame-cursor", "flame-match")
        ):
            if one != other:
                assert distance(styles.background(one), styles.background(other), eyes) >= 3 * NOTICEABLE
        for one, other in product(theme.USER_FLAMES, theme.KERNEL_FLAMES):
            assert distance(styles.background(one), styles.background(other), eyes) >= 3 * NOTICEABLE, (one, other)


def test_ansi_and_mono_use_only_terminal_colours() -> None:
    for name, allowed in (("ansi", ("ansi_", "transparent")), ("mono", ("ansi_default", "transparent"))):
        styles = TokenStyles(name)
        assert styles.theme.ansi
        for token in theme.TOKENS:
            assert styles.colour(token).startswith(allowed)
            assert styles.background(token).startswith(allowed)
            assert set(styles.style(token).split()) <= {"none", "bold", "underline", "reverse", "dim"}
    assert "color" not in (theme.paths.themes() / "mono.toml").read_text().replace("colours", "")


def test_common_categories_and_boxes_are_distinct_in_ansi_and_mono() -> None:
    styles = TokenStyles("ansi")
    usual = [f"cat-{category}" for family in FAMILIES for category in family]
    assert len({(styles.colour(token), styles.style(token)) for token in usual}) == 12
    for name in ("ansi", "mono"):
        styles = TokenStyles(name)
        boxes = (*theme.USER_FLAMES, *theme.KERNEL_FLAMES, "flame-cursor", "flame-match")
        assert len({(styles.colour(b), styles.background(b), styles.style(b)) for b in boxes}) == len(boxes)


@pytest.mark.parametrize("name", ["ansi", "mono"])
def test_textual_variables_use_only_terminal_colours_in_ansi_and_mono(name: str) -> None:
    allowed = ("transparent", "ansi_default") if name == "mono" else ("transparent", "ansi_")
    styles = {"none", "not", "b", "bold", "underline", "reverse", "dim"}
    for variable, value in theme.load(name).to_color_system().generate().items():
        if not set(value.split()) <= styles:
            assert value.startswith(allowed), f"{variable}: {value}"


class Everything(App[None]):
    """An app with a line per token and Textual's widgets: a list, an input and a scroll bar."""

    CSS = f"""
    Screen {{ background: $background; color: $foreground; }}
    Panel {{ height: {len(theme.TOKENS)}; background: $background; color: $foreground; }}
    VerticalScroll {{ height: 3; }}
    {theme.TEXTUAL}
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.register_theme(theme.load(name))
        self.theme = name
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        yield Panel("tokens")
        yield Input("an answer")
        with VerticalScroll():
            yield Static("\n".join("many lines"))

    def on_mount(self) -> None:
        self.query_one(Panel).show([Line(((token, token),)) for token in theme.TOKENS])
        self.query_one(Input).focus()


def styles_shown(app: App[Any]) -> Iterator[tuple[str, Style]]:
    for strip in app.screen._compositor.render_strips():  # pyright: ignore[reportPrivateUsage]
        for segment in strip:
            yield segment.text.strip(), segment.style or Style.null()


def kinds_of_colours_shown(app: App[Any]) -> set[ColorType]:
    """Return the colour codes on the screen: STANDARD (16), EIGHT_BIT (256) or TRUECOLOR."""
    return {colour.type for _, style in styles_shown(app) for colour in (style.color, style.bgcolor) if colour}


@pytest.mark.parametrize("name", ["ansi", "mono"])
@asynchronous
async def test_screen_shows_only_terminal_colours_in_ansi_and_mono(name: str) -> None:
    app = Everything(name)
    async with running(app, (80, len(theme.TOKENS) + 20)) as pilot:
        await pilot.pause()
        shown = dict(styles_shown(app))
        assert shown.keys() >= set(theme.TOKENS)
        assert shown["menu-chosen"].reverse
        for palette_open in (False, True):
            if palette_open:
                await pilot.press("ctrl+p", "t")
                await until(lambda: app.screen.query_one(CommandList).option_count > 0)
                await pilot.press("down")
                await pilot.pause()
            assert kinds_of_colours_shown(app) == KINDS_OF_COLOURS[name]


@pytest.mark.parametrize("name", theme.paths.theme_names())
@asynchronous
async def test_selection_and_text_cursor_are_visible_in_each_theme(name: str) -> None:
    app = Everything(name)
    async with running(app, (80, 30)) as pilot:
        await pilot.press("end", "x")
        written = [style for text, style in styles_shown(app) if text == "an answerx"]
        cursor = app.query_one(Input).get_component_rich_style("input--cursor")
        assert written and looks_different(cursor, written[0])
        await pilot.press("ctrl+p", "t")
        await until(lambda: app.screen.query_one(CommandList).option_count > 1)
        commands = app.screen.query_one(CommandList)
        chosen = commands.get_visual_style("option-list--option", "option-list--option-highlighted").rich_style
        assert looks_different(chosen, commands.get_visual_style("option-list--option").rich_style)


def looks_different(one: Style, other: Style) -> bool:
    return (one.reverse, one.underline, one.bgcolor) != (other.reverse, other.underline, other.bgcolor)


@pytest.mark.parametrize("name", theme.paths.theme_names())
@asynchronous
async def test_app_starts_in_each_theme_with_a_cursor_visible_without_colour(name: str) -> None:
    async with shown(ScriptedSource(), theme_name=name) as (app, pilot):
        await pilot.press("down")
        assert kinds_of_colours_shown(app) <= KINDS_OF_COLOURS.get(name, {ColorType.TRUECOLOR})
        assert next(line for line in screen(app) if line.startswith(">")).startswith("> lock")


@asynchronous
async def test_new_theme_is_drawn_at_once_in_every_panel() -> None:
    async with shown(ScriptedSource(ticks=3), theme_name="light") as (light, _):
        expected = coloured(light)
    async with shown(ScriptedSource(ticks=3), theme_name="dark") as (app, pilot):
        assert coloured(app) != expected
        app.action_theme("light")
        await pilot.pause()
        assert coloured(app) == expected
