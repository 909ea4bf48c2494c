"""Several of each part: who answers must not show."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.cluster import METRICS_S, Cluster
from tests.e2e.conftest import TINY
from tests.scenarios.ask import request
from tests.scenarios.conditions import copies
from tests.scenarios.conftest import Ask

REQUESTS = [request(500 + number, length) for number, length in enumerate((150, 33, 300, 64, 250, 150))]
POOLS = {name: {**TINY[name], "replicas": 2, "num_cpus": 0.25} for name in ("fast_path", "verifier")}
PASSES = "ray_llm42_verify_pass_seconds_count"
TWO_OF_EACH = {**TINY, **POOLS, "router": {"replicas": 2}}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def replicas(ray_and_serve: Cluster, tiny_path: str) -> Cluster:
    ray_and_serve.deploy(TWO_OF_EACH)
    return ray_and_serve


async def working(cluster: Cluster, metric: str) -> set[str]:
    """The replicas of which ``metric`` says that they have done something."""
    return {
        sample.labels["replica"]
        for family in text_string_to_metric_families(await cluster.exposition())
        for sample in family.samples
        if sample.name == metric and sample.value > 0
    }


async def test_replicas_diverge(replicas: Cluster, ask_of: Ask) -> None:
    """verl routes a request to the replica that answered it before, lest the answer change. Here any may answer.

    Eight at a time of each request, on two fast paths and two verifiers through two routers.
    """
    async with ask_of(replicas) as sides:
        await sides.contrast(REQUESTS, copies(8), control="bits")
    async with asyncio.timeout(METRICS_S):
        while len(await working(replicas, PASSES)) < 2:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(1)
