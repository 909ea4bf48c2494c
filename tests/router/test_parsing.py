"""Streamed reasoning and tool calls: one message, however the commits that carry it are cut.

vLLM's own frontend and parsers, on a core that commits a given text in pieces. Where commits fall depends on load, and
so does how many of them a busy frontend takes at once.
"""

import asyncio
import json
import random
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest

from llm42.internals.core_client import TextCore, commit_output
from llm42.internals.frontend import make_frontend
from llm42.internals.separate_outputs import keep_apart
from llm42.protocol import Commit, Finish, Scores
from tests.events import events

ARGUMENTS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
CHUNKINGS = 12
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
    for name in ("weather", "register")
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris, \\"the\\" {capital}", "n": 3}}\n</tool_call>'
OTHER_CALL = '<tool_call>\n{"name": "register", "arguments": {"n": 12}}\n</tool_call>'
TEXTS = {
    "call": CALL,
    "text and call": f"I will look.\n{CALL}",
    "two calls": f"{CALL}\n{OTHER_CALL}",
    "no arguments": '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>',
    "no call": 'Only <tool and {"name": 1}, and é, 東京 and 🙂.',
    "broken off": CALL[:60],
    "reasoning": f"<think>\nIs <tool_call> wanted?\n\n</think>\n\nYes.\n{OTHER_CALL}",
    "reasoning only": "<think>\nAnd so on",
}


class Speaker(TextCore):
    """Commits ``tokens`` to every request, in pieces of ``sizes``; they leave as a router's do if ``singly``."""

    def __init__(self, singly: bool) -> None:
        super().__init__({})
        self.singly = singly
        self.tokens: list[int] = []
        self.sizes: list[int] = []
        self._outputs: asyncio.Queue[EngineCoreOutput] = asyncio.Queue()

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self._speaking = asyncio.create_task(self._speak(request, random.Random(len(self.sizes))))

    async def _speak(self, request: EngineCoreRequest, rng: random.Random) -> None:
        at = 0
        for size in self.sizes:
            tokens = self.tokens[at : at + size]
            at += size
            scores = Scores(tokens, bytes(4 * size), [1] * size)
            commit = Commit(scores, Finish.STOP if at == len(self.tokens) else None)
            for part in commit.singly() if self.singly else (commit,):
                self._outputs.put_nowait(commit_output(request, part))
            for _ in range(rng.choice((0, 0, 1, 40))):  # as much as the frontend then finds at once
                await asyncio.sleep(0)

    async def get_output_async(self) -> EngineCoreOutputs:
        return EngineCoreOutputs(outputs=[await self._outputs.get()])

    async def abort_requests_async(self, request_ids: list[str]) -> None: ...

    def abort(self, request_ids: list[str]) -> None: ...

    def shutdown(self, timeout: float | None = None) -> None: ...


def chunkings(length: int) -> Iterable[list[int]]:
    yield [1] * length
    yield [length]
    rng = random.Random(length)
    for _ in range(CHUNKINGS):
        sizes: list[int] = []
        while (left := length - sum(sizes)) > 0:
            sizes.append(min(left, rng.choice((1, 2, 3, 8, 32))))
        yield sizes


def message(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client puts together from the deltas."""
    whole: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "finish": None}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        whole["content"] += delta.get("content") or ""
        whole["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls") or []:
            said = whole["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
            for field, value in call["function"].items():
                said[field] += value or ""
        whole["finish"] = choice["finish_reason"] or whole["finish"]
    return whole


async def messages(core: Speaker, tiny_path: str) -> dict[str, list[dict[str, Any]]]:
    """The different messages that each text has become."""
    keep_apart(lambda: core.singly)
    frontend = await make_frontend(core, ["--model", tiny_path, "--served-model-name", "m", *ARGUMENTS], 32)
    tokenizer = frontend.llm.get_tokenizer()
    asked = {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": TOOLS, "max_tokens": 500}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TEXTS}
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(frontend.app), base_url="http://llm42") as client:
            for name, text in TEXTS.items():
                core.tokens = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
                for sizes in chunkings(len(core.tokens)):
                    core.sizes = sizes
                    response = await client.post("/v1/chat/completions", json={**asked, "stream": True})
                    said = message(events(response.text))
                    if said not in found[name]:
                        found[name].append(said)
    finally:
        frontend.shutdown()
        keep_apart(lambda: False)
    return found


@pytest.mark.timeout(200)
async def test_the_message_is_the_same_however_commits_are_cut(tiny_path: str) -> None:
    found = {name: said for name, (said,) in (await messages(Speaker(singly=True), tiny_path)).items()}
    assert [len(said["calls"]) for said in found.values()] == [1, 1, 2, 1, 0, 1, 1, 0]
    assert json.loads(found["call"]["calls"][0]["arguments"]) == {"city": 'Paris, "the" {capital}', "n": 3}
    plain = found["no call"]
    assert plain["content"] + plain["reasoning"] == TEXTS["no call"]
    assert found["reasoning"]["reasoning"].strip() == "Is"  # to vLLM, a call ends the reasoning


@pytest.mark.timeout(200)
async def test_negative_control_it_is_not_where_they_leave_as_they_fall(tiny_path: str) -> None:
    found = await messages(Speaker(singly=False), tiny_path)
    assert max(map(len, found.values())) > 1
