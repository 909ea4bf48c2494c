"""Seeded choices follow softmax, cut off where the selection says."""

import numpy as np
import pytest
import torch

from llm42.protocol import Selection
from llm42.sampling import select
from llm42.sampling.cutoffs import Candidates
from llm42.sampling.noise import noise_keys
from llm42.sampling.race import race
from tests.sampling import reference
from tests.sampling.statistics import chi_squared

DRAWS = 40_000
KS_999 = 1.949
LOGITS = torch.linspace(2.0, -1.5, 36)[torch.randperm(36, generator=torch.Generator().manual_seed(1))]
# temperature, top_p, top_k, min_p
SELECTIONS = [
    (1.0, 1.0, 0, 0.0),
    (0.5, 1.0, 0, 0.0),
    (0.8, 0.95, 0, 0.0),
    (2.0, 0.6, 0, 0.0),
    (0.8, 1.0, 10, 0.0),
    (1.3, 1.0, 0, 0.2),
    (0.8, 0.9, 20, 0.05),
]


def draws(selection: Selection, count: int = DRAWS) -> np.ndarray:
    """At consecutive positions."""
    return select(LOGITS.expand(count, -1), selection, 1000).tokens.numpy()


def probabilities(selection: Selection) -> np.ndarray:
    gaps = (LOGITS.max() - LOGITS).double().numpy() / selection.temperature
    kept = reference.kept(gaps.tolist(), selection)
    expected = np.zeros(len(LOGITS))
    expected[kept] = np.exp(-gaps[kept])
    return expected / expected.sum()


@pytest.mark.parametrize("parameters", SELECTIONS, ids=str)
def test_chi_squared(parameters: tuple[float, float, int, float]) -> None:
    selection = Selection(*parameters, seed=42)
    counts = np.bincount(draws(selection), minlength=len(LOGITS))
    expected = probabilities(selection) * DRAWS
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    tail = kept & (expected < 20)  # too rare, one by one, for the test
    bins = kept & ~tail
    seen, wanted = counts[bins], expected[bins]
    if tail.any():
        seen, wanted = np.append(seen, counts[tail].sum()), np.append(wanted, expected[tail].sum())
    assert chi_squared(seen, wanted) < 1


@pytest.mark.parametrize("parameters", SELECTIONS, ids=str)
def test_kolmogorov_smirnov(parameters: tuple[float, float, int, float]) -> None:
    """Of the place that each choice has among the tokens, best first; conservative, since places are discrete."""
    selection = Selection(*parameters, seed=43)
    order = np.argsort(-LOGITS.numpy())
    place = np.argsort(order)[draws(selection)]
    cumulative = probabilities(selection)[order].cumsum()
    seen = np.bincount(place, minlength=len(LOGITS)).cumsum() / DRAWS
    assert np.abs(seen - cumulative).max() * np.sqrt(DRAWS) < KS_999


def test_these_tests_see_a_temperature_that_is_slightly_off() -> None:
    counts = np.bincount(draws(Selection(1.0, seed=42)), minlength=len(LOGITS))
    assert chi_squared(counts, probabilities(Selection(1.0)) * DRAWS) < 1
    assert chi_squared(counts, probabilities(Selection(1.05)) * DRAWS) > 1


def test_seeds_are_independent_draws() -> None:
    """One position, consecutive seeds; and what two neighbouring seeds choose, together."""
    count = 20_000
    gaps = torch.linspace(0, 1.5, 6)
    keys = torch.cat([noise_keys(seed, 9, 1) for seed in range(count)])
    won = race(Candidates(torch.arange(6, dtype=torch.int32), gaps.expand(count, -1)), keys)
    tokens = won.ids.squeeze(-1).numpy()
    expected = gaps.neg().softmax(0).numpy()
    assert chi_squared(np.bincount(tokens, minlength=6), expected * count) < 1
    pairs = np.bincount(tokens[:-1] * 6 + tokens[1:], minlength=36)
    assert chi_squared(pairs, np.outer(expected, expected).ravel() * (count - 1)) < 1
