"""LoRA adapters in a replay: each row has its own, whatever its neighbours have. Full logits, as bits.

``drawl`` is on every linear layer; ``lisp`` is narrower, and on the LM head too. In bfloat16, which takes a CPU five
times as long, they are met by default over HTTP only: ``tests/e2e/test_adapters.py``.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from llm42.adapters import adapters_of
from llm42.config import Config
from llm42.internals.adapters import SlotAdapters
from llm42.models.tiny import tiny_adapter
from llm42.protocol.errors import FingerprintMismatch
from llm42.protocol.messages import Question, ReplayRequest, pack_tokens
from llm42.verifier.audit.report import AuditFailed, Property
from llm42.verifier.audit.run import audit
from llm42.verifier.engine import ReplayEngine
from llm42.verifier.fingerprint import differences
from tests.verifier import planted as faults
from tests.verifier.conftest import WINDOW, verifier_config
from tests.verifier.lab import Lab, evict_all, keep, probe, random_tokens

PROMPT = random_tokens(2 * WINDOW + 20, seed=21)
ANOTHER = random_tokens(2 * WINDOW + 20, seed=22)


def config(dtype: str, drawl: Path) -> Config:
    lisp = tiny_adapter(seed=2, rank=4, modules=("self_attn.v_proj", "lm_head"))
    return verifier_config(dtype).model_copy(update={"adapters": {"lisp": str(lisp), "drawl": str(drawl)}})


def digests(config: Config) -> dict[str, str]:
    return {adapter.name: adapter.digest for adapter in adapters_of(config)}


@pytest.fixture(scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, tiny_path: str) -> ReplayEngine:
    return keep(ReplayEngine(config(request.param, tiny_adapter(seed=1)), tiny_path))


def test_each_has_bits_of_its_own(lab: Lab) -> None:
    plain, drawl, lisp = (lab.logits(PROMPT, adapter) for adapter in ("", "drawl", "lisp"))
    for one, other in ((plain, drawl), (plain, lisp), (drawl, lisp)):
        assert all(a != b for a, b in zip(one, other, strict=True))
    assert lab.logits(PROMPT, "drawl") == drawl


def test_neighbours_with_other_adapters(lab: Lab) -> None:
    """Alone in a pass, a row meets padding only; here it meets the same text, and another, with everything else on."""
    alone = {adapter: lab.logits(PROMPT, adapter) for adapter in ("", "drawl", "lisp")}
    rows = {adapter: (lab.prefilled(PROMPT, adapter=adapter), 2) for adapter in alone}
    other = (lab.neighbour(ANOTHER, adapter="drawl"), 2)
    orders = (["", "drawl", "lisp"], ["lisp", "", "drawl"], ["drawl", "lisp", ""])
    for order in orders:
        found = lab.run(*(rows[adapter] for adapter in order), other)
        for adapter, logits in zip(order, found, strict=False):
            assert logits[: len(alone[adapter])] == alone[adapter], (order, adapter)


def test_the_prefix_belongs_to_its_adapter(lab: Lab) -> None:
    """Control: on the pages of another one, the same text says something else."""
    drawl, plain = lab.prefilled(PROMPT, adapter="drawl"), lab.prefilled(PROMPT)
    assert plain.table is not None
    plain.question = drawl.question
    right, wrong = lab.run((drawl, 2), (plain, 2))
    assert right != wrong


@pytest.mark.asyncio(loop_scope="module")
async def test_hot_and_cold_and_never_the_pages_of_another(engine: ReplayEngine) -> None:
    tokens = pack_tokens(PROMPT)

    async def ask(adapter: str, *, fresh: bool = False) -> Any:
        return (await engine.replay(ReplayRequest("test", Question(tokens, 64, adapter=adapter), fresh=fresh))).scores

    cold = {}
    for adapter in ("drawl", "", "lisp"):
        hits = engine._scheduler.hits
        cold[adapter] = await ask(adapter)
        assert engine._scheduler.hits == hits, "it has met pages of another adapter"
        assert await ask(adapter) == cold[adapter]
        assert engine._scheduler.hits == hits + 2
        assert await ask(adapter, fresh=True) == cold[adapter]
    assert len({scores.logprobs for scores in cold.values()}) == 3
    with pytest.raises(FingerprintMismatch, match="no adapter 'slang'"):  # another deploy may have it
        await ask("slang")


@pytest.mark.asyncio(loop_scope="module")
async def test_single_slots_of_every_adapter_share_the_lm_head(engine: ReplayEngine) -> None:
    """One adapter has a part for the LM head; as many changes of adapter as a pass has rows, and the last is not the
    first."""
    texts = [random_tokens(40, seed=seed) for seed in range(30, 34)]

    async def ask(adapter: str, tokens: list[int]) -> Any:
        question = Question(pack_tokens(tokens), len(tokens) - 1, adapter=adapter)
        return (await engine.replay(ReplayRequest("test", question))).scores

    worn = ("lisp", "", "lisp", "drawl")
    alone = [await ask(adapter, tokens) for adapter, tokens in zip(worn, texts, strict=True)]
    assert await asyncio.gather(*map(ask, worn, texts)) == alone
    assert (await ask("", texts[0])).logprobs != alone[0].logprobs


def test_start_up_audit_and_fingerprint(engine: ReplayEngine) -> None:
    assert engine.audit.properties == tuple(Property)
    assert list(engine.parts["adapters"]) == ["drawl", "lisp"]
    assert probe(engine) == engine.parts["probe"]


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
def test_a_row_with_its_neighbour_s_adapter(engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    wear = SlotAdapters.wear

    def planted(self: SlotAdapters, names: Any) -> None:
        wear(self, [*names[WINDOW:], *names[:WINDOW]])

    with monkeypatch.context() as patch:
        patch.setattr(SlotAdapters, "wear", planted)
        with pytest.raises(AuditFailed) as failed:
            audit(engine._model)
    assert {failure.violated for failure in failed.value.failures} == {Property.ROW}
    evict_all(engine)


def test_one_bit_of_an_adapter_flipped_on_disk(engine: ReplayEngine, tmp_path: Path) -> None:
    flipped = tmp_path / "flipped"
    shutil.copytree(tiny_adapter(seed=1), flipped)
    weights = bytearray((flipped / "adapter_model.safetensors").read_bytes())
    weights[-1] ^= 1  # an exponent bit of the last value
    (flipped / "adapter_model.safetensors").write_bytes(weights)
    loaded, other = (digests(config("float32", drawl)) for drawl in (tiny_adapter(seed=1), flipped))
    assert engine.parts["adapters"] == loaded
    assert differences(loaded, other).keys() == {"drawl"}


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
def test_one_bit_of_an_adapter_flipped_in_memory(engine: ReplayEngine) -> None:
    """The probe sees it: it is made with each adapter."""

    @torch.inference_mode()
    def flip(worker: Any) -> None:
        manager = worker.model_runner.lora_manager._adapter_manager
        [weight] = manager.modules["model.layers.1.mlp.down_proj"].lora_b_stacked
        weight.view(torch.int32)[0, 0, 0, 0] ^= 1 << 23  # the lowest exponent bit of one value of the first

    for same in (False, True):
        faults.in_worker(engine, flip)
        assert (probe(engine) == engine.parts["probe"]) is same
