"""What Grafana would show: the dashboards in grafana/, their variables filled in, their queries answered."""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.grafana.prometheus import SCRAPE_S, Prometheus

FOLDER = Path(__file__).resolve().parents[2] / "grafana"
STEP_S = 2.0


@dataclass(frozen=True)
class Series:
    """``points`` are (time, value); ``labels`` those of the result."""

    legend: str
    labels: dict[str, str]
    points: list[tuple[float, float]]


@dataclass
class Shown:
    """A panel as it is in the JSON, and what came of each of its queries."""

    panel: dict[str, Any]
    answers: list[list[Series]] = field(default_factory=list)

    @property
    def title(self) -> str:
        return str(self.panel["title"])

    @property
    def series(self) -> list[Series]:
        return [series for answer in self.answers for series in answer]

    @property
    def empty(self) -> list[str]:
        """Queries that returned nothing to draw."""
        return [
            target["expr"]
            for target, answer in zip(self.panel.get("targets", ()), self.answers, strict=True)
            if not any(series.points for series in answer)
        ]


def read(uid: str, source: Prometheus, start: float, end: float) -> tuple[str, list[Shown]]:
    """Title of the dashboard, and its panels; rows too, without answers."""
    dashboard = json.loads((FOLDER / f"{uid}.json").read_text())
    values = _variables(dashboard, source) | {
        "__rate_interval": f"{5 * SCRAPE_S}s",  # Grafana takes four scrapes and a step; Ray's own export adds one
        "__range": f"{math.ceil(end - start)}s",
    }
    shown = []
    for panel in dashboard["panels"]:
        found = Shown(panel)
        for target in panel.get("targets", ()):
            answer = source.range(_filled(target["expr"], values), start, end, STEP_S)
            found.answers.append([_series(target["legendFormat"], result) for result in answer])
        shown.append(found)
    return dashboard["title"], shown


def _variables(dashboard: dict[str, Any], source: Prometheus) -> dict[str, str]:
    """ "All" is chosen: as Grafana does, that is what the variable's query finds, or ``allValue``."""
    values: dict[str, str] = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
        found = {result["metric"].get(label, "") for result in source.now(_filled(selector, values))}
        assert found, f"the variable {variable['name']} has no values"
        values[variable["name"]] = variable["allValue"] or "|".join(sorted(map(re.escape, found)))
    return values


def _filled(expr: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        expr = expr.replace(f"${name}", value.replace("\\", "\\\\"))
    return expr


def _series(legend: str, result: dict[str, Any]) -> Series:
    labels = result["metric"]
    points = [(float(at), float(value)) for at, value in result["values"] if math.isfinite(float(value))]
    named = re.sub(r"\{\{(\w+)\}\}", lambda name: str(labels.get(name[1], "")), legend)
    return Series(named, labels, points)
