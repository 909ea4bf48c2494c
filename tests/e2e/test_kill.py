"""kill -9 in the middle of a stream: the right end or a clear error, never a wrong or unverified token."""

import asyncio
import time
from collections.abc import Callable

import openai
import pytest

from tests.e2e.client import Answer, Client, Transcript, random_prompt
from tests.e2e.cluster import Cluster

PROMPT = random_prompt(5, 30)
LENGTH = 160
BEFORE = 40
"""Tokens that have arrived when the blow falls."""

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
async def canonical(cluster: Cluster, client: Client) -> Answer:
    await cluster.until_idle(60)
    return await client.complete(PROMPT, LENGTH)


async def follow(client: Client, said: Transcript, **fields: object) -> str | None:
    """Read a stream to its end into ``said``; returns the error that it ended with, if any."""
    try:
        async for chunk in await client.stream(PROMPT, LENGTH, **fields):
            for choice in chunk.choices:
                said.add(choice)
    except openai.APIError as error:
        return str(error)
    return None


async def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - fed by another task
            await asyncio.sleep(0.01)


def require_right(said: Transcript, error: str | None, canonical: Answer) -> None:
    print(f"{len(said.token_ids)} tokens, {error or said.finish_reason}")
    answer = said.answer(None)
    received = len(answer.token_ids)
    assert answer.token_ids == canonical.token_ids[:received]
    assert answer.logprobs == canonical.logprobs[: 4 * received]
    if error is None:
        assert (received, answer.finish_reason, answer.text) == (LENGTH, "length", canonical.text)
    else:
        assert "could not be verified" in error


async def test_kill_the_verifier(cluster: Cluster, client: Client, canonical: Answer) -> None:
    deterministic, ordinary = Transcript(), Transcript()
    following = asyncio.create_task(follow(client, deterministic))
    bystander = asyncio.create_task(follow(client, ordinary, is_deterministic=False))
    await until(lambda: min(len(deterministic.token_ids), len(ordinary.token_ids)) >= BEFORE)
    verifier = cluster.pid("Verifier")
    await cluster.kill("Verifier")
    killed = time.monotonic()

    # Ordinary streams do not notice: neither the one that runs, nor a new one.
    assert await bystander is None
    assert len(ordinary.token_ids) == LENGTH
    await client.complete(PROMPT, 8, is_deterministic=False)
    print(f"ordinary traffic went on for {time.monotonic() - killed:.1f} s")
    assert not following.done() or len(deterministic.token_ids) == LENGTH

    require_right(deterministic, await following, canonical)
    print(f"deterministic stream ended after {time.monotonic() - killed:.1f} s")
    await cluster.until_replaced("Verifier", verifier)
    assert await client.complete(PROMPT, LENGTH) == canonical


async def test_kill_the_fast_path(cluster: Cluster, client: Client, canonical: Answer) -> None:
    deterministic, ordinary = Transcript(), Transcript()
    following = asyncio.create_task(follow(client, deterministic))
    bystander = asyncio.create_task(follow(client, ordinary, is_deterministic=False))
    await until(lambda: min(len(deterministic.token_ids), len(ordinary.token_ids)) >= BEFORE)
    fast_path = cluster.pid("FastPath")
    await cluster.kill("FastPath")

    # Nobody but the fast path can continue an ordinary stream.
    if (error := await bystander) is not None:
        assert "the engine was lost" in error
        assert len(ordinary.token_ids) < LENGTH

    require_right(deterministic, await following, canonical)
    await cluster.until_replaced("FastPath", fast_path)
    assert await client.complete(PROMPT, LENGTH) == canonical


@pytest.mark.slow
async def test_kill_both(cluster: Cluster, client: Client, canonical: Answer) -> None:
    said = Transcript()
    following = asyncio.create_task(follow(client, said))
    await until(lambda: len(said.token_ids) >= BEFORE)
    verifier, fast_path = cluster.pid("Verifier"), cluster.pid("FastPath")
    await cluster.kill("Verifier", "FastPath")
    require_right(said, await following, canonical)
    await cluster.until_replaced("Verifier", verifier)
    await cluster.until_replaced("FastPath", fast_path)
    assert await client.complete(PROMPT, LENGTH) == canonical
    await cluster.until_idle(30)
