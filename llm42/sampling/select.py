"""Choose the canonical next token of every slot of a window."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from llm42.protocol.selection import GREEDY, Selection
from llm42.sampling.cutoffs import Candidates, cut
from llm42.sampling.noise import choice_keys, noise_keys
from llm42.sampling.nucleus import race_in_nucleus
from llm42.sampling.race import race
from llm42.sampling.steer import steer

SELECT_VERSION = 3
"""Part of the fingerprint: raise it with any change that may move a bit of :func:`select`'s answer."""

_IN_CACHE = 1 << 19
"""Logits that a CPU works on at once: what it makes of them then stays in its cache. No row knows of another."""
_SMALLEST, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


class Selected(NamedTuple):
    """One token per slot. Where ``valid`` is false the other fields mean nothing."""

    tokens: Tensor
    """[W] int64."""
    logprobs: Tensor
    """[W] fp32, of that token."""
    ranks: Tensor
    """[W] int64, 1-based as vLLM counts: tokens whose logit is at least this one's."""
    valid: Tensor
    """[W] bool: the row has no NaN, no +inf, and something that may be chosen."""
    top_tokens: Tensor
    """[W, top] int32: the most probable tokens in falling order; the lowest id first among equals."""
    top_logprobs: Tensor
    """[W, top] fp32."""


def select(
    logits: Tensor,
    selection: Selection = GREEDY,
    start: int = 0,
    given: Tensor | None = None,
    top: int = 0,
    so_far: Tensor | None = None,
    masks: Tensor | None = None,
) -> Selected:
    """The choice of ``selection`` from ``logits`` [W, V] of any floating type, for each row on its own.

    Row s holds the logits at position ``start + s`` of the sequence, so that the token it chooses stands one further
    on; the noise belongs to that position. Logprobs and ranks are those of the logits as given, whatever the selection.
    The first rows, as many as there are tokens in ``given`` [at most W], choose these. ``top`` is less than V.
    ``so_far`` and ``masks`` are for steering: see :func:`~llm42.sampling.steer.steer`.
    """
    logits = logits.float()
    tokens, valid = choose(logits, selection, start, so_far, masks)
    if given is not None and len(given):
        tokens[: len(given)] = given
        valid[: len(given)] = logits[: len(given)].amax(dim=-1).isfinite()  # whatever steers the choice
    logprobs = logits.log_softmax(dim=-1)
    ids, gaps = _most_probable(logprobs, top)
    chosen = logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    # Counted in fp32, exact below 2**24, in place: a [W, V] of booleans summed as int64 costs more than all the rest.
    ranks = torch.ge(logits, logits.gather(-1, tokens.unsqueeze(-1)), out=logprobs).sum(dim=-1).long()
    return Selected(tokens, chosen, ranks, valid, ids, -gaps)


def choose(
    logits: Tensor, selection: Selection, start: int, so_far: Tensor | None = None, masks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``tokens`` and ``valid`` of :func:`select` alone, which is all that a drafter needs; ``logits`` are fp32.

    Greedy ties, and those between equal sums of log-probability and noise, go to the lowest id.
    """
    if selection.steering is not None:
        assert so_far is not None
        raw, logits = logits, steer(logits, selection.steering, so_far, start, masks)
    best, tokens = logits.max(dim=-1, keepdim=True)  # the first maximum; NaN counts as the largest
    valid = best.isfinite().squeeze(-1)
    if selection.steering is not None:
        valid &= raw.amax(dim=-1).isfinite()  # a NaN that steering has hidden is one all the same
    if selection.greedy:
        return tokens.squeeze(-1), valid
    return _sample(logits, best, noise_keys(selection.seed, start + 1, len(logits)), selection), valid


def choose_each(logits: Tensor, selections: Sequence[Selection], positions: Sequence[int]) -> Tensor:
    """[n]: the token that :func:`choose` gives for each row of ``logits`` [n, V], fp32, with a selection and a position
    of its own. For drafters, whose rows are of many requests.

    The selections differ in nothing but their seeds; they are not greedy, and steer nothing.
    """
    keys = choice_keys(selections, positions)
    return _sample(logits, logits.amax(dim=-1, keepdim=True), keys, selections[0])


def _most_probable(logprobs: Tensor, top: int) -> Candidates:
    if not top:
        none = logprobs.new_empty(len(logprobs), 0)
        return Candidates(none.to(torch.int32), none)
    gaps = (-logprobs).nan_to_num_(nan=0.0, posinf=math.inf)  # NaN: an invalid row
    return cut(gaps, 0.0, top)


def _sample(logits: Tensor, best: Tensor, keys: Tensor, selection: Selection) -> Tensor:
    keys = keys.to(logits.device)
    at_once = max(1, _IN_CACHE // logits.shape[-1]) if logits.device.type == "cpu" else len(logits)
    parts = [slice(first, first + at_once) for first in range(0, len(logits), at_once)]
    return torch.cat([_sample_at_once(logits[part], best[part], keys[part], selection) for part in parts])


def _sample_at_once(logits: Tensor, best: Tensor, keys: Tensor, selection: Selection) -> Tensor:
    # A factor, since devices divide by a scalar in different ways; finite and not 0, so that 0 * inf does not happen.
    sharpness = min(max(1 / selection.temperature, _SMALLEST), _LARGEST)
    gaps = (best - logits).mul_(sharpness)
    gaps[~best.isfinite().squeeze(-1)] = 0.0  # anything but NaN
    kept = cut(gaps, selection.min_p, selection.top_k)
    won = race(kept, keys) if selection.top_p == 1 else race_in_nucleus(kept, keys, selection.top_p)
    return won.ids.squeeze(-1).long()
