"""Adjust logits by what a request asks for and by the tokens so far; then a token is selected from them.

Step for step vLLM's sampler: the grammar, allowed ids, bad words, min_tokens, logit_bias, penalties. Its temperature
and its cut-offs come after that. Elementwise and in integers throughout, so no row's bits depend on how many rows
there are; whatever may move one has to raise :data:`llm42.sampling.SELECT_VERSION`.
"""

import math

import torch
from torch import Tensor

from llm42.protocol.steering import Steering
from llm42.sampling.banned import ban_bad_words_, ban_stops_, permitted, rising_ids
from llm42.sampling.penalties import penalise_


def steer(logits: Tensor, steering: Steering, tokens: Tensor, start: int, masks: Tensor | None = None) -> Tensor:
    """New logits [W, V], of which those of forbidden tokens are -inf, from ``logits`` [W, V] fp32.

    Row s holds the logits at position ``start + s`` of the sequence ``tokens`` [n] int64 (on any device), and depends
    on ``tokens[: start + s + 1]`` alone. Rows whose own token is missing (``start + s >= n``) are padding and stay as
    they are. In rows before the last one of the prompt, all tokens so far are prompt, and there is no output yet.

    ``masks`` [W, ceil(V / 32)] int32 have the bits of the tokens that the grammar permits, as xgrammar makes them:
    needed if there is a grammar, and only then.

    Raises ValueError for a row, a mask or a token id that cannot be.
    """
    known = min(len(logits), len(tokens) - start)
    if start < 0 or known < 1:
        raise ValueError(f"no row of logits belongs to a token: {len(tokens)} tokens, the first row is {start}")
    if logits.dtype != torch.float32 or tokens.dtype != torch.int64:
        raise ValueError(f"logits are float32 and tokens int64, not {logits.dtype} and {tokens.dtype}")
    if (masks is None) != (steering.grammar is None):
        raise ValueError("masks belong to a grammar: give both or neither")
    allowed = permitted(steering, logits, masks)
    if allowed is None:
        steered = logits.clone()
    else:
        steered = torch.where(allowed, logits, -math.inf)
        steered[known:] = logits[known:]
    rows = steered[:known]
    ban_bad_words_(rows, steering, tokens, start)
    ban_stops_(rows, steering, start)
    if steering.logit_bias:
        ids, biases = zip(*steering.logit_bias, strict=True)
        columns = rising_ids(ids, logits.shape[-1]).to(logits.device)
        rows[:, columns] += torch.tensor(biases, dtype=torch.float32, device=logits.device)
    penalise_(rows, steering, tokens, start)
    return steered
