"""A verifier pool that follows its load: outputs are the canonical ones while it grows and while it shrinks."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from tests.e2e.client import Answer, Client, random_prompt
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import TINY

SCALING = {
    "max_replicas": 2,
    # The test model's passes take some milliseconds on a quiet machine.
    "target_wait_s": 0.001,
    "upscale_delay_s": 1,
    "downscale_delay_s": 10,
}
ARGS = {**TINY, "verifier": {**TINY["verifier"], "num_cpus": 0.25, "autoscaling": SCALING}}
PROMPTS = [random_prompt(700 + number, 200 + 17 * number) for number in range(16)]
MAX_TOKENS = 48
CLIENTS = 24
GROWN_S = 300.0
SHRUNK_S = 180.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
async def scaled(ray_and_serve: Cluster, tiny_path: str) -> AsyncIterator[Client]:
    ray_and_serve.deploy(ARGS)
    client = Client(ray_and_serve.url, "tiny", ignore_eos=True)
    yield client
    await client.openai.close()


async def verifiers(cluster: Cluster) -> set[str]:
    return {answer["replica_id"] for answer in await cluster.each("Verifier", "describe")}


async def test_it_grows_and_shrinks_and_no_answer_changes(ray_and_serve: Cluster, scaled: Client) -> None:
    cluster = ray_and_serve
    first = await verifiers(cluster)
    assert len(first) == 1
    canonical = [await scaled.complete(prompt, MAX_TOKENS) for prompt in PROMPTS]
    loaded, finished, enough = asyncio.Event(), 0, asyncio.Event()
    loaded.set()
    wanted = -1

    async def ask(number: int) -> None:
        """Raises if a request fails, or its answer is another one."""
        nonlocal finished
        while loaded.is_set():
            # A prompt that no cache knows, and one that has an answer.
            await scaled.complete(random_prompt(10_000 + number + CLIENTS * finished, 600), MAX_TOKENS)
            answer: Answer = await scaled.complete(PROMPTS[number % len(PROMPTS)], MAX_TOKENS)
            assert answer == canonical[number % len(PROMPTS)]
            finished += 1
            if finished == wanted:
                enough.set()

    async def until(reached: Callable[[set[str]], bool], timeout_s: float) -> set[str]:
        async with asyncio.timeout(timeout_s):
            while not reached(found := await verifiers(cluster)):  # noqa: ASYNC110 - other processes' state
                await asyncio.sleep(1)
        return found

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(ask(number))
        grown = await until(lambda found: len(found) == 2, GROWN_S)
        print(f"\ngrown after {time.monotonic() - began:.0f} s, {finished} answers")
        assert first < grown
        wanted = finished + CLIENTS
        await enough.wait()
        loaded.clear()
    print(f"{finished} answers under load, each the canonical one")

    # A few go on, of which each second one meets the verifier that leaves.
    began = time.monotonic()
    loaded.set()
    async with asyncio.TaskGroup() as group:

        async def trickle() -> None:
            while loaded.is_set():
                assert await scaled.complete(PROMPTS[0], MAX_TOKENS) == canonical[0]
                await asyncio.sleep(2)

        group.create_task(trickle())
        shrunk = await until(lambda found: len(found) == 1, SHRUNK_S)
        print(f"shrunk after {time.monotonic() - began:.0f} s")
        assert shrunk < grown
        loaded.clear()
    assert await scaled.complete(PROMPTS[1], MAX_TOKENS) == canonical[1]
    await cluster.until_idle(10)
