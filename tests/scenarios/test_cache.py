"""Prefix cache, chunks and turns: what was computed before, and by whom, must not show."""

from collections.abc import Sequence

import pytest

from tests.e2e.client import Answer
from tests.scenarios.ask import Request, Side, Sides, request
from tests.scenarios.conditions import fresh_prompt, repeated

pytestmark = pytest.mark.timeout(900)

CUTS = (1, 7, 14, 30)
"""Tokens of the answer that are sent back as part of the prompt."""


async def turns(side: Side, asked: Sequence[Request]) -> list[list[Answer]]:
    """Each answer put together from its own beginning, sent as prompt, and what is then said."""
    return [[await turn(side, request, cut) for cut in CUTS] for request in asked]


async def turn(side: Side, request: Request, cut: int) -> Answer:
    whole = await side.alone(request)
    rest = await side.ask(Request(request.prompt + whole.token_ids[:cut], request.max_tokens - cut, request.seed))
    return Answer(
        token_ids=whole.token_ids[:cut] + rest.token_ids,
        logprobs=whole.logprobs[: 4 * cut] + rest.logprobs,
        # The first piece of text after a cut depends on how the tokenizer joins it: only bits are compared.
        text=whole.text,
        finish_reason=rest.finish_reason,
        stop_reason=rest.stop_reason,
        usage=whole.usage,
    )


async def test_first_request_differs_from_repeats(sides: Sides) -> None:
    """vllm#40896: the first answer (cold cache) is another than all later ones (hot).

    No control: a prefill on this CPU is rounded alike, whether or not its beginning comes from the cache.
    """
    await sides.contrast(
        [request(100, 300), request(101, 300), request(102, 170), request(103, 31)], repeated(2), control=None
    )


async def test_answer_varies_with_prefix_cache(sides: Sides) -> None:
    """vllm#23138, vllm#54490, sglang#34683: hits of several depths, in a prompt that others have begun.

    And the logprobs of an answer, against those after the same tokens as a prompt; seeded choices too. Cuts beside
    window boundaries: tests/e2e/test_turns.py.
    """
    await sides.contrast([request(110, 300), request(111, 140), request(112, 33)], turns, control="bits")


@pytest.mark.slow
async def test_evicted_cache_changes_the_answer(sides: Sides) -> None:
    """LMCache: offloaded or recomputed KV differs. Here more prompts than both caches hold, and then the first again.

    No control, for the reason above.
    """
    asked = [request(130, 300), request(131, 300), request(132, 170)]

    async def after_eviction(side: Side, asked: Sequence[Request]) -> list[list[Answer]]:
        for _ in range(24):
            await side.ask(Request(fresh_prompt(900), max_tokens=1))
        return [[await side.ask(request)] for request in asked]

    await sides.contrast(asked, after_eviction, control=None)
