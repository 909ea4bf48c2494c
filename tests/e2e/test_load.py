"""One output for each deterministic prompt, whatever the load; and proof that the load could have done harm."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.e2e.client import Answer, Client, random_prompt
from tests.e2e.cluster import Cluster

PROMPTS = [random_prompt(seed, 8 + 11 * seed) for seed in range(8, 24)]
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


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_load_of_many_kinds(cluster: Cluster, client: Client) -> None:
    """Prompts of all lengths, some with a common beginning, more than the caches hold; among ordinary neighbours,
    clients that leave, and requests for more or fewer tokens of the same answer."""
    rng = random.Random(0)
    common = random_prompt(1000, 700)
    prompts = [random_prompt(seed, rng.choice((1, 31, 32, 33, 64, 200, 500, 900))) for seed in range(24)]
    prompts += [common[: rng.randrange(700)] + random_prompt(seed, 5) for seed in range(16)]
    whole = [await client.complete(prompt, MAX_TOKENS) for prompt in prompts]
    turn = asyncio.Semaphore(12)

    async def ask(index: int, kind: int, count: int) -> None:
        async with turn:
            if kind == 0:
                await client.complete(prompts[index], count, is_deterministic=False)
            elif kind == 1:
                stream = await client.stream(prompts[index], MAX_TOKENS)
                await anext(aiter(stream))
                await stream.close()
            else:
                answer = await client.complete(prompts[index], count, stream=kind % 2 == 0)
                assert answer.token_ids == whole[index].token_ids[:count]
                assert answer.logprobs == whole[index].logprobs[: 4 * count]

    asked = [(index, kind, rng.randint(1, MAX_TOKENS)) for index in range(len(prompts)) for kind in range(7)]
    rng.shuffle(asked)
    await asyncio.gather(*(ask(*one) for one in asked))
    await cluster.until_idle(10)
