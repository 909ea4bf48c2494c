"""The continuous audit on a live deployment: answers are confirmed, and a condemned verifier goes."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from tests.e2e.client import Client, random_prompt
from tests.e2e.cluster import APP, METRICS_S, Cluster

AUDITS = "ray_llm42_audits_total"
FINE = {"confirmed", "skipped"}
"""Outcomes of audits that find nothing wrong; those beyond two at a time are skipped."""


@pytest.fixture(scope="module")
def cluster(audited: Cluster) -> Cluster:
    return audited


async def audits(cluster: Cluster) -> dict[str, float]:
    """How many there have been, by outcome."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(await cluster.exposition()):
        for sample in family.samples:
            if sample.name == AUDITS and sample.value:
                outcome = sample.labels["outcome"]
                found[outcome] = found.get(outcome, 0.0) + sample.value
    return found


async def until_confirmed(cluster: Cluster, more_than: float) -> None:
    """Until that many answers have been confirmed, and nothing else has been found."""
    async with asyncio.timeout(METRICS_S):
        while (found := await audits(cluster)).get("confirmed", 0.0) <= more_than:  # noqa: ASYNC110
            await asyncio.sleep(0.3)
    assert found.keys() <= FINE


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.9, "seed": 4}, {"model": "lisp"}], ids=["greedy", "seeded", "adapter"]
)
async def test_answers_are_confirmed(cluster: Cluster, client: Client, fields: dict[str, Any]) -> None:
    before = (await audits(cluster)).get("confirmed", 0.0)
    for index in range(3):
        await client.complete(random_prompt(900 + index, 30 + 40 * index), 50, stream=index == 1, **fields)
    await until_confirmed(cluster, more_than=before + 2)


async def test_a_condemned_verifier_goes(cluster: Cluster, client: Client) -> None:
    prompt = random_prompt(910, 60)
    before = await client.complete(prompt, 20)
    verifier = cluster.pid("Verifier")
    described = await cluster.call("Verifier", "describe")
    handle = serve.get_deployment_handle("Verifier", APP)
    await handle.condemn.remote("a test says so", replica_id="another one")
    assert (await client.complete(prompt, 20)) == before, "it was not meant"
    assert cluster.pid("Verifier") == verifier
    await handle.condemn.remote("a test says so", replica_id=described["replica_id"])
    await cluster.until_gone("Verifier", verifier)  # and another takes its place: tests/e2e/test_kill.py
