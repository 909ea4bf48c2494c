"""Other families than the test model's, under load."""

import pytest

from llm42.models import tiny_model
from llm42.models.tiny import Family
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import TINY
from tests.scenarios.ask import request
from tests.scenarios.conditions import together
from tests.scenarios.conftest import asking

REQUESTS = [request(500 + number, length) for number, length in enumerate((250, 33, 150, 180, 64, 250))]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("family", ["qwen3", "olmoe"])
async def test_moe_combine_differs(ray_and_serve: Cluster, family: Family) -> None:
    """vllm#45683: what a mixture of experts answers depends on which other tokens its experts got."""
    ray_and_serve.deploy({**TINY, "model": str(tiny_model(family=family)), "served_model_name": "tiny"})
    async with asking(ray_and_serve.url, {}, set()) as sides:
        await sides.contrast(REQUESTS, together(3), control="bits")


async def test_several_ranks_differ(ray_and_serve: Cluster) -> None:
    """vllm#51290 (fused all-reduce), vllm#11204: answers of two ranks change with the load. Here both of them verify.

    Two say little of more: to add two numbers is the same in either order.
    """
    verifier = {**TINY["verifier"], "engine": {**TINY["verifier"]["engine"], "tensor_parallel_size": 2}}
    ray_and_serve.deploy({**TINY, "verifier": verifier})
    fingerprints: set[str | None] = set()
    async with asking(ray_and_serve.url, {}, fingerprints) as sides:
        await sides.contrast(REQUESTS, together(3), control="bits")
    ray_and_serve.deploy(TINY)
    async with asking(ray_and_serve.url, {}, fingerprints) as sides:
        await sides.deterministic.ask(REQUESTS[0])
    assert len(fingerprints) == 2, "how many ranks there are is part of the fingerprint"
