"""A streaming client that keeps time: closed loop (lanes) and open loop (arrivals)."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import aiohttp

from llm42.bench.cell import Answer
from llm42.bench.workload import Request
from llm42.check.client import clip

REQUEST_S = 600.0
LINE_BYTES = 1 << 22
"""Of one event: token ids of a long prompt may come with it."""


@dataclass(frozen=True, slots=True)
class Client:
    """``ours`` servers are told what is deterministic. ``salt`` keeps caches of other loads out of this one."""

    session: aiohttp.ClientSession
    url: str
    model: str
    ours: bool
    salt: str
    token_ids: bool = False

    async def ask(self, number: int, request: Request, arrival: float) -> Answer:
        """``arrival`` is a time of :func:`time.perf_counter`. A request that fails is an answer with an error."""
        stream = _Stream(arrival)
        try:
            async with self.session.post(f"{self.url}/v1/completions", json=self._body(request)) as response:
                if response.status != 200:
                    raise _Failed(f"HTTP {response.status}: {clip(await response.text())}")
                async for line in response.content:
                    stream.take(line)
            error = stream.complaint(request)
        except (_Failed, aiohttp.ClientError, TimeoutError, ValueError) as failure:
            error = f"{type(failure).__name__}: {failure}" if not isinstance(failure, _Failed) else str(failure)
        return Answer(
            number=number,
            deterministic=request.deterministic,
            first=stream.first,
            total=stream.last,
            gap=stream.gap,
            prompt_tokens=len(request.prompt),
            tokens=stream.tokens,
            error=error,
            token_ids=stream.token_ids if self.token_ids else [],
        )

    def _body(self, request: Request) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": self.salt,
            **({"return_token_ids": True} if self.token_ids else {}),
            **({"is_deterministic": request.deterministic} if self.ours else {}),
        }


@asynccontextmanager
async def connect(url: str, model: str, *, ours: bool, salt: str, token_ids: bool = False) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(limit=0)  # an open loop holds back nobody
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=LINE_BYTES) as session:
        yield Client(session, url, model, ours, salt, token_ids)


async def closed_loop(
    client: Client, requests: Sequence[Request], lanes: int, beside: Iterator[Request], beside_lanes: int
) -> list[Answer]:
    """``lanes`` streams share the requests; ``beside_lanes`` more go on with ``beside`` until those are answered."""
    others = [asyncio.create_task(_lane(client, enumerate(beside))) for _ in range(beside_lanes)]
    try:
        left = enumerate(requests)
        found = await asyncio.gather(*(_lane(client, left) for _ in range(lanes)))
        for other in others:
            if other.done():
                other.result()  # it goes on for ever, or has raised
        return [answer for answers in found for answer in answers]
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def open_loop(client: Client, requests: Sequence[Request], at: Sequence[float]) -> list[Answer]:
    """Request i is sent ``at[i]`` seconds from now, whatever has become of the others."""
    began = time.perf_counter()

    async def later(number: int, request: Request, seconds: float) -> Answer:
        await asyncio.sleep(max(0.0, began + seconds - time.perf_counter()))
        return await client.ask(number, request, began + seconds)

    return list(await asyncio.gather(*map(later, count(), requests, at)))


async def _lane(client: Client, requests: Iterable[tuple[int, Request]]) -> list[Answer]:
    return [await client.ask(number, request, time.perf_counter()) for number, request in requests]


class _Failed(Exception):
    """The server said so."""


class _Stream:
    """What has come of one answer. Seconds count from its arrival."""

    def __init__(self, arrival: float) -> None:
        self._arrival = arrival
        self.first = self.last = self.gap = 0.0
        self.tokens = 0
        self.token_ids: list[int] = []

    def take(self, line: bytes) -> None:
        """A line of server-sent events. Raises ValueError if it is none, :class:`_Failed` for an error event."""
        data = line.removeprefix(b"data:").strip()
        if not data or data == b"[DONE]" or line.startswith(b":"):
            return
        event = json.loads(data)
        if "error" in event:
            raise _Failed(clip(str(event["error"])))
        now = time.perf_counter() - self._arrival
        if event.get("usage"):
            self.tokens = event["usage"]["completion_tokens"]
        if event.get("choices"):
            self.gap = max(self.gap, now - self.last if self.first else 0.0)
            self.first = self.first or now
            self.last = now
            self.token_ids += event["choices"][0].get("token_ids") or []

    def complaint(self, request: Request) -> str | None:
        if self.tokens == request.tokens:
            return None
        return f"{self.tokens} tokens came, {request.tokens} were asked for"
