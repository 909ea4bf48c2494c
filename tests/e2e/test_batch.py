"""``llm42 batch`` on the real thing: the same bits as online, and the same file however often it is stopped."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from llm42.client import Defaults, Options, Outcome, complete_batch_async
from tests.e2e.client import random_prompt
from tests.e2e.cluster import Cluster

COUNT, LENGTH = 9, 40
RUN_S = 240
SAMPLED = {"temperature": 0.8, "top_p": 0.95}

pytestmark = pytest.mark.timeout(3 * RUN_S)


def objects() -> list[dict[str, Any]]:
    """Greedy and seeded, completions and chats, of all lengths."""
    common = {"max_tokens": LENGTH, "ignore_eos": True, "return_token_ids": True}
    found: list[dict[str, Any]] = []
    for number in range(COUNT):
        choice = {"temperature": 0} if number % 2 else SAMPLED
        if number % 3:
            asks: dict[str, Any] = {"prompt": random_prompt(number, 5 + 18 * number), "logprobs": 0}
        else:
            asks = {"messages": [{"role": "user", "content": f"What is {number} + {number}?"}], "logprobs": True}
        found.append({"custom_id": f"q{number}", **common, **choice, **asks})
    return found


def start(cluster: Cluster, source: Path, output: Path) -> "subprocess.Popen[str]":
    llm42 = Path(sys.executable).with_name("llm42")
    command = [llm42, "batch", source, output, "--base-url", cluster.url, "--seed", "7", "--concurrency", "4", "--json"]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(cluster: Cluster, source: Path, output: Path) -> dict[str, Any]:
    process = start(cluster, source, output)
    try:
        stdout, stderr = process.communicate(timeout=RUN_S)
    finally:
        process.kill()
    print(stdout, stderr)
    assert process.returncode == 0
    summary: dict[str, Any] = json.loads(stdout)["summary"]
    return summary


async def test_a_batch_has_the_bits_of_online_requests_and_survives_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    source, whole, resumed = (tmp_path / f"{name}.jsonl" for name in ("input", "whole", "resumed"))
    source.write_text("".join(json.dumps(found) + "\n" for found in objects()))
    summary = await asyncio.to_thread(finish, cluster, source, whole)
    outcomes = [Outcome.parse(line) for line in whole.read_bytes().splitlines()]
    assert (summary["answered"], summary["completion_tokens"]) == (COUNT, COUNT * LENGTH)
    assert [outcome.custom_id for outcome in outcomes] == [f"q{number}" for number in range(COUNT)]
    assert {outcome.fingerprint for outcome in outcomes} == {summary["fingerprint"]}

    # Online, one at a time.
    async with httpx.AsyncClient(base_url=cluster.url, trust_env=False, timeout=RUN_S) as http:
        for asked, outcome in zip(objects(), outcomes, strict=True):
            path = "/v1/completions" if "prompt" in asked else "/v1/chat/completions"
            body = {name: value for name, value in asked.items() if name != "custom_id"}
            seed = {} if outcome.seed is None else {"seed": outcome.seed}
            assert (outcome.seed is None) == (body["temperature"] == 0)
            answer = (await http.post(path, json={**body, "model": "tiny", "is_deterministic": True, **seed})).json()
            assert outcome.response is not None
            assert outcome.response.body["choices"] == answer["choices"]
            assert outcome.response.body["usage"] == answer["usage"]
            assert outcome.fingerprint == answer["system_fingerprint"]

    # Killed half-way, and gone on with: the same bytes.
    process = start(cluster, source, resumed)
    try:
        deadline = time.monotonic() + RUN_S
        while not resumed.exists() or resumed.read_bytes().count(b"\n") < COUNT // 3:
            assert time.monotonic() < deadline, "too few answers"
            assert process.poll() is None, process.communicate()
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    finally:
        process.kill()
    done = resumed.read_bytes().count(b"\n")
    assert COUNT // 3 <= done < COUNT
    summary = await asyncio.to_thread(finish, cluster, source, resumed)
    assert summary["asked"] == COUNT - done
    assert resumed.read_bytes() == whole.read_bytes()
    await cluster.until_idle(60)


async def test_from_python(cluster: Cluster) -> None:
    options = Options(f"{cluster.url}/v1")
    outcomes = [await complete_batch_async(objects()[:4], options, Defaults(seed=7)) for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    assert all(outcome.verified and len(outcome.texts) == 1 for outcome in outcomes[0])
    (refused,) = await complete_batch_async([{"prompt": "hi", "no_such_parameter": 1}], options)
    assert refused.error is not None
    assert (refused.error.code, refused.error.param) == (400, "no_such_parameter")
