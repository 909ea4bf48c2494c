"""Other families than the test model's: the same promise, through the audit, load and every drafter.

A mixture of experts is the one whose kernels work by the batch: how many tokens an expert got is a fact about all of
a pass. What would follow from that is planted here, and must be found.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import torch

from llm42.models import tiny_model
from llm42.verifier.audit.report import AuditFailed, Property
from llm42.verifier.audit.run import audit
from llm42.verifier.engine import ReplayEngine
from tests.test_drafter_independence import PROMPTS, adversary, at_random, constant, generate, generate_all, verifier
from tests.verifier.planted import STEP, in_worker

LENGTH = 40
EXPERTS = ("olmoe", "float32")

pytestmark = [pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[ReplayEngine]:
    """Of a family and a dtype; audited before it is there."""
    family, dtype = request.param
    async with verifier(str(tiny_model(family=family)), 32, 4, dtype) as engine:
        yield engine


@pytest.mark.parametrize(
    "engine",
    [
        EXPERTS,
        pytest.param(("olmoe", "bfloat16"), marks=pytest.mark.slow),
        pytest.param(("qwen3", "float32"), marks=pytest.mark.slow),
        pytest.param(("qwen3", "bfloat16"), marks=pytest.mark.slow),
    ],
    ids="-".join,
    indirect=True,
)
async def test_the_same_bits_from_every_drafter_and_in_every_crowd(engine: ReplayEngine) -> None:
    assert engine.audit.properties == tuple(Property)
    alone = [await generate(engine, LENGTH, prompt, None) for prompt in PROMPTS]
    canonical, _ = await generate_all(engine, LENGTH, [None] * 4)
    assert canonical == [output for output, _ in alone]
    assert len({output.tokens for output in canonical}) == len(canonical)
    adversaries = [adversary(prompt, output, 32) for prompt, output in zip(PROMPTS, canonical, strict=True)]
    for drafters in ([constant, at_random, None, adversaries[3]], adversaries):
        outputs, stats = await generate_all(engine, LENGTH, drafters)
        assert outputs == canonical
        assert sum(each.rollbacks for each in stats) > 0


def plant_expert_load(worker: Any) -> None:
    """An expert with more than half of the tokens of a pass computes a bit otherwise, as one with a capacity does."""

    def hook(moe: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        logits, _ = moe.gate(inputs[0].view(-1, inputs[0].shape[-1]))
        chosen = logits.topk(2, dim=-1).indices
        most = torch.bincount(chosen.flatten(), minlength=logits.shape[-1]).max()
        return output * (1 + STEP) if 2 * most > len(logits) else output

    worker.planted = worker.model_runner.model.model.layers[1].mlp.register_forward_hook(hook)


@pytest.mark.parametrize("engine", [EXPERTS], ids="-".join, indirect=True)
async def test_experts_that_follow_their_load_are_found(engine: ReplayEngine) -> None:
    """Last: what is in the cache is the audit's from then on."""
    in_worker(engine, plant_expert_load)
    with pytest.raises(AuditFailed) as failed:
        audit(engine._model)
    in_worker(engine, lambda worker: worker.planted.remove())
    print(failed.value)
    assert {failure.violated for failure in failed.value.failures} & {Property.ROW, Property.TAIL}
