"""The identity of the verifier pool on a real deployment: who may serve in it, and what a change of it does."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import ray
from ray import serve

from llm42.internals.pool_registry import agree
from llm42.models import tiny_model
from tests.e2e.client import Answer, Client, Transcript, random_prompt
from tests.e2e.cluster import APP, CALL_S, Cluster
from tests.e2e.conftest import TINY

PROMPT = random_prompt(7, 40)
LENGTH = 96
REFUSED = "ray_llm42_verifiers_refused_total"


async def identity(cluster: Cluster) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
        return await client.get(f"{cluster.url}/fingerprint")


async def fingerprint(cluster: Cluster) -> str:
    response = await identity(cluster)
    assert response.status_code == 200, response.text
    return str(response.json()["fingerprint"])


async def until(holds: Callable[[], Any], timeout_s: float) -> Any:
    """The first result of ``holds`` (awaited if need be) that is true."""
    async with asyncio.timeout(timeout_s):
        while True:
            result = holds()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.5)


def with_one_bit_flipped(weights: Path) -> None:
    """In place of the old file, which others may have mapped."""
    data = bytearray(weights.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    data[header + (len(data) - header) // 2 // 4 * 4] ^= 1  # the lowest bit of a float32's fraction
    other = weights.with_suffix(".flipped")
    other.write_bytes(data)
    other.replace(weights)


def test_the_first_entry_of_a_pool_stands(ray_and_serve: Cluster) -> None:
    """The contract of llm42.internals.pool_registry, among several processes."""

    @ray.remote(num_cpus=0)
    def write(pool: str, value: bytes) -> bytes:
        return agree(pool, value)

    pool = os.urandom(8).hex()
    values = [str(index).encode() for index in range(3)]
    agreed = ray.get([write.remote(pool, value) for value in values], timeout=CALL_S)
    assert len(set(agreed)) == 1
    assert agreed[0] in values
    assert agree(pool, b"late") == agreed[0]
    assert agree(pool + "x", b"another pool") == b"another pool"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_verifier_that_differs_from_its_pool_is_refused(
    ray_and_serve: Cluster, tiny_path: str, tmp_path: Path
) -> None:
    """One bit of the weights on disk flips, and the verifier dies: its replacement must not answer anything."""
    cluster, model = ray_and_serve, tmp_path / "model"
    shutil.copytree(tiny_path, model)
    timeouts = {"replay_s": 5, "verify_s": 10}
    await asyncio.to_thread(
        cluster.deploy, {**TINY, "model": str(model), "served_model_name": "tiny", "timeouts": timeouts}
    )
    client = Client(cluster.url, "tiny", ignore_eos=True)
    before, canonical = await fingerprint(cluster), await client.complete(PROMPT, LENGTH)
    refused = (await cluster.metrics()).get(REFUSED, 0.0)
    with_one_bit_flipped(model / "model.safetensors")
    await cluster.kill("Verifier")

    overview = await until(refusal, 200)
    assert overview.status == "UNHEALTHY"
    await cluster.until_metric(REFUSED, more_than=refused)
    for said in (f"its pool as {before}", "What differs:", "  weights: "):
        assert said in overview.message
    with pytest.raises(openai.InternalServerError) as unverified:
        await client.complete(PROMPT, LENGTH)
    assert unverified.value.status_code == 503
    assert "could not be verified" in str(unverified.value)
    assert (await identity(cluster)).status_code == 503
    assert len((await client.complete(PROMPT, 8, is_deterministic=False)).token_ids) == 8

    shutil.copyfile(Path(tiny_path) / "model.safetensors", model / "model.safetensors")
    await until(lambda: recovered(cluster), 200)
    assert await fingerprint(cluster) == before
    assert await client.complete(PROMPT, LENGTH) == canonical
    await client.openai.close()


def refusal() -> Any:
    """The status of the verifier deployment, once it is about what differs."""
    overview = serve.status().applications[APP].deployments["Verifier"]
    return overview if "What differs" in overview.message else None


async def recovered(cluster: Cluster) -> bool:
    return (await identity(cluster)).status_code == 200


@dataclass
class Said:
    """One stream, to its end or its error."""

    transcript: Transcript = field(default_factory=Transcript)
    error: str | None = None

    @property
    def fingerprint(self) -> str | None:
        return self.transcript.fingerprint


async def listen(client: Client) -> Said:
    said = Said()
    try:
        await client.follow(said.transcript, PROMPT, LENGTH, stream=True)
    except (openai.APIError, httpx.HTTPError) as error:
        said.error = f"{getattr(error, 'status_code', 'in the stream')}: {error}"
    return said


@asynccontextmanager
async def streams(client: Client, count: int) -> AsyncIterator[list[Said]]:
    """``count`` streams at a time while the body runs; all of them, once it has ended."""
    everything: list[Said] = []
    ending = asyncio.Event()

    async def one_after_another() -> None:
        while not ending.is_set():
            said = await listen(client)
            everything.append(said)
            if said.error is not None:
                await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(one_after_another())
        try:
            yield everything
        finally:
            ending.set()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_rolling_change_mixes_nothing(ray_and_serve: Cluster) -> None:
    """Other weights and another W, deployed over the application while deterministic streams run."""
    from llm42.app import build

    cluster = ray_and_serve
    both = {**TINY, "served_model_name": "tiny"}
    after = {**both, "model": str(tiny_model(seed=1)), "window_size": 64}
    await asyncio.to_thread(cluster.deploy, both)
    client = Client(cluster.url, "tiny", ignore_eos=True)
    old = await fingerprint(cluster)
    canonical: dict[str | None, Answer] = {old: await client.complete(PROMPT, LENGTH)}

    async with streams(client, 4) as said:
        await until(lambda: len(said) >= 4, 120)
        application = build(after)
        await asyncio.to_thread(serve.run, application, name=APP, route_prefix="/", blocking=False)
        cluster.deployed = after
        switched = len(said)
        await until(lambda: sum(one.error is None for one in said[switched:]) >= 4, 200)

    new = await fingerprint(cluster)
    canonical[new] = await client.complete(PROMPT, LENGTH)
    await client.openai.close()
    assert old != new
    assert canonical[old].token_ids != canonical[new].token_ids, "negative control: a mixture would show"
    for one in said:
        answer = one.transcript.answer(None)
        received = len(answer.token_ids)
        if one.error is None:
            assert one.fingerprint in canonical
            assert received == LENGTH
        right = [known for name, known in canonical.items() if one.fingerprint in (None, name)]
        assert any(
            answer.token_ids == known.token_ids[:received] and answer.logprobs == known.logprobs[: 4 * received]
            for known in right
        ), one
    errors = [one.error for one in said if one.error is not None]
    finished = [one.fingerprint for one in said if one.error is None]
    print(f"finished: {finished.count(old)} on the old pool, {finished.count(new)} on the new; failed: {errors}")
    assert {old, new} == set(finished)
    for error in errors:
        assert "could not be verified" in error, error


SWAPS: dict[str, dict[str, Any]] = {
    "dtype": {"engine": {"dtype": "float32"}},
    "threads, batch limits, no KV split": {
        "threads": 1,
        "env": {"VLLM_CPU_ATTN_SPLIT_KV": "0"},
        "engine": {"max_num_seqs": 2, "max_num_batched_tokens": 1024},
    },
    "another model": {"engine": {"model": "seed 1"}},
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_nothing_of_the_drafter_is_in_an_answer(ray_and_serve: Cluster) -> None:
    cluster = ray_and_serve
    prompts = [random_prompt(seed, 8 + 23 * seed) for seed in range(6)]
    found: dict[str, tuple[str, list[Answer]]] = {}
    for name, swap in ({"as it comes": {}} | SWAPS).items():
        fast_path = {**TINY["fast_path"], **swap}
        fast_path["engine"] = {**TINY["fast_path"]["engine"], **swap.get("engine", {})}
        if "model" in fast_path["engine"]:
            fast_path["engine"]["model"] = str(tiny_model(seed=1))
        await asyncio.to_thread(cluster.deploy, {**TINY, "fast_path": fast_path})
        client = Client(cluster.url, "tiny", ignore_eos=True)
        answers = list(await asyncio.gather(*(client.complete(prompt, 64) for prompt in prompts)))
        found[name] = await fingerprint(cluster), answers
        drafted = await client.complete(prompts[0], 64, is_deterministic=False)
        same = drafted.token_ids == answers[0].token_ids
        print(f"{name}: an ordinary answer is {'the same' if same else 'another'}")
        if name == "another model":
            assert not same, "negative control: it does draft otherwise"
        await client.openai.close()
    for name, result in found.items():
        assert result == found["as it comes"], name
    print(json.dumps({name: identity for name, (identity, _) in found.items()}))
