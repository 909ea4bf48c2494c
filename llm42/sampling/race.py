"""The Gumbel-max trick: the largest sum of log-probability and Gumbel noise is a sample of the distribution."""

import math

import torch
from torch import Tensor

from llm42.sampling.cutoffs import Candidates, within
from llm42.sampling.noise import gumbel, noise_bits

_MARGIN = 1.001  # far above the error of a few fp32 operations, far below what a candidate too many costs
_NOBODY = torch.iinfo(torch.int32).max


def race(candidates: Candidates, keys: Tensor) -> Candidates:
    """[W, 1]: for each row the candidate with the largest ``noise - gap``; the lowest id among equals.

    Noise is dear, so it is made only for those who may win. With e = -log(1 - fraction) the winner has the smallest
    e * exp(gap), and e lies between fraction and fraction / (1 - fraction).
    """
    fraction = noise_bits(keys, candidates.ids).float().add_(0.5).mul_(2.0**-31)
    slowness = candidates.gaps.exp()
    at_most = (fraction / (1 - fraction)).mul_(slowness)
    at_least = fraction.mul_(slowness)
    ids, gaps = within(candidates, at_least, at_most.amin(dim=-1, keepdim=True) * _MARGIN)
    scores = gumbel(noise_bits(keys, ids)) - gaps.double()
    losers = scores < scores.amax(dim=-1, keepdim=True)
    ids = ids.expand_as(gaps).masked_fill(losers, _NOBODY)
    winners = ids.amin(dim=-1, keepdim=True)
    return Candidates(winners, gaps.masked_fill(ids != winners, math.inf).amin(dim=-1, keepdim=True))
