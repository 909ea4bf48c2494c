"""The catalogue arrives on Ray's metrics port, where Prometheus scrapes it."""

from llm42.metrics import AUDITS, CATALOGUE, FAILOVERS, PAGES, REFUSED, ROLLBACKS, ROLLED_BACK
from tests.e2e.client import Client, random_prompt
from tests.e2e.cluster import Cluster

MAY_BE_ZERO = {AUDITS, FAILOVERS, PAGES, REFUSED, ROLLBACKS, ROLLED_BACK}
"""Nothing is exported before it has happened once."""


async def test_metrics_are_visible_on_the_metrics_port(cluster: Cluster, client: Client) -> None:
    committed = "ray_llm42_tokens_committed_total"
    before = (await cluster.metrics()).get(committed, 0.0)
    await client.complete(random_prompt(6, 40), 40)
    await cluster.until_metric(committed, more_than=before + 39)
    exported = await cluster.metrics()
    for metric in CATALOGUE:
        if metric not in MAY_BE_ZERO:
            suffix = "_total" if metric.kind == "counter" else "_count"
            assert exported[f"ray_{metric.name}{suffix}"] > 0
    assert exported["ray_llm42_tokens_accepted_total"] <= exported["ray_llm42_tokens_verified_total"]


async def test_metrics_name_the_replica_and_nothing_of_the_request(cluster: Cluster, client: Client) -> None:
    await client.complete("a secret prompt", 8)
    await cluster.until_metric("ray_llm42_requests_total", more_than=0)
    text = await cluster.exposition()
    (line, *_) = [line for line in text.splitlines() if line.startswith("ray_llm42_requests_total{")]
    for label in ('application="llm42"', 'deployment="Router"', 'replica="', 'outcome="'):
        assert label in line
    assert "secret" not in text
