"""Settings: what a person wants always so, from one TOML file, below what the command line says this time.

The file is a stranger's text, read by root: what is said about it is where it is wrong, never what else is
in it. Settings have dotted names as in TOML: `delay`, `keys.preset`.
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

import platformdirs
import tomlkit
from tomlkit import items
from tomlkit.container import Container

from offtop.errors import OfftopError, UsageError
from offtop.model.aggregate.rows import SORTS
from offtop.model.values.wake import MODES, OFFCPU, WAKEUP
from offtop.model.viewmodel.view import LATENCIES, LONGEST_DELAY_NS, NAMES, SHORTEST_DELAY_NS, SPANS_NS
from offtop.person import Person, is_roots, read_theirs, write_theirs
from offtop.person import person as whoever_runs
from offtop.printable import printable
from offtop.units import NS_PER_S, parse_duration

EVERYBODYS = Path("/etc/offtop/config.toml")
"""The machine's own file: where a person has none."""
_KEYS = "keys."
"""Begins the names of what stands in the table [keys]."""
_WINDOWS = dict(zip(("1s", "10s", "60s", "start"), SPANS_NS, strict=True))
_MODES = {**dict(zip(MODES, MODES, strict=True)), "off": OFFCPU, "wake": WAKEUP}
"""By what they may be called: bcc's offcputime and wakeuptime have other words."""
_UNITS_NS = (("h", 3600 * NS_PER_S), ("m", 60 * NS_PER_S), ("s", NS_PER_S), ("ms", 1_000_000), ("us", 1000), ("ns", 1))
_LONGEST_HISTORY_NS = 24 * 3600 * NS_PER_S
_LONGEST_NS = 1 << 63
"""More than anybody waits: only the shortest counts."""
_LONGEST_SHOWN = 40
"""Characters of a wrong name or value that an error repeats."""
_LONGEST_ALIGNED = 40
SOURCES = ("auto", "bpf", "proc")
_COMMAND_LINE = "command line"
_SERVERS = r"(auto|https?://[!-+\--~]+([ ,]+https?://[!-+\--~]+){0,9})?"
_HEAD = "# What offtop begins with. All that may stand here: offtop --show-config\n"


@dataclass(frozen=True, slots=True)
class Settings:
    theme: str
    """Empty: as the terminal has it."""
    color: str
    ascii: bool
    mouse: bool
    delay_ns: int
    span_ns: int
    """One of SPANS_NS; SINCE_START for all of it."""
    min_ns: int
    history_ns: int
    idle: bool
    threads: bool
    mode: str
    """One of wake.MODES."""
    sort: str
    """One of rows.SORTS."""
    reverse: bool
    names: str
    latency: str
    hidden: frozenset[str]
    """Columns and panes that are not shown."""
    muted: tuple[str, ...]
    """Filter expressions, not yet parsed."""
    triggers: tuple[str, ...]
    """Which waits and ticks are outliers, not yet parsed."""
    on_trigger: str
    """A command to be run then; empty: none."""
    bell: bool
    source: str
    """One of SOURCES."""
    debuginfod: str
    """Servers to be asked for debug files, `auto` for those that the machine knows; empty: none."""
    snapshot_dir: str
    """Absolute, or `~/` and what is behind it; empty: the working directory."""
    preset: str
    """Whose keys: those of top, atop or vim."""
    keys: Mapping[str, str]
    """Action → its keys, parted by commas, where they differ from the preset's."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One that a file may have."""

    name: str
    default: object
    """As TOML has it."""
    means: str
    """In one plain line."""
    expected: str
    """What a value has to be: ends the sentence `… is not`."""
    attributes: Callable[[Any], Mapping[str, Any]]
    """TOML's value → those of Settings that it decides. Raises ValueError."""
    said: Callable[[Settings], object]
    """The way back, and always in the same words."""
    root_only: bool = False
    """Whether it makes root do something: only a file that nobody but root could have written may say it."""


class Loaded(NamedTuple):
    settings: Settings
    origin: Mapping[str, str]
    """By dotted name: `default`, `command line`, or the file's path."""
    path: Path
    """Where the person's settings are written: the file that was read, unless it is the machine's."""


def _flag(name: str, default: bool, means: str) -> Setting:
    def attributes(value: object) -> Mapping[str, Any]:
        if not isinstance(value, bool):
            raise ValueError
        return {name: value}

    return Setting(name, default, means, "true or false", attributes, attrgetter(name))


def _choice(name: str, choices: Sequence[str], means: str) -> Setting:
    """The first choice is the default."""
    attribute = name.removeprefix(_KEYS)

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

    def said(settings: Settings) -> str:
        ns: int = getattr(settings, attribute)
        word, unit_ns = next(
            (word, unit_ns) for word, unit_ns in _UNITS_NS if (ns and ns % unit_ns == 0) or unit_ns == 1
        )
        return f"{ns // unit_ns}{word}"

    return Setting(name, default, means, expected, attributes, said)


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
    """A list of strings, each of which the pattern matches as a whole."""

    def attributes(value: object) -> Mapping[str, Any]:
        if not isinstance(value, list | tuple) or len(cast(Sequence[object], value)) > most:
            raise ValueError
        for text in cast(Sequence[object], value):
            _matched(text, pattern)
        return {attribute: kind(value)}

    def said(settings: Settings) -> list[str]:
        texts: Collection[str] = getattr(settings, attribute)
        return sorted(texts) if isinstance(texts, frozenset) else list(texts)

    return Setting(name, default, means, expected, attributes, said)


def _matched(value: object, pattern: str) -> str:
    """Raises ValueError. `.` stands for all that TOML can hold: not for half of a character (a lone surrogate)."""
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
        "a number of seconds from 0.1 to 60, as 0.5 or 500ms",
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
        "a time, as 200us, 1ms, 2s, or 200 for 200us",
        bare_ns=1000,
        shortest_ns=0,
        longest_ns=_LONGEST_NS,
    ),
    _time(
        "history",
        "10m",
        "how far back you can rewind",
        "a time from 10s to 24h, as 10m",
        bare_ns=NS_PER_S,
        shortest_ns=10 * NS_PER_S,
        longest_ns=_LONGEST_HISTORY_NS,
    ),
    _flag("idle", False, "show idle waits"),
    _flag("threads", False, "list threads instead of processes"),
    Setting(
        "mode",
        OFFCPU,
        "where threads wait, who woke them, both, or the chain of wakers",
        f"one of {', '.join(json.dumps(mode) for mode in MODES)}",
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
    _choice("names", NAMES, "what processes are named by"),
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
        "command to run at each outlier, as the user who typed sudo",
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
        "auto, or addresses as https://debuginfod.elfutils.org, parted by commas",
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
    _choice(f"{_KEYS}preset", ("top", "atop", "vim"), "key preset"),
)
"""All but the keys of single actions, which are named by their action: `keys.pause`."""


def load(
    given: Mapping[str, object],
    config: str | None,
    person: Person,
    environ: Mapping[str, str],
    *,
    check_key: Callable[[str, str], None] | None = None,
    settings: Sequence[Setting] = SETTINGS,
) -> Loaded:
    """The settings of this run: as the command line says, else the file, else the default.

    `given` is what the command line says, with values as TOML has them; `config` is the file it names.
    `check_key` takes an action and its keys, and raises ValueError, a sentence and its remedy, for what cannot
    be. Raises UsageError for whatever is not as it has to be, OfftopError for a file that may not be read.
    """
    file = _found(config, person, environ)
    said = {setting.name: setting.default for setting in settings}
    origin = dict.fromkeys(said, "default")
    sources = [(_COMMAND_LINE, given, True)]
    if file is not None:
        sources.insert(0, (printable(str(file.path)), _table(file.path, file.content), file.roots))
    for where, table, roots in sources:
        for name, value in _flat(table):
            setting = _setting(name, settings, where)
            if setting.root_only and not roots:
                raise UsageError(
                    f"{where}: {name} may stand only in a file that nobody but root can write. Put it into {EVERYBODYS}"
                )
            _checked(setting, value, where, check_key)
            said[name] = value
            origin[name] = where
    own = file.path if file is not None and file.path != EVERYBODYS else _own(person, environ)[0]
    return Loaded(_settings(said, settings), MappingProxyType(origin), own)


class _File(NamedTuple):
    path: Path
    content: bytes
    roots: bool
    """Whether nobody but root could have written it."""


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
            f"which {printable(person.name)} cannot find. Make that file, or name another"
        )
    return file


def _file(path: Path, person: Person) -> _File | None:
    """None where there is none. The machine's own files, and others that are root's, are read as root."""
    roots = is_roots(path)
    content = read_theirs(path, whoever_runs({}) if roots else person)
    return None if content is None else _File(path, content, roots)


def _own(person: Person, environ: Mapping[str, str]) -> list[Path]:
    """Where the person's file may be; a new one is made at the first."""
    places = [person.home / ".config"]
    if person.uid == os.geteuid():  # not by sudo, which leaves us root's HOME
        places.insert(0, platformdirs.user_config_path())
    if Path(xdg := environ.get("XDG_CONFIG_HOME", "")).is_absolute():  # by the standard, else it does not count
        places.insert(0, Path(xdg))
    return [place / "offtop" / "config.toml" for place in places]


def _table(path: Path, content: bytes) -> dict[str, Any]:
    where, remedy = printable(str(path)), "Mend that, or name another file with --config"
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as wrong:
        line = content.count(b"\n", 0, wrong.start) + 1
        raise UsageError(f"{where}, line {line}: this is not UTF-8. {remedy}") from None
    except tomllib.TOMLDecodeError as wrong:  # whose words may have the file's own in them
        line = re.search(r"\(at line (\d+), column \d+\)\Z", str(wrong))
        raise UsageError(
            f"{where}, {f'line {line[1]}' if line else 'at its end'}: this is not TOML. {remedy}"
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: this has numbers too long, or brackets too deep, to be read. {remedy}") from None


def _flat(table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Names, dotted for what stands in [keys], and values. A name that has a dot itself is quoted, as in TOML."""
    for name, value in table.items():
        if name == "keys" and isinstance(value, Mapping):
            for action, keys in cast(Mapping[str, object], value).items():
                yield _KEYS + _quoted_if_dotted(action), keys
        else:
            yield _quoted_if_dotted(name), value


def _quoted_if_dotted(name: str) -> str:
    return f'"{name}"' if "." in name else name


def _setting(name: str, settings: Sequence[Setting], where: str) -> Setting:
    """Raises UsageError for a name that no setting has."""
    known = {setting.name: setting for setting in settings}
    if name in known:
        return known[name]
    if re.fullmatch("[a-z_]{1,40}", action := name.removeprefix(_KEYS)) and name.startswith(_KEYS):
        return _key(action)
    inside = [one for one in known if one.startswith(f"{name}.")]
    near = inside or difflib.get_close_matches(name[:_LONGEST_SHOWN], [*known, _KEYS.rstrip(".")], 1)
    remedy = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}"
    raise UsageError(f"{where}: there is no setting {_shown(name)}. {remedy}")


def _key(action: str) -> Setting:
    return Setting(
        f"{_KEYS}{action}",
        None,
        f"the keys for {action}",
        "the names of keys, parted by commas",
        lambda value: {"keys": {action: _matched(value, ".{0,200}")}},
        lambda settings: settings.keys[action],
    )


def _checked(setting: Setting, value: object, where: str, check_key: Callable[[str, str], None] | None) -> None:
    try:
        attributes = setting.attributes(value)
    except ValueError:
        what, remedy = f"{where}: {setting.name}", "Mend that line, or take it out"
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
    """A wrong value as an error repeats it; empty for lists, tables and what else is long."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**_LONGEST_SHOWN):
        return str(value)
    if not isinstance(value, str):
        return ""
    text = printable(value[: _LONGEST_SHOWN + 1])
    return f"'{text}'" if len(text) <= _LONGEST_SHOWN else f"'{text[: _LONGEST_SHOWN - 3]}...'"


def _settings(said: Mapping[str, object], settings: Sequence[Setting]) -> Settings:
    attributes: dict[str, Any] = {}
    for setting in settings:
        attributes |= setting.attributes(said[setting.name])
    named = {setting.name for setting in settings}
    keys = {name.removeprefix(_KEYS): str(value) for name, value in said.items() if name not in named}
    return Settings(**attributes, keys=MappingProxyType(keys))


def toml_of(settings: Settings) -> dict[str, object]:
    """The settings as TOML has them: what `load` takes, and `save`."""
    said = {setting.name: setting.said(settings) for setting in SETTINGS}
    keys = {name.removeprefix(_KEYS): said.pop(name) for name in list(said) if name.startswith(_KEYS)}
    return {**said, "keys": {**keys, **settings.keys}}


def shown(loaded: Loaded) -> str:
    """TOML, a line each, and behind it where it comes from."""
    lines = {name: f"{name.removeprefix(_KEYS)} = {_toml(value)}" for name, value in _flat(toml_of(loaded.settings))}
    width = max(len(line) for line in lines.values() if len(line) <= _LONGEST_ALIGNED)
    origins = {name: f"{line:<{width}}  # {loaded.origin[name]}\n" for name, line in lines.items()}
    above = "".join(line for name, line in origins.items() if not name.startswith(_KEYS))
    return f"{above}\n[keys]\n{''.join(line for name, line in origins.items() if name.startswith(_KEYS))}"


def _toml(value: object) -> str:
    """A value of a setting on one line. What a terminal would act on, or hide, is escaped."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else _escaped(c) for c in json.dumps(value, ensure_ascii=False))
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(one) for one in cast(Sequence[object], value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def written(text: str, changes: Mapping[str, object]) -> str:
    """A file's text with these settings changed, its comments, its order and its other lines as they were.

    What it says already stays in its own words; what is not there stays out if it is the default. Raises
    ValueError for a text that is not TOML, OfftopError where it is too odd to be changed, or a setting cannot be so.
    """
    present = dict(_flat(tomllib.loads(text)))
    document: Any = tomlkit.parse(text)
    lines: list[str] = []
    key_lines: list[str] = []
    wanted = dict(present)
    for name, value in _flat(changes):
        setting = _setting(name, SETTINGS, "the changes")
        meant = _means(setting, value)
        if meant is None:  # as of a hundred mutes and one
            raise OfftopError(
                f"As it is now, {name} is not {setting.expected}, so nothing was written. Take some of it out"
            )
        if _means(setting, present.get(name, setting.default)) == meant:
            continue
        wanted[name] = value
        if name.startswith(_KEYS) and isinstance(document.get("keys"), Mapping):
            _put(document["keys"], name.removeprefix(_KEYS), value)
        elif name in present:
            _put(document, name, value)
        else:
            (key_lines if name.startswith(_KEYS) else lines).append(f"{name.removeprefix(_KEYS)} = {_toml(value)}\n")
    result = _inserted(tomlkit.dumps(document), "".join(lines))
    if key_lines:
        result = f"{result.rstrip()}\n\n[keys]\n{''.join(key_lines)}".lstrip()
    if _said(result) != wanted:
        raise OfftopError("The settings do not fit into that file as it is. Put them in by hand: offtop --show-config")
    return result


def _means(setting: Setting, value: object) -> Mapping[str, Any] | None:
    """None for what the setting cannot be."""
    try:
        return setting.attributes(value)
    except ValueError:
        return None


def _said(text: str) -> dict[str, object] | None:
    """None for what is not TOML."""
    try:
        return dict(_flat(tomllib.loads(text)))
    except tomllib.TOMLDecodeError:
        return None


def _put(table: Any, name: str, value: object) -> None:
    """Into a table of tomlkit. A list is changed item by item, since each may have a comment of its own."""
    old: Any = table.get(name)
    if isinstance(old, list) and isinstance(value, list):
        before, after = cast(list[object], [*old]), cast(list[object], value)
        for gone in (one for one in before if one not in after):
            cast(Any, old).remove(gone)
        for new in (one for one in after if one not in before):
            cast(Any, old).append(tomlkit.value(_toml(new)))
        if old == after:
            return
    table[name] = tomlkit.value(_toml(cast(object, value)))


def _inserted(text: str, lines: str) -> str:
    """With these lines before the first table, and before the comments that stand right above it."""
    if not lines:
        return text
    body = tomlkit.parse(text).body
    end = next((at for at, (_, item) in enumerate(body) if isinstance(item, items.Table | items.AoT)), None)
    head = Container(parsed=True)
    for at, (key, item) in enumerate(body[:end]):
        if end is None or not all(isinstance(below, items.Comment) for _, below in body[at:end]):
            head.append(key, item)
    above = head.as_string()
    if not text.startswith(above):  # so odd that it cannot be cut in two: the first line is before all tables
        above = ""
    settings, end_of_line = above.rstrip("\r\n"), "\r\n" if "\r\n" in text else "\n"
    gap = above[len(settings) :].removeprefix("\r").removeprefix("\n")
    new = lines.replace("\n", end_of_line)
    return f"{settings}{end_of_line if settings else ''}{new}{gap}{text[len(above) :]}"


def save(path: Path, person: Person, changes: Mapping[str, object]) -> str:
    """Put these settings into that file, which need not be there, and say so.

    `changes` are all that shall hold, as `toml_of` gives them: a new file would hide the machine's. Raises
    OfftopError, and changes nothing, where it cannot be written or is not TOML.
    """
    content = read_theirs(path, person)
    text = _HEAD
    if content is not None:
        _table(path, content)
        text = content.decode()
    write_theirs(path, person, written(text, changes))
    return f"written to {printable(str(path))}"
