"""Settings: defaults, the file, options that override it, and what the screen saves."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from offtop import paths
from offtop.commands import choices, options
from offtop.commands.saved_files import SavedFiles
from offtop.model.aggregate.filter import NOTHING
from offtop.model.classify import categories
from offtop.model.values.snapshot import Filters
from offtop.ui.kit import keys
from tests import command
from tests.cli.terminal_screen import screen

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
_ROOT = Path(__file__).parents[2]


def settings(*arguments: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the output of --show-config: each setting's line → its origin."""
    ended = command.call(*arguments, "--show-config", env=env)
    assert (ended.status, ended.err) == (0, "")
    lines = [line.partition("  # ") for line in ended.out.splitlines() if " = " in line]
    return {setting.rstrip(): origin for setting, _, origin in lines}


def test_each_setting_has_a_default() -> None:
    shown = settings()
    assert {*shown.values()} == {"default"}
    table = tomllib.loads("\n".join(shown).replace("preset", "keys.preset"))
    assert {name: value for name, value in table.items() if name not in ("hide", "muted")} == {
        "theme": "",
        "color": "auto",
        "ascii": False,
        "mouse": True,
        "delay": "1s",
        "window": "10s",
        "min": "1ms",
        "history": "10m",
        "idle": False,
        "threads": False,
        "programs": True,
        "mode": "offcpu",
        "sort": "WAITING",
        "names": "comm",
        "latency": "auto",
        "trigger": ["auto"],
        "on_trigger": "",
        "bell": False,
        "debuginfod": "",
        "source": "auto",
        "snapshot_dir": "",
        "keys": {"preset": "top"},
    }


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("-d 0.5", 'delay = "500ms"'),
        ("--delay 1m", 'delay = "1m"'),
        ("--min 200", 'min = "200us"'),
        ("--debuginfod", 'debuginfod = "auto"'),
        ("--trigger any.now>5s --trigger auto", 'trigger = ["any.now>5s", "auto"]'),
        ("--on-trigger true", 'on_trigger = "true"'),
        ("--debuginfod https://a.org,http://b:8002", 'debuginfod = "https://a.org,http://b:8002"'),
        ("--history 1h", 'history = "1h"'),
        ("-H", "threads = true"),
        ("--no-programs", "programs = false"),
        ("-i", "idle = true"),
        ("--mode chain", 'mode = "chain"'),
        ("--mode wake", 'mode = "wakeup"'),
        ("--mode off", 'mode = "offcpu"'),
        ("-o max", 'sort = "MAX"'),
        ("-o -max", 'sort = "-MAX"'),
        ("-o-max", 'sort = "-MAX"'),
        ("-iHo -NAME", 'sort = "-NAME"'),
        ("--sort -ev/s", 'sort = "-EV/S"'),
        ("--sort=-PID", 'sort = "-PID"'),
        ("--window start", 'window = "start"'),
        ("--theme light", 'theme = "light"'),
        ("--color never", 'color = "never"'),
        ("--ascii", "ascii = true"),
        ("--mouse", "mouse = true"),
        ("--mouse --no-mouse", "mouse = false"),
    ],
)
def test_option_overrides_the_file_and_the_file_the_default(arguments: str, line: str, no_settings: Path) -> None:
    name = line.split()[0]
    other = {"delay": 9, "min": 9, "history": 99, "sort": '"TOTAL"', "window": '"1s"', "theme": '"dark"'}
    other |= {"color": '"always"', "mouse": "false", "debuginfod": '"http://a"', "mode": '"offwake"'}
    other |= {"trigger": '["off"]', "on_trigger": '"false"'}
    no_settings.write_text(f"{name} = {other.get(name, 'false')}")
    shown = settings()
    assert shown.pop(next(one for one in shown if one.startswith(f"{name} = "))) == str(no_settings)
    assert {*shown.values()} == {"default"}
    assert settings(*arguments.split())[line] == "command line"


def test_H_and_i_can_only_turn_on(no_settings: Path) -> None:  # noqa: N802
    no_settings.write_text("idle = true\nthreads = true")
    assert settings()["idle = true"] == settings()["threads = true"] == str(no_settings)


def test_settings_file_is_the_named_one_or_the_first_found(no_settings: Path, tmp_path: Path) -> None:
    xdg, home, named = (tmp_path / name for name in ("xdg/offtop", "home/.config/offtop", "named"))
    for number, place in enumerate((home, xdg, named), 2):
        place.mkdir(parents=True)
        (place / "config.toml").write_text(f"delay = {number}")
    own = {"OFFTOP_CONFIG": "", "HOME": str(tmp_path / "home")}
    assert settings(env=own)['delay = "2s"'] == f"{home}/config.toml"
    assert settings(env={**own, "XDG_CONFIG_HOME": str(xdg.parent)})['delay = "3s"'] == f"{xdg}/config.toml"
    assert settings("--config", f"{named}/config.toml")['delay = "4s"'] == f"{named}/config.toml"
    assert settings()['delay = "1s"'] == "default", "$OFFTOP_CONFIG overrides the default places"


@needs_root
def test_under_sudo_a_root_only_file_is_not_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "offtop").mkdir()
    (tmp_path / "offtop" / "config.toml").write_text("delay = 2")
    places = {"OFFTOP_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path), "HOME": "/nosuch"}
    assert settings(env=places)['delay = "2s"'] == f"{tmp_path}/offtop/config.toml"
    assert 'delay = "2s"' not in settings(env={**places, "SUDO_UID": "1"})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("delay = 0", ": delay: 0 is not a number of seconds from 0.1 to 60"),
        ("dealy = 1", ": there is no setting 'dealy'. Did you mean delay?"),
        ("delay 1", ", line 1: this is not TOML"),
        (
            "theme = 'nosuch'",
            ": there is no theme 'nosuch'. Use one of: ansi, colourblind, contrast, dark, light, mono",
        ),
    ],
)
def test_invalid_setting_is_refused_with_the_file_name_and_status_2(text: str, error: str, no_settings: Path) -> None:
    no_settings.write_text(text)
    ended = command.call(*command.QUICK, "-b", "-n", "1")
    assert f"{no_settings}{error}" in ended.sentence
    assert ended.status == 2


def test_errors_on_the_command_line_come_before_errors_in_the_file(no_settings: Path) -> None:
    no_settings.write_text("delay = 0")
    assert "'61' is not a number of seconds" in command.run("-b", "-d", "61").sentence
    assert "--filter: 'foo' is not a filter key" in command.call("-b", "--filter", "foo=1").sentence


@pytest.mark.parametrize(
    ("mute", "error"),
    [
        ("foo=1", "'foo' is not a filter key. Use one of comm,"),
        ("max>10ms", "'max>10ms' selects rows, but only waits can be muted. Try comm=mysql* or cat=poll"),
        (" ", "' ' selects nothing, but only waits can be muted"),
    ],
)
def test_invalid_mute_is_refused_with_the_file_name_before_the_screen_opens(
    mute: str, error: str, no_settings: Path
) -> None:
    no_settings.write_text(f"muted = ['comm=a', '{mute}']")
    ended = command.run_on_terminal()
    assert f"offtop: {no_settings}: muted: {error}" in ended.err
    assert (ended.status, ended.screen) == (2, b"")


def test_config_file_in_the_manual_is_valid(no_settings: Path) -> None:
    page = (_ROOT / "docs" / "settings.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    no_settings.write_text(text)
    table = tomllib.loads(text)
    assert [*settings().values()].count(str(no_settings)) == 6 == len(table) - 1 + len(table["keys"])
    assert keys.keymap(table["keys"].pop("preset"), table["keys"])["flame"] == "g,f7"


@pytest.mark.kernel
def test_batch_uses_its_settings_from_the_file_but_not_mutes(no_settings: Path) -> None:
    no_settings.write_text("delay = 0.2\nthreads = true\nidle = true\nsort = '-PID'\nmuted = ['comm=*', 'nosuch>']")
    ended = command.run(*command.QUICK, "-b", "-n", "1")
    assert (ended.status, ended.err) == (0, "")
    assert re.search(r" span \d{2,3}ms ", ended.out)  # 0.2 s, not the default of one second
    assert re.search(r"^ +PID +TID COMMAND", ended.out, re.MULTILINE)
    pids = [int(line.split()[0]) for line in ended.out.splitlines() if re.match(r" *\d+ +\d+ ", line)]
    assert pids == sorted(pids, reverse=True)
    assert 2 in pids, "kthreadd, which is idle"


@pytest.mark.parametrize(
    ("arguments", "mode", "depth"),
    [([], "wakeup", 4), (["--mode", "chain", "--depth", "6"], "chain", 6), (["--mode", "off"], "offcpu", 4)],
)
def test_screen_starts_with_mode_and_depth_and_w_saves_the_mode(
    no_settings: Path, arguments: list[str], mode: str, depth: int
) -> None:
    no_settings.write_text('mode = "wake" # as bcc has it\n')
    parsed = options.live().parse_args(arguments)
    loaded, user = choices.load(parsed)
    rules = categories.parse(paths.categories().read_text())
    view = choices.first_view(loaded, Filters(), rules, NOTHING, "", parsed)
    assert (view.mode, view.depth) == (mode, depth)
    kept = SavedFiles(loaded, user, parsed)
    kept.save_settings(view, "", mouse=True)
    saved = no_settings.read_text()
    assert saved == ('mode = "wake" # as bcc has it\n' if mode == "wakeup" else f'mode = "{mode}" # as bcc has it\n')
    kept.save_settings(replace(view, mode="offwake"), "", mouse=True)
    assert no_settings.read_text() == 'mode = "offwake" # as bcc has it\n'


def test_screen_lists_programs_unless_told_otherwise_and_w_saves_that(no_settings: Path) -> None:
    no_settings.write_text("threads = false\n")
    for arguments, listed in (([], True), (["--no-programs"], False)):
        parsed = options.live().parse_args(arguments)
        loaded, user = choices.load(parsed)
        rules = categories.parse(paths.categories().read_text())
        view = choices.first_view(loaded, Filters(), rules, NOTHING, "", parsed)
        assert view.programs is listed
        SavedFiles(loaded, user, parsed).save_settings(replace(view, programs=False), "", mouse=True)
        assert no_settings.read_text() == "threads = false\nprograms = false\n"
        no_settings.write_text("threads = false\n")


@pytest.mark.kernel
def test_w_key_writes_only_changed_settings(no_settings: Path, tmp_path: Path) -> None:
    no_settings.write_text("# mine\ndelay = 0.5 # quick\nmuted = ['comm=nosuch']\n")
    with screen("--no-mouse", "--debuginfod", "http://127.0.0.1:1", cwd=tmp_path) as shown:
        shown.press(b"iHwW")
        shown.wait_for(f"written to {no_settings}")
        assert shown.quit() == 0
    text = no_settings.read_text()
    assert text.startswith("# mine\ndelay = 0.5 # quick\nmuted = ['comm=nosuch']\n")
    assert tomllib.loads(text) == {
        "delay": 0.5,
        "muted": ["comm=nosuch"],
        "mouse": False,
        "window": "60s",
        "idle": True,
        "threads": True,
    }


@pytest.mark.kernel
def test_invalid_keys_are_refused_before_the_screen_opens(no_settings: Path) -> None:
    no_settings.write_text("[keys]\nnosuch = 'x'")
    ended = command.run_on_terminal()
    assert "config.toml: [keys] has no action 'nosuch'. There are: down, up," in ended.err
    assert (ended.status, ended.screen) == (2, b"")
