"""The dashboards in grafana/ are those that the code makes, and show what there is, in one language of colours."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from llm42.dashboards import DASHBOARDS, Dashboard
from llm42.dashboards.__main__ import main, written
from llm42.dashboards.grafana import TAG, WIDTH
from llm42.dashboards.panel import Panel
from llm42.metrics import CATALOGUE, FOREIGN
from tests.grafana.promql import grouped_by, selectors, unknown

FOLDER = Path(__file__).resolve().parents[2] / "grafana"
UNITS = {"none", "s", "ms", "ops", "reqps", "percentunit"}
BUILT_IN = {"__rate_interval", "__range"}
PANELS = [
    pytest.param(dashboard, panel, id=f"{dashboard.uid}/{panel.title}")
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
]


def in_grafana(uid: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{uid}.json").read_text())
    return found


def test_the_files_are_current() -> None:
    assert main(["--check", str(FOLDER)]) == 0
    assert {path.name for path in FOLDER.glob("*.json")} == set(written())


def test_a_changed_or_missing_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    path = tmp_path / "llm42-pools.json"
    path.write_text(path.read_text().replace("Event loop lag", "Event loop lug"))
    assert main(["--check", str(tmp_path)]) == 1
    path.unlink()
    assert main(["--check", str(tmp_path)]) == 1
    assert "llm42-pools.json" in capsys.readouterr().err


@pytest.mark.parametrize(("dashboard", "panel"), PANELS)
def test_panels_read_what_there_is(dashboard: Dashboard, panel: Panel) -> None:
    for query in panel.queries:
        assert unknown(query.expr) == []
        read = {selector.name for selector in selectors(query.expr)}
        assert read
        assert all(f"`{name}`" in panel.description for name in read)
        for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
            assert label in grouped_by(query.expr)
    assert panel.unit in UNITS
    assert panel.says.endswith(".")


@pytest.mark.parametrize(
    "expr",
    [
        "rate(ray_llm42_requests_total{outcome='finished'}[5m]) / ray_llm42_request_total",
        "sum(ray_llm42_audits_total{outcome='mismatches'})",
        "sum(ray_llm42_audits_total{result='mismatch'})",
        "sum(ray_llm42_audits)",
    ],
)
def test_what_nobody_exports_is_found(expr: str) -> None:
    assert len(unknown(expr)) == 1


def test_every_metric_is_shown() -> None:
    shown = {selector.name for d in DASHBOARDS for p in d.panels for q in p.queries for selector in selectors(q.expr)}
    assert [metric.name for metric in CATALOGUE if not shown & set(metric.samples)] == []
    assert set(FOREIGN) <= shown


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_conventions(dashboard: Dashboard) -> None:
    found = in_grafana(dashboard.uid)
    assert found["tags"] == [TAG]
    assert [link["tags"] for link in found["links"] if link["type"] == "dashboards"] == [[TAG]]
    variables = [variable["name"] for variable in found["templating"]["list"]]
    assert variables == ["datasource", "cluster", "model", "application"]
    for panel in found["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            named = set(re.findall(r"\$(\w+)", target["expr"])) - BUILT_IN - {"1"}
            assert named <= set(variables)
            assert "cluster" in named, "every query is of the clusters chosen"
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_panels_lie_beside_each_other(dashboard: Dashboard) -> None:
    places = [panel["gridPos"] for panel in in_grafana(dashboard.uid)["panels"]]
    for place in places:
        assert place["x"] + place["w"] <= WIDTH
    for a, b in combinations(places, 2):
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y


def test_one_colour_for_one_meaning() -> None:
    colours: dict[str, set[str]] = {}
    for dashboard in DASHBOARDS:
        for panel in in_grafana(dashboard.uid)["panels"]:
            for override in panel.get("fieldConfig", {}).get("overrides", ()):
                for found in override["properties"]:
                    if found["id"] == "color":
                        colours.setdefault(override["matcher"]["options"], set()).add(found["value"]["fixedColor"])
    assert {"deterministic", "mismatch", "padding", "Verifier"} <= set(colours)
    assert {legend: found for legend, found in colours.items() if len(found) != 1} == {}


def test_legends_known_beforehand_have_their_colour_beforehand() -> None:
    free = set()
    for dashboard in DASHBOARDS:
        for panel in in_grafana(dashboard.uid)["panels"]:
            if panel["type"] == "timeseries":
                coloured = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
                free |= {target["legendFormat"] for target in panel["targets"]} - coloured
    assert free == {"{{short}}", "{{ReplicaId}}", "{{replica}}", "{{deployment}}", "{{error_code}}"}


def test_each_value_of_a_label_is_asked_for() -> None:
    """What a panel splits by a label, it shows whole."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for metric in CATALOGUE:
                for values in metric.labels.values():
                    asked = {query.legend for query in panel.queries} & set(values)
                    reads = any(f"{sample}{{" in query.expr for query in panel.queries for sample in metric.samples)
                    if panel.stack != "none" and reads and asked:
                        assert asked == set(values), panel.title
