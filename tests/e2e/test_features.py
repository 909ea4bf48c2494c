"""What an ordinary request may ask for, a deterministic one may: the same bits alone, in a crowd, and streamed."""

import asyncio
import json
import re
from typing import Any

import httpx
import jsonschema

from tests.e2e.client import random_prompt
from tests.e2e.cluster import Cluster
from tests.events import events

LENGTH = 60
ENOUGH = 160
"""Tokens for whatever a grammar permits."""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
OTHER = {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 4}
TOOL = {"type": "function", "function": {"name": "register", "parameters": SCHEMA}}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 11}
PLAIN: dict[str, Any] = {"prompt": random_prompt(5, 50), "max_tokens": LENGTH, "ignore_eos": True, "temperature": 0}
SHORT: dict[str, Any] = {"prompt": random_prompt(6, 20), "max_tokens": ENOUGH, **SAMPLED}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": ENOUGH, **SAMPLED}

COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "penalties": {**PLAIN, "presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    "sampled penalties": {**PLAIN, **SAMPLED, "frequency_penalty": 1.0},
    "bias": {**PLAIN, "logit_bias": {"300": 40, "301": 39.5}},
    "bad words": {**PLAIN, "logit_bias": {"300": 40, "301": 39.5}, "bad_words": ["om"]},  # "om" is token 300
    "allowed": {**PLAIN, **SAMPLED, "allowed_token_ids": [500, 700, 900, 1100]},
    "min_tokens": {**PLAIN, "ignore_eos": False, "min_tokens": 30, "stop_token_ids": list(range(3, 4000))},
    "logprobs": {**PLAIN, "logprobs": 5},
    "cache_salt": {**PLAIN, "cache_salt": "salt"},
    "sampled logprobs": {**PLAIN, **SAMPLED, "logprobs": 3, "n": 2},
    "prompt_logprobs": {**PLAIN, "prompt_logprobs": 2},
    "echo": {**PLAIN, "echo": True, "logprobs": 2},
    "regex": {**SHORT, "structured_outputs": {"regex": "[0-9]{3}-[a-f]{4}"}},
    "choice": {**SHORT, "structured_outputs": {"choice": ["perhaps", "certainly", "never"]}},
    "schema": {**SHORT, "structured_outputs": {"json": SCHEMA}},
    "other schema": {**SHORT, "temperature": 0, "structured_outputs": {"json": OTHER}},
}
CHATS: dict[str, dict[str, Any]] = {
    "top_logprobs": {**CHAT, "logprobs": True, "top_logprobs": 4},
    "response_format": {
        **CHAT,
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}},
    },
    "tool": {**CHAT, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "register"}}},
    "tools": {**CHAT, "max_tokens": LENGTH, "tools": [TOOL], "logprobs": True},
}
FEATURES = {
    **{name: ("completions", body) for name, body in COMPLETIONS.items()},
    **{name: ("chat/completions", body) for name, body in CHATS.items()},
}


class Asker:
    """``choices`` as the JSON that came: numbers keep every bit there."""

    def __init__(self, cluster: Cluster, http: httpx.AsyncClient) -> None:
        self._url, self._http = f"{cluster.url}/v1", http

    async def ask(self, name: str, **changes: Any) -> list[dict[str, Any]]:
        route, body = FEATURES[name]
        asked = {"model": "tiny", "is_deterministic": True, "return_token_ids": True, **body, **changes}
        response = await self._http.post(f"{self._url}/{route}", json=asked)
        assert response.status_code == 200, (name, response.text)
        assert response.json()["determinism"]["verified"] is asked["is_deterministic"]
        choices: list[dict[str, Any]] = response.json()["choices"]
        for choice in choices:  # a tool call is numbered at random
            for call in (choice.get("message") or {}).get("tool_calls") or []:
                del call["id"]
        return choices

    async def streamed(self, name: str) -> dict[str, Any]:
        """The first choice, put together from its chunks."""
        route, body = FEATURES[name]
        asked = {"model": "tiny", "is_deterministic": True, "return_token_ids": True, **body, "stream": True}
        chunks = events((await self._http.post(f"{self._url}/{route}", json=asked)).text)
        assert chunks[-1]["determinism"]["verified"] is True
        return first_of([choice for chunk in chunks for choice in chunk["choices"] if not choice["index"]])


def first_of(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Text, token ids, logprobs and end of a choice, whether it came whole or in ``pieces``."""
    said = {"text": "", "token_ids": [], "logprobs": [], "finish_reason": None}
    for piece in pieces:
        message = piece.get("message") or piece.get("delta") or {}
        said["text"] += piece.get("text") or message.get("content") or ""
        said["token_ids"] += piece.get("token_ids") or []
        told = piece.get("logprobs") or {}
        if "content" in told:
            said["logprobs"] += told["content"] or []
        elif told:
            said["logprobs"] += zip(told["token_logprobs"], told["top_logprobs"], strict=True)
        said["finish_reason"] = piece["finish_reason"] or said["finish_reason"]
    return said


async def test_the_same_bits_alone_and_in_a_crowd(cluster: Cluster) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=240) as http:
        asker = Asker(cluster, http)
        alone = {name: await asker.ask(name) for name in FEATURES}
        noise = [
            asker.ask("plain", prompt=random_prompt(100 + i, 30 + 7 * i), is_deterministic=False) for i in range(8)
        ]
        # vLLM does not stream the first two; and calls in streams: test_tool_turns.py.
        streams = [name for name in FEATURES if name not in ("prompt_logprobs", "echo", "tool")]
        crowd = await asyncio.gather(*map(asker.ask, FEATURES), *map(asker.streamed, streams), *noise)
        for name, whole in zip(FEATURES, crowd, strict=False):
            assert whole == alone[name], name
        for name, streamed in zip(streams, crowd[len(FEATURES) :], strict=False):
            assert streamed == first_of(alone[name][:1]), name

        # What was asked has its effect, or the above would compare nothing.
        ids = {name: alone[name][0]["token_ids"] for name in COMPLETIONS}
        assert ids["plain"] == ids["logprobs"] == ids["prompt_logprobs"] == ids["cache_salt"]
        assert len({tuple(ids[name]) for name in ("plain", "penalties", "sampled penalties", "bias", "allowed")}) == 5
        assert set(ids["allowed"]) == {500, 700, 900, 1100}
        assert {300} <= set(ids["bias"]) <= {300, 301}
        assert set(ids["bad words"]) == {301}
        assert 30 <= len(ids["min_tokens"]) < LENGTH
        assert not set(ids["min_tokens"][:30]) & set(range(3, 4000))
        check_logprobs(alone)
        assert re.fullmatch("[0-9]{3}-[a-f]{4}", alone["regex"][0]["text"])
        assert alone["choice"][0]["text"] in ("perhaps", "certainly", "never")
        jsonschema.validate(json.loads(alone["schema"][0]["text"]), SCHEMA)
        jsonschema.validate(json.loads(alone["other schema"][0]["text"]), OTHER)
        jsonschema.validate(json.loads(alone["response_format"][0]["message"]["content"]), SCHEMA)
        (call,) = alone["tool"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "register"  # vLLM holds no arguments to a schema that is not strict
        other = await asker.ask("schema", seed=12)
        assert other != alone["schema"], "another seed is another answer"
        jsonschema.validate(json.loads(other[0]["text"]), SCHEMA)


def check_logprobs(alone: dict[str, list[dict[str, Any]]]) -> None:
    greedy, plain = alone["logprobs"][0], alone["plain"][0]
    assert [len(top) for top in greedy["logprobs"]["top_logprobs"]] == [5] * LENGTH
    for token, logprob, top in zip(
        greedy["logprobs"]["tokens"],
        greedy["logprobs"]["token_logprobs"],
        greedy["logprobs"]["top_logprobs"],
        strict=True,
    ):
        assert max(top.values()) == logprob == top[token]
    sampled = alone["sampled logprobs"]
    assert sampled[0]["token_ids"] != sampled[1]["token_ids"]
    assert any(max(top.values()) > logprob for top, logprob in zip(
        sampled[0]["logprobs"]["top_logprobs"], sampled[0]["logprobs"]["token_logprobs"], strict=True
    ))  # fmt: skip
    prompt = alone["prompt_logprobs"][0]["prompt_logprobs"]
    assert prompt[0] is None
    for token, told in zip(PLAIN["prompt"][1:], prompt[1:], strict=True):
        assert str(token) in told
        assert len(told) in (2, 3)
    assert plain["logprobs"] is None


async def test_generated_and_sent_as_a_prompt_are_scored_alike(cluster: Cluster) -> None:
    """Cold and hot cache, and whether the verifier has chosen a token or was given it: the same bits."""
    async with httpx.AsyncClient(trust_env=False, timeout=240) as http:
        asker = Asker(cluster, http)
        prompt = random_prompt(4321, 45)
        (said,) = await asker.ask("logprobs", prompt=prompt)
        whole = [*prompt, *said["token_ids"]]
        (cold,) = await asker.ask("prompt_logprobs", prompt=whole, max_tokens=1, cache_salt="cold")
        (hot,) = await asker.ask("prompt_logprobs", prompt=whole, max_tokens=1)
        assert hot == cold
        given = [
            told[str(token)]["logprob"] for token, told in zip(whole[1:], cold["prompt_logprobs"][1:], strict=True)
        ]
        assert given[len(prompt) - 1 :] == said["logprobs"]["token_logprobs"]
        changed = [*whole[:10], whole[10] ^ 1, *whole[11:]]
        (other,) = await asker.ask("prompt_logprobs", prompt=changed, max_tokens=1)
        assert other["prompt_logprobs"][12:] != cold["prompt_logprobs"][12:]


async def test_what_cannot_be_enforced_is_refused_by_itself(cluster: Cluster) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=240) as http:
        asker = Asker(cluster, http)
        for bad in (
            {"structured_outputs": {"json": {"type": "nonsense"}}},
            {"structured_outputs": {"regex": "("}},
            {"structured_outputs": {"regex": "a+"}, "ignore_eos": True},
            {"min_tokens": 3, "stop_token_ids": [10**7]},
            {"allowed_token_ids": [10**7]},
            {"logprobs": 10**6},
        ):
            asked = {"model": "tiny", "is_deterministic": True, **SHORT, **bad}
            refused, fine = await asyncio.gather(
                http.post(f"{cluster.url}/v1/completions", json=asked), asker.ask("regex")
            )
            assert refused.status_code == 400, (bad, refused.text)
            assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
            assert re.fullmatch("[0-9]{3}-[a-f]{4}", fine[0]["text"])
