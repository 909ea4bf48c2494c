"""Grafana dashboards made from the metrics catalogue: ``python -m llm42.dashboards`` writes grafana/."""

from llm42.dashboards.determinism import DETERMINISM
from llm42.dashboards.grafana import grafana_json
from llm42.dashboards.overhead import OVERHEAD
from llm42.dashboards.panel import Dashboard, Panel, Query, Row
from llm42.dashboards.pools import POOLS

DASHBOARDS = (DETERMINISM, OVERHEAD, POOLS)

__all__ = ["DASHBOARDS", "Dashboard", "Panel", "Query", "Row", "grafana_json"]
