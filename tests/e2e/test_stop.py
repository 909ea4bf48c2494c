"""What ends a request: the number of tokens, a token, a string. Streamed and not, the same to the bit."""

import asyncio

import pytest

from tests.e2e.client import Answer, Client, random_prompt
from tests.e2e.conftest import TINY

CONTEXT = TINY["max_model_len"]
COUNTS = (1, 2, 31, 32, 33, 64, 65)
EOS = 2
"""The test model's end of sequence; it never comes by itself."""


async def both(client: Client, prompt: list[int], max_tokens: int, **fields: object) -> Answer:
    """The answer, streamed and not."""
    whole, streamed = await asyncio.gather(
        client.complete(prompt, max_tokens, **fields), client.complete(prompt, max_tokens, stream=True, **fields)
    )
    assert whole == streamed
    return whole


@pytest.mark.parametrize("length", [1, 31, 32, 33])
async def test_stop_at_max_tokens_around_window_boundaries(client: Client, length: int) -> None:
    prompt = random_prompt(8, length)
    longest = await client.complete(prompt, max(COUNTS))
    assert len(longest.token_ids) == max(COUNTS)
    for answer, count in zip(
        await asyncio.gather(*(client.complete(prompt, n, stream=n % 2 == 0) for n in COUNTS)), COUNTS, strict=True
    ):
        assert answer.token_ids == longest.token_ids[:count]
        assert answer.logprobs == longest.logprobs[: 4 * count]
        assert (answer.finish_reason, answer.stop_reason) == ("length", None)
        assert answer.usage == (length, count)


@pytest.mark.parametrize("length", [CONTEXT - 40, CONTEXT - 1])
async def test_stop_at_the_end_of_the_context(client: Client, length: int) -> None:
    answer = await both(client, random_prompt(9, length), CONTEXT - length)
    assert (len(answer.token_ids), answer.finish_reason) == (CONTEXT - length, "length")
    assert answer.usage == (length, CONTEXT - length)


async def test_stop_at_the_end_of_the_sequence(client: Client) -> None:
    """Its token is part of the answer, and counts only where the client does not ignore it."""
    prompt = random_prompt(11, 25)
    likely = {"logit_bias": {str(EOS): 90.0}, "min_tokens": 9}
    answer = await both(client, prompt, 40, ignore_eos=False, **likely)
    assert (len(answer.token_ids), answer.token_ids[-1]) == (10, EOS)
    assert EOS not in answer.token_ids[:-1]
    assert (answer.finish_reason, answer.stop_reason, answer.usage) == ("stop", None, (25, 10))
    longer = await both(client, prompt, 40, ignore_eos=True, **likely)
    assert longer.token_ids[:10] == answer.token_ids
    assert (len(longer.token_ids), longer.finish_reason) == (40, "length")


async def test_stop_at_a_token_id(client: Client) -> None:
    prompt = random_prompt(10, 25)
    full = await client.complete(prompt, 80)
    for at in (0, 6, 7, 38, 39, 40):  # the windows end after tokens 7 and 39
        token = full.token_ids[at]
        first = full.token_ids.index(token)
        answer = await both(client, prompt, 80, stop_token_ids=[token])
        assert answer.token_ids == full.token_ids[: first + 1]
        assert answer.logprobs == full.logprobs[: 4 * (first + 1)]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", token)
        assert answer.usage == (25, first + 1)
