"""Seeded selection against its plain reference, and its purity, as bits."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from llm42.protocol import GREEDY, Selection
from llm42.sampling import Selected, select
from tests.sampling import reference

SELECTIONS = [
    Selection(1.0, seed=1),
    Selection(0.01, seed=2),
    Selection(50.0, seed=3),
    Selection(0.8, top_p=0.95, seed=4),
    Selection(1.0, top_p=0.3, seed=5),
    Selection(1.0, top_p=1e-9, seed=6),
    Selection(1.0, top_p=0.9999999, seed=7),
    Selection(1.5, top_k=1, seed=8),
    Selection(1.5, top_k=7, seed=9),
    Selection(1.5, top_k=400, seed=10),
    Selection(1.5, top_k=10**9, seed=11),
    Selection(1.0, min_p=0.02, seed=12),
    Selection(1.0, min_p=1.0, seed=13),
    Selection(0.8, top_p=0.95, top_k=50, seed=14),
    Selection(2.0, top_p=0.7, top_k=300, min_p=0.001, seed=2**64 - 1),
]


def logits_like(kind: str, rows: int, vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(vocabulary)
    noise = torch.randn(rows, vocabulary, generator=generator)
    match kind:
        case "peaked":
            return noise * 3
        case "flat":
            return noise * 0.05
        case "tied":
            return (noise * 2).round()
        case "bf16":
            return (noise * 3).bfloat16()
        case "all equal":
            return torch.full((rows, vocabulary), -7.25)
        case "mostly banned":
            return noise.masked_fill(torch.rand(rows, vocabulary, generator=generator) < 0.98, -math.inf)
    raise ValueError(kind)


KINDS = ["peaked", "flat", "tied", "bf16", "all equal", "mostly banned"]


def raw(selected: Selected, rows: slice = slice(None)) -> list[bytes]:
    return [field[rows].contiguous().view(torch.uint8).numpy().tobytes() for field in selected]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [1, 2, 97, 1500, 5000])
def test_is_the_reference(kind: str, vocabulary: int) -> None:
    """With everything that is skipped left in, and every tie in place."""
    rows = 2 if vocabulary > 1000 else 6
    logits = logits_like(kind, rows, vocabulary)
    if logits.float().amax(-1).isneginf().any():
        logits[:, 0] = 0.0
    for selection in SELECTIONS:
        chosen = select(logits, selection, 77)
        rows_32 = logits.float().numpy()
        expected = [reference.choice(row, selection, 78 + slot) for slot, row in enumerate(rows_32)]
        assert chosen.tokens.tolist() == expected, selection
        assert chosen.valid.all()


def test_ties_at_the_edge_stay_by_lowest_id() -> None:
    logits = torch.full((400, 100), -9.0)
    logits[:, [90, 60, 30, 10]] = 1.0  # four equals, of which the cut-offs leave two
    for selection in (Selection(1.0, top_k=2), Selection(1.0, top_p=0.49), Selection(1.0, top_k=4, top_p=0.5)):
        assert set(select(logits, selection).tokens.tolist()) == {10, 30}, selection
    for selection in (Selection(1.0, min_p=1.0), Selection(1.0, top_k=4), Selection(1.0, top_p=0.99)):
        assert set(select(logits, selection).tokens.tolist()) == {10, 30, 60, 90}, selection


def test_logprobs_and_ranks_are_of_the_raw_logits() -> None:
    logits = logits_like("bf16", 32, 5000)
    chosen = select(logits, Selection(1.5, top_p=0.9, min_p=1e-4, seed=3))
    wide = logits.float()
    assert torch.equal(chosen.logprobs, wide.log_softmax(-1)[range(32), chosen.tokens])
    own = wide[range(32), chosen.tokens]
    assert chosen.ranks.tolist() == [int((row >= value).sum()) for row, value in zip(wide, own, strict=True)]
    assert chosen.ranks.max() > 1, "not all of these are greedy's"


def test_position_of_the_chosen_token_keys_the_noise() -> None:
    logits = logits_like("flat", 64, 3000)
    whole = select(logits, Selection(1.0, seed=5), 100)
    for slot in (0, 1, 63):
        assert reference.choice(logits[slot].numpy(), Selection(1.0, seed=5), 101 + slot) == whole.tokens[slot]
    assert raw(select(logits[32:], Selection(1.0, seed=5), 132)) == raw(whole, slice(32, None))
    same = logits[:1].expand(64, -1)
    for other in (select(same, Selection(1.0, seed=6), 100), select(same, Selection(1.0, seed=5), 101)):
        assert (other.tokens != select(same, Selection(1.0, seed=5), 100).tokens).sum() > 60


@pytest.mark.parametrize("kind", ["peaked", "flat", "bf16"])
@pytest.mark.parametrize("vocabulary", [33, 1000, 4097, 50257])
def test_a_row_is_alone(kind: str, vocabulary: int) -> None:
    """All fields as bits: alone, in windows of any size, among strangers, and strided."""
    logits = logits_like(kind, 32, vocabulary)
    strangers = logits_like("tied", 40, vocabulary).to(logits.dtype)
    sparse = torch.stack([logits, logits.flip(0)], dim=-1)[..., 0]
    for selection in (GREEDY, SELECTIONS[0], SELECTIONS[3], SELECTIONS[8], SELECTIONS[11], SELECTIONS[13]):
        whole = select(logits, selection, 64)
        for size in (1, 2, 3, 5, 8, 16, 31):
            for first in range(0, 33 - size, 9):
                part = slice(first, first + size)
                assert raw(select(logits[part], selection, 64 + first)) == raw(whole, part), (selection, size, first)
        for above in (1, 6):
            mixed = torch.cat([strangers[:above], logits[10:12], strangers[above:]])
            assert raw(select(mixed, selection, 74 - above), slice(above, above + 2)) == raw(whole, slice(10, 12))
        assert raw(select(sparse, selection, 64)) == raw(whole)


def test_that_test_sees_noise_that_is_drawn_in_sequence() -> None:
    """What it guards against: a generator, from which the second row gets what the first one left."""

    def drawn(logits: Tensor) -> list[int]:
        exponential = torch.empty_like(logits).exponential_(generator=torch.Generator().manual_seed(1))
        return (logits.softmax(-1) / exponential).argmax(-1).tolist()

    logits = logits_like("flat", 2, 1000)
    assert drawn(logits)[1:] != drawn(logits[1:])


@pytest.mark.parametrize("selection", [SELECTIONS[0], SELECTIONS[3], SELECTIONS[8], SELECTIONS[11], SELECTIONS[14]])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_poison_makes_only_its_row_invalid(selection: Selection, poison: float) -> None:
    logits = logits_like("peaked", 4, 2000)
    clean = select(logits, selection, 3)
    logits[2] = poison if poison < 0 else logits[2]
    logits[2, 1234] = poison
    chosen = select(logits, selection, 3)
    assert chosen.valid.tolist() == [True, True, False, True]
    for rows in (slice(2), slice(3, 4)):
        assert raw(chosen, rows) == raw(clean, rows)
    assert not select(logits[2:3], selection, 5).valid.any()
    assert not select(torch.full((3, 50), poison), selection).valid.any()


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-5])
def test_a_very_low_temperature_is_greedy_but_for_ties(temperature: float) -> None:
    logits = logits_like("peaked", 16, 3000)
    assert raw(select(logits, Selection(temperature, seed=1))) == raw(select(logits))


def test_a_very_high_temperature_is_uniform_over_what_is_allowed() -> None:
    logits = torch.tensor([[5.0, -math.inf, 3.0, -3.0]]).expand(3000, -1)
    counts = select(logits, Selection(1e300, seed=1)).tokens.bincount(minlength=4)
    assert counts[1] == 0
    assert (counts[[0, 2, 3]] - 1000).abs().max() < 100


def test_pinned() -> None:
    """Whoever changes these changes every seeded answer ever given: raise SELECT_VERSION."""
    ids = torch.arange(1, 5001, dtype=torch.int64)
    logits = torch.stack([(ids * (7919 + 2 * row)) % 1009 for row in range(8)]).float() / 128
    tokens = [select(logits, selection, 500).tokens.tolist() for selection in SELECTIONS]
    assert tokens == PINNED
    assert tokens[0] != select(logits, replace(SELECTIONS[0], seed=99), 500).tokens.tolist()


PINNED = [
    [4155, 3588, 2939, 4440, 2595, 1567, 4246, 268],
    [2782, 1723, 385, 4893, 2859, 4663, 3484, 587],
    [2620, 43, 1538, 4559, 3884, 1255, 1514, 3773],
    [3092, 361, 4435, 4572, 6, 1220, 3563, 4115],
    [4200, 320, 4956, 3884, 3722, 472, 3749, 1567],
    [764, 861, 385, 857, 841, 881, 228, 195],
    [2294, 567, 2559, 2649, 6, 1347, 1831, 3368],
    [764, 861, 385, 857, 841, 881, 228, 195],
    [3791, 2879, 1394, 2875, 1683, 3908, 1466, 4231],
    [3303, 4670, 2119, 2786, 1412, 1255, 2375, 2627],
    [2915, 427, 656, 1743, 1197, 1997, 228, 4623],
    [3772, 2505, 4158, 426, 3931, 2765, 1967, 1901],
    [1773, 3888, 385, 1866, 841, 1890, 4264, 3222],
    [553, 1703, 3412, 1969, 848, 1763, 1924, 1567],
    [1773, 1790, 1394, 3088, 1878, 1502, 951, 4623],
]
