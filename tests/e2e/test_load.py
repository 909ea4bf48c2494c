"""One output for each deterministic prompt under load of all kinds at once; of one kind each: tests/scenarios."""

import asyncio
import random

import pytest

from tests.e2e.client import Client, random_prompt
from tests.e2e.cluster import Cluster

MAX_TOKENS = 64


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
