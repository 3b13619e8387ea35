"""Files of `offtop export` open in the programs they are for.

These are speedscope and the flame graph in a browser, the timeline in Perfetto's parser, and JSON lines in jq.
`make consumers` runs them; they need Debian's chromium, npm and jq, and the registries for speedscope and perfetto.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from offtop import paths
from offtop.export import perfetto
from tests import command
from tests.export.test_perfetto import AT_NS, TAKEN_NS, WAITS

pytestmark = pytest.mark.consumer

_SPEEDSCOPE = "speedscope@1.25.0"
_PERFETTO = "perfetto==0.59.1"
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--use-gl=angle"),
    *("--disable-crash-reporter", "--disable-breakpad"),
    *("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--virtual-time-budget=8000"),
)


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "chromium is not here: apt-get install chromium"
    return found


@pytest.fixture(scope="module")
def speedscope(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release directory of the speedscope package."""
    directory = tmp_path_factory.mktemp("speedscope")
    subprocess.run(
        ["npm", "pack", "--silent", _SPEEDSCOPE], cwd=directory, check=True, capture_output=True, timeout=120
    )
    (packed,) = directory.glob("*.tgz")
    subprocess.run(["tar", "xzf", packed.name], cwd=directory, check=True, timeout=60)
    return directory / "package/dist/release"


@pytest.fixture(scope="module")
def perfetto_parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A separate directory with Perfetto's parser, away from offtop's own packages."""
    directory = tmp_path_factory.mktemp("perfetto")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", directory, _PERFETTO]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    return directory


_PARSED = """
import json, sys
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
trace = Trace()
trace.ParseFromString(sys.stdin.buffer.read())
names = {one.track_descriptor.uuid: one.track_descriptor.thread.thread_name for one in trace.packet}
print(json.dumps([
    [one.timestamp, names[one.track_event.track_uuid], TrackEvent.Type.Name(one.track_event.type), one.track_event.name,
     {a.name: [v.string_value for v in a.array_values] or a.string_value or a.uint_value
      for a in one.track_event.debug_annotations},
     list(one.track_event.flow_ids), list(one.track_event.terminating_flow_ids)]
    for one in trace.packet if one.HasField("track_event")
]))
"""


def test_perfetto_parses_the_timeline(perfetto_parser: Path) -> None:
    made = perfetto.packed(WAITS, AT_NS, TAKEN_NS)
    environment = {**os.environ, "PYTHONPATH": str(perfetto_parser)}
    ended = subprocess.run(
        [sys.executable, "-c", _PARSED], input=made, env=environment, check=True, capture_output=True, timeout=60
    )
    lock, queued, *ends, wakes, runs, disk = json.loads(ended.stdout)
    arguments = {"process": "shop", "woken by": "clerk(71)", "run queue ns": 100_000_000}
    stacks = {"kernel": ["futex_wait", "do_syscall_64"], "user": ["take", "main"]}
    assert lock == [10**9, "worker", "TYPE_SLICE_BEGIN", "lock", {**arguments, **stacks}, [], []]
    assert (queued[3], [one[2] for one in ends]) == ("run queue", ["TYPE_SLICE_END"] * 2)
    assert wakes[1:4] == ["clerk", "TYPE_INSTANT", "wakes worker(72)"]
    assert wakes[5] == runs[6] == [1]
    assert disk[1:4] == ["teller", "TYPE_SLICE_BEGIN", "disk-read"]


def test_jq_parses_the_json_lines(tmp_path: Path) -> None:
    file = exported("jsonl", tmp_path / "x.jsonl")
    jq = ["jq", "-s", '[.[].categories[] | select(.name == "lock").total_ns] | add', file]
    output = subprocess.run(jq, check=True, capture_output=True, text=True, timeout=60).stdout
    ticks = [json.loads(line) for line in file.read_text().splitlines()]
    assert int(output) == sum(one["total_ns"] for tick in ticks for one in tick["categories"] if one["name"] == "lock")


def exported(form: str, to: Path, *more: str) -> Path:
    ended = command.run("export", form, str(paths.demo()), "-o", str(to), *more)
    assert (ended.status, ended.err) == (0, "")
    return to


def page(chromium: str, address: str, profile: Path) -> str:
    """Return the DOM of a page after its scripts have run."""
    ended = subprocess.run(
        [chromium, *_FLAGS, f"--user-data-dir={profile}", "--dump-dom", address],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ended.stdout


def test_speedscope_file_matches_its_schema(speedscope: Path, tmp_path: Path) -> None:
    made = json.loads(exported("speedscope", tmp_path / "x.json").read_text())
    jsonschema.validate(made, json.loads((speedscope / "file-format-schema.json").read_text()))


@pytest.mark.parametrize(
    ("form", "more"),
    [("speedscope", ()), ("pprof", ()), ("folded", ()), ("folded", ("--per", "category,thread", "--delimiter"))],
)
def test_speedscope_opens_each_format(
    speedscope: Path, chromium: str, tmp_path: Path, form: str, more: tuple[str, ...]
) -> None:
    """The file is passed by a script next to the page, like speedscope's command line does."""
    file = exported(form, tmp_path / f"x.{form}", *more)
    encoded = subprocess.run(["base64", "-w0", file], check=True, capture_output=True, text=True, timeout=60).stdout
    script = tmp_path / "profile.js"
    script.write_text(f"speedscope.loadFileFromBase64('x.{form}', '{encoded}')")
    shown = page(chromium, f"file://{speedscope}/index.html#localProfilePath={script}", tmp_path / "profile")
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title and title[1] != "speedscope", shown[:2000]
    assert "failed" not in shown.lower()


def test_click_zooms_the_flame_graph_and_search_highlights(chromium: str, tmp_path: Path) -> None:
    file = exported("svg", tmp_path / "x.svg")
    tried = file.read_text().replace(
        "</svg>",
        """<script><![CDATA[
        window.prompt = function () { return "PostgresMain"; };
        var boxes = Array.from(document.querySelectorAll("#boxes>g"));
        var one = boxes.find(function (g) { return /^PostmasterMain /.test(g.querySelector("title").textContent); });
        var before = one.querySelector("rect").getAttribute("width");
        one.querySelector("rect").dispatchEvent(new MouseEvent("click", {bubbles: true}));
        var after = one.querySelector("rect").getAttribute("width");
        document.getElementById("search").dispatchEvent(new MouseEvent("click", {bubbles: true}));
        var result = "zoomed " + before + " to " + after + "; hits " + document.querySelectorAll("g.hit").length
            + "; out " + document.querySelectorAll("g.out").length;
        document.getElementById("back").dispatchEvent(new MouseEvent("click", {bubbles: true}));
        result += "; back " + one.querySelector("rect").getAttribute("width");
        document.getElementById("says").textContent = result;
        ]]></script></svg>""",
    )
    (tmp_path / "tried.svg").write_text(tried)
    shown = page(chromium, f"file://{tmp_path}/tried.svg", tmp_path / "profile")
    result = re.search(r"zoomed ([\d.]+) to ([\d.]+); hits (\d+); out (\d+); back ([\d.]+)", shown)
    assert result, shown[-2000:]
    before, after, hits, out, back = map(float, result.groups())
    assert before < 1000 < after == 1180
    assert hits > 0 and out > 0
    assert back == before
    assert re.search(r'id="found"[^>]*>matched [\d.]+%<', shown)
