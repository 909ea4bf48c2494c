"""The continuous audit on a live deployment: answers are confirmed, and a condemned verifier is replaced."""

from typing import Any

import pytest
from ray import serve

from tests.e2e.client import Client, random_prompt
from tests.e2e.cluster import APP, Cluster

AUDITS = "ray_llm42_audits_total"


@pytest.fixture(scope="module")
def cluster(audited: Cluster) -> Cluster:
    return audited


def outcomes(exposition: str) -> set[str]:
    lines = [line for line in exposition.splitlines() if line.startswith(f"{AUDITS}{{") and not line.endswith(" 0.0")]
    return {line.partition('outcome="')[2].partition('"')[0] for line in lines}


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.9, "seed": 4}, {"model": "lisp"}], ids=["greedy", "seeded", "adapter"]
)
async def test_answers_are_confirmed(cluster: Cluster, client: Client, fields: dict[str, Any]) -> None:
    before = (await cluster.metrics()).get(AUDITS, 0.0)
    for index in range(3):
        await client.complete(random_prompt(900 + index, 30 + 40 * index), 50, stream=index == 1, **fields)
    await cluster.until_metric(AUDITS, more_than=before + 2)
    assert "confirmed" in outcomes(await cluster.exposition())
    assert outcomes(await cluster.exposition()) <= {"confirmed", "skipped"}


async def test_a_condemned_verifier_is_replaced(cluster: Cluster, client: Client) -> None:
    prompt = random_prompt(910, 60)
    before = await client.complete(prompt, 20)
    verifier = cluster.pid("Verifier")
    described = await cluster.call("Verifier", "describe")
    handle = serve.get_deployment_handle("Verifier", APP)
    await handle.condemn.remote("a test says so", replica_id="another one")
    assert (await client.complete(prompt, 20)) == before, "it was not meant"
    assert cluster.pid("Verifier") == verifier
    await handle.condemn.remote("a test says so", replica_id=described["replica_id"])
    await cluster.until_replaced("Verifier", verifier)
    assert (await client.complete(prompt, 20)) == before
