"""Eight prompts in one request: eight sessions that call other actors at once, in one HTTP request's context."""

import asyncio

import pytest

from tests.e2e.client import Client, random_prompt

PROMPTS = [random_prompt(seed, 5 + 9 * seed) for seed in range(8)]
MAX_TOKENS = 20
HANGS_S = 120.0


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
async def test_nested_calls_of_one_request_do_not_hang(client: Client, deterministic: bool) -> None:
    async with asyncio.timeout(HANGS_S):
        choices = await client.complete_all(PROMPTS, MAX_TOKENS, is_deterministic=deterministic)
        streamed = await client.complete_all(PROMPTS, MAX_TOKENS, is_deterministic=deterministic, stream=True)
    for answers in (choices, streamed):
        assert [len(answer.token_ids) for answer in answers] == [MAX_TOKENS] * len(PROMPTS)
        assert {answer.finish_reason for answer in answers} == {"length"}
    if deterministic:
        alone = [await client.complete(prompt, MAX_TOKENS) for prompt in PROMPTS]
        for answers in (choices, streamed):
            assert [(answer.token_ids, answer.logprobs) for answer in answers] == [
                (answer.token_ids, answer.logprobs) for answer in alone
            ]
