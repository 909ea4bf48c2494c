"""A conversation with tools, sent back turn by turn as clients do: one transcript, whatever the load and the caches."""

import asyncio
from typing import Any

import numpy as np
from openai import AsyncOpenAI

from tests.e2e.client import REQUEST_S, random_prompt
from tests.e2e.cluster import Cluster

# Renders what was called and what came of it; the demo model's own template knows no tools.
TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor -%}
<|im_end|>
{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Lima", "Pune"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS, "strict": True}}
    for name in ("weather", "register")
]
NAMED = {"type": "function", "function": {"name": "weather"}}
TURNS: list[tuple[str, Any]] = [("What next?", NAMED), ("And then?", "none"), ("Go on.", "required"), ("So?", "none")]
"""What the user says, and the ``tool_choice`` that goes with it."""

Turn = tuple[dict[str, Any], str | None, bytes, str | None]
"""The message without its random ids, why it ended, the bits of its logprobs, the digest of its prompt."""


class Conversation:
    def __init__(self, openai: AsyncOpenAI, *, stream: bool = False, **fields: Any) -> None:
        self._openai, self._stream = openai, stream
        self._fields = {"chat_template": TEMPLATE, **fields}

    async def hold(self) -> list[Turn]:
        messages: list[dict[str, Any]] = []
        turns = []
        for text, choice in TURNS:
            messages.append({"role": "user", "content": text})
            message, *rest = await self._say(messages, choice)
            turns.append((without_ids(message), *rest))
            messages.append(message)
            for call in message.get("tool_calls", []):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "It rains."})
        return turns

    async def _say(self, messages: list[dict[str, Any]], choice: Any) -> tuple[dict[str, Any], Any, bytes, str | None]:
        asked: dict[str, Any] = {
            "model": "tiny",
            "messages": messages,
            "tools": TOOLS,
            "tool_choice": choice,
            "max_completion_tokens": 60,
            "temperature": 0.8,
            "seed": 5,
            "logprobs": True,
            "stream": self._stream,
            "extra_body": self._fields,
        }
        reply = await self._openai.chat.completions.create(**asked)
        parts = [part async for part in reply] if self._stream else [reply]
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        finish, logprobs, prompt = None, [], None
        for part in parts:
            prompt = getattr(part, "determinism", {}).get("prompts", [prompt])[0]
            for one in part.choices:
                said = (one.delta if self._stream else one.message).model_dump(exclude_none=True)
                message["content"] += said.get("content", "")
                join_calls(message, said.get("tool_calls", []))
                finish = one.finish_reason or finish
                logprobs += [token.logprob for token in (one.logprobs.content or [])] if one.logprobs else []
        return message, finish, np.asarray(logprobs, dtype=np.float32).tobytes(), prompt


def join_calls(message: dict[str, Any], said: list[dict[str, Any]]) -> None:
    """Add whole calls, or pieces of them, to those of ``message``."""
    for number, piece in enumerate(said):
        calls = message.setdefault("tool_calls", [])
        index = piece.get("index", number)
        if index == len(calls):
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        calls[index]["id"] = piece.get("id") or calls[index]["id"]
        for name, text in piece.get("function", {}).items():
            calls[index]["function"][name] += text


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return {"content": message["content"], "calls": calls}


async def alone(openai: AsyncOpenAI, deterministic: bool) -> list[list[Turn]]:
    """Streamed, and whole: vLLM has a parser for each, and the two make other things of JSON that is cut short."""
    return [
        await Conversation(openai, stream=stream, is_deterministic=deterministic).hold() for stream in (True, False)
    ]


async def crowd(openai: AsyncOpenAI, deterministic: bool) -> list[list[Turn]]:
    """The conversation six times over, streamed and whole, from warm caches and from empty ones, among others."""
    held = [
        Conversation(openai, stream=number % 2 == 0, is_deterministic=deterministic, cache_salt=f"salt {number // 2}")
        for number in range(6)
    ]
    noise = [
        openai.completions.create(
            model="tiny", prompt=random_prompt(900 + i, 40 + 9 * i), max_tokens=100,
            extra_body={"is_deterministic": i % 2 == 0},
        )
        for i in range(6)
    ]  # fmt: skip
    answers = await asyncio.gather(*(one.hold() for one in held), *noise)
    return answers[: len(held)]


async def test_one_transcript(cluster: Cluster) -> None:
    async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0, timeout=REQUEST_S) as openai:
        streamed, whole = await alone(openai, deterministic=True)
        assert await crowd(openai, deterministic=True) == [streamed, whole] * 3

        # What was asked has its effect, or the above would compare nothing.
        assert [call["name"] for call in streamed[0][0]["calls"]] == ["weather"]
        for turns in (streamed, whole):
            assert any(message["content"] or message["calls"] for message, *_ in turns)
            prompts = {prompt for *_, prompt in turns}
            assert len(prompts) == len(TURNS)
            assert None not in prompts
        assert all(logprobs for _, _, logprobs, _ in whole)

        # Negative control: ordinary conversations differ, in a bit of a logprob at least.
        ordinary = await alone(openai, deterministic=False)
        assert await crowd(openai, deterministic=False) != ordinary * 3
