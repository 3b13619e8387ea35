"""The command line: accepted and refused arguments, error messages, and exit statuses."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ

import pytest

from offtop import paths
from offtop.commands import choices, options
from offtop.commands.saved_files import SavedFiles
from offtop.kernel import live
from offtop.kernel.bpf import program
from offtop.model.aggregate.filter import NOTHING
from offtop.model.classify import categories
from offtop.model.values.snapshot import Filters
from offtop.ui.kit import keys
from tests import command
from tests.command import OFFTOP

needs_kernel = pytest.mark.kernel
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
_ROOT = Path(__file__).parents[1]
_MOUSE_ON = b"\x1b[?1000h"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[34]8;")
_ESCAPES = re.compile(rb"\x1b\[[0-9;?>$]*[a-zA-Z]|\x1b\][^\x07]*\x07")
_F12 = b"\x1b[24~"
_DEMO = "demo", "--speed", "20", "-n"
"""Shows the demo for so many ticks. It chooses its screen like the live command, and starts with less CPU time."""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty settings file, which offtop reads in these tests no matter who runs them."""
    file = tmp_path / "config.toml"
    file.touch()
    monkeypatch.setenv("OFFTOP_CONFIG", str(file))
    for name in ("SUDO_UID", "XDG_CONFIG_HOME", "NO_COLOR"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TERM", "xterm-256color")
    return file


def settings(*arguments: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the output of --show-config: each setting's line → its origin."""
    ended = command.call(*arguments, "--show-config", env=env)
    assert (ended.status, ended.err) == (0, "")
    lines = [line.partition("  # ") for line in ended.out.splitlines() if " = " in line]
    return {setting.rstrip(): origin for setting, _, origin in lines}


def imported(*arguments: str) -> set[str]:
    """Return the top-level modules that offtop imports with these arguments."""
    answer = subprocess.run(
        [sys.executable, "-X", "importtime", str(OFFTOP), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=command.TIMEOUT_S,
    )
    return {line.split("|")[2].strip().split(".")[0] for line in answer.stderr.splitlines() if line.count("|") == 2}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["schema"]])
def test_commands_that_only_print_do_not_import_the_screen(arguments: list[str]) -> None:
    modules = imported(*arguments)
    assert "offtop" in modules
    assert modules & {"textual", "rich", "bcc"} == set()


@needs_kernel
def test_batch_does_not_import_the_screen() -> None:
    modules = imported("-b", "-n", "1", "-d", "0.1")
    assert "offtop" in modules
    assert modules & {"textual", "rich", "bcc"} == set()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("-d 0", "'0' is not a number of seconds from 0.1 to 60"),
        ("-d abc", "'abc' is not a number of seconds"),
        ("-d nan", "'nan' is not a number of seconds"),
        ("-d inf", "'inf' is not a number of seconds"),
        ("-d 61", "'61' is not a number of seconds"),
        ("-n 0", "'0' is not a whole number from 1 up"),
        ("-n -1", "'-1' is not a whole number from 1 up"),
        ("-n 1.5", "'1.5' is not a whole number"),
        ("-n", "expected one argument"),
        ("-w 0", "'0' is not a whole number from 1 up"),
        ("-p x", "'x' is not a list of ids such as 4242"),
        ("-p 0", "'0' is not a list of ids"),
        ("-p -1", "'-1' is not a list of ids"),
        ("-p 1,", "'1,' is not a list of ids"),
        ("-p=", "'' is not a list of ids such as 4242 or 4242,977 or CONTAINER:7"),
        ("-p web:1,", "'web:1,' is not a list of ids"),
        ("-t=", "'' is not a list of ids"),
        ("-p :1", "':1' is not a list of ids such as 4242 or 4242,977 or CONTAINER:7"),
        ("-p web:", "'web:' is not a list of ids"),
        ("-p 7,web:0", "'7,web:0' is not a list of ids"),
        ("-p 99999999999", "'99999999999' is not a list of ids"),
        ("-t x", "'x' is not a list of ids"),
        ("--min -1", "'-1' is not a time such as 200us"),
        ("--min=-1", "'-1' is not a time"),
        ("--min 5parsecs", "'5parsecs' is not a time"),
        ("--max x", "'x' is not a time"),
        ("--max 1ms --min 2ms", "--max is below --min"),
        ("--state foo", "'foo' is not a list of states (running, interruptible"),
        ("--state -1", "'-1' is not a list of states"),
        ("--history 1s", "'1s' is not a time from 10s to 24h"),
        ("--door window", "invalid choice: 'window'"),
        ("--user-threads --kernel-threads", "not allowed with argument --user-threads"),
        ("--color mauve", "invalid choice: 'mauve'"),
        (
            "--mode on",
            '\'on\' is not one of "offcpu", "wakeup", "offwake", "chain", "file", "disk". See: offtop --help',
        ),
        ("--mode", "expected one argument"),
        ("--depth 1", "'1' is not a whole number from 2 to 8. See: offtop --help"),
        ("--depth 9", "'9' is not a whole number from 2 to 8"),
        ("--depth 2.5", "'2.5' is not a whole number from 2 to 8"),
        (
            "record --mode chains",
            '\'chains\' is not one of "offcpu", "wakeup", "offwake", "chain", "file", "disk". See: offtop record',
        ),
        (
            "-o p98",
            "'p98' is not one of WAITING, CHANGE, MAX, NOW, TOTAL, EV/S, NAME, PID, P50, P99, or that",
        ),
        ("-o --MAX", "'--MAX' is not one of"),
        ("-o", "expected one argument"),
        ("--window 2s", '\'2s\' is not one of "1s", "10s", "60s", "start"'),
        ("-u nosuch", "'nosuch' is not a user: this machine has no user of that name, and it is not a number"),
        ("-u=", "is not a user"),
        ("--filter foo=1", "--filter: 'foo' is not a filter key. Use one of comm, thread,"),
        ("--filter comm>1", "--filter: 'comm>1' is not valid: comm takes = and !="),
        ("--filter cat=loch", "--filter: 'cat=loch' is not a category: try lock, "),
        ("--json --filter max>10ms", "--filter: max> selects rows of a table, and --json has none"),
        ("--rate 100", "--rate in batch mode needs a process. Add -p PID"),
        ("--json --rate 100 -p 1", "--rate prints a budget as text, which --json does not have. Omit it"),
        (
            "--within mysqld",
            "--within: 'mysqld' names no function. Give PROGRAM:FUNCTION, as mysqld:dispatch_command, ",
        ),
        ("--within a:b --rate 100 -p 1", "--rate needs all of a thread's time, and --within counts only a part"),
        ("--theme nosuch", "There is no theme 'nosuch'. Use one of: ansi, colourblind, contrast, dark, light, mono"),
        ("--theme ../dark", "'../dark' is not the name of a theme"),
        ("--mouse=no", "takes no value"),
        ("--config /nosuch/file", "--config names /nosuch/file, which "),
        ("--config", "expected one argument"),
        ("--nosuch", "offtop does not take '--nosuch'. See: offtop --help"),
        ("--bat", "offtop does not take '--bat'. See: offtop --help"),
        ("--verify-kernel-stacks=3", "--verify-kernel-stacks takes no value. See: offtop --help"),
        ("nosuch", "offtop does not take 'nosuch'. To show only what matches it: --filter nosuch. See: offtop --help"),
        ("replay a.offtop", "The command comes first: offtop replay OPTIONS. See: offtop replay --help"),
        ("--filter replay --nosuch", "offtop does not take '--nosuch'. See: offtop --help"),
        ("doctor --nosuch", "offtop doctor does not take '--nosuch'. See: offtop doctor --help"),
        ("schema nosuch", "offtop schema does not take 'nosuch'. See: offtop schema --help"),
    ],
)
def test_invalid_argument_is_one_sentence_and_status_2(arguments: str, error: str) -> None:
    ended = command.call(
        *(arguments.split() if arguments.startswith(("doctor", "schema", "record")) else ["-b", *arguments.split()])
    )
    assert error in ended.sentence
    assert re.search(r"See: |Give |Try|try |Take |Use |Add |Omit |omit |Make |Create |Leave |takes ", ended.sentence), (
        "no remedy"
    )
    assert ended.status == 2


def test_unknown_command_is_refused_with_the_commands_and_the_nearest_of_them() -> None:
    near, far = command.run("recrod", "-o", "x"), command.run("frob")
    assert near.status == far.status == 2
    assert near.sentence.startswith("There is no command 'recrod'. Did you mean record? Commands: record, replay, ")
    assert far.sentence.startswith("There is no command 'frob'. Commands: record, replay, report, ")


def test_export_accepts_options_between_and_before_its_arguments() -> None:
    file = str(paths.demo())
    lines = [("csv", file, "-n", "2"), ("-n", "2", "csv", file), ("csv", "-n", "2", file)]
    texts = [one.out for one in command.run_at_once(*(("export", *line) for line in lines))]
    assert texts[0].startswith("category,process") and texts == [texts[0]] * 3


@pytest.mark.parametrize(
    "option", ["-p", "-d", "-u", "-o", "--window", "--theme", "--filter", "--config", "--debuginfod"]
)
def test_argument_with_escape_codes_is_shown_escaped(option: str) -> None:
    assert r"\x1b[31m" in command.call("-b", option, "\x1b[31m=").sentence


# Settings


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


@needs_kernel
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("-p 4194305", "No process 4194305. Look it up with: pgrep"),  # above the kernel's largest PID
        ("-t 4194305", "No thread 4194305."),
    ],
)
def test_missing_process_or_thread_is_refused(arguments: str, error: str) -> None:
    ended = command.run("-b", *arguments.split())
    assert error in ended.sentence
    assert ended.status == 2


def test_help_and_version_exit_with_status_0() -> None:
    assert command.run("--version").out.startswith("offtop ")
    assert command.run("--help").out.startswith("usage: offtop ")
    assert command.run("--help").status == command.run("--version").status == 0


@needs_kernel
def test_unprivileged_user_is_told_to_use_sudo_with_status_3() -> None:
    before = ["unshare", "--user"]  # as nobody, but able to read this checkout
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=before)
    assert ended.sentence.startswith("offtop needs root (or CAP_BPF")
    assert ended.sentence.endswith("Try: sudo offtop. See it without root: offtop demo")
    assert ended.status == 3


@needs_kernel
def test_root_without_capabilities_is_told_which_are_missing_with_status_3() -> None:
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=_WITHOUT_CAPABILITIES)
    assert "CAP_BPF, CAP_PERFMON" in ended.sentence
    assert ended.status == 3


@needs_kernel
def test_missing_bcc_is_reported_with_how_to_install_it_and_status_4(tmp_path: Path) -> None:
    found = "import sys, pathlib; sys.path += sys.argv[1:]; import bcc; print(pathlib.Path(bcc.__file__).parent)"
    places = ["/usr/lib/python3/dist-packages", *map(str, Path("/usr").glob("lib*/python3*/site-packages"))]
    bcc = subprocess.run([sys.executable, "-c", found, *places], capture_output=True, text=True, check=True, timeout=30)
    hide = f'mount --bind {tmp_path} {bcc.stdout.strip()} && exec "$@"'
    without, uncached = ["unshare", "--mount", "sh", "-c", hide, "sh"], {"OFFTOP_CACHE": ""}
    ended = command.run("-b", "-n", "1", "--source", "bpf", before=without, env=uncached)
    assert ended.sentence.startswith("The Python module 'bcc' is missing.")
    assert "apt install python3-bpfcc" in ended.sentence
    assert ended.status == 4
    ended = command.run("-b", "-n", "1", "-d", "0.1", before=without, env=uncached)
    assert ended.status == 0
    assert ended.err.startswith("offtop: /proc is sampled without BPF (The Python module 'bcc' is")


# Without BPF

_WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
_LACKING = "unknown: wakers, user functions, and the stacks of waits shorter than the sampling interval"


def sampled_head(ended: command.Ended) -> str:
    assert ended.status == 0, ended.err
    head = ended.out.splitlines()[0]
    assert re.search(r" span \S+  SAMPLED ~\d+ Hz(, own processes only)?  WAITING ", head), head
    assert re.search(r"  waits up to [\d.]+m?s shorter, up to [\d.]+ elsewhere$", head), head
    return head


def test_source_proc_samples_and_reports_what_is_missing() -> None:
    ended = command.run("-b", "-n", "1", "-d", "0.3", "--source", "proc")
    assert ended.err.endswith(f"sampled; {_LACKING}\n")
    sampled_head(ended)


def test_unprivileged_user_gets_own_processes_and_the_reason() -> None:
    nobody = ("setpriv", "--reuid", "65534", "--clear-groups")
    if os.geteuid() or subprocess.run([*nobody, "test", "-r", __file__], check=False).returncode:
        pytest.skip("only root can run as nobody, and nobody must be able to read this checkout")
    with_sleeper = 'sleep 1000 >/dev/null 2>&1 & "$@"; status=$?; kill $!; exit $status'
    before = [*nobody, "sh", "-c", with_sleeper, "sh"]
    ended = command.run("-b", "-i", "-n", "1", "-d", "0.5", before=before, env={"OFFTOP_CONFIG": ""})
    why = "only your own processes are sampled without BPF (offtop needs root (or CAP_BPF"
    assert ended.err.startswith(f"offtop: {why}")
    assert ", own processes only  " in sampled_head(ended)
    sleepers = [line for line in ended.out.splitlines() if re.match(r" *\d+ +sleep ", line)]
    assert len(sleepers) == 1
    assert sleepers[0].endswith(("clock_nanosleep", "hrtimer_nanosleep"))
    assert "kthreadd" not in ended.out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--mode wakeup", "Mode wakeup needs BPF: sampling /proc cannot see wakers. Use mode offcpu"),
        (
            "--within bash:main",
            "--within needs BPF: sampling /proc cannot see user functions. Use -p instead",
        ),
        ("--state D", "--state needs BPF: sampling /proc cannot see single waits. Leave it out"),
        ("--max 5s", "--max needs BPF: sampling /proc cannot see single waits. Leave it out"),
        ("--probe exit", "--probe has no effect when sampling /proc. Omit it, or add --source bpf"),
        ("-p 4194303", "No process 4194303. Look it up with: pgrep NAME"),
    ],
)
def test_option_that_needs_bpf_is_refused_with_source_proc(arguments: str, error: str) -> None:
    ended = command.call("-b", "-n", "1", "--source", "proc", *arguments.split())
    assert (ended.status, ended.sentence) == (2, error)


def test_options_without_effect_on_sampling_are_reported() -> None:
    sampled = ("-b", "-n", "1", "-d", "0.1", "--source", "proc", "-p", str(os.getpid()))
    err = command.run(*sampled, "--min", "5ms", "--unwind", "fp", "--unwind-bytes", "8K", "--depth", "2").err
    assert err.splitlines()[:1] == [
        "offtop: without BPF these options have no effect: --min, --unwind, --unwind-bytes, --depth"
    ]
    assert len(command.run(*sampled).err.splitlines()) == 1


def test_triggers_that_need_bpf_say_so_without_it() -> None:
    sampled = ("-b", "-n", "1", "-d", "0.1", "--source", "proc", "-p", str(os.getpid()))
    ended = command.run(*sampled, "--trigger", "file.max > 1s", "--trigger", "lock.max > 1s")
    assert ended.status == 0
    assert (
        "offtop: triggers for file operations have no effect. They need BPF: sampling /proc cannot see single calls. "
        "See what is missing: offtop doctor\n"
    ) in ended.err
    assert "requests to disks" not in ended.err


def test_a_saved_trigger_counts_nothing_if_nothing_is_judged(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('trigger = ["file.max > 1s"]')
    saved = ("--config", str(tmp_path / "config.toml"), "--source", "proc", "-d", "0.1", "-n", "1")
    assert "have no effect" in command.run("-b", *saved).err
    ended = command.run("rules", *saved)
    assert ended.status == 0
    assert "have no effect" not in ended.err


def test_proc_of_another_pid_namespace_is_sampled_but_cost_is_our_own() -> None:
    unshare = ("unshare", "--pid", "--fork")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("only root can create a PID namespace")
    ended = command.run("--json", "-n", "1", "-d", "0.3", "--source", "proc", before=unshare)
    assert ended.status == 0, ended.err
    tick = json.loads(ended.out)
    assert tick["cost"]["rss_bytes"] > 1 << 20
    assert not tick["sampling"]["lost_known"] and not tick["sampling"]["container_only"]
    ended = command.run("--json", "-n", "1", "-d", "0.3", "--source", "proc", before=(*unshare, "--mount-proc"))
    assert not (sampling := json.loads(ended.out)["sampling"])["lost_known"] and sampling["container_only"]
    assert "only this container's processes are sampled" in ended.err


def test_root_in_a_user_namespace_sees_only_that_namespace() -> None:
    """It could not read where other users' threads wait."""
    unshare = ("unshare", "--map-root-user")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("user namespaces are not available here")
    with_sleeper = (*unshare, "sh", "-c", 'sleep 30 >/dev/null 2>&1 & "$@"; status=$?; kill $!; exit $status', "sh")
    ended = command.run("--json", "-i", "-n", "1", "-d", "0.5", "--source", "proc", before=with_sleeper)
    assert ended.status == 0, ended.err
    assert "only your own processes are sampled" in ended.err
    tick = json.loads(ended.out)
    assert tick["sampling"]["own_only"]
    assert "sleep" in {one["comm"] for one in tick["still_blocked"]}
    assert not [one for one in tick["still_blocked"] if one["category"] == "other"]


@pytest.mark.parametrize(
    ("mode", "added"),
    [("file", ""), ("disk", ""), ("wakeup", ". Mode wakeup needs BPF: sampling /proc cannot see wakers")],
)
def test_mode_whose_programs_the_kernel_refuses_says_so_in_one_sentence(
    mode: str, added: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise program._load_error("kprobe", "refused")  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(live, "LiveSource", refuse)
    ended = command.call("-b", "-n", "1", "--mode", mode)
    assert ended.status == 4
    assert ended.sentence.startswith("offtop's program could not be loaded with the switch-in probe 'kprobe': refused")
    assert f"See what is missing: offtop doctor{added}" in ended.sentence
    assert ended.sentence.endswith("offtop doctor" if not added else "Use mode offcpu")


@needs_kernel
def test_option_that_needs_bpf_explains_why_bpf_is_unavailable() -> None:
    for arguments in (["--mode", "wakeup"], ["--door", "exit"]):
        ended = command.run("-b", "-n", "1", *arguments, before=_WITHOUT_CAPABILITIES)
        assert ("Mode wakeup needs BPF" in ended.sentence) is ("wakeup" in arguments)
        assert "CAP_BPF, CAP_PERFMON" in ended.sentence
        assert ended.status == 3


@needs_kernel
def test_no_terminal_means_batch_mode_and_one_line_on_stderr() -> None:
    ended = command.run(*command.QUICK, "-n", "1", "-d", "0.1")
    assert ended.status == 0
    assert ended.err == "offtop: stdin or stdout is not a terminal, so this is batch mode (-b)\n"
    assert ended.out.startswith("offtop - ")


def test_dumb_terminal_gets_batch_without_escape_codes() -> None:
    ended = command.run_on_terminal("demo", "-n", "1", env={"TERM": "dumb"})
    assert ended.status == 0
    assert ended.err == "offtop: TERM names a terminal that cannot show a screen, so this is batch mode (-b)\n"
    assert ended.screen.startswith(b"offtop - ")
    assert b"\x1b" not in ended.screen


@needs_kernel
def test_missing_theme_is_refused_before_the_screen_opens() -> None:
    ended = command.run_on_terminal("--theme", "nosuch", env={"TERM": "xterm-256color"})
    assert ended.status == 2
    assert re.fullmatch(r"offtop: There is no theme 'nosuch'[^\n]+\n", ended.err)
    assert ended.screen == b""


def test_closed_pipe_ends_with_status_0(tmp_path: Path) -> None:
    for arguments in ("demo -b", "demo --json"):
        status = tmp_path / "status"
        shell = f"({OFFTOP} {arguments}; echo $? >{status}) | head -c 200"
        answer = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=command.TIMEOUT_S, check=True)
        assert len(answer.stdout) == 200
        assert answer.stderr == b""
        assert status.read_text() == "0\n"


def test_names_that_the_locale_cannot_encode_are_escaped(tmp_path: Path) -> None:
    recording = tmp_path / "dé.offtop"
    recording.write_bytes(paths.demo().read_bytes())
    ended = command.run("report", str(recording), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (ended.status, ended.err) == (0, "")
    assert "d\\xe9.offtop: on " in ended.out


def test_errors_escape_what_they_quote() -> None:
    ended = command.call("report", "a", "\x1b]0;x\a")
    assert (ended.status, ended.out) == (2, "")
    assert "offtop report does not take '\\x1b]0;x\\x07'" in ended.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_leaves_no_part_of_an_export(number: signal.Signals, tmp_path: Path) -> None:
    before = {*tmp_path.iterdir()}
    process = command.start("export", "jsonl", str(paths.demo()), "-o", str(tmp_path / "it.jsonl"))
    until_s = time.monotonic() + command.TIMEOUT_S
    while {*tmp_path.iterdir()} == before:
        assert time.monotonic() < until_s and process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    assert process.wait(command.TIMEOUT_S) == 128 + number
    assert {*tmp_path.iterdir()} == before


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize("arguments", ["demo -b -n 1", "demo --json -n 1", "schema"])
def test_unwritable_output_is_an_error_of_one_sentence(arguments: str, redirection: str) -> None:
    answer = subprocess.run(
        ["sh", "-c", f"{OFFTOP} {arguments} {redirection}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=command.TIMEOUT_S,
        check=False,
    )
    assert re.fullmatch(r"offtop: [^\n]+\. [^\n]+\n", answer.stderr), answer.stderr
    assert answer.returncode == 1


def test_closed_stderr_does_not_change_the_status() -> None:
    for arguments, status in (("-b -d 0", 2), ("demo -b -n 1", 0)):
        shell = f"{OFFTOP} {arguments} 2>&-"
        answer = subprocess.run(
            ["sh", "-c", shell], stdin=subprocess.DEVNULL, capture_output=True, timeout=command.TIMEOUT_S, check=False
        )
        assert answer.returncode == status


@needs_kernel
def test_exit_of_the_watched_process_ends_offtop() -> None:
    with subprocess.Popen(["sleep", "100"]) as watched:
        process = command.start(*command.QUICK, "-b", "-n", "2500", "-d", "0.1", "-p", str(watched.pid))
        assert process.stdout
        heads, read = 0, b""
        while heads < 3 and (line := process.stdout.readline()):
            read += line
            heads += line.startswith(b"offtop - ")
        watched.terminate()
        watched.wait()
        ended = command.ended(process)
    assert heads == 3
    assert ended.status == 0
    assert ended.err == "offtop: all measured processes have exited\n"
    assert b"sleep" in read + ended.out.encode()


@needs_kernel
def test_batch_uses_its_settings_from_the_file_but_not_mutes(no_settings: Path) -> None:
    no_settings.write_text("delay = 0.2\nthreads = true\nidle = true\nsort = '-PID'\nmuted = ['comm=*', 'nosuch>']")
    ended = command.run(*command.QUICK, "-b", "-n", "1")
    assert (ended.status, ended.err) == (0, "")
    assert re.search(r" span \d{2,3}ms ", ended.out)  # 0.2 s, not the default of one second
    assert re.search(r"^ +PID +TID COMMAND", ended.out, re.MULTILINE)
    pids = [int(line.split()[0]) for line in ended.out.splitlines() if re.match(r" *\d+ +\d+ ", line)]
    assert pids == sorted(pids, reverse=True)
    assert 2 in pids, "kthreadd, which is idle"


# The screen


class Screen:
    """offtop on a pseudo-terminal of 160x40."""

    def __init__(self, arguments: tuple[str, ...], cwd: Path) -> None:
        self._terminal, slave = pty.openpty()
        ioctl(slave, TIOCSWINSZ, pack("HHHH", 40, 160, 0, 0))
        self._seen = b""
        self.process = subprocess.Popen(
            [str(OFFTOP), *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=cwd, start_new_session=True
        )
        os.close(slave)

    def wait_for(self, text: str) -> None:
        """Wait until `text` was drawn since the last call."""
        deadline = time.monotonic() + command.TIMEOUT_S
        while text not in (seen := _ESCAPES.sub(b"", self._seen).decode(errors="replace")):
            assert time.monotonic() < deadline, seen[-3000:]
            if select.select([self._terminal], [], [], 0.1)[0]:
                self._seen += os.read(self._terminal, 1 << 16)
        self._seen = b""

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def quit(self) -> int:
        """Press q and return the exit status."""
        self.press(b"q")
        deadline = time.monotonic() + command.TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if select.select([self._terminal], [], [], 0.1)[0]:
                    os.read(self._terminal, 1 << 16)
            except OSError:
                break  # the last process that had the terminal open has exited
        return self.process.wait(command.TIMEOUT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@contextmanager
def screen(*arguments: str, cwd: Path) -> Generator[Screen]:
    """Run offtop; the block starts when it shows its first numbers."""
    made = Screen(arguments, cwd)
    try:
        made.wait_for("processes")
        yield made
    finally:
        made.close()


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


@needs_kernel
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


def test_screenshot_is_written_to_the_working_directory(tmp_path: Path) -> None:
    with screen("demo", cwd=tmp_path) as shown:
        shown.press(_F12)
        shown.wait_for("written to offtop-")
        assert shown.quit() == 0
    (picture,) = tmp_path.glob("offtop-*.svg")
    assert picture.read_text().startswith("<svg")


@needs_kernel
def test_screen_starts_with_the_command_line_options(tmp_path: Path) -> None:
    with screen("--window", "1s", "-u", "games", "--filter", "comm=nosuch", cwd=tmp_path) as shown:
        for text in ("window 1s", 'matches "comm=nosuch user=games"'):
            shown.press(b"\x0c")  # redraw
            shown.wait_for(text)
        assert shown.quit() == 0


@needs_kernel
def test_invalid_keys_are_refused_before_the_screen_opens(no_settings: Path) -> None:
    no_settings.write_text("[keys]\nnosuch = 'x'")
    ended = command.run_on_terminal()
    assert "config.toml: [keys] has no action 'nosuch'. There are: down, up," in ended.err
    assert (ended.status, ended.screen) == (2, b"")


@pytest.mark.parametrize(
    ("arguments", "no_color", "colours"),
    [
        ("", "", True),
        ("", "1", False),
        ("--color never", "", False),
        ("--color always", "1", True),
        ("--theme light", "1", False),
    ],
)
def test_color_option_overrides_NO_COLOR(  # noqa: N802
    arguments: str, no_color: str, colours: bool
) -> None:
    ended = command.run_on_terminal(*_DEMO, "1", *arguments.split(), env={"NO_COLOR": no_color})
    assert ended.status == 0
    assert bool(_COLOUR.search(ended.screen)) == colours


def test_mouse_is_enabled_unless_disabled(no_settings: Path) -> None:
    assert _MOUSE_ON in command.run_on_terminal(*_DEMO, "1").screen
    assert _MOUSE_ON not in command.run_on_terminal(*_DEMO, "1", "--no-mouse").screen
    no_settings.write_text("mouse = false")
    assert _MOUSE_ON not in command.run_on_terminal(*_DEMO, "1").screen


def test_screen_shows_the_last_tick_before_it_ends() -> None:
    shown = command.run_on_terminal("demo", "--speed", "1000", "-n", "1")
    assert b"WAITING" in shown.screen


def test_linux_console_gets_ascii() -> None:
    utf8 = {"PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}
    assert not command.run_on_terminal(*_DEMO, "2", env=utf8).screen.isascii()
    assert command.run_on_terminal(*_DEMO, "2", env={**utf8, "TERM": "linux"}).screen.isascii()
