"""A check: each prompt alone, then all of them in shuffled bursts of changing size."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llm42.check.client import Answer, CheckError, Request, RequestFailed, Server
from llm42.check.compare import Ledger

SEED = 42
"""Of the requests, the prompts and the shuffling: two runs of a check ask the same."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``timeout_s`` is for one completion. ``model`` None means the server's first."""

    base_url: str
    prompts: tuple[str, ...]
    concurrency: int
    trials: int
    max_tokens: int
    deterministic: bool
    model: str | None
    api_key: str | None
    timeout_s: float

    @property
    def completions(self) -> int:
        return len(self.prompts) * (1 + self.trials)


def bursts(prompts: int, trials: int, concurrency: int, rng: random.Random) -> Iterator[list[int]]:
    """Prompt indices, each ``trials`` times, in bursts of 2 to ``concurrency``.

    The first burst is as large as allowed and the second has two requests, so that load and quiet both
    occur in the shortest check; the other sizes are drawn. A single request is left over only where
    bursts of two meet an odd number of requests.
    """
    left = prompts * trials
    queue: list[int] = []
    number = 0
    while left:
        size = {0: concurrency, 1: 2}.get(number) or rng.randint(2, concurrency)
        size = min(size, left)
        if left - size == 1 and concurrency > 2:
            size += 1 if size < concurrency else -1
        while len(queue) < size:
            queue += rng.sample(range(prompts), prompts)
        burst, queue = queue[:size], queue[size:]
        left -= size
        number += 1
        yield burst


class Check:
    """One run of a plan; what it has found is here also after :meth:`run` has raised."""

    def __init__(self, plan: Plan, *, on_completion: Callable[[], None], on_note: Callable[[str], None]) -> None:
        self.plan = plan
        self.ledger = Ledger()
        self.fingerprints: set[str] = set()
        self.seconds = 0.0
        self._on_completion = on_completion
        self._on_note = on_note

    @property
    def logprobs_compared(self) -> bool:
        """Whether any completion brought logprobs."""
        return any(record.alone.logprobs is not None for record in self.ledger.records.values())

    async def run(self) -> None:
        """Raises :class:`CheckError` as soon as a completion fails, after the others of its burst."""
        started = time.monotonic()
        try:
            async with Server(self.plan.base_url, self.plan.api_key, self.plan.timeout_s) as server:
                request = await self._alone(server)
                rng = random.Random(SEED)
                for burst in bursts(len(self.plan.prompts), self.plan.trials, self.plan.concurrency, rng):
                    await self._burst(server, request, burst)
        finally:
            self.seconds = time.monotonic() - started

    async def _alone(self, server: Server) -> Request:
        request = Request(
            model=self.plan.model or await server.first_model(),
            max_tokens=self.plan.max_tokens,
            seed=SEED,
            deterministic=self.plan.deterministic,
        )
        request, answer, note = await server.negotiate(request, self.plan.prompts[0])
        if note is not None:
            self._on_note(note)
        elif answer.completion.logprobs is None:
            self._on_note("The server gives no logprobs: only text is compared.")
        self._record(0, answer, burst=1)
        for prompt in range(1, len(self.plan.prompts)):
            await self._burst(server, request, [prompt])
        return request

    async def _burst(self, server: Server, request: Request, burst: list[int]) -> None:
        results = await asyncio.gather(
            *(server.complete(request, self.plan.prompts[prompt]) for prompt in burst), return_exceptions=True
        )
        failures: list[tuple[int, RequestFailed]] = []
        for prompt, result in zip(burst, results, strict=True):
            if isinstance(result, RequestFailed):
                failures.append((prompt, result))
            elif isinstance(result, BaseException):
                raise result
            else:
                self._record(prompt, result, burst=len(burst))
        if failures:
            prompt, failure = failures[0]
            among = f"in a burst of {len(burst)}" if len(burst) > 1 else "alone"
            raise CheckError(f"failed completions: {len(failures)}, {among}; prompt {prompt}: {failure}")

    def _record(self, prompt: int, answer: Answer, *, burst: int) -> None:
        self.ledger.add(prompt, answer.completion, burst=burst)
        if answer.fingerprint is not None:
            self.fingerprints.add(answer.fingerprint)
        self._on_completion()
