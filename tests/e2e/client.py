"""Requests through the official ``openai`` client, and their answers as bits."""

import hashlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openai

VOCABULARY = 49152
REQUEST_S = 240.0
"""Longer than the server itself takes to give up."""

Prompt = str | list[int]


@dataclass(frozen=True)
class Answer:
    """All that a deterministic request promises to repeat. ``logprobs`` are fp32 bits."""

    token_ids: tuple[int, ...]
    logprobs: bytes
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    usage: tuple[int, int] | None
    """Tokens of the prompt and of the completion, all choices together."""


@dataclass
class Transcript:
    """One choice as it grows, from chunks or from a whole reply."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    fingerprint: str | None = None
    """``system_fingerprint``, which a stream tells at its end."""

    def add(self, choice: Any) -> None:
        self.token_ids += getattr(choice, "token_ids", None) or []
        self.logprobs += _logprobs(choice)
        self.text += _text(choice)
        self.finish_reason = choice.finish_reason or self.finish_reason
        stop_reason = getattr(choice, "stop_reason", None)
        self.stop_reason = stop_reason if stop_reason is not None else self.stop_reason

    def answer(self, usage: Any) -> Answer:
        bits = np.asarray(self.logprobs, dtype=np.float32)
        assert (bits.astype(np.float64) == np.asarray(self.logprobs)).all()  # JSON has kept every bit
        return Answer(
            token_ids=tuple(self.token_ids),
            logprobs=bits.tobytes(),
            text=self.text,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            usage=None if usage is None else (usage.prompt_tokens, usage.completion_tokens),
        )


def digest(tokens: Sequence[int]) -> str:
    """As ``determinism.prompts`` has it, computed in another way."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i4").tobytes()).hexdigest()


def random_prompt(seed: int, length: int) -> list[int]:
    """Token ids without any sense: the random test model finds its own words no better."""
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]


class Client:
    """Deterministic, unless told otherwise. ``defaults`` go into every request."""

    def __init__(self, url: str, model: str, **defaults: Any) -> None:
        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=REQUEST_S)
        self.model = model
        self._defaults = {"return_token_ids": True, "is_deterministic": True, **defaults}

    async def complete(self, prompt: Prompt, max_tokens: int, *, stream: bool = False, **fields: Any) -> Answer:
        (answer,) = await self._answers(self.openai.completions.create, _completion(prompt, max_tokens), fields, stream)
        return answer

    async def complete_all(
        self, prompts: Sequence[list[int]], max_tokens: int, *, stream: bool = False, **fields: Any
    ) -> list[Answer]:
        """All prompts in one request; each answer carries the request's usage."""
        body = _completion(list(prompts), max_tokens)
        return await self._answers(self.openai.completions.create, body, fields, stream)

    async def chat(
        self, messages: str | list[dict[str, str]], max_tokens: int, *, stream: bool = False, **fields: Any
    ) -> Answer:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"messages": messages, "max_completion_tokens": max_tokens, "logprobs": True}
        (answer,) = await self._answers(self.openai.chat.completions.create, body, fields, stream)
        return answer

    async def follow(self, said: Transcript, prompt: Prompt, max_tokens: int, *, stream: bool, **fields: Any) -> None:
        """A completion, written into ``said`` as it arrives: what came before an error is there as well.

        Raises ``openai.APIError``, or ``httpx.HTTPError`` where the connection broke.
        """
        body = self._body(_completion(prompt, max_tokens), fields)
        if stream:
            chunks = await self.openai.completions.create(**body, stream=True)
        else:
            chunks = _once(await self.openai.completions.create(**body))
        async for chunk in chunks:
            said.fingerprint = chunk.system_fingerprint or said.fingerprint
            for choice in chunk.choices:
                said.add(choice)

    async def stream(self, prompt: Prompt, max_tokens: int, **fields: Any) -> Any:
        """A completion's raw stream, for those who want to leave it early or see it fail."""
        body = self._body(_completion(prompt, max_tokens), fields)
        return await self.openai.completions.create(**body, stream=True)

    def _body(self, body: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "temperature": 0, **body, "extra_body": {**self._defaults, **fields}}

    async def _answers(self, create: Any, body: dict[str, Any], fields: dict[str, Any], stream: bool) -> list[Answer]:
        body = self._body(body, fields)
        if stream:
            chunks = await create(**body, stream=True, stream_options={"include_usage": True})
            parts = [chunk async for chunk in chunks]
        else:
            parts = [await create(**body)]
        transcripts: dict[int, Transcript] = {}
        usage = None
        for part in parts:
            usage = part.usage or usage
            for choice in part.choices:
                transcripts.setdefault(choice.index, Transcript()).add(choice)
        return [transcripts[index].answer(usage) for index in sorted(transcripts)]


async def _once(whole: Any) -> AsyncIterator[Any]:
    yield whole


def _completion(prompt: Any, max_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "logprobs": 0}


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
