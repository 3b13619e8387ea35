"""The ready-made files in `fleet/` name what the agent and `--json` have, and say what they were tried with.

`make fleet` tries them with the programs that they are for.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from offtop.agent.server import address
from offtop.commands import options
from offtop.reports.objects import json_breakdowns, json_suspects, json_tick, json_waited_on, json_wakers
from tests.agent.serving import demo_agent, get, serving
from tests.fleet.engines import FILES

_README = (FILES / "README.md").read_text()
_DASHBOARD: Any = json.loads((FILES / "grafana/dashboard.json").read_text())


def files() -> Iterator[Path]:
    return (one for one in FILES.rglob("*") if one.is_file() and one.name != "README.md")


def test_each_file_is_listed_and_says_what_it_was_tried_with() -> None:
    listed = dict(re.findall(r"^\| `(\S+)` \| .+ \| (.+) \|$", _README, re.M))
    assert listed.keys() == {str(one.relative_to(FILES)) for one in files()}
    for one in files():
        text = one.read_text()
        if one.parent.name == "untested":
            assert re.match(r"(#|//) Not tried", text)
        else:
            assert re.search(r"Tried with \w+|was tried with \w+", text), one


def test_each_metric_and_label_in_rules_dashboard_and_scrapes_exists() -> None:
    with demo_agent() as agent, serving(agent.pages) as server:
        agent.run()
        text = get(server, "/metrics").text
    declared = set(re.findall(r"^# TYPE (\S+)", text, re.M)) | {
        "offtop_agent_recording",
        "offtop_agent_recording_bytes",
    }
    panels = [target["expr"] for panel in _DASHBOARD["panels"] for target in panel.get("targets", ())]
    for source, least in (((FILES / "prometheus/rules.yml").read_text(), 9), ("\n".join(panels), 20)):
        named = re.findall(r"(?<![:\w])offtop_\w+", source)
        assert len(named) > least
        assert {name.removesuffix("_bucket") for name in named} - declared == set()
    labels = set(re.findall(r"(\w+)=\"", text)) | {"job", "instance", "what", "who", "held_by"}
    by = {name.strip() for names in re.findall(r"by \(([^)]+)\)", "\n".join(panels)) for name in names.split(",")}
    legends = "\n".join(
        target.get("legendFormat", "") for one in _DASHBOARD["panels"] for target in one.get("targets", ())
    )
    assert (by | set(re.findall(r"\{\{(\w+)}}", legends))) - labels == set()


def test_panels_of_the_dashboard_have_their_own_ids_and_places() -> None:
    panels = _DASHBOARD["panels"]
    assert len({one["id"] for one in panels}) == len({one["title"] for one in panels}) == len(panels) > 20
    taken = [
        (x, y)
        for place in (one["gridPos"] for one in panels)
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(taken) == len(set(taken)) and max(x for x, _ in taken) == 23


def test_keys_that_clickhouse_extracts_are_those_of_json() -> None:
    text = (FILES / "clickhouse/schema.sql").read_text()
    known = {
        "sites": (json_breakdowns.Site, json_waited_on.WaitedOn, json_wakers.Waker),
        "threads": (json_breakdowns.Thread,),
        "suspects": (json_suspects.Suspect, json_suspects.Hop),
    }
    extracted = set(re.findall(r"JSONExtract\w*\(line, '(\w+)'", text))
    assert extracted > known.keys() and extracted <= fields(json_tick.Tick)
    tuples = re.findall(r"JSONExtract\(line, '(\w+)', '(Array\(Tuple\(.+?)'\)", text, re.S)
    assert {key for key, _ in tuples} == known.keys()
    for key, body in tuples:
        names = set(re.findall(r"(\w+) (?:U?Int\d+|String|Bool|Float64|Array|Tuple)\b", body))
        assert len(names) > 1 and names <= fields(*known[key])


def fields(*kinds: type[msgspec.Struct]) -> set[str]:
    return {name for kind in kinds for name in kind.__struct_fields__}


def test_daemonset_starts_an_agent_that_is_not_open_to_everyone_with_the_capabilities_of_the_service() -> None:
    pod = yaml.safe_load((FILES / "untested/daemonset.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, command, *arguments = container["args"]
    assert (program, command, pod["hostPID"]) == ("offtop", "agent", True)
    args = options.agent().parse_args(arguments)
    where = address(args.listen)
    assert where.port == container["ports"][0]["containerPort"] and not where.is_loopback
    mounted = [one["mountPath"] for one in container["volumeMounts"]]
    assert any(args.web_config.startswith(f"{one}/") for one in mounted) and args.directory in mounted
    unit = (FILES.parent / "packaging/offtop-agent.service").read_text()
    needed = re.search(r"^CapabilityBoundingSet=(.+)$", unit, re.M)
    assert needed
    assert [f"CAP_{one}" for one in container["securityContext"]["capabilities"]["add"]] == needed[1].split()


def test_profiles_are_asked_for_where_the_agent_has_them() -> None:
    with demo_agent() as agent:
        pages = agent.pages.keys()
    parca = yaml.safe_load((FILES / "untested/parca.yaml").read_text())
    (scrape,) = parca["scrape_configs"]
    profiles = scrape["profiling_config"]["pprof_config"]
    asked = {one["path"] for one in profiles.values() if one["enabled"]}
    asked |= set(re.findall(r'path += "(.+)"', (FILES / "untested/config.alloy").read_text()))
    assert asked == {"/debug/pprof/off_cpu"} and asked <= pages
