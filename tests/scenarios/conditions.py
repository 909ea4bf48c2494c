"""The circumstances under which a request is asked once more. None of them may show in a deterministic answer."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tests.e2e.client import Answer, random_prompt
from tests.scenarios.ask import Condition, Request, Side

_FRESH = random.Random(0)


def fresh_prompt(length: int) -> tuple[int, ...]:
    """One that no cache has seen."""
    return tuple(random_prompt(_FRESH.getrandbits(64), length))


def repeated(times: int) -> Condition:
    """One after another, each ``times`` times in a row."""

    async def asking(side: Side, asked: Sequence[Request]) -> list[list[Answer]]:
        return [[await side.ask(request) for _ in range(times)] for request in asked]

    return asking


def together(size: int, *, stream: bool = False) -> Condition:
    """In bursts of ``size``."""

    async def asking(side: Side, asked: Sequence[Request]) -> list[list[Answer]]:
        answers: list[Answer] = []
        for begin in range(0, len(asked), size):
            burst = asked[begin : begin + size]
            answers += await asyncio.gather(*(side.ask(request, stream=stream) for request in burst))
        return [[answer] for answer in answers]

    return asking


def copies(size: int) -> Condition:
    """``size`` of the same at once."""

    async def asking(side: Side, asked: Sequence[Request]) -> list[list[Answer]]:
        return [list(await asyncio.gather(*(side.ask(request) for _ in range(size)))) for request in asked]

    return asking


def among(count: int, neighbours: Callable[[], Request]) -> Condition:
    """One after another, always beside ``count`` unrelated requests of the same kind."""

    async def asking(side: Side, asked: Sequence[Request]) -> list[list[Answer]]:
        async with crowd(side, count, neighbours):
            return [[await side.ask(request)] for request in asked]

    return asking


@asynccontextmanager
async def crowd(side: Side, count: int, neighbours: Callable[[], Request]) -> AsyncIterator[None]:
    """Keep ``count`` requests going until the body is done with."""
    over = False

    async def going() -> None:
        while not over:
            await side.ask(neighbours())

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(going())
        try:
            yield
        finally:
            over = True
