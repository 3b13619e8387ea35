"""Settings: where they come from, which values are valid, what errors say, and how they are written back."""

import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as supposing
from hypothesis import strategies as st

from offtop.errors import OfftopError, UsageError
from offtop.model.aggregate.rows import SORTS
from offtop.model.viewmodel.view import SINCE_START
from offtop.person import Person
from offtop.settings import config
from offtop.settings.config import SETTINGS, Loaded, Settings, load, shown, toml_of
from offtop.settings.saving import save, written
from offtop.units import NS_PER_S

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
_NS_PER_MS = 1_000_000


@pytest.fixture(autouse=True)
def system_config(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A stand-in for /etc/offtop/config.toml.

    For root it is in a directory that only root can write to. The home directory of the current user has no settings.
    """
    place = Path(tempfile.mkdtemp(prefix="offtop-etc-", dir="/run" if os.geteuid() == 0 else None))
    monkeypatch.setattr(config, "EVERYBODYS", place / "config.toml")
    monkeypatch.setenv("HOME", str(place / "nosuch"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    yield place / "config.toml"
    shutil.rmtree(place)


def put(path: Path, text: str | bytes, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def theirs(person: Person) -> Path:
    return person.home / ".config" / "offtop" / "config.toml"


def loaded(person: Person, text: str | bytes, **given: object) -> Loaded:
    """Return the settings of a file with this text."""
    return load(given, str(put(person.home / "c.toml", text)), person, {})


def refused(person: Person, text: str | bytes, **given: object) -> str:
    """Return the error for a file with this text, without the file's name."""
    with pytest.raises(UsageError) as caught:
        loaded(person, text, **given)
    sentence = str(caught.value)
    assert caught.value.status == 2
    assert sentence.isprintable()
    assert re.search(r"[.'] [A-Z]", sentence), "no remedy"
    return sentence.removeprefix(f"{person.home}/c.toml")


# Which file


def test_no_file_means_defaults(ann: Person) -> None:
    found = load({}, None, ann, {})
    assert found.settings == Settings(
        theme="",
        color="auto",
        ascii=False,
        mouse=True,
        delay_ns=NS_PER_S,
        span_ns=10 * NS_PER_S,
        min_ns=_NS_PER_MS,
        history_ns=600 * NS_PER_S,
        idle=False,
        threads=False,
        programs=True,
        mode="offcpu",
        sort="WAITING",
        reverse=False,
        names="comm",
        latency="auto",
        hidden=frozenset(),
        muted=(),
        triggers=("auto",),
        on_trigger="",
        bell=False,
        source="auto",
        debuginfod="",
        snapshot_dir="",
        preset="top",
        keys={},
    )
    assert set(found.origin.values()) == {"default"}
    assert loaded(ann, "").settings == found.settings


def test_only_the_first_existing_file_is_read(ann: Person, system_config: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(ann.home / "xdg"), "OFFTOP_CONFIG": str(ann.home / "env.toml")}
    places = [
        system_config,
        theirs(ann),
        ann.home / "xdg" / "offtop" / "config.toml",
        ann.home / "env.toml",
        ann.home / "given.toml",
    ]
    for number, place in enumerate(places):
        put(place, f'theme = "t{number}"')
        given = str(place) if place == places[-1] else None
        found = load({}, given, ann, environ if number > 2 else {"XDG_CONFIG_HOME": environ["XDG_CONFIG_HOME"]})
        assert (found.settings.theme, found.origin["theme"]) == (f"t{number}", str(place))
        assert found.origin["delay"] == "default"


def test_settings_are_written_to_the_file_read_unless_it_is_system_wide(ann: Person, system_config: Path) -> None:
    assert load({}, None, ann, {"XDG_CONFIG_HOME": "/xdg"}).path == Path("/xdg/offtop/config.toml")
    put(system_config, "")
    assert load({}, None, ann, {"XDG_CONFIG_HOME": "/xdg"}).path == Path("/xdg/offtop/config.toml")
    put(theirs(ann), "")
    assert load({}, None, ann, {"XDG_CONFIG_HOME": "/xdg"}).path == theirs(ann)
    assert loaded(ann, "").path == ann.home / "c.toml"


def test_own_home_comes_from_the_environment(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(ann.home))
    own = Person(os.geteuid(), os.getegid(), ann.home / "elsewhere", "me")
    assert load({}, None, own, os.environ).path == theirs(ann)


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_without_a_home_in_the_environment_it_is_that_of_the_user(ann: Person, environ: dict[str, str]) -> None:
    own = Person(os.geteuid(), os.getegid(), ann.home, "me")
    assert load({}, None, own, environ).path == theirs(ann)


@needs_root
def test_under_sudo_root_s_home_is_ignored(ann: Person, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / ".config" / "offtop" / "config.toml", 'theme = "roots"')
    found = load({}, None, ann, os.environ)
    assert found.settings.theme == ""
    assert found.path == theirs(ann)


def test_relative_XDG_CONFIG_HOME_and_empty_OFFTOP_CONFIG_are_ignored(ann: Person) -> None:  # noqa: N802
    environ = {"XDG_CONFIG_HOME": "xdg", "OFFTOP_CONFIG": ""}
    assert load({}, None, ann, environ).path == load({}, None, ann, {}).path


def test_named_file_must_exist(ann: Person) -> None:
    for given, environ, by in (
        ("/nosuch/a", {}, "--config"),
        (None, {"OFFTOP_CONFIG": "/nosuch/a"}, r"\$OFFTOP_CONFIG"),
    ):
        with pytest.raises(UsageError, match=f"{by} names /nosuch/a, which ann cannot find. Create it, or name"):
            load({}, given, ann, environ)


def test_command_line_overrides_the_file_and_origins_are_known(ann: Person) -> None:
    found = loaded(ann, "delay = 2\nidle = true\n[keys]\npause = 'z'\n", delay="3s", keys={"preset": "vim"})
    assert found.settings.delay_ns == 3 * NS_PER_S
    assert found.settings.keys == {"pause": "z"}
    assert found.settings.preset == "vim"
    where = {name: origin for name, origin in found.origin.items() if origin != "default"}
    assert where == {
        "delay": "command line",
        "idle": f"{ann.home}/c.toml",
        "keys.pause": f"{ann.home}/c.toml",
        "keys.preset": "command line",
    }


# Ownership


@needs_root
def test_root_only_file_is_not_read_for_another_user(ann: Person, tmp_path: Path) -> None:
    secret = put(tmp_path / "secret", 'theme = "secret"', 0o600)
    tmp_path.chmod(0o700)
    theirs(ann).parent.mkdir(parents=True)
    theirs(ann).symlink_to(secret)
    assert load({}, None, ann, {}).settings.theme == "", "the error would reveal that it exists"
    with pytest.raises(UsageError, match="which ann cannot find"):
        load({}, str(secret), ann, {})
    theirs(ann).unlink()
    theirs(ann).symlink_to("/etc/shadow")
    with pytest.raises(OfftopError, match=r"config\.toml cannot be read by ann \(Permission denied\)"):
        load({}, None, ann, {})


def test_dangling_link_counts_as_no_file(ann: Person, system_config: Path) -> None:
    put(system_config, 'theme = "all"')
    theirs(ann).parent.mkdir(parents=True)
    theirs(ann).symlink_to("nosuch")
    assert load({}, None, ann, {}).settings.theme == "all"


@needs_root
def test_system_wide_file_is_read_even_if_only_root_can_read_it(ann: Person, system_config: Path) -> None:
    put(system_config, 'theme = "all"', 0o600)
    assert load({}, None, ann, {}).settings.theme == "all"


def test_fifo_or_huge_file_is_refused(ann: Person) -> None:
    theirs(ann).parent.mkdir(parents=True)
    os.mkfifo(theirs(ann), 0o666)
    theirs(ann).chmod(0o666)
    with pytest.raises(OfftopError, match="not a regular file"):
        load({}, None, ann, {})
    theirs(ann).unlink()
    put(theirs(ann), "#" * 1_000_000)
    with pytest.raises(OfftopError, match="is larger than 64KB"):
        load({}, None, ann, {})


# Values


@pytest.mark.parametrize(
    ("text", "attribute", "value"),
    [
        ("delay = 0.1", "delay_ns", 100 * _NS_PER_MS),
        ("delay = '60'", "delay_ns", 60 * NS_PER_S),
        ("delay = '1m'", "delay_ns", 60 * NS_PER_S),
        ("min = 200", "min_ns", 200_000),
        ("min = 0", "min_ns", 0),
        ("history = '24h'", "history_ns", 86400 * NS_PER_S),
        ("history = 10", "history_ns", 10 * NS_PER_S),
        ("window = 'start'", "span_ns", SINCE_START),
        ("window = '60s'", "span_ns", 60 * NS_PER_S),
        ("sort = '-ev/s'", "sort", "EV/S"),
        ("sort = '-ev/s'", "reverse", True),
        ("sort = 'pid'", "reverse", False),
        ("mouse = false", "mouse", False),
        ("mode = 'chain'", "mode", "chain"),
        ("mode = 'offwake'", "mode", "offwake"),
        ("mode = 'wake'", "mode", "wakeup"),
        ("mode = 'off'", "mode", "offcpu"),
        ("hide = ['P99', '<=1ms', 'P99']", "hidden", frozenset({"P99", "<=1ms"})),
        ("muted = ['comm==\"a\"', 'b']", "muted", ('comm=="a"', "b")),
        ("debuginfod = 'auto'", "debuginfod", "auto"),
        ("snapshot_dir = '~/slow'", "snapshot_dir", "~/slow"),
        ("debuginfod = 'https://a.org/x, http://b:8002'", "debuginfod", "https://a.org/x, http://b:8002"),
        ("[keys]\npreset = 'atop'", "preset", "atop"),
        ("keys.pause = ''", "keys", {"pause": ""}),
    ],
)
def test_valid_values_are_accepted(ann: Person, text: str, attribute: str, value: object) -> None:
    assert getattr(loaded(ann, text).settings, attribute) == value


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("delay = 0", ": delay: 0 is not a number of seconds from 0.1 to 60"),
        ("delay = 61.5", ": delay: 61.5 is not"),
        ("delay = '61s'", ": delay: '61s' is not"),
        ("delay = true", ": delay: true is not"),
        ("delay = inf", ": delay: inf is not"),
        ("delay = nan", ": delay: nan is not"),
        ("delay = 1979-05-27", ": delay is not a number"),
        ('delay = "x\\ny"', r": delay: 'x\x0ay' is not"),
        (f"delay = 0x{'f' * 9999}", ": delay is not a number"),
        ("min = -1", ": min: -1 is not a time such as 200us"),
        ("history = '9s'", ": history: '9s' is not a time from 10s to 24h"),
        ("history = '25h'", ": history: '25h' is not"),
        ("window = '2s'", ': window: \'2s\' is not one of "1s", "10s", "60s", "start"'),
        ("window = 10", ": window: 10 is not one of"),
        ("window = ['10s']", ": window is not one of"),
        ("color = 'mauve'", ': color: \'mauve\' is not one of "auto", "always", "never"'),
        ("color = {}", ": color is not one of"),
        ("ascii = 1", ": ascii: 1 is not true or false"),
        ("mode = 'on'", ': mode: \'on\' is not one of "offcpu", "wakeup", "offwake", "chain"'),
        ("mode = ['chain']", ": mode is not one of"),
        ("mode = 4", ": mode: 4 is not one of"),
        ("sort = 'p98'", ": sort: 'p98' is not one of WAITING, CHANGE, MAX"),
        ("sort = '--MAX'", ": sort: '--MAX' is not"),
        ("theme = '../x'", ": theme: '../x' is not the name of a theme"),
        ('theme = "dark\\n"', r": theme: 'dark\x0a' is not"),
        ("theme = 5", ": theme: 5 is not"),
        ("snapshot_dir = 'slow'", ": snapshot_dir: 'slow' is not a directory that begins with / or ~/"),
        ("debuginfod = true", ": debuginfod: true is not auto, or addresses such as https://"),
        ("debuginfod = 'file:///etc'", ": debuginfod: 'file:///etc' is not"),
        (
            f"debuginfod = '{'https://a,' * 30}'",
            ": debuginfod: 'https://a,https://a",
        ),  # slow to refuse with an ambiguous regular expression
        ("hide = 'P99'", ": hide: 'P99' is not a list of at most 40"),
        ('hide = ["\\u007f"]', ": hide is not a list"),
        ("hide = ['']", ": hide is not"),
        ("hide = [1]", ": hide is not"),
        (f"hide = {['a'] * 41}", ": hide is not a list of at most 40"),
        (f"muted = {['a'] * 101}", ": muted is not a list of at most 100"),
        (f"muted = ['{'a' * 501}']", ": muted is not a list of at most 100 filters of at most 500"),
        ("keys = 'vim'", ": there is no setting 'keys'. Did you mean keys.preset?"),
        ("[keys]\npreset = 'emacs'", ': keys.preset: \'emacs\' is not one of "top", "atop", "vim"'),
        ("[keys]\npause = ['z']", ": keys.pause is not a list of keys, separated by commas"),
        ("[keys.a]\nb = 'z'", ": keys.a is not a list of keys"),
        ("[keys]\nPause = 'z'", ": there is no setting 'keys.Pause'"),
        ("'keys.preset' = 'vim'", ": there is no setting '\"keys.preset\"'"),
        ("dealy = 1", ": there is no setting 'dealy'. Did you mean delay?"),
        ("[key]\npreset = 'vim'", ": there is no setting 'key'. Did you mean keys?"),
        ("zzzz = 1", ": there is no setting 'zzzz'. The settings are theme, color, ascii"),
        ('"\\u001b[31m" = 1', r": there is no setting '\x1b[31m'"),
    ],
)
def test_invalid_value_is_refused_in_one_sentence_that_names_it(ann: Person, text: str, error: str) -> None:
    sentence = refused(ann, text)
    assert sentence.startswith(error)
    assert len(sentence) < 400


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"delay = 2\nroot:x:0:0\n", ", line 2: this is not TOML. Fix that"),
        (b"delay = 2\ndelay = 3\n", ", line 2: this is not TOML"),
        (b"# \x1b[2J\n", ", line 1: this is not TOML"),
        (b"\n\ntheme = 'a\x00b'\n", ", line 3: this is not TOML"),
        (b"theme = '\n", ", at the end: this is not TOML"),
        (b"hide = [", ", at the end: this is not TOML"),
        (b"\n\xff\xfe", ", line 2: this is not UTF-8"),
        (b"delay = " + b"1" * 5000, ": a number is too long, or brackets are nested too deep"),
        (b"delay = " + b"[" * 60000, ": a number is too long, or brackets are nested too deep"),
        (b"[" * 60000, ", line 1: this is not TOML"),
        (b"a." * 5000 + b"b = 1", ": there is no setting 'a'"),
    ],
)
def test_invalid_toml_is_reported_by_line_without_quoting_it(ann: Person, text: bytes, error: str) -> None:
    sentence = refused(ann, text)
    assert sentence.startswith(error)
    assert "root" not in sentence


def test_quoted_values_and_names_are_cut_at_40_characters(ann: Person) -> None:
    assert f"'{'x' * 40}' is not" in refused(ann, f"sort = '{'x' * 40}'")
    assert f"'{'x' * 37}...' is not" in refused(ann, f"sort = '{'x' * 41}'")
    assert "'" + r"\x1b" * 9 + r"\...' is not" in refused(ann, 'sort = "' + r"\u001b" * 20 + '"')
    assert f"'{'x' * 37}...'. The settings are" in refused(ann, f"{'x' * 1000} = 1")


def test_error_on_the_command_line_names_the_option(ann: Person) -> None:
    with pytest.raises(UsageError, match=r"^--delay: '0' is not a number of seconds .*\. See: offtop --help$"):
        load({"delay": "0"}, None, ann, {})
    with pytest.raises(UsageError, match=r"^--muted is not a list"):
        load({"muted": ["\udcff"]}, None, ann, {})


def test_keys_are_checked_by_the_given_function(ann: Person) -> None:
    checked: list[tuple[str, str]] = []

    def check(action: str, keys: str) -> None:
        checked.append((action, keys))
        if action == "nosuch":
            raise ValueError(f"there is no key '{keys}'. Take another")

    put(ann.home / "c.toml", "[keys]\npreset = 'vim'\npause = 'z,Z'\n")
    load({}, str(ann.home / "c.toml"), ann, {}, check_key=check)
    assert checked == [("pause", "z,Z")]
    put(ann.home / "c.toml", "[keys]\nnosuch = '\\u001b'\n".replace("'", '"'))
    with pytest.raises(UsageError, match=r"c\.toml: keys\.nosuch: there is no key '\\x1b'\. Take another"):
        load({}, str(ann.home / "c.toml"), ann, {}, check_key=check)


# --show-config


def test_shown_settings_are_toml_with_their_origins(ann: Person) -> None:
    text = shown(loaded(ann, "min = 200\nmuted = ['a\u202eb']\n[keys]\nz = 'é'\n", delay=0.5, sort="-max"))
    lines = text.splitlines()
    assert lines[:2] == [
        f'theme = ""            # {"default"}',
        'color = "auto"        # default',
    ]
    assert 'delay = "500ms"       # command line' in lines
    assert f'min = "200us"         # {ann.home}/c.toml' in lines
    assert 'sort = "-MAX"         # command line' in lines
    assert rf'muted = ["a\u202eb"]  # {ann.home}/c.toml' in lines
    assert lines[-4:] == ["", "[keys]", 'preset = "top"        # default', f'z = "é"               # {ann.home}/c.toml']
    assert text.endswith("\n")


def test_file_name_with_a_newline_is_shown_escaped(ann: Person) -> None:
    path = put(ann.home / "a\nb = 1", "delay = 2")
    text = shown(load({}, str(path), ann, {}))
    assert tomllib.loads(text)["delay"] == "2s"
    assert r"# " + str(ann.home) + r"/a\x0ab = 1" in text


_TIMES = st.integers(1, 10**9).map(lambda n: f"{n}us") | st.floats(0, 1e6) | st.integers(0, 10**12)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "theme": st.from_regex(r"[A-Za-z0-9_-]{0,20}", fullmatch=True),
    "color": st.sampled_from(["auto", "always", "never"]),
    "ascii": st.booleans(),
    "mouse": st.booleans(),
    "delay": st.floats(0.1, 60) | st.integers(100, 60_000).map(lambda ms: f"{ms}ms"),
    "window": st.sampled_from(["1s", "10s", "60s", "start"]),
    "min": _TIMES,
    "history": st.floats(10, 86400) | st.integers(10, 86400),
    "idle": st.booleans(),
    "threads": st.booleans(),
    "programs": st.booleans(),
    "sort": st.sampled_from([sign + sort for sign in ("", "-") for sort in SORTS]),
    "names": st.sampled_from(["comm", "cmdline", "cgroup"]),
    "latency": st.sampled_from(["auto", "histogram", "heatmap", "off"]),
    "hide": st.lists(st.from_regex(r"[A-Za-z0-9/%<= _-]{1,20}", fullmatch=True), max_size=4),
    "muted": st.lists(
        st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() or text < "\ud800"), max_size=4
    ),
    "keys": st.fixed_dictionaries(
        {},
        optional={
            "preset": st.sampled_from(["top", "atop", "vim"]),
            "pause": st.text(st.characters(codec="utf-8"), max_size=9),
            "sort_by_max": st.just("M"),
        },
    ),
}
_GIVEN = st.fixed_dictionaries({}, optional=_VALUES)


@supposing(_GIVEN)
def test_shown_settings_load_as_the_same_settings(given: dict[str, object]) -> None:
    own = Person(os.geteuid(), os.getegid(), Path("/nosuch"), "me")
    before = load(given, None, own, {})
    with tempfile.TemporaryDirectory() as directory:
        path = put(Path(directory) / "c.toml", shown(before))
        after = load({}, str(path), own, {})
    assert after.settings == before.settings
    assert load(toml_of(before.settings), None, own, {}).settings == before.settings
    assert shown(after).replace(str(path), "") == re.sub("(?m)# (default|command line)$", "# ", shown(before))


# Writing

_TEXT = """\
# my settings

theme = "dark"  # the best
idle = true

delay = 2

# never these
muted = [
    'comm=="a"',  # noisy
    'comm=="b"',
]

# my fingers
# know these
[keys]
pause = "z"  # as in less
"""


def test_only_changed_lines_are_written() -> None:
    changes = {
        "theme": "light",
        "delay": "2s",
        "idle": False,
        "min": "1ms",
        "history": "1h",
        "muted": ['comm=="b"', "c"],
        "keys": {"preset": "vim", "pause": "space"},
    }
    assert (
        written(_TEXT, changes)
        == """\
# my settings

theme = "light"  # the best
idle = false

delay = 2

# never these
muted = [
    'comm=="b"',
    "c",
]
history = "1h"

# my fingers
# know these
[keys]
pause = "space"  # as in less
preset = "vim"
"""
    )


def test_equal_values_change_nothing(ann: Person) -> None:
    assert written("", {}) == ""
    assert written(_TEXT, {}) == _TEXT
    assert written(_TEXT, toml_of(loaded(ann, _TEXT).settings)) == _TEXT
    assert written("", toml_of(load({}, None, ann, {}).settings)) == ""


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", 'delay = "2s"\n\n[keys]\npreset = "vim"\n'),
        ("# mine", '# mine\ndelay = "2s"\n\n[keys]\npreset = "vim"\n'),
        ("idle = true", 'idle = true\ndelay = "2s"\n\n[keys]\npreset = "vim"\n'),
        ('[keys]\nz = "z"', 'delay = "2s"\n[keys]\nz = "z"\npreset = "vim"\n'),
        ('# a\n\n# b\n[keys]\npreset="top" # c', '# a\ndelay = "2s"\n\n# b\n[keys]\npreset="vim" # c'),
        ('keys.z = "z"\n', 'delay = "2s"\nkeys.z = "z"\nkeys.preset = "vim"\n'),
        ('keys = { z = "z" }\n', 'keys = { z = "z", preset = "vim"}\ndelay = "2s"\n'),
    ],
)
def test_new_settings_go_to_their_table(text: str, after: str) -> None:
    assert written(text, {"delay": "2s", "keys": {"preset": "vim"}}) == after


def test_line_endings_are_kept() -> None:
    assert written('idle = true # a\r\n\r\n[keys]\r\nz = "z"\r\n', {"idle": False, "delay": 2}) == (
        'idle = false # a\r\ndelay = 2\r\n\r\n[keys]\r\nz = "z"\r\n'
    )


_PIECES = {
    "theme": ['theme = "dark" # T', "theme = 'dark'"],
    "delay": ["delay = 2 # D", "delay='2s'", "# off: delay = 9"],
    "hide": ["hide = []", "hide = [ 'a', 'b' ] # H", "hide = [\n 'a', # one\n # two\n 'b' # three\n]"],
    "muted": ['muted = ["x",\n  "y"]', "muted = ['''a\n# no comment\n''']"],
    "keys": ["# K\n[keys]\npreset = 'vim' # P\npause = 'z'", "[keys]", "keys.pause = 'z'", "keys = {pause = 'z'}"],
}
_TEXTS = st.tuples(
    *(st.sampled_from(["", "# c", "\n# d\n\n", *(piece for piece in pieces)]) for pieces in _PIECES.values()),
    st.sampled_from(["\n", "\n\n"]),
    st.sampled_from(["", "\n", "\n# end", "\n\n\n"]),
).map(lambda parts: parts[-2].join(parts[:-2]) + parts[-1])


@supposing(_TEXTS, _GIVEN)
def test_written_file_has_the_requested_values_and_keeps_comments_outside_lists(
    text: str, changes: dict[str, object]
) -> None:
    own = Person(os.geteuid(), os.getegid(), Path("/nosuch"), "me")
    after = written(text, changes)
    with tempfile.TemporaryDirectory() as directory:
        before = load(changes, str(put(Path(directory) / "c.toml", text)), own, {}).settings
        assert load({}, str(put(Path(directory) / "c.toml", after)), own, {}).settings == before
    for comment in re.findall("# [TDHPKcde]", text):
        assert after.count(comment) == text.count(comment)
    assert written(after, changes) == after


def test_saved_file_is_private_and_reported(ann: Person) -> None:
    path = load({}, None, ann, {}).path if os.geteuid() == 0 else theirs(ann)
    assert save(path, ann, {"delay": "2s"}) == f"written to {ann.home}/.config/offtop/config.toml"
    assert path.read_text().splitlines() == [
        "# Settings of offtop. To see them all: offtop --show-config",
        'delay = "2s"',
    ]
    assert (path.stat().st_mode, path.stat().st_uid) == (0o100600, ann.uid)
    save(path, ann, {"delay": "1s", "keys": {"preset": "vim"}})
    found = load({}, str(path), ann, {})
    assert (found.settings.delay_ns, found.settings.preset) == (NS_PER_S, "vim")


def test_nothing_is_saved_over_invalid_toml_or_through_a_link(ann: Person) -> None:
    path = put(ann.home / "c.toml", "not toml")
    with pytest.raises(OfftopError, match=r"c\.toml, line 1: this is not TOML"):
        save(path, ann, {"delay": "2s"})
    assert path.read_text() == "not toml"
    (ann.home / "link").symlink_to(put(ann.home / "dotfile", "# mine\n"))
    with pytest.raises(OfftopError, match="is a link, which offtop does not write through"):
        save(ann.home / "link", ann, {"delay": "2s"})
    assert (ann.home / "dotfile").read_text() == "# mine\n"


def test_file_that_cannot_hold_a_setting_is_not_changed() -> None:
    with pytest.raises(OfftopError, match=r"cannot be merged into that file\. Add them by hand"):
        written("keys = 5", {"keys": {"preset": "vim"}})


def test_invalid_value_is_not_written(ann: Person) -> None:
    path = put(ann.home / "c.toml", "delay = 2")
    with pytest.raises(OfftopError, match=r"muted is now not a list of at most 100 filters .*, so nothing was written"):
        save(path, ann, {"delay": "3s", "muted": ["a"] * 101})
    assert path.read_text() == "delay = 2"


@needs_root
def test_system_wide_file_is_not_written_for_another_user(ann: Person, system_config: Path) -> None:
    system_config.parent.chmod(0o755)
    put(system_config, "delay = 2")
    with pytest.raises(OfftopError, match="cannot be written by ann"):
        save(system_config, ann, {"delay": "3s"})
    assert system_config.read_text() == "delay = 2"


def test_every_setting_has_a_valid_default_and_a_one_line_description() -> None:
    for setting in SETTINGS:
        assert setting.attributes(setting.default)
        assert setting.means == setting.means.strip().rstrip(".")
        assert "\n" not in setting.means
