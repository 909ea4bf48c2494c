"""A client that goes away takes all its work along, in every part; and leaves nothing behind."""

import asyncio
import contextlib
import random

import pytest

from tests.e2e.client import Client, random_prompt
from tests.e2e.cluster import Cluster

FREED_S = 5.0
"""A second or two, and a busy machine. What is aborted here would run for much longer."""
LONG = 900
ABORTED = 100
AT_ONCE = 12
GROWTH = 24 << 20
PARTS = ("Router", "FastPath", "Verifier")


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
async def test_disconnect_from_a_stream_frees_everything(cluster: Cluster, client: Client, deterministic: bool) -> None:
    stream = await client.stream(random_prompt(2, 40), LONG, is_deterministic=deterministic)
    chunks = aiter(stream)
    for _ in range(3):
        await anext(chunks)
    busy = await cluster.in_flight()
    assert busy["router streams"] == 1
    assert busy["router sessions"] == int(deterministic)
    await stream.close()
    print(f"idle after {await cluster.until_idle(FREED_S):.1f} s")


async def test_disconnect_before_the_answer_frees_everything(cluster: Cluster, client: Client) -> None:
    asking = asyncio.create_task(client.complete(random_prompt(3, 300), LONG - 300))
    async with asyncio.timeout(20):
        while not (await cluster.in_flight())["router sessions"]:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.05)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    print(f"idle after {await cluster.until_idle(FREED_S):.1f} s")


@pytest.mark.timeout(400)
async def test_disconnect_of_100_requests_leaks_nothing(cluster: Cluster, client: Client) -> None:
    """At all moments: before the first byte, after the first token, later; some deterministic, some not."""
    before = await client.complete(random_prompt(4, 50), 24)
    turn = asyncio.Semaphore(AT_ONCE)

    async def leave(number: int) -> None:
        rng = random.Random(number)
        async with turn:
            asking = asyncio.create_task(
                client.stream(random_prompt(number, rng.randint(1, 120)), LONG, is_deterministic=number % 4 > 0)
            )
            if number % 5 == 0:
                await asyncio.sleep(rng.random() * 0.3)
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await asking).close()
                return
            stream = await asking
            chunks = aiter(stream)
            for _ in range(rng.randint(0, 3)):
                await anext(chunks)
            await stream.close()

    # The first quarter fills caches and pools, which is growth but no leak.
    await asyncio.gather(*(leave(number) for number in range(ABORTED // 4)))
    await cluster.until_idle(FREED_S)
    memory = {part: cluster.memory(part) for part in PARTS}
    await asyncio.gather(*(leave(number) for number in range(ABORTED // 4, ABORTED)))
    await cluster.until_idle(FREED_S)
    growth = {part: cluster.memory(part) - memory[part] for part in PARTS}
    print({part: f"{size / 2**20:+.1f} MiB" for part, size in growth.items()})
    assert max(growth.values()) < GROWTH
    assert await client.complete(random_prompt(4, 50), 24) == before
