"""Corners of the API that the other tests do not come to: refusals by name, shapes of prompts, shapes of answers."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.e2e.client import random_prompt
from tests.e2e.cluster import Cluster
from tests.events import events

COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
SAMPLED = {"temperature": 0.8, "seed": 11}
DEEP = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]}
DEEP["tool_calls"][0]["function"]["arguments"] = "[" * 100_000  # type: ignore[index]
EBNF = 'root ::= "<" [a-c]+ ">"'
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<n>",
        "content": {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 0, "maximum": 99}},
        "end": "</n>",
    },
}


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"{cluster.url}/v1", timeout=240, trust_env=False) as client:
        yield client


async def choices(http: httpx.AsyncClient, body: dict[str, Any]) -> list[Any]:
    response = await http.post("/completions", json={"is_deterministic": True, "return_token_ids": True, **body})
    assert response.status_code == 200, (body, response.text)
    assert response.json()["determinism"]["verified"] is True
    return list(response.json()["choices"])


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
async def test_what_vllm_would_fail_on_is_the_requests_fault(http: httpx.AsyncClient, deterministic: bool) -> None:
    named = {"type": "function", "function": {"name": "f"}}
    for param, route, body in (
        ("tools.0", "chat/completions", {**CHAT, "tools": [{"type": "function"}], "tool_choice": named}),
        (None, "chat/completions", {**CHAT, "messages": [*CHAT["messages"], DEEP, *CHAT["messages"]]}),
        ("vllm_xargs.kv_transfer_params", "completions", {**COMPLETION, "vllm_xargs": {"kv_transfer_params": "x"}}),
    ):
        response = await http.post(f"/{route}", json={**body, "is_deterministic": deterministic})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param


async def test_a_late_refusal_names_its_parameter_too(http: httpx.AsyncClient) -> None:
    """What is known only when vLLM has made tokens of it, when a stream has begun, beside what is seen at once."""
    for param, body in (
        ("bad_words", {"bad_words": ["abc " * 1500]}),
        ("repetition_penalty", {"repetition_penalty": 1e-40}),
    ):
        asked = {**COMPLETION, "is_deterministic": True, **body}
        response = await http.post("/completions", json=asked)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
        streamed = await http.post("/completions", json={**asked, "stream": True})
        told = re.findall(r"\{.*\}", streamed.text)
        assert json.loads(told[0])["error"]["param"] == param, streamed.text


async def test_several_prompts_of_several_choices(http: httpx.AsyncClient) -> None:
    prompts = [random_prompt(81, 40), random_prompt(82, 70)]
    together = await choices(http, {**COMPLETION, **SAMPLED, "prompt": prompts, "n": 2, "max_tokens": 20})
    single = [
        (await choices(http, {**COMPLETION, **SAMPLED, "seed": 11 + i, "prompt": prompt, "max_tokens": 20}))[0]
        for prompt in prompts
        for i in range(2)
    ]
    assert [choice["token_ids"] for choice in together] == [choice["token_ids"] for choice in single]
    assert len({tuple(choice["token_ids"]) for choice in single}) == 4


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        ({"structured_outputs": {"grammar": EBNF}}, "<[abc]+>?"),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "<n>[0-9]{1,2}</n>"),
    ],
    ids=["EBNF", "structural tag"],
)
async def test_grammars_of_the_other_kinds(http: httpx.AsyncClient, asked: dict[str, Any], shape: str) -> None:
    body = {**COMPLETION, **SAMPLED, "max_tokens": 60, **asked}
    alone = await choices(http, body)
    assert re.fullmatch(shape, alone[0]["text"])
    noise = [choices(http, {**COMPLETION, "prompt": random_prompt(i, 60), "max_tokens": 40}) for i in range(4)]
    crowd, *_ = await asyncio.gather(choices(http, body), *noise)
    assert crowd == alone
    assert await choices(http, {**body, "seed": 12}) != alone


async def test_what_shapes_a_prompt_shapes_the_canonical_input(cluster: Cluster, http: httpx.AsyncClient) -> None:
    long = random_prompt(83, 100)
    body = {**COMPLETION, "max_tokens": 12, "ignore_eos": True}
    cut = await choices(http, {**body, "prompt": long, "truncate_prompt_tokens": 40})
    assert cut[0]["token_ids"] == (await choices(http, {**body, "prompt": long[-40:]}))[0]["token_ids"]
    assert cut[0]["token_ids"] != (await choices(http, {**body, "prompt": long}))[0]["token_ids"]
    plain = await choices(http, {**body, "prompt": "once", "add_special_tokens": False})
    asked = {"model": "tiny", "prompt": "once", "add_special_tokens": False}
    tokens = (await http.post(f"{cluster.url}/tokenize", json=asked)).json()["tokens"]
    assert len(tokens) > 0
    assert plain[0]["prompt_token_ids"] == tokens


async def test_what_shapes_an_answer_changes_no_token(http: httpx.AsyncClient) -> None:
    body = {**COMPLETION, "prompt": random_prompt(84, 30), "max_tokens": 40, "ignore_eos": True, "logprobs": 1}
    (whole,) = await choices(http, body)
    (named,) = await choices(http, {**body, "return_tokens_as_token_ids": True})
    assert named["logprobs"]["tokens"] == [f"token_id:{token}" for token in whole["token_ids"]]
    options = {"include_usage": True, "continuous_usage_stats": True}
    for fields in ({"stream_interval": 7}, {"stream_options": options}, {"skip_special_tokens": False}):
        asked = {**body, "is_deterministic": True, "return_token_ids": True, "stream": True, **fields}
        chunks = events((await http.post("/completions", json=asked)).text)
        tokens = [token for chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"] or []]
        assert tokens == whole["token_ids"], fields
        if "stream_options" in fields:
            told = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["choices"]]
            assert told == sorted(told)
            assert told[-1] == 40
