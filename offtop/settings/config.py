"""Read settings: a TOML file holds a user's defaults, and the command line overrides them.

The file is untrusted text that root reads: errors say which line is wrong, but never quote other content. Settings have
dotted names as in TOML: `delay`, `keys.preset`.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from offtop.errors import UsageError
from offtop.model.aggregate.rows import SORTS
from offtop.model.values.disks import LIST_MODES
from offtop.model.values.wake import MODES, OFFCPU, WAKEUP
from offtop.model.viewmodel.view import LATENCIES, LONGEST_DELAY_NS, NAMES, SHORTEST_DELAY_NS, SPANS_NS
from offtop.person import Person, is_roots, read_theirs
from offtop.person import person as current_person
from offtop.printable import printable
from offtop.units import NS_PER_S, parse_duration

EVERYBODYS = Path("/etc/offtop/config.toml")
"""System-wide file, read if the user has none."""
KEYS = "keys."
"""Prefix of the names of settings in the table [keys]."""
_WINDOWS = dict(zip(("1s", "10s", "60s", "start"), SPANS_NS, strict=True))
_MODES = {**{mode: mode for mode in (*MODES, *LIST_MODES)}, "off": OFFCPU, "wake": WAKEUP}
"""Modes by name, with the names of bcc's offcputime and wakeuptime as aliases."""
_UNITS_NS = (("h", 3600 * NS_PER_S), ("m", 60 * NS_PER_S), ("s", NS_PER_S), ("ms", 1_000_000), ("us", 1000), ("ns", 1))
_LONGEST_HISTORY_NS = 24 * 3600 * NS_PER_S
_LONGEST_NS = 1 << 63
"""Longer than any wait: in effect no upper limit."""
_LONGEST_SHOWN = 40
"""Characters of a wrong name or value that an error quotes."""
_LONGEST_ALIGNED = 40
SOURCES = ("auto", "bpf", "proc")
_COMMAND_LINE = "command line"
_SERVERS = r"(auto|https?://[!-+\--~]+([ ,]+https?://[!-+\--~]+){0,9})?"


@dataclass(frozen=True, slots=True)
class Settings:
    theme: str
    """Empty: chosen to fit the terminal."""
    color: str
    ascii: bool
    mouse: bool
    delay_ns: int
    span_ns: int
    """One of SPANS_NS; SINCE_START: since the start."""
    min_ns: int
    history_ns: int
    idle: bool
    threads: bool
    programs: bool
    mode: str
    """One of wake.MODES, or of LIST_MODES."""
    sort: str
    """One of rows.SORTS."""
    reverse: bool
    names: str
    latency: str
    hidden: frozenset[str]
    """Hidden columns and panes."""
    muted: tuple[str, ...]
    """Filter expressions, unparsed."""
    triggers: tuple[str, ...]
    """Triggers, unparsed."""
    on_trigger: str
    """Command to run at an outlier; empty: none."""
    bell: bool
    source: str
    """One of SOURCES."""
    debuginfod: str
    """debuginfod servers; `auto`: those set up on this machine; empty: none."""
    snapshot_dir: str
    """Absolute or starting with `~/`; empty: the working directory."""
    preset: str
    """Key preset: top, atop or vim."""
    keys: Mapping[str, str]
    """Action → its keys, separated by commas, if they differ from the preset."""

    @property
    def wait_mode(self) -> str:
        """What is gathered of waits, one of wake.MODES."""
        return OFFCPU if self.mode in LIST_MODES else self.mode


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, and how to convert it between TOML and `Settings`."""

    name: str
    default: object
    """TOML value."""
    means: str
    """One line for help and manual."""
    expected: str
    """Describes valid values; ends the error message `… is not`."""
    attributes: Callable[[Any], Mapping[str, Any]]
    """Converts a TOML value to the attributes of Settings that it sets. Raises ValueError."""
    said: Callable[[Settings], object]
    """Converts back to a TOML value, in a normal form."""


class Loaded(NamedTuple):
    settings: Settings
    origin: Mapping[str, str]
    """By dotted name: `default`, `command line`, or the file's path."""
    path: Path
    """The file to write settings to: the one that was read, or the user's own if that was the system-wide one."""


def _flag(name: str, default: bool, means: str) -> Setting:
    def attributes(value: object) -> Mapping[str, Any]:
        if not isinstance(value, bool):
            raise ValueError
        return {name: value}

    return Setting(name, default, means, "true or false", attributes, attrgetter(name))


def _choice(name: str, choices: Sequence[str], means: str) -> Setting:
    """Return a setting with fixed choices. The first one is the default."""
    attribute = name.removeprefix(KEYS)

    def attributes(value: object) -> Mapping[str, Any]:
        if value not in choices:
            raise ValueError
        return {attribute: value}

    words = ", ".join(f'"{choice}"' for choice in choices)
    return Setting(name, choices[0], means, f"one of {words}", attributes, attrgetter(attribute))


def _time(
    name: str, default: str, means: str, expected: str, *, bare_ns: int, shortest_ns: int, longest_ns: int
) -> Setting:
    attribute = f"{name}_ns"

    def attributes(value: object) -> Mapping[str, Any]:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        ns = parse_duration(str(value), bare_ns)
        if not shortest_ns <= ns <= longest_ns:
            raise ValueError
        return {attribute: ns}

    def toml_value(settings: Settings) -> str:
        ns: int = getattr(settings, attribute)
        word, unit_ns = next(
            (word, unit_ns) for word, unit_ns in _UNITS_NS if (ns and ns % unit_ns == 0) or unit_ns == 1
        )
        return f"{ns // unit_ns}{word}"

    return Setting(name, default, means, expected, attributes, toml_value)


def _texts(
    name: str,
    attribute: str,
    kind: type,
    means: str,
    expected: str,
    pattern: str,
    most: int,
    default: Sequence[str] = (),
) -> Setting:
    """Return a setting that is a list of strings, each matching the whole pattern."""

    def attributes(value: object) -> Mapping[str, Any]:
        if not isinstance(value, list | tuple) or len(cast(Sequence[object], value)) > most:
            raise ValueError
        for text in cast(Sequence[object], value):
            _matched(text, pattern)
        return {attribute: kind(value)}

    def toml_value(settings: Settings) -> list[str]:
        texts: Collection[str] = getattr(settings, attribute)
        return sorted(texts) if isinstance(texts, frozenset) else list(texts)

    return Setting(name, default, means, expected, attributes, toml_value)


def _matched(value: object, pattern: str) -> str:
    """Return `value` if it is a string that matches the whole pattern.

    Raises ValueError otherwise. `.` also matches newlines. Lone surrogates never match, because TOML cannot hold them.
    """
    if not isinstance(value, str) or not re.fullmatch(pattern, value, re.DOTALL) or re.search("[\ud800-\udfff]", value):
        raise ValueError
    return value


def _sorting(value: object) -> Mapping[str, Any]:
    sort = _matched(value, ".*").upper()
    if sort.removeprefix("-") not in SORTS:
        raise ValueError
    return {"sort": sort.removeprefix("-"), "reverse": sort.startswith("-")}


def _mode(value: object) -> Mapping[str, Any]:
    if not isinstance(value, str) or value not in _MODES:
        raise ValueError
    return {"mode": _MODES[value]}


def _window(value: object) -> Mapping[str, Any]:
    if not isinstance(value, str) or value not in _WINDOWS:
        raise ValueError
    return {"span_ns": _WINDOWS[value]}


SETTINGS = (
    Setting(
        "theme",
        "",
        "theme; empty: chosen to fit the terminal",
        "the name of a theme (letters, digits, - and _)",
        lambda value: {"theme": _matched(value, "[A-Za-z0-9_-]{0,64}")},
        attrgetter("theme"),
    ),
    _choice("color", ("auto", "always", "never"), "use colours or not"),
    _flag("ascii", False, "draw with ASCII characters only"),
    _flag("mouse", True, "use the mouse"),
    _time(
        "delay",
        "1s",
        "seconds between ticks",
        "a number of seconds from 0.1 to 60, such as 0.5 or 500ms",
        bare_ns=NS_PER_S,
        shortest_ns=SHORTEST_DELAY_NS,
        longest_ns=LONGEST_DELAY_NS,
    ),
    Setting(
        "window",
        "10s",
        "time span of the numbers on the screen",
        f"one of {', '.join(json.dumps(window) for window in _WINDOWS)}",
        _window,
        lambda settings: next(word for word, span_ns in _WINDOWS.items() if span_ns == settings.span_ns),
    ),
    _time(
        "min",
        "1ms",
        "shortest wait that gets a stack",
        "a time such as 200us, 1ms or 2s; 200 means 200us",
        bare_ns=1000,
        shortest_ns=0,
        longest_ns=_LONGEST_NS,
    ),
    _time(
        "history",
        "10m",
        "how far back you can rewind",
        "a time from 10s to 24h, such as 10m",
        bare_ns=NS_PER_S,
        shortest_ns=10 * NS_PER_S,
        longest_ns=_LONGEST_HISTORY_NS,
    ),
    _flag("idle", False, "show idle waits"),
    _flag("threads", False, "list threads instead of processes"),
    _flag("programs", True, "list the processes of a program as one row"),
    Setting(
        "mode",
        OFFCPU,
        "where threads wait, who woke them, both, the chain of wakers, file operations, or requests to disks",
        f"one of {', '.join(json.dumps(mode) for mode in (*MODES, *LIST_MODES))}",
        _mode,
        attrgetter("mode"),
    ),
    Setting(
        "sort",
        "WAITING",
        "sort column; a - in front reverses the order",
        f"one of {', '.join(SORTS)}, or that with - in front",
        _sorting,
        lambda settings: f"{'-' if settings.reverse else ''}{settings.sort}",
    ),
    _choice("names", NAMES, "how processes are named"),
    _choice("latency", LATENCIES, "what the latency pane shows"),
    _texts(
        "hide",
        "hidden",
        frozenset,
        "hidden columns and panes",
        "a list of at most 40 names of columns and panes",
        "[A-Za-z0-9/%<= _-]{1,20}",
        40,
    ),
    _texts(
        "muted",
        "muted",
        tuple,
        "filters; the screen leaves out waits that match one of them",
        "a list of at most 100 filters of at most 500 letters each",
        ".{1,500}",
        100,
    ),
    _texts(
        "trigger",
        "triggers",
        tuple,
        "what counts as an outlier: auto (far longer than usual), rules such as lock.max > 500ms, or off",
        "a list of at most 40 triggers of at most 200 letters each",
        ".{1,200}",
        40,
        ("auto",),
    ),
    Setting(
        "on_trigger",
        "",
        "command to run at an outlier, once in 30 s for a rule, program and category, as the user who typed sudo",
        "a command of at most 1000 letters",
        lambda value: {"on_trigger": _matched(value, "[^\0]{0,1000}")},
        attrgetter("on_trigger"),
    ),
    _flag("bell", False, "ring the terminal's bell at each outlier"),
    _choice("source", SOURCES, "bpf sees every wait; proc samples /proc; auto takes bpf if it can"),
    Setting(
        "debuginfod",
        "",
        "servers to download debug files from; auto: those set up on this machine; empty: none",
        "auto, or addresses such as https://debuginfod.elfutils.org, separated by commas",
        lambda value: {"debuginfod": _matched(value, _SERVERS)},
        attrgetter("debuginfod"),
    ),
    Setting(
        "snapshot_dir",
        "",
        "where the key s saves clips; empty: the current directory",
        "a directory that begins with / or ~/",
        lambda value: {"snapshot_dir": _matched(value, r"((~?/)[^\x00-\x1f\x7f]{0,4000})?")},
        attrgetter("snapshot_dir"),
    ),
    _choice(f"{KEYS}preset", ("top", "atop", "vim"), "key preset"),
)
"""All settings but the keys of actions, which are named after the action: `keys.pause`."""


def load(
    given: Mapping[str, object],
    config: str | None,
    person: Person,
    environ: Mapping[str, str],
    *,
    check_key: Callable[[str, str], None] | None = None,
) -> Loaded:
    """Return the settings of this run: from the command line, the file, or the defaults.

    `given`: settings on the command line, as TOML values. `config`: the file given with --config.
    `check_key`: is called with an action and its keys; raises ValueError with a sentence and its remedy if they are
    not valid. Raises UsageError for invalid settings, OfftopError for a file that cannot be read.
    """
    file = _found(config, person, environ)
    values = {setting.name: setting.default for setting in SETTINGS}
    origin = dict.fromkeys(values, "default")
    sources = [(_COMMAND_LINE, given)]
    if file is not None:
        sources.insert(0, (printable(str(file.path)), table_of(file.path, file.content)))
    for where, table in sources:
        for name, value in flat(table):
            setting = setting_of(name, SETTINGS, where)
            _checked(setting, value, where, check_key)
            values[name] = value
            origin[name] = where
    own = file.path if file is not None and file.path != EVERYBODYS else _own(person, environ)[0]
    return Loaded(_settings(values), MappingProxyType(origin), own)


class _File(NamedTuple):
    path: Path
    content: bytes


def _found(config: str | None, person: Person, environ: Mapping[str, str]) -> _File | None:
    named = config if config is not None else environ.get("OFFTOP_CONFIG") or None
    if named is None:
        files = (_file(path, person) for path in (*_own(person, environ), EVERYBODYS))
        return next((file for file in files if file is not None), None)
    path = Path(named).absolute()
    file = _file(path, person)
    if file is None:
        raise UsageError(
            f"{'$OFFTOP_CONFIG' if config is None else '--config'} names {printable(str(path))}, "
            f"which {printable(person.name)} cannot find. Create it, or name another file"
        )
    return file


def _file(path: Path, person: Person) -> _File | None:
    """Read a file, as root if only root can have written it.

    Returns None if it does not exist.
    """
    content = read_theirs(path, current_person({}) if is_roots(path) else person)
    return None if content is None else _File(path, content)


def _own(person: Person, environ: Mapping[str, str]) -> list[Path]:
    """Return where the user's file may be. A new one is created at the first path."""
    places = [person.home / ".config"]
    # Under sudo $HOME may be root's; a service may have none.
    if person.uid == os.geteuid() and Path(home := environ.get("HOME", "")).is_absolute():
        places.insert(0, Path(home, ".config"))
    if Path(xdg := environ.get("XDG_CONFIG_HOME", "")).is_absolute():  # the XDG specification ignores relative paths
        places.insert(0, Path(xdg))
    return [place / "offtop" / "config.toml" for place in places]


def table_of(path: Path, content: bytes) -> dict[str, Any]:
    """Parse a settings file. Raises UsageError if it is not TOML."""
    where, remedy = printable(str(path)), "Fix that, or name another file with --config"
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as wrong:
        line = content.count(b"\n", 0, wrong.start) + 1
        raise UsageError(f"{where}, line {line}: this is not UTF-8. {remedy}") from None
    except tomllib.TOMLDecodeError as wrong:  # its message may quote the file, so it is not shown
        line = re.search(r"\(at line (\d+), column \d+\)\Z", str(wrong))
        raise UsageError(
            f"{where}, {f'line {line[1]}' if line else 'at the end'}: this is not TOML. {remedy}"
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: a number is too long, or brackets are nested too deep. {remedy}") from None


def flat(table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the names and values, with `keys.` before names in [keys].

    Names that contain a dot are quoted, as in TOML.
    """
    for name, value in table.items():
        if name == "keys" and isinstance(value, Mapping):
            for action, keys in cast(Mapping[str, object], value).items():
                yield KEYS + _quoted_if_dotted(action), keys
        else:
            yield _quoted_if_dotted(name), value


def _quoted_if_dotted(name: str) -> str:
    return f'"{name}"' if "." in name else name


def setting_of(name: str, settings: Sequence[Setting], where: str) -> Setting:
    """Return the setting of that name. Raises UsageError if there is none."""
    known = {setting.name: setting for setting in settings}
    if name in known:
        return known[name]
    if re.fullmatch("[a-z_]{1,40}", action := name.removeprefix(KEYS)) and name.startswith(KEYS):
        return _key(action)
    inside = [one for one in known if one.startswith(f"{name}.")]
    near = inside or difflib.get_close_matches(name[:_LONGEST_SHOWN], [*known, KEYS.rstrip(".")], 1)
    remedy = f"Did you mean {near[0]}?" if near else f"The settings are {', '.join(known)}"
    raise UsageError(f"{where}: there is no setting {_shown(name)}. {remedy}")


def _key(action: str) -> Setting:
    return Setting(
        f"{KEYS}{action}",
        None,
        f"the keys for {action}",
        "a list of keys, separated by commas",
        lambda value: {"keys": {action: _matched(value, ".{0,200}")}},
        lambda settings: settings.keys[action],
    )


def _checked(setting: Setting, value: object, where: str, check_key: Callable[[str, str], None] | None) -> None:
    try:
        attributes = setting.attributes(value)
    except ValueError:
        what, remedy = f"{where}: {setting.name}", "Fix that line, or remove it"
        if where == _COMMAND_LINE:
            what, remedy = f"--{setting.name}", "See: offtop --help"
        if shown := _shown(value):
            what += f": {shown}"
        raise UsageError(f"{what} is not {setting.expected}. {remedy}") from None
    if check_key is None:
        return
    keys: Mapping[str, str] = attributes.get("keys", {})
    for action, names in keys.items():
        try:
            check_key(action, names)
        except ValueError as wrong:
            raise UsageError(f"{where}: {setting.name}: {printable(str(wrong))}") from None


def _shown(value: object) -> str:
    """Return a wrong value for an error message; empty for lists, tables and long numbers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**_LONGEST_SHOWN):
        return str(value)
    if not isinstance(value, str):
        return ""
    text = printable(value[: _LONGEST_SHOWN + 1])
    return f"'{text}'" if len(text) <= _LONGEST_SHOWN else f"'{text[: _LONGEST_SHOWN - 3]}...'"


def _settings(values: Mapping[str, object]) -> Settings:
    attributes: dict[str, Any] = {}
    for setting in SETTINGS:
        attributes |= setting.attributes(values[setting.name])
    named = {setting.name for setting in SETTINGS}
    keys = {name.removeprefix(KEYS): str(value) for name, value in values.items() if name not in named}
    return Settings(**attributes, keys=MappingProxyType(keys))


def toml_of(settings: Settings) -> dict[str, object]:
    """Return the settings as TOML values, as `load` and saving.save take them."""
    values = {setting.name: setting.said(settings) for setting in SETTINGS}
    keys = {name.removeprefix(KEYS): values.pop(name) for name in list(values) if name.startswith(KEYS)}
    return {**values, "keys": {**keys, **settings.keys}}


def shown(loaded: Loaded) -> str:
    """Return all settings as TOML, a line each, with the origin as a comment."""
    lines = {name: f"{name.removeprefix(KEYS)} = {toml_text(value)}" for name, value in flat(toml_of(loaded.settings))}
    width = max(len(line) for line in lines.values() if len(line) <= _LONGEST_ALIGNED)
    origins = {name: f"{line:<{width}}  # {loaded.origin[name]}\n" for name, line in lines.items()}
    above = "".join(line for name, line in origins.items() if not name.startswith(KEYS))
    return f"{above}\n[keys]\n{''.join(line for name, line in origins.items() if name.startswith(KEYS))}"


def toml_text(value: object) -> str:
    """Format a value as TOML on one line. Unprintable characters are escaped."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else _escaped(c) for c in json.dumps(value, ensure_ascii=False))
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_text(one) for one in cast(Sequence[object], value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
