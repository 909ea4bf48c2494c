"""Every answer says whether it was verified, by whom, and how to have it again; a receipt lets others check it."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner

from llm42.cli import main
from tests.e2e.client import Client, digest, random_prompt
from tests.e2e.cluster import Cluster
from tests.events import events

PROMPT = random_prompt(77, 40)
LENGTH = 70
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 200, "min_p": 0.001}


async def raw(cluster: Cluster, route: str = "completions", **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": LENGTH, "ignore_eos": True, "return_token_ids": True, **fields}
    body |= {"prompt": PROMPT} if route == "completions" and "prompt" not in body else {}
    async with httpx.AsyncClient(trust_env=False, timeout=200) as http:
        return await http.post(f"{cluster.url}/v1/{route}", json=body)


@pytest.fixture
async def fingerprint(cluster: Cluster) -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return str((await http.get(f"{cluster.url}/fingerprint")).json()["fingerprint"])


async def test_the_fingerprint_is_in_deterministic_answers_only(cluster: Cluster, fingerprint: str) -> None:
    verified = await raw(cluster, temperature=0, is_deterministic=True)
    assert verified.headers["x-llm42-verified"] == "true"
    assert verified.json()["system_fingerprint"] == fingerprint
    assert verified.json()["determinism"] == {"verified": True, "prompts": [digest(PROMPT)]}
    ordinary = await raw(cluster, temperature=0)
    assert ordinary.headers["x-llm42-verified"] == "false"
    assert ordinary.json()["system_fingerprint"] is None
    assert ordinary.json()["determinism"] == {"verified": False}


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
async def test_streams_say_it_at_their_end(cluster: Cluster, fingerprint: str, route: str) -> None:
    prompt = {"messages": [{"role": "user", "content": "hello"}]} if route != "completions" else {"prompt": [1, 2]}
    for flag, usage in ((True, True), (True, False), (False, True), (False, False)):
        fields = {"is_deterministic": flag, "stream": True, "stream_options": {"include_usage": usage}, **prompt}
        said = events((await raw(cluster, route, temperature=0, **fields)).text)
        assert [event for event in said if "determinism" in event] == said[-1:]
        assert said[-1]["system_fingerprint"] == (fingerprint if flag else None)
        assert said[-1]["determinism"]["verified"] is flag
        assert len(said[-1]["determinism"].get("prompts", [])) == flag


async def test_the_prompts_are_told_by_their_digests(cluster: Cluster) -> None:
    """So that whoever gets another answer sees whether it was another question: templates may use the clock."""
    prompts = [random_prompt(seed, 5 + seed) for seed in range(3)]
    said = (await raw(cluster, temperature=0, is_deterministic=True, prompt=prompts)).json()["determinism"]
    assert said["prompts"] == [digest(prompt) for prompt in prompts]
    chats = [
        (await raw(cluster, "chat/completions", temperature=0, is_deterministic=True, messages=messages)).json()
        for messages in ([{"role": "user", "content": text}] for text in ("hello", "hello", "hallo"))
    ]
    first, again, other = (chat["determinism"]["prompts"] for chat in chats)
    assert first == again != other


async def test_an_expected_fingerprint_is_kept_or_refused(cluster: Cluster, fingerprint: str, client: Client) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    expected = {"extra_body": {"is_deterministic": True, "expected_fingerprint": fingerprint}}
    kept = await client.openai.completions.create(**asked, **expected)
    assert kept.system_fingerprint == fingerprint
    expected["extra_body"]["expected_fingerprint"] = "f" * 64
    for stream in (False, True):  # before the first byte of a stream
        with pytest.raises(openai.APIStatusError) as refused:
            await client.openai.completions.create(**asked, stream=stream, **expected)
        assert refused.value.status_code == 412
        assert isinstance(refused.value.body, dict)
        assert refused.value.body["param"] == "expected_fingerprint"
        assert fingerprint in refused.value.message
    ordinary = {"extra_body": {"is_deterministic": False, "expected_fingerprint": fingerprint}}
    with pytest.raises(openai.BadRequestError):
        await client.openai.completions.create(**asked, **ordinary)


async def test_n_choices_are_n_requests(cluster: Cluster) -> None:
    """Each of ``n`` is the answer to the same request with a seed of its own."""
    fields = {"is_deterministic": True, "logprobs": 0, **SAMPLED}
    together = (await raw(cluster, n=3, receipt=True, **fields)).json()
    choices, seed = together["choices"], together["determinism"]["seed"]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3
    receipts = together["determinism"]["receipts"]
    assert [receipt["token_ids"] for receipt in receipts] == [choice["token_ids"] for choice in choices]
    for index, choice in enumerate(choices):
        alone = (await raw(cluster, seed=seed + index, **fields)).json()
        (answer,) = alone["choices"]
        assert answer["token_ids"] == choice["token_ids"]
        assert answer["logprobs"] == choice["logprobs"]


@pytest.mark.parametrize("fields", [{"temperature": 0}, {**SAMPLED, "seed": -3}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_receipt_can_be_checked_and_tampering_is_found(
    cluster: Cluster, fingerprint: str, tmp_path: Path, fields: dict[str, Any], stream: bool
) -> None:
    response = await raw(cluster, is_deterministic=True, receipt=True, stream=stream, **fields)
    whole = events(response.text)[-1] if stream else response.json()
    (receipt,) = whole["determinism"]["receipts"]
    assert receipt["fingerprint"] == fingerprint
    assert (receipt["prompt_token_ids"], len(receipt["token_ids"])) == (PROMPT, LENGTH)

    file = tmp_path / "response.json"

    def verdict(document: Any) -> tuple[int, str]:
        file.write_text(json.dumps(document))
        result = CliRunner().invoke(main, ["receipt", "verify", str(file), "--base-url", cluster.url])
        return result.exit_code, result.output

    assert verdict(whole)[0] == 0
    tampered = {
        "token_ids": [*receipt["token_ids"][:40], 5, *receipt["token_ids"][41:]],
        "prompt_token_ids": [*PROMPT[:-1], 5],
        "windows": [*receipt["windows"][:2], receipt["windows"][0], *receipt["windows"][3:]],
        "temperature": receipt["temperature"] + 0.5,
    }
    windows = {"token_ids": 2, "prompt_token_ids": 1, "windows": 3, "temperature": 1}
    for name, value in tampered.items():
        status, said = verdict({**receipt, name: value})
        assert status == 1, name
        assert f"window {windows[name]} " in said
    status, said = verdict({**receipt, "fingerprint": "0" * 64})
    assert status == 2
    assert "these compute as" in said


async def test_a_receipt_ends_where_the_answer_does(cluster: Cluster) -> None:
    whole = (await raw(cluster, temperature=0, is_deterministic=True, receipt=True)).json()["choices"][0]
    word = (await raw(cluster, "../detokenize", prompt=None, tokens=whole["token_ids"][9:10])).json()["prompt"]
    for stream in (False, True):
        response = await raw(cluster, temperature=0, is_deterministic=True, receipt=True, stop=[word], stream=stream)
        said = events(response.text)[-1] if stream else response.json()
        (receipt,) = said["determinism"]["receipts"]
        assert len(receipt["token_ids"]) == said["usage"]["completion_tokens"] <= 10
        assert receipt["token_ids"] == whole["token_ids"][: len(receipt["token_ids"])]


async def test_several_prompts_have_a_receipt_each(cluster: Cluster) -> None:
    prompts = [random_prompt(seed, 20 + seed) for seed in range(3)]
    said = (await raw(cluster, prompt=prompts, temperature=0, is_deterministic=True, receipt=True)).json()
    receipts = said["determinism"]["receipts"]
    assert [receipt["prompt_token_ids"] for receipt in receipts] == prompts
    assert [receipt["token_ids"] for receipt in receipts] == [choice["token_ids"] for choice in said["choices"]]


async def short_receipt(cluster: Cluster) -> dict[str, Any]:
    said = (await raw(cluster, temperature=0, max_tokens=4, is_deterministic=True, receipt=True)).json()
    (receipt,) = said["determinism"]["receipts"]
    return dict(receipt)


async def test_what_is_no_receipt(cluster: Cluster) -> None:
    receipt = await short_receipt(cluster)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        for document, param in (
            ({"version": 1}, "fingerprint"),
            ({**receipt, "version": 2}, "version"),
            ({**receipt, "window_size": "x"}, "window_size"),
            ({**receipt, "token_ids": []}, "token_ids"),
            ({**receipt, "token_ids": [-1]}, None),  # what no single field is to blame for
            ({**receipt, "windows": []}, None),
        ):
            response = await http.post(f"{cluster.url}/v1/receipts/verify", json=document)
            assert response.status_code == 400
            error = response.json()["error"]
            assert "not a receipt" in error["message"]
            assert error["param"] == param, document


async def test_a_receipt_that_no_pass_could_carry_harms_nobody(cluster: Cluster) -> None:
    receipt = await short_receipt(cluster)
    plain = [len(PROMPT), 0.0, 0.0, 1.0, [], 0, [], [], None, None]
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        for place, value in (
            (8, {}),
            (4, {}),
            (7, [[5]] * 100_000),
            (7, [{}]),
            (1, 10**400),
            (9, ["regex", "a", True, {}]),
        ):
            steering = [*plain[:place], value, *plain[place + 1 :]]
            response = await http.post(f"{cluster.url}/v1/receipts/verify", json={**receipt, "steering": steering})
            assert response.status_code == 400, (place, response.text[:500])
            assert "not a receipt" in response.json()["error"]["message"]
        honest = await http.post(f"{cluster.url}/v1/receipts/verify", json=receipt)
    assert honest.json()["confirmed"] is True
