"""What a dashboard is made of, before Grafana's JSON."""

from dataclasses import dataclass, field
from typing import Literal

from llm42.metrics import CATALOGUE, FOREIGN

Kind = Literal["stat", "timeseries", "heatmap"]


@dataclass(frozen=True)
class Query:
    """``legend`` may name labels: ``{{kind}}``."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """``unit`` is Grafana's. ``steps`` are thresholds, each with its colour; the first colour is for what is below."""

    title: str
    says: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    stack: Literal["none", "normal", "percent"] = "none"
    base: str = "text"
    steps: tuple[tuple[float, str], ...] = ()
    decimals: int | None = None

    @property
    def metrics(self) -> list[str]:
        """Those that its queries name, as Prometheus knows them."""
        known = [sample for metric in CATALOGUE for sample in metric.samples] + list(FOREIGN)
        text = " ".join(query.expr for query in self.queries)
        return [name for name in known if f"{name}{{" in text]

    @property
    def description(self) -> str:
        return f"{self.says} Metrics: {', '.join(f'`{name}`' for name in self.metrics)}."


def stat(
    title: str,
    says: str,
    unit: str,
    expr: str,
    legend: str,
    *,
    width: int = 4,
    base: str = "text",
    steps: tuple[tuple[float, str], ...] = (),
    decimals: int | None = None,
) -> Panel:
    """One number, and how it has moved."""
    queries = (Query(expr, legend),)
    return Panel(title, says, unit, queries, "stat", width, height=5, base=base, steps=steps, decimals=decimals)


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """``uid`` is also the name of its file."""

    uid: str
    title: str
    says: str
    rows: tuple[Row, ...] = field(default=())

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]
