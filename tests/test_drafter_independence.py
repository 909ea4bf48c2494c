"""drafter_independence: whoever drafts, and however badly, the verifier's output is the same to the bit.

The real session against the real replay engine, in this process; only the transport between them is left out.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from llm42.config import Config
from llm42.protocol import (
    Commit,
    ReplayGrid,
    ReplayRequest,
    Session,
    SessionStats,
    StartDraft,
    StopDraft,
    StopRules,
    Verify,
    VerifyCadence,
)
from llm42.verifier.engine import ReplayEngine

VOCABULARY = 49152
PROMPTS = [[random.Random(seed).randrange(3, VOCABULARY) for _ in range(length)] for seed, length in enumerate((5, 31, 32, 60))]
MAX_TOKENS = 40

pytestmark = pytest.mark.timeout(400)

Drafter = Callable[[Sequence[int], int], list[int]]
"""From all tokens so far and a number, so many tokens that might follow."""


@dataclass(frozen=True)
class Output:
    tokens: tuple[int, ...]
    logprobs: bytes
    """fp32 bits."""


async def generate(
    engine: ReplayEngine, prompt: list[int], drafter: Drafter | None, seed: int = 0
) -> tuple[Output, SessionStats]:
    """One request. ``seed`` draws the order in which drafts and replies arrive."""
    rng = random.Random(seed)
    cadence = VerifyCadence(ReplayGrid(engine.shape.window), eager=8)
    session = Session(prompt, StopRules(MAX_TOKENS), cadence, run_ahead=4 * engine.shape.window)
    tokens: list[int] = []
    logprobs = b""
    drafts: dict[int, list[int]] = {}
    call: Verify | None = None
    actions = session.start()
    if drafter is None:
        actions += session.draft_lost(1)
    while not session.finished or actions:
        for action in actions:
            match action:
                case StartDraft():
                    assert drafter is not None or action.stream == 1
                    drafts[action.stream] = [] if drafter is None else drafter(action.tokens, action.max_tokens)
                case StopDraft(stream=stream):
                    del drafts[stream]
                case Verify():
                    call = action
                case Commit():
                    tokens += action.tokens
                    logprobs += action.logprobs
        if session.finished:
            break
        waiting = {stream: rest for stream, rest in drafts.items() if rest}
        if waiting and (call is None or rng.random() < 0.7):
            (stream, rest), *_ = waiting.items()
            count = rng.randint(1, 12)
            now, drafts[stream] = rest[:count], rest[count:]
            actions = session.drafted(stream, now)
        else:
            assert call is not None, "neither a draft nor a verify is under way"
            asked, call = call, None
            reply = await engine.replay(ReplayRequest("test", asked.tokens, asked.start))
            actions = session.verified(asked.call, reply)
    return Output(tuple(tokens), logprobs), session.stats
