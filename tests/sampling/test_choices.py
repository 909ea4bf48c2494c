"""What is chosen in a window does not depend on how much of it is asked for. Bits, not tolerances."""

from itertools import combinations

import pytest
import torch

from llm42.protocol.messages import pack_tokens
from llm42.protocol.selection import GREEDY, Selection
from llm42.protocol.steering import Steering
from llm42.sampling.choices import choices, chunk_of
from llm42.sampling.grammar import GrammarMasks
from tests.sampling.grammars import BEGIN, GRAMMARS, ONE, TOYS, A, B, compile_toy

WINDOW, CHUNK, TOP = 24, 8, 2
LOGITS = torch.randn(WINDOW, len(TOYS), generator=torch.Generator().manual_seed(0))
GRAMMAR = GRAMMARS[1]
TOKENS = [BEGIN, A, B, ONE, A, A, B, ONE, B, A]
"""Nine that the grammar permits behind the first one, and then whatever."""
TOKENS += torch.randint(len(TOYS), (WINDOW - len(TOKENS),), generator=torch.Generator().manual_seed(1)).tolist()
WIDTHS = (4, 4, 4, 1, 4 * TOP, 4 * TOP)
"""Bytes of a slot in each field."""

STEERED = Steering(3, frequency_penalty=0.7, repetition_penalty=1.4, logit_bias=((1, 2.0),), bad_words=((1, 2), (3,)))
ORDERS = {
    "greedy": (GREEDY, 0),
    "drawn": (Selection(temperature=0.9, top_p=0.9, top_k=5, min_p=0.01, seed=3), 0),
    "steered": (Selection(temperature=0.9, seed=3, steering=STEERED), 0),
    "grammar": (Selection(temperature=0.9, seed=3, steering=Steering(1, grammar=GRAMMAR)), 0),
    "scored": (GREEDY, 13),
}


@pytest.fixture
def masks() -> GrammarMasks:
    made = GrammarMasks(compile_toy, len(TOYS), lambda: (), kept=4, walks=4)
    made.masks(GRAMMAR, [], 0, 1)  # compiled from here on
    return made


@pytest.mark.parametrize(("selection", "scored"), ORDERS.values(), ids=ORDERS)
def test_any_part_is_that_of_the_whole(masks: GrammarMasks, selection: Selection, scored: int) -> None:
    def part(first: int, last: int) -> list[bytes]:
        order = [selection.fields, TOP, pack_tokens(TOKENS[1 : scored + 1]), pack_tokens(TOKENS[:last])]
        found = choices(LOGITS[first:last], 0, first, CHUNK, order, masks)
        assert len(found) == len(WIDTHS), found
        return found

    whole = part(0, WINDOW)
    valid = whole[3]
    if selection.grammar is None:
        assert all(valid)
    else:
        assert (all(valid[:10]), any(valid[10:])) == (True, False), "the output ends after nine tokens"
    for first, last in combinations(range(WINDOW + 1), 2):
        slots = [field[width * first : width * last] for field, width in zip(whole, WIDTHS, strict=True)]
        assert part(first, last) == slots, (first, last)
    assert part(1, 9)[0] != part(2, 10)[0]


@pytest.mark.parametrize(
    ("window", "device", "chunk"), [(32, "cpu", 8), (12, "cpu", 12), (1, "cpu", 1), (32, "meta", 32)]
)
def test_a_chunk_is_a_part_of_a_window(window: int, device: str, chunk: int) -> None:
    assert chunk_of(window, torch.device(device)) == chunk
