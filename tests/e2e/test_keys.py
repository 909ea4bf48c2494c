"""API keys and their quotas on a real deployment, through the official client and our own."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.client import Client, random_prompt
from tests.e2e.cluster import CALL_S, Cluster
from tests.e2e.conftest import TINY
from tests.e2e.test_privacy import logs

FIRST, SECOND = "first-key-of-the-test", "second-key-of-the-test"
PROMPT = random_prompt(3, 40)
PER_MINUTE = 600
BEFORE = 200
"""Tokens of one key in the tests before; not that many."""
OVER_QUOTA = "ray_llm42_over_quota_total"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def guarded(ray_and_serve: Cluster, tiny_path: str, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Two keys; each may have two deterministic answers at a time, and some tokens."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"# of team A\n{FIRST}\n# of team B\n{SECOND}\n")
    quota = {"deterministic_requests": 2, "deterministic_tokens_per_minute": PER_MINUTE}
    router = {**TINY["router"], "api_keys_file": str(keys), "quota": quota}
    ray_and_serve.deploy({**TINY, "router": router})
    return ray_and_serve


@asynccontextmanager
async def with_key(cluster: Cluster, key: str) -> AsyncIterator[Client]:
    client = Client(cluster.url, "tiny", ignore_eos=True)
    client.openai.api_key = key
    yield client
    await client.openai.close()


async def test_no_route_but_health_answers_without_a_key(guarded: Cluster) -> None:
    async with httpx.AsyncClient(base_url=guarded.url, trust_env=False, timeout=CALL_S) as http:
        assert (await http.get("/health")).status_code == 200
        document = (await http.get("/openapi.json", headers={"authorization": f"Bearer {SECOND}"})).json()
        for path in sorted({*document["paths"], "/openapi.json", "/v1/nonesuch", "/metrics"} - {"/health"}):
            for method in ("GET", "POST"):
                refused = await http.request(method, path, headers={"authorization": "Bearer wrong"})
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, 401), path


async def test_the_official_client_and_ours(guarded: Cluster, tmp_path: Path) -> None:
    async with with_key(guarded, "wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.complete(PROMPT, 8)
    async with with_key(guarded, SECOND) as client:
        assert len((await client.complete(PROMPT, 8)).token_ids) == 8
    source, output = tmp_path / "input.jsonl", tmp_path / "output.jsonl"
    source.write_text(json.dumps({"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "receipt": True}) + "\n")
    await run("fingerprint", guarded.url, key=None, status=2)
    await run("fingerprint", guarded.url, key=SECOND, status=0)
    batch = ("batch", source, output, "--model", "tiny", "--base-url", guarded.url, "--tries", "1")
    await run(*batch, key="wrong", status=2)
    await run(*batch, key=SECOND, status=0)
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(json.loads(output.read_text())["response"]["body"]))
    verify = ("receipt", "verify", answer, "--base-url", guarded.url)
    await run(*verify, key=None, status=2)
    await run(*verify, key=SECOND, status=0)


async def run(*arguments: Any, key: str | None, status: int) -> None:
    """``llm42`` with the key in its environment."""
    env = {**os.environ, "NO_PROXY": "127.0.0.1", **({"LLM42_API_KEY": key} if key is not None else {})}
    command = [Path(sys.executable).with_name("llm42"), *arguments]
    ran = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, timeout=CALL_S)
    assert ran.returncode == status, (ran.stdout, ran.stderr)
    assert status == 0 or "401" in ran.stderr


async def test_a_key_s_quota_is_for_its_deterministic_answers_alone(guarded: Cluster) -> None:
    async with with_key(guarded, FIRST) as first, with_key(guarded, SECOND) as second:
        long = await first.stream(PROMPT, 400, n=2, temperature=1.0)
        await anext(aiter(long))
        with pytest.raises(openai.RateLimitError) as refused:
            await first.complete(PROMPT, 4)
        assert refused.value.type == "rate_limit_exceeded"
        assert refused.value.response.headers["retry-after"] == "2"
        assert "deterministic_requests" in refused.value.message
        assert len((await first.complete(PROMPT, 4, is_deterministic=False)).token_ids) == 4
        assert len((await second.complete(PROMPT, 4)).token_ids) == 4
        await long.close()
        await guarded.until_idle(60)
        assert len((await first.complete(PROMPT, 4)).token_ids) == 4
    assert await guarded.until_metric(OVER_QUOTA, 0) == 1


async def test_tokens_are_charged_as_usage_counts_them(guarded: Cluster) -> None:
    spent, refused = 0, None
    async with with_key(guarded, SECOND) as second:
        for _ in range(8):  # a minute earns less than one of these costs, and none takes a minute
            try:
                answers = await second.complete_all([PROMPT, PROMPT], 400)
            except openai.RateLimitError as error:
                refused = error
                break
            assert answers[0].usage is not None
            spent += sum(answers[0].usage)
        assert refused is not None
        assert "deterministic_tokens_per_minute" in refused.message
        wait_s = int(refused.response.headers["retry-after"])
        assert spent + BEFORE > PER_MINUTE
        assert 1 <= wait_s <= (spent + BEFORE - PER_MINUTE) * 60 / PER_MINUTE + 1
        assert len((await second.complete(PROMPT, 4, is_deterministic=False)).token_ids) == 4


async def test_no_key_is_logged_or_counted(guarded: Cluster) -> None:
    exposition = await guarded.exposition()
    for text in (logs(), exposition):
        assert text
        assert FIRST not in text
        assert SECOND not in text
