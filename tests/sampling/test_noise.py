"""The noise: pinned, Gumbel, and independent of its neighbours in every direction."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from llm42.sampling.elementary import ONE, log, weights
from llm42.sampling.noise import gumbel, noise_bits, noise_keys
from tests.sampling import reference
from tests.sampling.statistics import correlation, dependence, kolmogorov_smirnov

SEEDS = [0, 1, 2**32, 2**63, 2**64 - 1]


def all_bits(seeds: list[int], first: int, positions: int, tokens: int) -> np.ndarray:
    """[seeds, positions, tokens]."""
    ids = torch.arange(tokens, dtype=torch.int32)
    return torch.stack([noise_bits(noise_keys(seed, first, positions), ids) for seed in seeds]).numpy()


def test_pinned() -> None:
    """Whoever changes these changes every seeded answer ever given: raise SELECT_VERSION."""
    ids = torch.tensor([0, 1, 49151, 2**31 - 1], dtype=torch.int32)
    bits = torch.stack([noise_bits(noise_keys(seed, 7, 1), ids)[0] for seed in SEEDS])
    assert bits.tolist() == PINNED_BITS
    assert [value.hex() for value in gumbel(torch.tensor([0, 1, 2**30, 2**31 - 1])).tolist()] == PINNED_GUMBEL
    gaps = torch.tensor([0.0, 1e-6, 0.5, 1.0, 10.0, 27.7, 28.0, math.inf])
    assert weights(gaps).tolist() == PINNED_WEIGHTS


def test_is_what_the_reference_says() -> None:
    generator = np.random.default_rng(0)
    for seed in SEEDS:
        position = int(generator.integers(2**20))
        ids = torch.from_numpy(generator.integers(0, 2**18, 200, dtype=np.int32))
        bits = noise_bits(noise_keys(seed, position, 3), ids)
        for offset in range(3):
            assert bits[offset].tolist() == [reference.bits(seed, position + offset, token) for token in ids.tolist()]
            noise = [reference.gumbel(seed, position + offset, token) for token in ids.tolist()]
            assert gumbel(bits[offset]).tolist() == pytest.approx(noise, rel=1e-13, abs=1e-13)


def test_elementary_functions() -> None:
    x = torch.cat([torch.logspace(-12, 3, 4001, dtype=torch.float64), 1 - torch.logspace(-12, -1, 501).double()])
    assert log(x).tolist() == pytest.approx([math.log(value) for value in x.tolist()], rel=1e-14)
    gaps = torch.linspace(0, 20, 5001)
    assert (weights(gaps) / ONE).tolist() == pytest.approx([math.exp(-gap) for gap in gaps.tolist()], rel=3e-6)


@pytest.mark.parametrize("axis", ["seeds", "positions", "tokens"])
def test_is_gumbel_along_every_axis(axis: str) -> None:
    count = 60_000
    bits = {
        "seeds": lambda: np.array([reference.bits(seed, 5, 11) for seed in range(count)]),
        "positions": lambda: all_bits([3], 0, count, 1).ravel(),
        "tokens": lambda: all_bits([3], 5, 1, count).ravel(),
    }[axis]()
    noise = np.sort(gumbel(torch.from_numpy(bits)).numpy())
    assert kolmogorov_smirnov(noise, np.exp(-np.exp(-noise))) < 1
    assert kolmogorov_smirnov(noise, np.exp(-np.exp(-noise - 0.02))) > 1, "the test sees a shift of 0.02"
    # The largest values decide, and have only a few bits to tell them apart.
    assert abs((noise > 7).sum() - count * 9.11e-4) < 4 * math.sqrt(count * 9.11e-4)


NEIGHBOURS: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "seed + 1": lambda u: (u[:-1], u[1:]),
    "position + 1": lambda u: (u[:, :-1], u[:, 1:]),
    "token + 1": lambda u: (u[..., :-1], u[..., 1:]),
    "seed + 1, position - 1": lambda u: (u[:-1, 1:], u[1:, :-1]),
    "position + 1, token - 1": lambda u: (u[:, :-1, 1:], u[:, 1:, :-1]),
    "position + 1, token + 1": lambda u: (u[:, :-1, :-1], u[:, 1:, 1:]),
    "token + 256": lambda u: (u[..., :-256], u[..., 256:]),
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("seeds", [range(24), [1 << bit for bit in range(24)]], ids=["consecutive", "powers of two"])
def test_is_independent_of_its_neighbours(neighbour: str, seeds: list[int]) -> None:
    bits = all_bits(list(seeds), 0, 24, 1024)
    for kind, integers in (("upper bits", bits), ("lower bits", (bits << 15) & 0x7FFFFFFF)):
        left, right = NEIGHBOURS[neighbour](integers / 2**31)
        assert correlation(left, right) < 1, kind
        assert dependence(left, right) < 1, kind


def test_these_tests_see_a_careless_key() -> None:
    """Seed and position added, and added to the token, before one good hash."""
    careless = np.array(
        [
            [[reference.fmix32(seed + position + token) for token in range(300)] for position in range(8)]
            for seed in range(8)
        ]
    )
    seen = {name for name, pick in NEIGHBOURS.items() if dependence(*pick(careless / 2**32)) > 1}
    assert seen >= {"seed + 1, position - 1", "position + 1, token - 1"}


PINNED_BITS = [
    [743277364, 1894113889, 822465515, 22096696],
    [966570855, 790552724, 238336085, 1021901190],
    [158834792, 133997108, 760462543, 1733591250],
    [1024631329, 1038960520, 504378244, 660382025],
    [2011488595, 1499362507, 1597928599, 476305120],
]
PINNED_GUMBEL = ["0x1.62e42fef9b9efp+4", "0x1.51504574de9bep+4", "0x1.774f29b24c165p-2", "-0x1.8cb356b3d1af7p+1"]
PINNED_WEIGHTS = [1099511562240, 1099510448128, 666887520256, 404487766016, 49917752, 1, 0, 0]
