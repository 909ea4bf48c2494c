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
    clean = select(logits, top=3)
    logits[1, at] = poison
    chosen = select(logits, top=3)
    assert chosen.valid.tolist() == [True, False, True]
    for slot in (0, 2):
        assert all(torch.equal(field[slot], unmoved[slot]) for field, unmoved in zip(chosen, clean, strict=True))


def test_minus_infinity_is_a_ban_until_it_is_all() -> None:
    logits = torch.full((2, 100), -math.inf)
    logits[0, 42] = -5.0
    chosen = select(logits)
    assert chosen.valid.tolist() == [True, False]
    assert (chosen.tokens[0], chosen.logprobs[0], chosen.ranks[0]) == (42, 0.0, 1)


def test_the_most_probable_tokens_are_named() -> None:
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(2))
    logits[0, [5, 9, 2000]] = 8.0
    chosen = select(logits, top=5)
    logprobs = logits.log_softmax(-1)
    for slot, row in enumerate(logprobs.tolist()):
        expected = sorted(range(3000), key=lambda token: (-row[token], token))[:5]
        assert chosen.top_tokens[slot].tolist() == expected
        assert torch.equal(chosen.top_logprobs[slot], logprobs[slot, expected])
    assert chosen.top_tokens[0, :3].tolist() == [5, 9, 2000], "equals stand by their ids"
    assert torch.equal(chosen.top_tokens[:, 0].long(), chosen.tokens)
    alone = [select(logits[slot : slot + 1], top=5) for slot in range(4)]
    assert torch.equal(torch.cat([one.top_tokens for one in alone]), chosen.top_tokens)
    assert torch.equal(select(logits, top=2).top_logprobs, chosen.top_logprobs[:, :2])
    assert select(logits).top_tokens.shape == (4, 0)


def test_given_tokens_are_scored_and_not_chosen() -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(3))
    logits[3, 0] = math.nan
    free, scored = select(logits), select(logits, given=torch.tensor([7, 8], dtype=torch.int32))
    assert scored.tokens.tolist() == [7, 8, *free.tokens[2:].tolist()]
    logprobs = logits.log_softmax(-1)
    assert torch.equal(scored.logprobs[:2], logprobs[[0, 1], [7, 8]])
    assert scored.ranks[:2].tolist() == [int((logits[i] >= logits[i, 7 + i]).sum()) for i in (0, 1)]
    assert scored.valid.tolist() == [True, True, True, False]
    assert torch.equal(scored.logprobs[2], free.logprobs[2])
