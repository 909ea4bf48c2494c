"""What must hold of the kernels for the replay to be a pure function of the tokens; full logits, as bits.

Each test has its negative control: the same comparison must see a difference where there is one.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from llm42.internals import replay
from llm42.protocol.messages import pack_tokens
from tests.verifier.conftest import CONTEXT, ROWS, WINDOW
from tests.verifier.lab import Lab, random_tokens

PROMPT = random_tokens(3 * WINDOW + 20, seed=7)


def changed(tokens: list[int], position: int) -> list[int]:
    return [*tokens[:position], (tokens[position] + 1) % 49152, *tokens[position + 1 :]]


def test_repeatable_and_sensitive_to_every_prefix_token(lab: Lab) -> None:
    reference = lab.logits(PROMPT)
    assert lab.logits(PROMPT) == reference
    for position in (0, WINDOW - 1, WINDOW, len(PROMPT) - 21):
        assert all(a != b for a, b in zip(lab.logits(changed(PROMPT, position)), reference, strict=True))


def test_a_shifted_window_moves_bits(lab: Lab) -> None:
    """Control of the comparison: the same tokens one position later are another question."""
    shifted = lab.logits(random_tokens(1, seed=1) + PROMPT)
    assert shifted[1:] != lab.logits(PROMPT)[: len(shifted) - 1]


def test_row_index(lab: Lab) -> None:
    target, reference = lab.prefilled(PROMPT), lab.logits(PROMPT)
    other = lab.neighbour(random_tokens(5 * WINDOW), windows=5)
    for index in range(ROWS):
        rows = [(other, window) for window in range(ROWS)]
        rows[index] = (target, 3)
        assert lab.run(*rows)[index][: len(reference)] == reference, f"row {index}"


def test_row_dependence_would_be_seen(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    target, reference = lab.prefilled(PROMPT), lab.logits(PROMPT)
    forward = replay.ReplayPass.forward

    def planted(self: replay.ReplayPass, *given: Any) -> torch.Tensor:
        hidden = forward(self, *given)
        return hidden * (1 + 2.0**-7 * torch.arange(self.rows)).view(-1, 1, 1).to(hidden.dtype)

    monkeypatch.setattr(replay.ReplayPass, "forward", planted)
    first, second = lab.run((target, 3), (target, 3))
    assert first[: len(reference)] == reference
    assert second[: len(reference)] != reference


@pytest.mark.parametrize("kind", ["same token", "window 0", "at the context limit", "copies", "random"])
def test_neighbours(lab: Lab, kind: str) -> None:
    target, reference = lab.prefilled(PROMPT), lab.logits(PROMPT)
    match kind:
        case "same token":
            others = [(lab.neighbour([5] * 4 * WINDOW), 3)] * 3
        case "window 0":
            others = [(lab.sequence(random_tokens(WINDOW)), 0) for _ in range(3)]
        case "at the context limit":
            last = CONTEXT // WINDOW - 1
            others = [(lab.neighbour(random_tokens(CONTEXT)), last), (lab.sequence(random_tokens(CONTEXT)), last)]
        case "copies":
            others = [(lab.neighbour(PROMPT), 3)] * 3
        case _:
            others = [(lab.neighbour(random_tokens(length)), length // WINDOW) for length in (33, 200, 400)]
    assert lab.run((target, 3), *others)[0][: len(reference)] == reference
    assert lab.run(*others, (target, 3))[-1][: len(reference)] == reference


@pytest.mark.parametrize("fill", [1, 2, 17, 31, 32])
def test_fill_and_rejected_tail(lab: Lab, fill: int) -> None:
    """Nothing in a later slot, known or not, changes an earlier one."""
    base = 2 * WINDOW
    full = random_tokens(base + WINDOW, seed=11)
    job = lab.prefilled(full)

    def last_window(tokens: list[int]) -> list[bytes]:
        job.question = replace(job.question, tokens=pack_tokens(tokens))
        [slots] = lab.run((job, 2))
        return slots

    reference = lab.logits(full)
    assert last_window(full[: base + fill])[:fill] == reference[:fill]
    tails = ([full[base + fill - 1]] * (WINDOW - fill), random_tokens(WINDOW - fill), [0] * (WINDOW - fill))
    for tail in tails:
        assert last_window(full[: base + fill] + tail)[:fill] == reference[:fill]
    wrong = last_window(changed(full, base + fill - 1))
    assert wrong[: fill - 1] == reference[: fill - 1]
    assert all(a != b for a, b in zip(wrong[fill - 1 :], reference[fill - 1 :], strict=True))


def test_consecutive_windows_share_a_pass(lab: Lab) -> None:
    tokens = random_tokens(8 * WINDOW, seed=13)
    one_by_one = lab.sequence(tokens)
    reference = [lab.run((one_by_one, window))[0] for window in range(8)]
    together = lab.sequence(tokens)
    assert lab.run(*((together, window) for window in range(4))) == reference[:4]
    assert lab.run(*((together, window) for window in (7, 6, 5, 4))) == reference[:3:-1]
    # Control: a window whose predecessor was never computed is seen.
    gap = lab.sequence(tokens)
    assert lab.run((gap, 0), (gap, 2))[1] != reference[2]


def test_a_stale_page_does_not_matter(lab: Lab) -> None:
    """Pages come back dirty: what lies past the sequence in them must not be read."""
    reference = lab.logits(PROMPT)
    dirty = lab.neighbour(random_tokens(4 * WINDOW), windows=4)
    clean = lab.sequence(PROMPT)
    dirty.question = clean.question
    for window in range(3):
        lab.run((dirty, window))
    assert lab.run((dirty, 3))[0][: len(reference)] == reference
