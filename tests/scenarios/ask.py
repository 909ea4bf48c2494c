"""Asking the same thing under different conditions, and comparing the answers as bits."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import openai

from tests.e2e.client import REQUEST_S, Answer, Transcript, digest, random_prompt

SAMPLING = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.001}
"""Every cut-off at work, and still much to choose from."""


@dataclass(frozen=True)
class Request:
    """What makes an answer. Greedy without a ``seed``; a text is asked as a chat message, token ids are completed."""

    prompt: tuple[int, ...] | str
    max_tokens: int = 48
    seed: int | None = None

    @property
    def fields(self) -> dict[str, Any]:
        return {"temperature": 0} if self.seed is None else {**SAMPLING, "seed": self.seed}


def request(number: int, length: int, max_tokens: int = 48) -> Request:
    """A random prompt of ``length`` tokens: greedy if its number is even, with a seed if it is odd."""
    return Request(tuple(random_prompt(number, length)), max_tokens, seed=number if number % 2 else None)


@dataclass(frozen=True)
class Statement:
    """What a response says about itself."""

    fingerprint: str | None
    header: str
    determinism: dict[str, Any]


class Side:
    """The server, asked for determinism or not.

    ``first`` holds the answers that count. They outlive this object, as does ``fingerprints``: all that were seen.
    """

    def __init__(
        self, url: str, *, deterministic: bool, first: dict[Request, Answer], fingerprints: set[str | None]
    ) -> None:
        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=REQUEST_S)
        self.deterministic = deterministic
        self._first = first
        self._fingerprints = fingerprints

    async def ask(self, request: Request, *, stream: bool = False) -> Answer:
        [answer], statement = await self.send(request, stream=stream, **request.fields)
        if self.deterministic:
            said = {"verified": True} | ({} if request.seed is None else {"seed": request.seed})
            if not isinstance(request.prompt, str):
                said["prompts"] = [digest(request.prompt)]
            told = {name: statement.determinism[name] for name in said}
            assert (statement.header, told) == ("true", said)
            assert statement.fingerprint
            self._fingerprints.add(statement.fingerprint)
        else:
            assert statement == Statement(None, "false", {"verified": False})
        return answer

    async def alone(self, request: Request) -> Answer:
        """The answer that counts: from when nothing else was going on. Asked for once in a run, then remembered."""
        if request not in self._first:
            self._first[request] = await self.ask(request)
        return self._first[request]

    async def send(self, request: Request, *, stream: bool = False, **fields: Any) -> tuple[list[Answer], Statement]:
        """Ask for ``request`` with other ``fields``: an answer for each choice. Raises ``openai.APIError``."""
        extra = {"return_token_ids": True, "ignore_eos": True, "is_deterministic": self.deterministic, **fields}
        body: dict[str, Any] = {"model": "tiny", "extra_body": extra}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if isinstance(request.prompt, str):
            create: Any = self.openai.chat.completions.with_raw_response.create
            messages = [{"role": "user", "content": request.prompt}]
            body |= {"messages": messages, "max_completion_tokens": request.max_tokens, "logprobs": True}
        else:
            create = self.openai.completions.with_raw_response.create
            body |= {"prompt": list(request.prompt), "max_tokens": request.max_tokens, "logprobs": 0}
        response = await create(**body)
        parsed = response.parse()
        parts = [part async for part in parsed] if stream else [parsed]
        transcripts: dict[int, Transcript] = {}
        for part in parts:
            for choice in part.choices:
                transcripts.setdefault(choice.index, Transcript()).add(choice)
        last = parts[-1]
        statement = Statement(last.system_fingerprint, response.headers["x-llm42-verified"], last.determinism)
        return [transcripts[index].answer(last.usage) for index in sorted(transcripts)], statement


Condition = Callable[[Side, Sequence[Request]], Awaitable[list[list[Answer]]]]
"""Asks each request once or more; for each, its answers."""

Symptom = Literal["tokens", "bits"]


@dataclass(frozen=True)
class Found:
    """Of ``asked`` requests, how many got another answer than alone: another in any bit, and in a token."""

    asked: int
    bits: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.bits} of {self.asked} differ, {self.tokens} in a token"


async def compare(side: Side, asked: Sequence[Request], condition: Condition) -> Found:
    """Ask alone, and then again under ``condition``."""
    first = [await side.alone(request) for request in asked]
    pairs = list(zip(first, await condition(side, asked), strict=True))
    return Found(
        asked=len(pairs),
        bits=sum(any(answer != alone for answer in answers) for alone, answers in pairs),
        tokens=sum(any(answer.token_ids != alone.token_ids for answer in answers) for alone, answers in pairs),
    )


@dataclass
class Sides:
    """One server, asked in both ways."""

    deterministic: Side
    ordinary: Side
    fingerprints: set[str | None] = field(default_factory=set)

    async def contrast(self, asked: Sequence[Request], condition: Condition, *, control: Symptom | None) -> None:
        """No deterministic answer differs in a bit under ``condition``; of the ordinary ones, some do.

        ``control`` says what must be seen to differ there: None if nothing can on this hardware, and the test
        says why.
        """
        found = await compare(self.deterministic, asked, condition)
        print(f"deterministic: {found}")
        assert found.bits == 0, found
        assert len(self.fingerprints) == 1
        for request in asked:
            answer = await self.deterministic.alone(request)
            assert len(answer.logprobs) == 4 * len(answer.token_ids) == 4 * request.max_tokens
        if control is not None:
            found = await compare(self.ordinary, asked, condition)
            print(f"ordinary: {found}")
            assert (found.tokens if control == "tokens" else found.bits) > 0, "the ordinary path was not seen to drift"
