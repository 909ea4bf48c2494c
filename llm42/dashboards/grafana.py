"""Grafana's JSON (schema of Grafana 10 and later) of a dashboard: what is in grafana/."""

import itertools
from collections.abc import Iterator
from typing import Any

from llm42.dashboards.colours import colour_of, dashed
from llm42.dashboards.panel import Dashboard, Panel

TAG = "llm42"
WIDTH = 24
_PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}


def grafana_json(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": [TAG],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "links": [
            {
                "type": "dashboards",
                "title": "LLM-42",
                "tags": [TAG],
                "includeVars": True,
                "keepTime": True,
                "asDropdown": False,
            }
        ],
        "templating": {"list": list(_variables())},
        "annotations": {"list": []},
        "panels": list(_panels(dashboard)),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
    info = "ray_llm42_fingerprint_info"
    cluster, model = 'ray_io_cluster=~"$cluster"', 'model=~"$model"'
    # KubeRay's PodMonitors set ray_io_cluster; elsewhere there is none, and `.*` matches that too.
    yield _variable("cluster", "Cluster", f"label_values({info}, ray_io_cluster)", all_value=".*")
    yield _variable("model", "Model", f"label_values({info}{{{cluster}}}, model)")
    yield _variable("application", "Application", f"label_values({info}{{{cluster},{model}}}, application)")


def _variable(name: str, label: str, query: str, all_value: str | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _PROMETHEUS,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": all_value,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """Rows one below the other; in a row from left to right, and on below where it is full."""
    numbers, y = itertools.count(1), 0
    for row in dashboard.rows:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {
            "id": next(numbers),
            "type": "row",
            "title": row.title,
            "gridPos": place,
            "collapsed": False,
            "panels": [],
        }
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            yield {"id": next(numbers), "gridPos": place, **_panel(panel)}
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _PROMETHEUS,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _PROMETHEUS,
                "expr": query.expr,
                "legendFormat": query.legend,
                "range": True,
                "instant": False,
                **({"format": "heatmap"} if panel.kind == "heatmap" else {}),
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    if panel.kind == "heatmap":
        return {}
    steps = [{"value": None, "color": panel.base}, *({"value": at, "color": colour} for at, colour in panel.steps)]
    common = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
        **({} if panel.decimals is None else {"decimals": panel.decimals}),
    }
    if panel.kind == "stat":
        del common["min"]
        return {**common, "color": {"mode": "thresholds"}, "noValue": "no data"}
    return {
        **common,
        "color": {"mode": "palette-classic"},
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 10 if panel.stack == "none" else 40,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": panel.stack, "group": "A"},
        },
    }


def _overrides(panel: Panel) -> Iterator[dict[str, Any]]:
    if panel.kind != "timeseries":
        return
    for legend in dict.fromkeys(_legends(panel)):
        properties: list[dict[str, Any]] = []
        if colour := colour_of(legend):
            properties.append({"id": "color", "value": {"mode": "fixed", "fixedColor": colour}})
        if dashed(legend):
            properties.append({"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}})
        if properties:
            yield {"matcher": {"id": "byName", "options": legend}, "properties": properties}


def _legends(panel: Panel) -> Iterator[str]:
    """Those known beforehand."""
    known = {"{{deployment}}": ("Router", "FastPath", "Verifier"), "{{error_code}}": ("400", "500", "503")}
    for query in panel.queries:
        yield from known.get(query.legend, (query.legend,))


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "value",
        }
    if panel.kind == "heatmap":
        return {
            "calculate": False,
            "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
            "yAxis": {"unit": panel.unit},
            "cellGap": 1,
            "legend": {"show": True},
        }
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
