"""What a PromQL expression reads."""

from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser as promql

from llm42.metrics import CATALOGUE, FOREIGN

EVERYWHERE = {"application", "deployment", "replica", "ray_io_cluster"}
"""Labels that Serve and the PodMonitors add to all of ours."""
FOREIGN_LABELS = {
    "ray_serve": {*EVERYWHERE, "error_code", "le"},
    "ray_vllm": {"model_name", "engine", "ReplicaId", "ray_io_cluster"},
}
LABELS: dict[str, dict[str, tuple[str, ...]]] = {
    **{
        sample: {**dict.fromkeys((*EVERYWHERE, "le"), ()), **metric.labels}
        for metric in CATALOGUE
        for sample in metric.samples
    },
    **{name: dict.fromkeys(FOREIGN_LABELS["_".join(name.split("_")[:2])], ()) for name in FOREIGN},
}
"""The labels of all metrics, as Prometheus knows them, each with its values where they are known beforehand."""
VARIABLES = {"$__rate_interval": "60s", "$__range": "1h", "$__interval": "15s"}


@dataclass(frozen=True)
class Selector:
    """``wanted`` maps labels to what they are compared with."""

    name: str
    wanted: dict[str, str]


def parse(expr: str) -> promql.Expr:
    """Raises ValueError for what is no PromQL, once Grafana has put its own variables in."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return promql.parse(expr)


def selectors(expr: str) -> list[Selector]:
    return [
        Selector(str(node.name), {matcher.name: matcher.value for matcher in node.matchers.matchers})
        for node in _nodes(parse(expr))
        if isinstance(node, promql.VectorSelector)
    ]


def unknown(expr: str) -> list[str]:
    """What it reads that nobody exports: metrics, labels, and values of labels."""
    wrong = []
    for selector in selectors(expr):
        labels = LABELS.get(selector.name)
        if labels is None:
            if not selector.name.startswith("llm42:"):
                wrong.append(selector.name)
            continue
        for label, value in selector.wanted.items():
            if label not in labels or (labels[label] and value not in labels[label]):
                wrong.append(f"{selector.name}{{{label}={value}}}")
    return wrong


def grouped_by(expr: str) -> set[str]:
    """All labels by which something in it is aggregated."""
    return {
        label
        for node in _nodes(parse(expr))
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None
        for label in node.modifier.labels
    }


def _nodes(node: promql.Expr) -> Iterator[promql.Expr]:
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        child = getattr(node, name, None)
        if isinstance(child, promql.Expr):
            yield from _nodes(child)
    for child in getattr(node, "args", None) or ():
        yield from _nodes(child)
