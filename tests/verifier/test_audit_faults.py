"""Faults planted inside the worker must be found by the audit on its own path, and named for what they are."""

from typing import Any

import pytest
import torch

from llm42.internals.replay import ReplayPass
from llm42.verifier import engine as verifier
from llm42.verifier.audit.report import AuditFailed, Property
from llm42.verifier.audit.run import audit
from llm42.verifier.engine import ReplayEngine
from llm42.verifier.fingerprint import differences
from tests.verifier import planted as faults
from tests.verifier.conftest import CONTEXT, verifier_config
from tests.verifier.lab import keep, probe

REPEATABLE, TAIL, ROW, CACHE = Property

pytestmark = pytest.mark.usefixtures("nothing_is_left_in_the_cache")


def violated(engine: ReplayEngine) -> set[Property]:
    with pytest.raises(AuditFailed) as failed:
        audit(engine._model)
    print(failed.value)
    return {failure.violated for failure in failed.value.failures}


def named(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize(
    ("op", "expected"),
    [(faults.quantised_per_tensor, {TAIL, ROW}), (faults.every_fifth_call_differs, {REPEATABLE})],
    ids=named,
)
def test_an_op(engine: ReplayEngine, op: faults.Op, expected: set[Property]) -> None:
    with faults.planted(engine, op):
        assert violated(engine) == expected
    assert probe(engine) == engine.parts["probe"], "the fault is gone again"


@pytest.mark.parametrize("engine", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (faults.by_row_index, {ROW}),
        (faults.by_last_row_only, {ROW}),
        (faults.by_other_rows, {ROW}),
        (faults.quantised_per_row, {TAIL}),
        (faults.by_next_slot, {TAIL}),
        (faults.every_call_differs, {REPEATABLE}),
    ],
    ids=named,
)
def test_one_more(engine: ReplayEngine, op: faults.Op, expected: set[Property]) -> None:
    """Those above have shown in bfloat16 too that each property is told from the others."""
    test_an_op(engine, op, expected)


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
def test_what_is_read_from_a_page_is_not_what_was_written(
    engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of windows computed side by side, the first is stored a bit wrong."""
    forward = ReplayPass.forward

    def planted(self: ReplayPass, *given: Any) -> torch.Tensor:
        hidden = forward(self, *given)
        first, second = (self.seq_lens[:2] - self.window).tolist()
        if second == first + self.window:
            faults.overwrite_page(self.runner, int(self.tables[0, first // self.block_size]))
        return hidden

    with monkeypatch.context() as patch:
        patch.setattr(ReplayPass, "forward", planted)
        assert violated(engine) == {CACHE}


def by_place(logits: torch.Tensor) -> torch.Tensor:
    return logits * (1 + faults.STEP * torch.arange(len(logits))).unsqueeze(-1).to(logits.dtype)


def by_last_place_only(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([logits[:-1], logits[-1:] * (1 + faults.STEP)])


def by_first_place_only(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([logits[:1] * (1 + faults.STEP), logits[1:]])


def by_place_before(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([logits[:1], logits[1:] + faults.STEP * logits[:-1]])


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
@pytest.mark.parametrize("op", [by_place, by_last_place_only, by_first_place_only, by_place_before], ids=named)
def test_a_head_that_knows_where_a_slot_stands(engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch, op: Any) -> None:
    """It computes slots of several rows together, wherever there is room."""
    heads = ReplayPass.heads

    def planted(self: ReplayPass, *given: Any) -> Any:
        return ((op(logits), pieces) for logits, pieces in heads(self, *given))

    with monkeypatch.context() as patch:
        patch.setattr(ReplayPass, "heads", planted)
        assert violated(engine) == {ROW}


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
def test_a_verifier_that_fails_is_never_there(engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made on a model that is loaded already."""
    forward = ReplayPass.forward

    def planted(self: ReplayPass, *given: Any) -> torch.Tensor:
        hidden = forward(self, *given)
        return hidden * (1 + 2.0**-7 * torch.arange(self.rows)).view(-1, 1, 1).to(hidden.dtype)

    with monkeypatch.context() as patch:
        patch.setattr(verifier, "ReplayModel", lambda *_, **__: engine._model)
        patch.setattr(ReplayPass, "forward", planted)
        with pytest.raises(AuditFailed, match=r"not row-independent .*row 1, slot 0 of window .*strict: true"):
            ReplayEngine(verifier_config("float32"), "loaded")


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
def test_kv_split_left_on_where_it_matters(engine: ReplayEngine, tiny_path: str) -> None:
    """vLLM's CPU attention splits the context of a single query token when threads are idle, by the load of all rows.

    So W must leave a lone token for the last tile: here W = 1.
    """
    config = verifier_config("float32").model_copy(update={"window_size": 1, "verify_batch_size": 2})
    alone = keep(ReplayEngine(config, tiny_path))
    assert ROW in alone.audit.properties
    with faults.kv_split(alone, threads=2):
        assert violated(alone) == {ROW}


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
def test_one_row_and_two_windows_in_a_block(engine: ReplayEngine, tiny_path: str) -> None:
    """Strict mode needs no row independence, and gets no use out of it: the tail still counts."""
    config = verifier_config("float32").model_copy(update={"window_size": 16, "verify_batch_size": 1})
    strict = keep(ReplayEngine(config, tiny_path))
    assert (strict.shape.block, strict.shape.context) == (32, CONTEXT)
    assert strict.audit.properties == (REPEATABLE, TAIL, CACHE)
    found = differences(engine.parts, strict.parts)
    assert found == {"window_size": (32, 16), "verify_batch_size": (4, 1), "probe": found["probe"]}
    assert strict.fingerprint != engine.fingerprint
    with faults.planted(strict, faults.by_row_index):
        assert audit(strict._model).properties == (REPEATABLE, TAIL, CACHE)
    with faults.planted(strict, faults.quantised_per_tensor):
        assert violated(strict) == {TAIL}
    with faults.planted(strict, faults.every_call_differs):
        assert violated(strict) == {REPEATABLE}
