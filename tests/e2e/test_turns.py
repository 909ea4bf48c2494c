"""How a transcript came about, in one go or turn by turn, does not show in what follows it."""

import asyncio

import pytest

from tests.e2e.client import Answer, Client, random_prompt
from tests.e2e.cluster import Cluster

PROMPT = random_prompt(1, 20)
LENGTH = 84
TURN = 8
PROMPTS = 4
"""Of the negative control, at most."""
CUTS = [end - len(PROMPT) for end in (21, 31, 32, 33, 50, 63, 64, 65, 95, 96, 97)]
"""Tokens of the answer that are sent back: the window boundaries, and what lies beside them."""


async def continued(client: Client, prompt: list[int], answer: Answer, cut: int) -> Answer:
    return await client.complete([*prompt, *answer.token_ids[:cut]], min(TURN, LENGTH - cut))


def differs(answer: Answer, rest: Answer, cut: int) -> bool:
    """Whether ``rest`` is anything else than ``answer`` from token ``cut`` on, as far as it goes."""
    end = cut + len(rest.token_ids)
    return rest.token_ids != answer.token_ids[cut:end] or rest.logprobs != answer.logprobs[4 * cut : 4 * end]


async def test_turns(client: Client) -> None:
    answer = await client.complete(PROMPT, LENGTH)
    rests = await asyncio.gather(*(continued(client, PROMPT, answer, cut) for cut in CUTS))
    assert [cut for cut, rest in zip(CUTS, rests, strict=True) if differs(answer, rest, cut)] == []
    # And turns on turns: each sends back all that came before.
    transcript = list(PROMPT)
    while len(transcript) < len(PROMPT) + LENGTH:
        turn = await client.complete(transcript, min(13, len(PROMPT) + LENGTH - len(transcript)))
        assert not differs(answer, turn, len(transcript) - len(PROMPT))
        transcript += turn.token_ids


async def test_turns_negative_control(cluster: Cluster) -> None:
    """The same on ordinary traffic: some turn differs. Other prompts, lest they come out of the prefix cache."""
    ordinary = Client(cluster.url, "tiny", ignore_eos=True, is_deterministic=False)
    for seed in range(PROMPTS):
        prompt = random_prompt(100 + seed, 150)
        answer = await ordinary.complete(prompt, LENGTH)
        rests = await asyncio.gather(*(continued(ordinary, prompt, answer, cut) for cut in CUTS))
        if any(differs(answer, rest, cut) for cut, rest in zip(CUTS, rests, strict=True)):
            return
    pytest.fail(f"no turn of {PROMPTS * len(CUTS)} differs")
