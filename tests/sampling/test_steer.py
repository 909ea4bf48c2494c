"""What steering means, by hand, and its purity, as bits. That it is vLLM's: test_steer_vllm.py."""

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from llm42.protocol.steering import Grammar, Steering
from llm42.sampling.steer import steer
from tests.sampling.steerings import FEATURES, VOCABULARY, bits, window

INF = math.inf
SETS = [*([feature] for feature in FEATURES), FEATURES]
names = pytest.mark.parametrize("features", SETS, ids=[*FEATURES, "all"])


def steered(steering: Steering, tokens: list[int], start: int, logits: list[list[float]]) -> list[list[float]]:
    return steer(torch.tensor(logits), steering, torch.tensor(tokens), start).tolist()


def test_penalties_count_from_the_prompts_end_but_repetition_counts_it_too() -> None:
    row = [8.0, -8.0, 8.0, 8.0]
    tokens = [0, 1, 1, 3]  # two of them are prompt
    presence = Steering(2, presence_penalty=1.0)
    assert steered(presence, tokens, 1, [row] * 3) == [row, [8, -9, 8, 8], [8, -9, 8, 7]]
    frequency = Steering(1, frequency_penalty=2.0)
    assert steered(frequency, tokens, 0, [row] * 3) == [row, [8, -10, 8, 8], [8, -12, 8, 8]]
    repetition = Steering(2, repetition_penalty=2.0)
    assert steered(repetition, tokens, 0, [row] * 4) == [[4, -8, 8, 8], *[[4, -16, 8, 8]] * 2, [4, -16, 8, 4]]


def test_min_tokens_counts_the_tokens_before_the_choice() -> None:
    steering = Steering(2, min_tokens=2, stops=(1, 2))
    early, late = [0, -INF, -INF, 0], [0.0] * 4
    assert steered(steering, [0, 0, 0, 0, 0], 0, [late] * 5) == [early, early, early, late, late]


def test_bad_words_begin_in_the_output() -> None:
    steering = Steering(2, bad_words=((0,), (1, 1, 3), (1, 2)))
    row = [0.0] * 4
    once, after_1, after_1_1 = [-INF, 0, 0, 0], [-INF, 0, -INF, 0], [-INF, 0, -INF, -INF]
    # The 1 at position 1 is prompt; two of output have been after position 3.
    assert steered(steering, [1, 1, 1, 1, 2], 0, [row] * 5) == [once, once, after_1, after_1_1, once]


def test_bias_cannot_bring_back_what_is_forbidden_and_penalties_come_after_it() -> None:
    steering = Steering(1, logit_bias=((0, 100.0), (1, -3.0)), allowed=(1, 2), repetition_penalty=2.0)
    assert steered(steering, [1], 0, [[9.0, 2.0, 5.0]]) == [[-INF, (2 - 3) * 2, 5]]


def test_a_grammar_at_its_end_prevails_over_min_tokens() -> None:
    steering = Steering(1, min_tokens=9, stops=(1, 33), grammar=Grammar("json_object", ""))
    masks = torch.tensor([[0b0110, 0b10], [0b0010, 0b10]], dtype=torch.int32)
    raw = torch.zeros(2, 35)
    raw[1, 33] = -INF
    result = steer(raw, steering, torch.tensor([0, 0]), 0, masks)
    assert [row.isfinite().nonzero().flatten().tolist() for row in result] == [[2], [1]]
    # So it does where a bad word is all else that it permits.
    without_2 = replace(steering, bad_words=((2,),))
    assert steer(raw, without_2, torch.tensor([0, 0]), 0, masks)[0].isfinite().nonzero().flatten().tolist() == [1, 33]
    # Allowed ids do not: such a request fails.
    assert steered(Steering(1, min_tokens=9, stops=(1,), allowed=(1,)), [0], 0, [[0.0] * 3]) == [[-INF] * 3]


@names
def test_the_input_stays_and_every_feature_does_something(features: list[str]) -> None:
    changed = 0
    for seed in range(20):
        it = window(features, seed)
        before = [x.clone() for x in (it.logits, it.tokens, it.masks) if x is not None]
        result = steer(it.logits, it.steering, it.tokens, it.start, it.masks)
        after = [x for x in (it.logits, it.tokens, it.masks) if x is not None]
        assert all(map(torch.equal, before, after))
        changed += not torch.equal(result, it.logits)
    assert changed >= 10


@names
def test_rows_know_nothing_of_tails_of_others_or_of_their_number(features: list[str]) -> None:
    """Tails and other rows made to move what could be shared: all one token, all rare ones, poison."""
    for seed in range(8):
        it = window(features, seed)
        whole = bits(steer(it.logits, it.steering, it.tokens, it.start, it.masks))
        random = Random(seed)
        for row in range(len(whole)):
            end = it.start + row + 1
            expected = whole[row]
            mask = None if it.masks is None else it.masks[row : row + 1]
            alone = steer(it.logits[row : row + 1], it.steering, it.tokens[:end], it.start + row, mask)
            assert torch.equal(bits(alone)[0], expected), "one row, as a drafter calls"
            short = steer(it.logits, it.steering, it.tokens[:end], it.start, it.masks)
            assert torch.equal(bits(short)[row], expected), "the rest is padding"
            for tail in tails(random, it.tokens, end):
                logits, masks = it.logits.clone(), None if it.masks is None else it.masks.clone()
                logits[row + 1 :] = random.choice([math.nan, INF, -INF, 0.0])
                if masks is not None:
                    masks[row + 1 :] = random.choice([0, -1])
                other = steer(logits, it.steering, torch.cat([it.tokens[:end], tail]), it.start, masks)
                assert torch.equal(bits(other)[row], expected), "adversarial tail"


def tails(random: Random, tokens: Tensor, end: int) -> list[Tensor]:
    count = len(tokens) - end
    return [
        tokens[:0],
        torch.full((count,), int(tokens[end - 1])),
        torch.arange(count) % VOCABULARY,  # among them 5, 6 and 7, whose logits are 0.0, -0.0 and -inf
        torch.tensor([random.randrange(VOCABULARY) for _ in range(count + 9)]),
    ]


def test_a_token_to_come_does_not_turn_minus_zero_into_zero() -> None:
    steering = Steering(1, presence_penalty=-1.0, frequency_penalty=-1.0, repetition_penalty=2.0)
    logits = torch.full((2, 3), -0.0)
    result = steer(logits, steering, torch.tensor([0, 1]), 0)
    assert bits(result)[0].tolist() == bits(logits)[0].tolist()
    assert result[1].tolist() == [0.0, 2.0, 0.0]


def test_a_long_history_over_a_real_vocabulary() -> None:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(49152, (3000,), generator=generator)
    tokens[2000:] = tokens[:1000] // 50
    logits = torch.randn(32, 49152, generator=generator)
    steering = Steering(1500, presence_penalty=0.5, frequency_penalty=0.1, repetition_penalty=1.3)
    result = steer(logits, steering, tokens, 2960)
    so_far = tokens.tolist()
    counts, seen = torch.zeros(32, 49152), torch.zeros(32, 49152, dtype=torch.bool)
    for row in range(32):
        seen[row, list(set(so_far[: 2961 + row]))] = True
        for token, count in Counter(so_far[1500 : 2961 + row]).items():
            counts[row, token] = count
    factor = torch.where(logits > 0, torch.tensor(1.0) / 1.3, torch.tensor(1.3))
    expected = torch.where(seen, logits * factor, logits)
    expected = expected - counts * 0.1 - (counts > 0) * 0.5
    assert torch.equal(result, expected)
    assert torch.equal(bits(steer(logits[9:10], steering, tokens, 2969)), bits(result[9:10]))


def test_padding_stays_as_it_is() -> None:
    it = window(FEATURES, 2)
    short = it.tokens[: it.start + 3]
    result = steer(it.logits, it.steering, short, it.start, it.masks)
    assert torch.equal(bits(result[3:]), bits(it.logits[3:]))
    assert not torch.equal(result[2], it.logits[2])


@pytest.mark.parametrize(
    "change",
    [
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((10, 1.0),)},
        {"allowed": (3, 10)},
        {"allowed": (3, 2**64)},
        {"bad_words": ((1, 10),)},
        {"bad_words": ((-1, 1),)},
        {"min_tokens": 5, "stops": (10,)},
    ],
)
def test_ids_outside_the_vocabulary_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="token id"):
        steer(torch.zeros(1, 10), replace(Steering(1), **change), torch.tensor([0]), 0)


@pytest.mark.parametrize("change", [{"logit_bias": ((2, 1.0), (2, 1.0))}, {"allowed": (4, 3)}])
def test_ids_that_do_not_rise_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a steering"):
        replace(Steering(1), **change)


@pytest.mark.parametrize("token", [-1, 10])
def test_tokens_outside_the_vocabulary_are_refused_where_they_count(token: int) -> None:
    steering = Steering(1, repetition_penalty=2.0)
    with pytest.raises(ValueError, match="outside"):
        steer(torch.zeros(1, 10), steering, torch.tensor([3, token]), 1)
    steer(torch.zeros(1, 10), steering, torch.tensor([3, token]), 0)  # only a tail


def test_what_cannot_be_is_refused() -> None:
    it = window(["grammar"], 0)
    assert it.masks is not None
    wrong = [
        (it.logits, it.tokens, len(it.tokens), it.masks),
        (it.logits, it.tokens, -1, it.masks),
        (it.logits.double(), it.tokens, 0, it.masks),
        (it.logits, it.tokens.int(), 0, it.masks),
        (it.logits, it.tokens, 0, None),
        (it.logits, it.tokens, 0, it.masks[:, :-1]),
        (it.logits, it.tokens, 0, it.masks[:-1]),
        (it.logits, it.tokens, 0, it.masks.long()),
    ]
    for logits, tokens, start, masks in wrong:
        with pytest.raises(ValueError, match=r"row|float32|mask"):
            steer(logits, it.steering, tokens, start, masks)
    with pytest.raises(ValueError, match="grammar"):
        steer(it.logits, Steering(1), it.tokens, 0, it.masks)
