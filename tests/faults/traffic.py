"""Clients that ask without pause while faults are injected, and all that they were told."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from types import TracebackType

import httpx
import openai

from tests.e2e.client import Client, Transcript
from tests.faults.cases import CASES, Case

PAUSE_S = 0.5
"""Of a client that has been refused."""
MOVING = 4
"""Tokens after which a stream is well under way."""
ENDED_S = 300.0


@dataclass
class Outcome:
    """One request: what came of it, and until when; ``error`` says why it has no end."""

    case: Case
    deterministic: bool
    streamed: bool
    said: Transcript = field(default_factory=Transcript)
    error: str | None = None
    status: int | None = None
    retry_after: str | None = None
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def seconds(self) -> float:
        assert self.ended is not None
        return self.ended - self.began

    @property
    def finished(self) -> bool:
        return self.ended is not None and self.error is None


class Traffic:
    """``async with``: clients ask from then on; at the end they finish what they have begun.

    ``streams`` of them deterministic, ``ordinary`` of them not; each picks its cases at random.
    """

    def __init__(self, client: Client, seed: str, *, streams: int, ordinary: int, cases: list[Case] = CASES) -> None:
        self.outcomes: list[Outcome] = []
        self._client = client
        self._cases = cases
        self._rngs = [random.Random(f"{seed} {number}") for number in range(streams + ordinary)]
        self._streams = streams
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Traffic":
        for number, rng in enumerate(self._rngs):
            self._tasks.append(asyncio.create_task(self._ask_on(rng, deterministic=number < self._streams)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping = True
        if error is not None:
            for task in self._tasks:
                task.cancel()
        async with asyncio.timeout(ENDED_S):
            await asyncio.gather(*self._tasks, return_exceptions=error is not None)

    @property
    def in_flight(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.ended is None]

    async def ask(self, case: Case, *, deterministic: bool = True, stream: bool = True) -> Outcome:
        """One request more."""
        outcome = Outcome(case, deterministic, stream)
        self.outcomes.append(outcome)
        try:
            await self._client.follow(
                outcome.said,
                case.prompt,
                case.max_tokens,
                stream=stream,
                is_deterministic=deterministic,
                **case.fields,
            )
        except openai.APIStatusError as error:
            outcome.status, outcome.retry_after = error.status_code, error.response.headers.get("retry-after")
            outcome.error = f"{error.status_code}: {error.message}"
        except openai.APIError as error:
            outcome.error = f"{type(error).__name__}: {error.message}"
        except httpx.HTTPError as error:
            outcome.error = f"{type(error).__name__}: {error}"
        else:
            if outcome.said.finish_reason is None:
                outcome.error = "the answer has no end"
        outcome.ended = time.monotonic()
        return outcome

    async def under_way(self, count: int, timeout_s: float = 120.0) -> None:
        """Until ``count`` deterministic streams have begun to speak and have not ended: time for a fault."""
        async with asyncio.timeout(timeout_s):
            while count > sum(  # noqa: ASYNC110 - fed by other tasks
                outcome.deterministic and len(outcome.said.token_ids) >= MOVING for outcome in self.in_flight
            ):
                await asyncio.sleep(0.02)

    async def finished(self, count: int, timeout_s: float = 600.0) -> None:
        """Until ``count`` more deterministic requests that began after this call have finished."""
        asked = time.monotonic()
        async with asyncio.timeout(timeout_s):
            while count > sum(  # noqa: ASYNC110
                outcome.deterministic and outcome.finished and outcome.began > asked for outcome in self.outcomes
            ):
                await asyncio.sleep(0.1)

    async def _ask_on(self, rng: random.Random, *, deterministic: bool) -> None:
        while not self._stopping:
            case = rng.choice(self._cases)
            outcome = await self.ask(case, deterministic=deterministic, stream=rng.random() < 0.7)
            if outcome.error is not None:
                await asyncio.sleep(PAUSE_S)
