"""The server under test, through the official client: one prompt in, one completion out."""

import asyncio
import json
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import openai
from pydantic import BaseModel, ValidationError

from llm42.check.compare import Completion

CONNECT_S = 10.0
"""Longest wait for the model list, which also finds a server that is not there."""
MESSAGE_CHARACTERS = 600
"""Most that is shown of a server's error message."""
REFUSALS = (400, 422, 501)
"""How servers answer a field that they do not know or do not want."""


class CheckError(Exception):
    """The check cannot be made or finished; ``str()`` says why and what to do."""


class RequestFailed(CheckError):
    """A request failed: with the HTTP ``status``, or without a usable answer if that is None."""

    def __init__(self, reason: str, advice: str, status: int | None = None) -> None:
        super().__init__(f"{reason}. {advice}" if advice else reason)
        self.reason = reason
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent with each prompt. Without ``deterministic`` there is no seed either, since a server may
    take a seed as the wish to be deterministic."""

    model: str
    max_tokens: int
    seed: int
    deterministic: bool
    logprobs: bool = True

    def extra_body(self) -> dict[str, object]:
        body: dict[str, object] = {"logprobs": 1} if self.logprobs else {}
        return body | ({"seed": self.seed, "is_deterministic": True} if self.deterministic else {})


@dataclass(frozen=True, slots=True)
class Answer:
    completion: Completion
    fingerprint: str | None


class _Logprobs(BaseModel):
    tokens: tuple[str, ...] | None = None
    token_logprobs: tuple[float | None, ...] | None = None


class _Choice(BaseModel):
    text: str
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: _Logprobs | None = None


class _Body(BaseModel):
    choices: tuple[_Choice]
    system_fingerprint: str | None = None


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    data: tuple[_Model, ...]


def parse(content: bytes) -> Answer:
    """Read a ``/v1/completions`` body; raises :class:`RequestFailed` if it is none."""
    try:
        # Not the client's own model: it neither validates nor promises to keep a number's bits.
        body = _Body.model_validate(json.loads(content))
    except (ValueError, RecursionError) as error:
        # Pydantic's own message would repeat the whole answer.
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RequestFailed(
            f"the answer is not an OpenAI completion ({what}): {clip(content.decode(errors='replace'))}",
            "Check that --base-url points to an OpenAI-compatible server.",
        ) from error
    choice = body.choices[0]
    logprobs = choice.logprobs or _Logprobs()
    return Answer(
        Completion(
            text=choice.text,
            finish_reason=choice.finish_reason,
            tokens=logprobs.tokens,
            token_ids=choice.token_ids,
            logprobs=logprobs.token_logprobs,
        ),
        body.system_fingerprint,
    )


class Server:
    """An OpenAI-compatible server. A completion has ``timeout_s`` seconds, and no request is repeated."""

    def __init__(self, base_url: str, api_key: str | None, timeout_s: float) -> None:
        self.base_url = base_url
        self.timeout_s = timeout_s
        self._client = openai.AsyncClient(
            base_url=base_url,
            # Never the environment's key: it is not meant for whatever server is under test.
            api_key=api_key or "none",
            max_retries=0,
            timeout=timeout_s,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def first_model(self) -> str:
        """The id of the first model in ``/v1/models``."""
        limit_s = min(CONNECT_S, self.timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                response = await self._client.models.with_raw_response.list()
        except (openai.OpenAIError, TimeoutError) as error:
            raise self._failed(error, limit_s) from error
        try:
            return _Models.model_validate(json.loads(response.content)).data[0].id
        except (ValueError, RecursionError, IndexError) as error:
            raise RequestFailed(
                f"{self.base_url}/models names no model", "Check --base-url, or give --model."
            ) from error

    async def complete(self, request: Request, prompt: str) -> Answer:
        """One completion; raises :class:`RequestFailed`."""
        fields: dict[str, Any] = {
            "model": request.model,
            "prompt": prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "extra_body": request.extra_body(),
        }
        try:
            async with asyncio.timeout(self.timeout_s):
                response = await self._client.completions.with_raw_response.create(**fields)
        except (openai.OpenAIError, TimeoutError) as error:
            raise self._failed(error, self.timeout_s) from error
        return parse(response.content)

    async def negotiate(self, request: Request, prompt: str) -> tuple[Request, Answer, str | None]:
        """The first completion, with what the server takes: the request to go on with, and a note if it is
        not the one that was wanted.

        A refused request is tried with less until one is taken, since the messages of servers do not tell
        reliably which field they refuse. Without `is_deterministic` there is nothing to check, so that only
        names the culprit: raises :class:`CheckError`.
        """
        try:
            return request, await self.complete(request, prompt), None
        except RequestFailed as error:
            if error.status not in REFUSALS:
                raise
            refused = error
        for logprobs, deterministic in ((True, False), (False, True), (False, False)):
            candidate = replace(request, logprobs=logprobs, deterministic=deterministic)
            if candidate == request or (deterministic and not request.deterministic):
                continue
            try:
                answer = await self.complete(candidate, prompt)
            except RequestFailed as error:
                if error.status not in REFUSALS:
                    raise
                continue
            if deterministic != request.deterministic:
                raise CheckError(
                    f"the server refuses `is_deterministic` ({refused.reason}). "
                    "If it is not an LLM-42 server, check it with --ordinary."
                ) from refused
            note = f"The server refuses logprobs ({refused.reason}): only text is compared."
            return candidate, answer, note
        raise refused

    def _failed(self, error: openai.OpenAIError | TimeoutError, limit_s: float) -> RequestFailed:
        if isinstance(error, openai.APIStatusError):
            status = error.status_code
            return RequestFailed(f"HTTP {status}: {_server_message(error)}", _advice(status), status)
        if isinstance(error, TimeoutError | openai.APITimeoutError):
            return RequestFailed(
                f"{self.base_url} did not answer within {limit_s:g} s",
                "Is it overloaded? Raise --timeout or lower --concurrency.",
            )
        cause = error.__cause__ or error
        return RequestFailed(
            f"cannot reach {self.base_url} ({type(cause).__name__}: {clip(str(cause))})",
            "Is the server up, and --base-url right?",
        )


def _server_message(error: openai.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict):
        body = body.get("message") or body.get("detail") or body
    return clip(str(body or error.response.reason_phrase))


def clip(message: str) -> str:
    # Whatever a server sends goes to a terminal: no control characters.
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(message.split()))
    return line if len(line) <= MESSAGE_CHARACTERS else line[:MESSAGE_CHARACTERS] + "…"


def _advice(status: int) -> str:
    if status in (400, 422):
        return "Prompts have up to about 600 tokens: the context must hold them and --max-tokens."
    if status in (401, 403):
        return "Give --api-key."
    if status == 404:
        return "Check --base-url, which usually ends in /v1, and --model."
    if status in (429, 503):
        return "Lower --concurrency, or try again."
    return "Look into the server's log." if status >= 500 else ""
