"""Seeds: what was drawn can be drawn again, on every endpoint, in every bit, and by whoever reads the response."""

import dataclasses
from collections.abc import Sequence

import pytest

from tests.e2e.client import random_prompt
from tests.scenarios.ask import SAMPLING, Request, Sides, request
from tests.scenarios.conditions import together

COMPLETION = Request(tuple(random_prompt(201, 33)), seed=4)
CHAT = Request("Tell me about the sea.", max_tokens=32, seed=4)
UNSEEDED = {name: value for name, value in SAMPLING.items() if name != "min_p"}

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("one", [COMPLETION, CHAT], ids=["completions", "chat"])
async def test_seed_is_ignored_on_the_openai_endpoints(sides: Sides, one: Request) -> None:
    """sglang#15481, sglang#15746: the seed does nothing, or is not accepted, at /v1/completions and /v1/chat."""
    await sides.contrast([one], together(1, stream=True), control=None)
    others = [dataclasses.replace(one, seed=seed) for seed in (0, 5, -3, 2**63 - 1)]
    answers = [await sides.deterministic.alone(other) for other in (one, *others)]
    assert len({answer.token_ids for answer in answers}) == len(answers)


async def test_logprobs_vary_with_a_fixed_seed(sides: Sides) -> None:
    """vllm#9841: with a fixed seed the tokens are the same, and their logprobs are not."""
    seeded = [request(number, length) for number, length in ((211, 33), (213, 150), (215, 180), (217, 250))]
    await sides.contrast(seeded, together(4), control="bits")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_seed_and_fingerprint_do_not_come_back(sides: Sides, stream: bool) -> None:
    """openresponses#59: whoever sent no seed wants to know the one that was drawn, and who computed the answer."""
    side = sides.deterministic
    for one in (COMPLETION, CHAT):
        [answer], statement = await side.send(one, stream=stream, **UNSEEDED)
        assert statement.fingerprint
        seed = statement.determinism["seed"]
        [repeat], again = await side.send(one, seed=seed, **UNSEEDED, expected_fingerprint=statement.fingerprint)
        assert (repeat, again) == (answer, statement)


async def test_requests_without_a_seed_are_all_alike(sides: Sides) -> None:
    """The reverse fault: a fixed seed for everybody. Two that sent none differ, and each says its own."""
    drawn = [await sides.deterministic.send(COMPLETION, **UNSEEDED) for _ in range(3)]
    assert len({statement.determinism["seed"] for _, statement in drawn}) == 3
    assert len({answer.token_ids for [answer], _ in drawn}) == 3


async def test_n_answers_share_one_seed(sides: Sides) -> None:
    """vllm#11204: what n answers are drawn from. Here choice i is the answer to n = 1 with seed + i.

    Streamed; a whole one: tests/e2e/test_what_an_answer_says.py.
    """
    side, n = sides.deterministic, 3
    choices, _ = await side.send(COMPLETION, stream=True, **COMPLETION.fields, n=n)
    singles = [await side.alone(dataclasses.replace(COMPLETION, seed=4 + index)) for index in range(n)]
    assert [dataclasses.replace(choice, usage=None) for choice in choices] == [
        dataclasses.replace(single, usage=None) for single in singles
    ]
    assert len({choice.token_ids for choice in choices}) == n


async def test_sampling_differs_from_greedy_only_by_name(sides: Sides) -> None:
    """A seed that is accepted and does nothing: what is drawn must differ from what is most likely."""
    asked: Sequence[Request] = (COMPLETION, dataclasses.replace(COMPLETION, seed=None))
    drawn, greedy = [await sides.deterministic.alone(one) for one in asked]
    assert drawn.token_ids != greedy.token_ids
