"""A margin is by how much a choice was made, and so what drift must outweigh to change it."""

import math

import pytest
import torch

from llm42.protocol import Selection
from llm42.sampling import choose, choose_each, greedy_margins, race_margins
from llm42.sampling.noise import gumbel, noise_bits, noise_keys

VOCABULARY = 3000
LOGITS = torch.randn(40, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3


def scores(row: torch.Tensor, selection: Selection, position: int) -> torch.Tensor:
    """fp64, in logits: what the race is about."""
    bits = noise_bits(noise_keys(selection.seed, position + 1, 1), torch.arange(VOCABULARY, dtype=torch.int32))
    return (row.double() + selection.temperature * gumbel(bits)).squeeze(0)


def test_greedy_margins_are_the_gap_to_the_second() -> None:
    best, second = LOGITS.sort(dim=-1, descending=True).values[:, :2].unbind(dim=-1)
    assert torch.equal(greedy_margins(LOGITS), best - second)
    tie = LOGITS.clone()
    tie[:, 7] = tie[:, 9] = 100.0
    assert greedy_margins(tie).tolist() == [0.0] * len(tie)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_a_race_is_won_by_the_gap_to_the_next(temperature: float) -> None:
    selection = Selection(temperature, seed=5)
    for position, row in enumerate(LOGITS.split(1)):
        token, _ = choose(row, selection, position)
        best, second = scores(row, selection, position).sort(descending=True)[0][:2]
        assert float(race_margins(row, [selection], [position], token)) == pytest.approx(float(best - second), abs=1e-4)


@pytest.mark.parametrize("cut", [{"top_k": 5}, {"min_p": 0.1}, {"top_p": 0.5}])
def test_what_a_cut_off_keeps_out_does_not_win(cut: dict[str, float]) -> None:
    selection = Selection(1.5, seed=5, **cut)  # type: ignore[arg-type]
    kept_out = 0
    for position, row in enumerate(LOGITS.split(1)):
        token, _ = choose(row, selection, position)
        race = scores(row, selection, position)
        kept_out += int(race.argmax()) != int(token)
        below = race[race < race[token]].max()
        assert float(race_margins(row, [selection], [position], token)) == pytest.approx(
            float(race[token] - below), abs=1e-4
        )
    assert kept_out, "else nothing was tried"


def test_drift_below_the_margin_changes_no_choice_and_above_it_does() -> None:
    selection = Selection(0.8, seed=3)
    for position, row in enumerate(LOGITS.split(1)):
        token, _ = choose(row, selection, position)
        margin = float(race_margins(row, [selection], [position], token))
        for share, same in ((0.98, True), (1.02, False)):
            drifted = row.clone()
            drifted[0, token] -= share * margin
            assert (int(choose(drifted, selection, position)[0]) == int(token)) is same


def test_a_row_without_a_valid_choice_has_no_margin() -> None:
    broken = LOGITS[:1].clone()
    broken[0, 3] = math.nan
    margin = float(race_margins(broken, [Selection(1.0, seed=1)], [0], torch.tensor([3])))
    assert not 0 <= margin < math.inf
    assert not 0 <= float(greedy_margins(broken)) < math.inf


@pytest.mark.parametrize("cut", [{}, {"top_k": 5}, {"min_p": 0.1}, {"top_p": 0.5}])
def test_rows_of_many_requests_are_worked_on_together_and_know_nothing_of_each_other(cut: dict[str, float]) -> None:
    selections = [Selection(1.5, seed=seed * 7919, **cut) for seed in range(len(LOGITS))]  # type: ignore[arg-type]
    positions = [position * 31 % 997 for position in range(len(LOGITS))]
    tokens = choose_each(LOGITS, selections, positions)
    margins = race_margins(LOGITS, selections, positions, tokens)
    for i, row in enumerate(LOGITS.split(1)):
        assert torch.equal(choose(row, selections[i], positions[i])[0], tokens[i : i + 1])
        assert torch.equal(
            race_margins(row, selections[i : i + 1], positions[i : i + 1], tokens[i : i + 1]), margins[i : i + 1]
        )
    assert not torch.equal(choose_each(LOGITS, selections, positions[::-1]), tokens), "else positions would not matter"
    assert not torch.equal(choose_each(LOGITS, selections[::-1], positions), tokens), "nor seeds"
