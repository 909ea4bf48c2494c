"""Requests through the official ``openai`` client, and their answers as bits."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import openai

VOCABULARY = 49152
REQUEST_S = 180.0

Prompt = str | list[int]


@dataclass(frozen=True)
class Answer:
    """All that a deterministic request promises to repeat. ``logprobs`` are fp32 bits, ``usage`` (in, out)."""

    token_ids: tuple[int, ...]
    logprobs: bytes
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    usage: tuple[int, int]


def random_prompt(seed: int, length: int) -> list[int]:
    """Token ids without any sense: the random test model finds its own words no better."""
    return [random.Random(f"{seed}/{i}").randrange(3, VOCABULARY) for i in range(length)]


class Client:
    """``defaults`` go into every request."""

    def __init__(self, url: str, model: str, **defaults: Any) -> None:
        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=REQUEST_S)
        self.model = model
        self._defaults = {"return_token_ids": True, "is_deterministic": True, **defaults}

    async def complete(self, prompt: Prompt, max_tokens: int, *, stream: bool = False, **fields: Any) -> Answer:
        body = {"prompt": prompt, "max_tokens": max_tokens, "logprobs": 0}
        create = self.openai.completions.create
        return await self._answer(create, body, fields, stream)

    async def chat(self, content: str, max_tokens: int, *, stream: bool = False, **fields: Any) -> Answer:
        body = {
            "messages": [{"role": "user", "content": content}],
            "max_completion_tokens": max_tokens,
            "logprobs": True,
        }
        return await self._answer(self.openai.chat.completions.create, body, fields, stream)

    async def stream(self, prompt: Prompt, max_tokens: int, **fields: Any) -> Any:
        """A completion's raw stream, for those who want to leave it early."""
        body = self._body({"prompt": prompt, "max_tokens": max_tokens, "logprobs": 0}, fields)
        return await self.openai.completions.create(**body, stream=True)

    def _body(self, body: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        extra = {**self._defaults, **fields}
        return {"model": self.model, "temperature": 0, **body, "extra_body": extra}

    async def _answer(self, create: Any, body: dict[str, Any], fields: dict[str, Any], stream: bool) -> Answer:
        body = self._body(body, fields)
        if not stream:
            reply = await create(**body)
            return _collect([reply])
        options = {"include_usage": True}
        return _collect([chunk async for chunk in await create(**body, stream=True, stream_options=options)])


def _collect(parts: list[Any]) -> Answer:
    """One answer from a whole reply, or from the chunks of its stream."""
    token_ids: list[int] = []
    logprobs: list[float] = []
    text = ""
    finish_reason = stop_reason = usage = None
    for part in parts:
        usage = part.usage or usage
        for choice in part.choices:
            token_ids += choice.token_ids or []
            logprobs += _logprobs(choice)
            text += _text(choice)
            finish_reason = choice.finish_reason or finish_reason
            stop_reason = choice.stop_reason if choice.stop_reason is not None else stop_reason
    bits = np.asarray(logprobs, dtype=np.float32)
    assert (bits.astype(np.float64) == np.asarray(logprobs)).all()  # JSON has kept every bit
    return Answer(
        token_ids=tuple(token_ids),
        logprobs=bits.tobytes(),
        text=text,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        usage=(usage.prompt_tokens, usage.completion_tokens),
    )


def _logprobs(choice: Any) -> list[float]:
    if choice.logprobs is None:
        return []
    if hasattr(choice.logprobs, "token_logprobs"):
        return list(choice.logprobs.token_logprobs)
    return [token.logprob for token in choice.logprobs.content or []]


def _text(choice: Any) -> str:
    if hasattr(choice, "text"):
        return str(choice.text)
    said = choice.message if hasattr(choice, "message") else choice.delta
    return said.content or ""
