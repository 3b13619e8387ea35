"""What `offtop export` writes, opened in the programs that it is for: speedscope and the flame graph in a browser.

`make consumers` runs them; they need Debian's chromium and npm, and the npm registry for speedscope.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest

from offtop import paths
from tests import command

pytestmark = pytest.mark.consumer

_SPEEDSCOPE = "speedscope@1.25.0"
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
    """What its package has to show."""
    directory = tmp_path_factory.mktemp("speedscope")
    subprocess.run(
        ["npm", "pack", "--silent", _SPEEDSCOPE], cwd=directory, check=True, capture_output=True, timeout=120
    )
    (packed,) = directory.glob("*.tgz")
    subprocess.run(["tar", "xzf", packed.name], cwd=directory, check=True, timeout=60)
    return directory / "package/dist/release"


def exported(form: str, to: Path) -> Path:
    ended = command.run("export", form, str(paths.demo()), "-o", str(to))
    assert (ended.status, ended.err) == (0, "")
    return to


def page(chromium: str, address: str, profile: Path) -> str:
    """What stands in it once its scripts have run."""
    ended = subprocess.run(
        [chromium, *_FLAGS, f"--user-data-dir={profile}", "--dump-dom", address],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ended.stdout


def test_speedscope_s_own_schema_holds(speedscope: Path, tmp_path: Path) -> None:
    made = json.loads(exported("speedscope", tmp_path / "x.json").read_text())
    jsonschema.validate(made, json.loads((speedscope / "file-format-schema.json").read_text()))


@pytest.mark.parametrize("form", ["speedscope", "pprof", "folded"])
def test_speedscope_opens_it(speedscope: Path, chromium: str, tmp_path: Path, form: str) -> None:
    """By the way of its own command line: a script beside it that hands the file over."""
    file = exported(form, tmp_path / f"x.{form}")
    encoded = subprocess.run(["base64", "-w0", file], check=True, capture_output=True, text=True, timeout=60).stdout
    script = tmp_path / "profile.js"
    script.write_text(f"speedscope.loadFileFromBase64('x.{form}', '{encoded}')")
    shown = page(chromium, f"file://{speedscope}/index.html#localProfilePath={script}", tmp_path / "profile")
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title and title[1] != "speedscope", shown[:2000]
    assert "failed" not in shown.lower()


def test_in_the_flame_graph_a_click_zooms_and_a_search_marks(chromium: str, tmp_path: Path) -> None:
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
        var told = "zoomed " + before + " to " + after + "; hits " + document.querySelectorAll("g.hit").length
            + "; out " + document.querySelectorAll("g.out").length;
        document.getElementById("back").dispatchEvent(new MouseEvent("click", {bubbles: true}));
        told += "; back " + one.querySelector("rect").getAttribute("width");
        document.getElementById("says").textContent = told;
        ]]></script></svg>""",
    )
    (tmp_path / "tried.svg").write_text(tried)
    shown = page(chromium, f"file://{tmp_path}/tried.svg", tmp_path / "profile")
    told = re.search(r"zoomed ([\d.]+) to ([\d.]+); hits (\d+); out (\d+); back ([\d.]+)", shown)
    assert told, shown[-2000:]
    before, after, hits, out, back = map(float, told.groups())
    assert before < 1000 < after == 1180
    assert hits > 0 and out > 0
    assert back == before
    assert re.search(r'id="found"[^>]*>matched [\d.]+%<', shown)
