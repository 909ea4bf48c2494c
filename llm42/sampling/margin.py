"""By how much a choice was made: what drift would have to outweigh. Decides speed, never output."""

import math

import torch
from torch import Tensor

from llm42.protocol.selection import Selection
from llm42.sampling.noise import noise_bits, noise_keys


def greedy_margins(logits: Tensor) -> Tensor:
    """[n]: how far the largest of each row of ``logits`` [n, V] is above the second."""
    best = logits.topk(2, dim=-1).values
    return best[:, 0] - best[:, 1]


def race_margin(logits: Tensor, selection: Selection, position: int, token: Tensor) -> Tensor:
    """[1], in logits: by how much ``token`` [1], chosen from ``logits`` [1, V] at ``position``, beat the next one.

    About: in fp32, and the next one may be a token that a cut-off has kept out. What would have won but for a cut-off
    does not count.
    """
    ids = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)
    bits = noise_bits(noise_keys(selection.seed, position + 1, 1).to(logits.device), ids)
    noise = bits.float().add_(0.5).mul_(-(2.0**-31)).log1p_().neg_().log_().neg_()
    scores = noise.mul_(selection.temperature).add_(logits)
    won = scores.gather(-1, token.unsqueeze(-1))
    others = scores.masked_fill(scores >= won, -math.inf)
    return (won - others.amax(dim=-1, keepdim=True)).squeeze(-1)
