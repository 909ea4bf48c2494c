"""top_p: the race among the shortest beginning of the order that has ``top_p`` of the candidates' probability."""

import math

import torch
from torch import Tensor

from llm42.sampling.cutoffs import Candidates, within
from llm42.sampling.elementary import ONE, weights
from llm42.sampling.race import race

_FARTHEST = math.log(ONE) + 0.1
_HALVINGS = 6
_MARGIN = 1.001  # far above the error of an fp32 sum, far below what a candidate too many costs


def race_in_nucleus(candidates: Candidates, keys: Tensor, top_p: float) -> Candidates:
    """:func:`~llm42.sampling.race.race` among the nucleus, of which the first token is always a part.

    Nothing is sorted. Whoever wins a race of all and belongs to the nucleus has won that of the nucleus. If he does
    not belong to it, neither does anybody after him in the order, and the race is run again without these.
    """
    weight = weights(candidates.gaps)
    nucleus = weight.sum(dim=-1, keepdim=True).double() * top_p
    ids, gaps = within(candidates, candidates.gaps, _bound(candidates.gaps, weight, nucleus))
    if gaps is not candidates.gaps:
        weight = weights(gaps)
    ids = ids.expand_as(gaps)
    won = Candidates(torch.empty_like(ids[:, :1]), torch.empty_like(gaps[:, :1]))
    rows = torch.arange(len(gaps), device=gaps.device)
    while len(rows):
        winners = race(Candidates(ids, gaps), keys)
        ahead = (gaps < winners.gaps) | ((gaps == winners.gaps) & (ids < winners.ids))
        outside = weight.masked_fill(~ahead, 0).sum(dim=-1, keepdim=True).double() >= nucleus
        won.ids[rows], won.gaps[rows] = winners
        again = outside.squeeze(-1)
        rows, keys, ids, weight, nucleus = rows[again], keys[again], ids[again], weight[again], nucleus[again]
        gaps = gaps[again].masked_fill(~ahead[again], math.inf)
    return won


def _bound(gaps: Tensor, weight: Tensor, nucleus: Tensor) -> Tensor:
    """[W, 1]: a gap within which the whole nucleus lies, and hardly more."""
    enough = nucleus.float() * _MARGIN
    rough = weight.float()
    mass = torch.empty_like(rough)
    near = torch.zeros_like(enough)
    far = torch.full_like(enough, _FARTHEST)
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        reached = torch.le(gaps, middle, out=mass).mul_(rough).sum(dim=-1, keepdim=True) >= enough
        near, far = torch.where(reached, near, middle), torch.where(reached, middle, far)
    return far
