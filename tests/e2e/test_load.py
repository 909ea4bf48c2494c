"""One output for each deterministic prompt, whatever the load; and proof that the load could have done harm."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.e2e.client import Answer, Client, random_prompt
from tests.e2e.cluster import Cluster

PROMPTS = [random_prompt(seed, 8 + 11 * seed) for seed in range(24)]
MAX_TOKENS = 64
ROLLBACKS = "ray_llm42_rollbacks_total"


async def answers_under_load(client: Client, prompts: Sequence[list[int]]) -> list[set[Answer]]:
    """For each prompt the different answers that it got: alone, two at a time, and in bursts of eight."""
    order = list(range(len(prompts)))
    answers: list[set[Answer]] = [set() for _ in prompts]

    async def ask(index: int, stream: bool) -> None:
        answers[index].add(await client.complete(prompts[index], MAX_TOKENS, stream=stream))

    for at_once in (1, 2, 8):
        random.Random(at_once).shuffle(order)
        for begin in range(0, len(order), at_once):
            # Whether it is streamed differs between the rounds, so that both are compared.
            burst = order[begin : begin + at_once]
            await asyncio.gather(*(ask(index, stream=(index + at_once) % 3 == 0) for index in burst))
    return answers


@pytest.mark.timeout(600)
async def test_load(cluster: Cluster, client: Client) -> None:
    before = (await cluster.metrics()).get(ROLLBACKS, 0.0)
    answers = await answers_under_load(client, PROMPTS)
    assert [len(different) for different in answers] == [1] * len(PROMPTS)
    for (answer,), prompt in zip(answers, PROMPTS, strict=True):
        assert len(answer.token_ids) * 4 == len(answer.logprobs) == MAX_TOKENS * 4
        assert answer.usage == (len(prompt), MAX_TOKENS)
    # Drafts did drift: without the verifier, clients would have seen it.
    print(f"rollbacks: {await cluster.until_metric(ROLLBACKS, more_than=before) - before:.0f}")


@pytest.mark.timeout(600)
async def test_negative_control_ordinary_traffic_diverges(cluster: Cluster) -> None:
    ordinary = Client(cluster.url, "tiny", ignore_eos=True, is_deterministic=False)
    answers = await answers_under_load(ordinary, PROMPTS)
    outputs = [{answer.token_ids for answer in different} for different in answers]
    diverged = sum(len(different) > 1 for different in outputs)
    print(f"diverged: {diverged} of {len(PROMPTS)}")
    assert diverged >= 1
