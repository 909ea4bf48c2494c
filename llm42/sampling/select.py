"""Choose the canonical next token of every slot of a window."""

from typing import NamedTuple

import torch
from torch import Tensor

SELECT_VERSION = 1
"""Part of the fingerprint: raise it with any change that may move a bit of :func:`select`'s answer."""


class Selected(NamedTuple):
    """One choice per slot. Where ``valid`` is false the other fields mean nothing."""

    tokens: Tensor
    """[W] int64."""
    logprobs: Tensor
    """[W] fp32, of the chosen token."""
    ranks: Tensor
    """[W] int64, 1-based as vLLM counts: tokens whose logit is at least the chosen one's."""
    valid: Tensor
    """[W] bool: the row has no NaN, no +inf, and is not all -inf."""


def select(logits: Tensor) -> Selected:
    """Greedy choice from ``logits`` [W, V] in any floating type; ties go to the lowest id.

    Always called with whole windows, so that its shape says nothing about the request.
    """
    logits = logits.float()
    best, tokens = logits.max(dim=-1)  # the first maximum; NaN counts as the largest
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    # Counted in fp32, exact below 2**24, in place: a [W, V] of booleans summed as int64 costs more than all the rest.
    ranks = torch.ge(logits, best.unsqueeze(-1), out=logprobs).sum(dim=-1).long()
    return Selected(tokens, chosen, ranks, best.isfinite())
