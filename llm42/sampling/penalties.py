"""Presence, frequency and repetition penalties: those of vLLM's ``apply_penalties`` in torch, bit for bit.

Only logits of tokens that have occurred are touched. (vLLM's CUDA kernel divides positive logits by the repetition
penalty, where its torch code, and this, multiply by the reciprocal: the last bit may differ.)
"""

import torch
from torch import Tensor

from llm42.protocol.steering import Steering


def penalise_(logits: Tensor, steering: Steering, tokens: Tensor, start: int) -> None:
    """In place: ``logits`` [n, V] fp32, at positions ``start``, ``start + 1``, ... of ``tokens``.

    Repetition counts the prompt and the output so far, presence and frequency the output alone. Raises ValueError if
    a token that counts is outside of the vocabulary.
    """
    if (steering.repetition_penalty, steering.frequency_penalty, steering.presence_penalty) == (1, 0, 0):
        return
    first = 0 if steering.repetition_penalty != 1 else steering.prompt_tokens
    counted = tokens[first : start + len(logits)]
    if not len(counted):
        return
    ids, which = torch.unique(counted, return_inverse=True)  # rising
    if not (ids[0] >= 0 and ids[-1] < logits.shape[-1]):
        raise ValueError(f"a token is outside of the vocabulary of {logits.shape[-1]}")
    # Most kinds of tokens have the same counts in every row; those that come within the window do not.
    moving = which[max(start + 1 - first, 0) :].unique()
    seen = _counts(which, first, start, len(logits), len(ids), moving)
    begin = max(first, steering.prompt_tokens)
    output = _counts(which[begin - first :], begin, start, len(logits), len(ids), moving)
    columns, moving = ids.to(logits.device), moving.to(logits.device)
    values = logits.index_select(1, columns)
    own = values.index_select(1, moving)
    for part, times_seen, times_output in zip((values, own), seen, output, strict=True):
        _lower_(part, times_seen.to(logits.device) > 0, times_output.to(logits.device), steering)
    logits.index_copy_(1, columns, values.index_copy_(1, moving, own))


def _counts(which: Tensor, begin: int, start: int, rows: int, kinds: int, moving: Tensor) -> tuple[Tensor, Tensor]:
    """How often a kind is among the positions from ``begin`` to ``start + row``: [1, kinds] for the first row, and
    [rows, m] for the ``moving`` ones [m]. ``which`` are the kinds at ``begin``, ``begin + 1``, ..."""
    before = max(start + 1 - begin, 0)
    base = which[:before].bincount(minlength=kinds)
    later = which[before:]  # one in each of the last rows, and from there on
    steps = torch.zeros(rows, len(moving), dtype=torch.int64, device=which.device)
    steps[rows - len(later) :] = later.unsqueeze(1) == moving
    return base.unsqueeze(0), base[moving] + steps.cumsum(0)


def _lower_(values: Tensor, seen: Tensor, output: Tensor, steering: Steering) -> None:
    """``values`` [n, k] fp32, given which are ``seen``, bool, and how often in the ``output``; [1, k] or [n, k]."""
    if steering.repetition_penalty != 1:
        penalty = torch.tensor(steering.repetition_penalty, dtype=torch.float32, device="cpu")
        neutral = torch.ones_like(seen, dtype=torch.float32)
        smaller, larger = neutral.masked_fill(seen, float(1 / penalty)), neutral.masked_fill(seen, float(penalty))
        values *= torch.where(values > 0, smaller, larger)
    # Never -0.0, which would make a 0.0 of the -0.0 of a token that does not count, but may in a later row.
    values -= output.float() * steering.frequency_penalty + 0.0
    values -= (output > 0).float() * steering.presence_penalty + 0.0
