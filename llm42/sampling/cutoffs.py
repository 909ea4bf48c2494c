"""Which tokens may be chosen: min_p, then top_k, and (:mod:`llm42.sampling.nucleus`) top_p of what they leave.

As in vLLM, all after temperature. Tokens stand in one order, by falling probability and, where that is equal, by
rising id. Each cut-off keeps the beginning of this order: of tokens that are equally probable at the edge, those with
the lowest ids stay.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_CROWDED = 4  # a row with more than 1/4 of all tokens is left as wide as it is: packing would cost more than it saves


class Candidates(NamedTuple):
    """Tokens that may be chosen. ``gaps`` [W, C] fp32 say how much less probable a token is than the best one, as
    log of the ratio after temperature; inf: not a candidate. ``ids`` int32, [W, C] or, if all the same, [C]."""

    ids: Tensor
    gaps: Tensor


def cut(gaps: Tensor, min_p: float, top_k: int) -> Candidates:
    """What min_p and top_k leave of the whole vocabulary's ``gaps`` [W, V].

    ``gaps`` are >= 0, no NaN among them, and one in each row is 0.
    """
    vocabulary = gaps.shape[-1]
    kept = Candidates(torch.arange(vocabulary, dtype=torch.int32, device=gaps.device), gaps)
    limit = torch.full_like(gaps[:, :1], -math.log(min_p) if min_p else math.inf)
    if 0 < top_k < vocabulary:
        kept = within(kept, gaps, torch.minimum(limit, _reach(gaps, top_k)))
        ordered, order = kept.gaps.sort(dim=-1, stable=True)
        return Candidates(kept.ids.expand_as(order).gather(-1, order)[:, :top_k], ordered[:, :top_k])
    return within(kept, gaps, limit) if min_p else kept


def within(candidates: Candidates, values: Tensor, limit: Tensor) -> Candidates:
    """Those whose ``values`` [W, C] are at most ``limit`` [W, 1], in their order."""
    inside = values <= limit
    width = int(inside.sum(dim=-1, dtype=torch.int32).max())
    if width * _CROWDED > values.shape[-1]:
        return Candidates(candidates.ids, candidates.gaps.masked_fill(~inside, math.inf))
    rows, columns = inside.nonzero(as_tuple=True)
    counts = rows.bincount(minlength=len(values))
    places = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    gaps = torch.full((len(values), width), math.inf, dtype=torch.float32, device=values.device)
    gaps[rows, places] = candidates.gaps[rows, columns]
    ids = torch.zeros_like(gaps, dtype=torch.int32)
    ids[rows, places] = candidates.ids.expand_as(values)[rows, columns]
    return Candidates(ids, gaps)


def _reach(gaps: Tensor, top_k: int) -> Tensor:
    """[W, 1]: a gap within which there are at least ``top_k`` tokens, and hardly ever many more.

    The best of each of many groups of tokens; the worst of the ``top_k`` best of these.
    """
    groups = max(1024, 4 * top_k)
    size = gaps.shape[-1] // groups
    if size < 2:
        return torch.full_like(gaps[:, :1], math.inf)
    best = gaps[:, : groups * size].view(-1, size, groups).amin(dim=1)
    worst: Tensor = best.topk(top_k, largest=False).values.amax(dim=-1, keepdim=True)
    return worst
