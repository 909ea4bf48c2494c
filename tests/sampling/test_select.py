"""Greedy selection: the definition, spelled out slot by slot."""

import math

import pytest
import torch

from llm42.sampling import select


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_definition(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 1000, generator=generator).to(dtype)
    before = logits.clone()
    chosen = select(logits)
    assert torch.equal(logits, before), "the caller's logits are left alone"
    wide = logits.float()
    for slot, row in enumerate(wide.tolist()):
        assert chosen.tokens[slot] == row.index(max(row))
        assert chosen.ranks[slot] == sum(value >= max(row) for value in row)
        exact = max(row) - math.log(math.fsum(math.exp(value) for value in row))
        assert chosen.logprobs[slot].item() == pytest.approx(exact, abs=1e-5)
    assert torch.equal(chosen.logprobs, wide.log_softmax(-1)[range(8), chosen.tokens])
    assert chosen.valid.all()
    assert (chosen.logprobs.dtype, chosen.tokens.dtype) == (torch.float32, torch.int64)


def test_ties_go_to_the_lowest_id_and_share_a_rank() -> None:
    logits = torch.zeros(2, 5000)
    logits[0, [77, 4000, 12]] = 3.0
    chosen = select(logits)
    assert chosen.tokens.tolist() == [12, 0]
    assert chosen.ranks.tolist() == [3, 5000]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 500, 999])
def test_poison_makes_only_its_row_invalid(poison: float, at: int) -> None:
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    clean = select(logits)
    logits[1, at] = poison
    chosen = select(logits)
    assert chosen.valid.tolist() == [True, False, True]
    for slot in (0, 2):
        assert [field[slot] for field in chosen] == [field[slot] for field in clean]


def test_minus_infinity_is_a_ban_until_it_is_all() -> None:
    logits = torch.full((2, 100), -math.inf)
    logits[0, 42] = -5.0
    chosen = select(logits)
    assert chosen.valid.tolist() == [True, False]
    assert (chosen.tokens[0], chosen.logprobs[0], chosen.ranks[0]) == (42, 0.0, 1)
