"""The catalogue arrives on Ray's metrics port, where Prometheus scrapes it."""

from llm42.metrics import BY_PART, CATALOGUE, FOREIGN
from tests.e2e.client import Client, random_prompt
from tests.e2e.cluster import Cluster

COMMITTED = "ray_llm42_tokens_committed_total"


async def test_metrics_are_visible_on_the_metrics_port(cluster: Cluster, client: Client) -> None:
    before = (await cluster.metrics()).get(COMMITTED, 0.0)
    await client.complete(random_prompt(6, 40), 40)
    await cluster.until_metric(COMMITTED, more_than=before + 39)
    exported = await cluster.metrics()
    missing = [sample for metric in CATALOGUE for sample in metric.samples if sample not in exported]
    assert missing == [], "counters are there with 0, before anything has happened"
    assert exported["ray_llm42_tokens_accepted_total"] <= exported["ray_llm42_tokens_verified_total"]
    assert exported["ray_llm42_unverified_tokens_total"] == 0
    assert exported["ray_llm42_output_tokens_total"] >= 40


async def test_each_part_reports_its_own(cluster: Cluster, client: Client) -> None:
    await client.complete(random_prompt(6, 40), 8)
    await cluster.until_metric(COMMITTED, more_than=0)
    text = await cluster.exposition()
    for part, metrics in BY_PART.items():
        for metric in metrics:
            lines = [line for line in text.splitlines() if line.startswith(f"{metric.samples[0]}{{")]
            assert lines
            assert all(f'deployment="{part}"' in line for line in lines)


async def test_vllm_speaks_for_both_engines_under_the_models_name(cluster: Cluster, client: Client) -> None:
    await client.complete(random_prompt(6, 40), 8)
    await cluster.until_metric(COMMITTED, more_than=0)
    text = await cluster.exposition()
    running = [line for line in text.splitlines() if line.startswith("ray_vllm_num_requests_running{")]
    assert len({line.partition('ReplicaId="')[2].partition('"')[0] for line in running}) >= 2
    assert all('model_name="tiny"' in line for line in running)
    for name in ("ray_vllm_generation_tokens_total", "ray_vllm_prompt_tokens_total", "ray_vllm_kv_cache_usage_perc"):
        assert name in FOREIGN
        assert f"\n{name}{{" in text


async def test_metrics_name_the_replica_and_nothing_of_the_request(cluster: Cluster, client: Client) -> None:
    await client.complete("a secret prompt", 8)
    await cluster.until_metric("ray_llm42_requests_total", more_than=0)
    text = await cluster.exposition()
    (line, *_) = [line for line in text.splitlines() if line.startswith("ray_llm42_requests_total{")]
    for label in ('application="llm42"', 'deployment="Router"', 'replica="', 'outcome="'):
        assert label in line
    assert "secret" not in text
