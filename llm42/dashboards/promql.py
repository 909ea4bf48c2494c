"""PromQL as the dashboards speak it. Every expression is filtered by the dashboards' variables."""

from collections.abc import Callable, Sequence

from llm42.dashboards.panel import Query
from llm42.metrics import Counter, Gauge, Histogram, Metric, fastpath, verifier

SERVE = 'application=~"$application",ray_io_cluster=~"$cluster"'
"""Of metrics with Serve's labels; the variable ``model`` narrows ``application``."""
ENGINE = 'model_name=~"$model",ray_io_cluster=~"$cluster"'
"""Of vLLM's metrics, which have no application."""


def matching(metric: Metric | str, suffix: str = "", filters: str = SERVE, **labels: str) -> str:
    """A selector. ``labels`` hold regular expressions. A foreign metric is named as Prometheus knows it."""
    name = metric if isinstance(metric, str) else f"ray_{metric.name}"
    suffix = "_total" if isinstance(metric, Counter) else suffix
    own = [f'{label}=~"{value}"' for label, value in labels.items()]
    return f"{name}{suffix}{{{','.join([*own, filters])}}}"


def value(metric: Gauge | str, by: str = "", how: str = "sum", **labels: str) -> str:
    return f"{_aggregate(how, by)}({matching(metric, **labels)})"


def rate(metric: Counter | str, by: str = "", **labels: str) -> str:
    """A second, all replicas together."""
    return f"{_aggregate('sum', by)}(rate({matching(metric, **labels)}[$__rate_interval]))"


def each(metric: Metric, label: str, expr: Callable[..., str]) -> tuple[Query, ...]:
    """A query for each value of a label, in the catalogue's order: Grafana stacks in the order of the queries.

    ``expr`` makes it, of the metric and the label's value.
    """
    return tuple(Query(expr(metric, **{label: known}), known) for known in metric.labels[label])


def rate_of(metric: Histogram, what: str, by: str = "", **labels: str) -> str:
    """A second; ``what`` is "count" or "sum"."""
    return f"{_aggregate('sum', by)}(rate({matching(metric, f'_{what}', **labels)}[$__rate_interval]))"


def in_range(metric: Counter, **labels: str) -> str:
    """What has been counted in the time shown. Ray keeps the counters of replicas that are gone, and a new one may
    have made its first step before it was seen."""
    selected = matching(metric, **labels)
    return f"sum(max_over_time({selected}[$__range])) - (sum({selected} offset $__range) or vector(0))"


def mean(metric: Histogram, by: str = "", **labels: str) -> str:
    return ratio(rate_of(metric, "sum", by, **labels), rate_of(metric, "count", by, **labels))


def quantile(metric: Histogram | str, share: float, by: str = "", **labels: str) -> str:
    by = f"le, {by}" if by else "le"
    buckets = matching(metric, "_bucket", **labels)
    return f"histogram_quantile({share:g}, sum by ({by}) (rate({buckets}[$__rate_interval])))"


def quantiles(metric: Histogram | str, shares: Sequence[float], **labels: str) -> tuple[Query, ...]:
    """A query for each of ``shares``."""
    return tuple(Query(quantile(metric, share, **labels), f"p{100 * share:g}") for share in shares)


def ratio(part: str, whole: str) -> str:
    return f"{part} / {whole}"


def engine(metric: str, deployment: str, how: str = "sum", *, counted: bool = False) -> str:
    """A vLLM metric of one pool's living replicas, by replica. It does not say which pool that is: our gauges do.

    ``counted``: a second, of a counter.
    """
    selected = matching(metric, filters=ENGINE)
    engines = f"rate({selected}[$__rate_interval])" if counted else selected
    pool = f'label_replace({alive(deployment)}, "ReplicaId", "$1", "replica", "(.+)")'
    return f"{how} by (ReplicaId) ({engines}) and on (ReplicaId) {pool}"


def alive(deployment: str) -> str:
    """Something that is there for each replica that lives: Ray forgets gauges with their process, unlike counters."""
    part = {"FastPath": fastpath.REQUESTS, "Verifier": verifier.REPLAYS}[deployment]
    return f"max by (replica) ({matching(part)})"


def utilisation(deployment: str) -> str:
    """Share of the time in which each living replica computes, by replica."""
    busy = {"FastPath": fastpath.BUSY, "Verifier": verifier.PART_SECONDS}[deployment]
    # Time is counted at the end of a pass or step, so there may be more in a second than a second.
    return f"clamp_max({rate(busy, 'replica')}, 1) and on (replica) {alive(deployment)}"


def _aggregate(how: str, by: str) -> str:
    return f"{how} by ({by}) " if by else how
