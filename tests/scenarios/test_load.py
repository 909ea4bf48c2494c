"""Load and batch: what else is going on must not show.

The ordinary path drifts because attention on a CPU splits the context of a few sequences over idle threads, and of
many not at all. So a quiet server answers otherwise than a busy one, and busy ones agree.
"""

import random
from dataclasses import replace

import pytest

from tests.e2e.client import random_prompt
from tests.e2e.cluster import Cluster
from tests.scenarios.ask import Request, Sides, request
from tests.scenarios.conditions import among, copies, fresh_prompt, repeated, together

GREEDY = [request(*which) for which in ((2, 150), (20, 150), (16, 150), (0, 250), (24, 250), (38, 250))]
"""Long enough for the split to show, and among the random prompts some that it soon leads astray."""
SEEDED = [request(*which) for which in ((1, 150), (3, 33), (5, 250), (7, 180))]
REQUESTS = [*GREEDY[1::2], *SEEDED]
ROLLBACKS = "ray_llm42_rollbacks_total"

pytestmark = pytest.mark.timeout(900)


def long_prefill() -> Request:
    """Nothing but a prefill."""
    return Request(fresh_prompt(600), max_tokens=1)


def long_prompt() -> Request:
    return Request(fresh_prompt(random.randint(100, 500)), max_tokens=random.choice((1, 8)))


def passer_by() -> Request:
    return Request(fresh_prompt(random.choice((3, 40, 170))), max_tokens=random.choice((6, 20)))


async def test_five_identical_runs_differ_in_logprobs(sides: Sides) -> None:
    """vllm#51187: five identical runs, three outputs; logprobs differ though tokens agree.

    No control: the ordinary path repeats itself here as long as the batch does.
    """
    await sides.contrast(REQUESTS[:2], repeated(4), control=None)


@pytest.mark.parametrize("size", [2, 6])
async def test_logprobs_differ_between_batch_sizes(sides: Sides, size: int) -> None:
    """vllm#51187 again: one at a time, two, six."""
    await sides.contrast(REQUESTS, together(size), control="bits")


async def test_a_burst_flips_greedy_tokens(sides: Sides) -> None:
    """vllm#47069: under a burst, greedy tokens are others than on a quiet server."""
    await sides.contrast(GREEDY, together(len(GREEDY), stream=True), control="tokens")


async def test_an_unrelated_prefill_changes_the_answer(sides: Sides) -> None:
    """vllm#51902: another request's long prefill in the same step changes how attention is cut.

    No control: a CPU goes on splitting the context of the one sequence that decodes, whatever is prefilled beside
    it. What decodes after its prefill does disturb it: test_a_needle_among_random_long_prompts.
    """
    await sides.contrast(REQUESTS[:3], among(2, long_prefill), control=None)


async def test_greedy_output_differs_each_run(sides: Sides) -> None:
    """vllm#11658: temperature 0, and another answer each time: here among passers-by that come and go."""
    await sides.contrast(REQUESTS[:3], among(3, passer_by), control="bits")


async def test_copies_of_one_prompt_differ(sides: Sides) -> None:
    """batch_invariant_ops: 1,000 completions of one prompt, 18 to 80 different ones. All 1,000: `make thousand`."""
    await sides.contrast(REQUESTS[:2], copies(5), control="bits")


async def test_traffic_with_a_shared_prefix_differs(sides: Sides) -> None:
    """SGLang's modes single, mixed and prefix: prompts that share beginnings of several lengths, all at once."""
    common, sharing = random_prompt(40, 256), []
    for number, shared in enumerate((20, 127, 160, 256), 40):
        own = request(number, 30)
        sharing.append(replace(own, prompt=(*common[:shared], *own.prompt)))
    await sides.contrast(sharing, together(4), control="bits")


async def test_a_streamed_answer_differs_from_a_whole_one(sides: Sides) -> None:
    """No control: a stream is computed as the rest is, and differs only where chunks are put together wrongly."""
    await sides.contrast(REQUESTS[:3], together(1, stream=True), control=None)


async def test_long_samples_diverge_late(sides: Sides) -> None:
    """batch_invariant_ops#6: two samples of one prompt diverge somewhere within 4,096 tokens."""
    await sides.contrast([request(60, 100, 200), request(61, 100, 200)], together(2), control="bits")


@pytest.mark.slow
async def test_very_long_samples_diverge_late(sides: Sides) -> None:
    """The same up to the end of the context."""
    long = [request(number, 30, 960) for number in range(70, 76)]
    await sides.contrast(long, together(3), control="tokens")


async def test_a_needle_among_random_long_prompts(sides: Sides) -> None:
    """One prompt alone, and then somewhere among long random ones."""
    await sides.contrast(REQUESTS[:2], among(8, long_prompt), control="bits")


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_needle_among_64_random_long_prompts(sides: Sides) -> None:
    """The same, five trials for each of six needles."""
    for _ in range(5):
        await sides.contrast(REQUESTS, among(64, long_prompt), control="bits")


async def test_drafts_were_wrong_and_nobody_saw_it(cluster: Cluster) -> None:
    """Where nothing was ever rolled back, the tests before this one had no need of a verifier."""
    print(f"rollbacks: {await cluster.until_metric(ROLLBACKS, more_than=0):.0f}")
