"""By how much a choice was made: what drift would have to outweigh. Decides speed, never output."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from llm42.protocol.selection import Selection
from llm42.sampling.noise import choice_keys, noise_bits


def greedy_margins(logits: Tensor) -> Tensor:
    """[n]: how far the largest of each row of ``logits`` [n, V] is above the second."""
    best = logits.topk(2, dim=-1).values
    return best[:, 0] - best[:, 1]


def race_margins(logits: Tensor, selections: Sequence[Selection], positions: Sequence[int], tokens: Tensor) -> Tensor:
    """[n], in logits: by how much each of ``tokens`` [n], chosen from ``logits`` [n, V], beat the next one.

    As for :func:`~llm42.sampling.choose_each`, which chose them. About: in fp32, and the next one may be a token that a
    cut-off has kept out. What would have won but for a cut-off does not count.
    """
    ids = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)
    keys = choice_keys(selections, positions)
    bits = noise_bits(keys.to(logits.device), ids)
    noise = bits.float().add_(0.5).mul_(-(2.0**-31)).log1p_().neg_().log_().neg_()
    scores = noise.mul_(selections[0].temperature).add_(logits)
    won = scores.gather(-1, tokens.unsqueeze(-1))
    others = scores.masked_fill(scores >= won, -math.inf)
    return (won - others.amax(dim=-1, keepdim=True)).squeeze(-1)
