"""Tokens that may not be chosen: by the grammar, allowed ids, bad words and min_tokens. In vLLM's order and sense."""

import math
from array import array
from collections.abc import Sequence
from operator import lt

import torch
from torch import Tensor

from llm42.protocol.steering import Steering


def permitted(steering: Steering, logits: Tensor, masks: Tensor | None) -> Tensor | None:
    """[W, V] bool: what the grammar's ``masks`` and the allowed ids leave of ``logits``; None: everything."""
    rows, vocabulary = logits.shape
    device = logits.device
    listed = None
    if steering.allowed is not None:
        listed = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        listed[rising_ids(steering.allowed, vocabulary).to(device)] = True
    if masks is None:
        return None if listed is None else listed.expand(rows, -1)
    if masks.dtype != torch.int32 or masks.shape != (rows, -(-vocabulary // 32)):
        raise ValueError(f"{tuple(masks.shape)} {masks.dtype} are no masks of {rows} rows of {vocabulary} tokens")
    bits = torch.ones(32, dtype=torch.int32, device=device) << torch.arange(32, dtype=torch.int32, device=device)
    unpacked = (masks.to(device).unsqueeze(-1) & bits).bool().flatten(1)[:, :vocabulary]
    return unpacked if listed is None else unpacked & listed


def ban_bad_words_(logits: Tensor, steering: Steering, tokens: Tensor, start: int) -> None:
    """The last token of each bad word, where the output so far ends with all the others. Prompts do not count."""
    if not steering.bad_words:
        return
    _require_ids([token for word in steering.bad_words for token in word], logits.shape[-1])
    last: dict[tuple[int, ...], list[int]] = {}
    for *others, token in steering.bad_words:
        last.setdefault(tuple(others), []).append(token)
    lengths = {len(others) for others in last}
    first = max(steering.prompt_tokens, start + 1 - max(lengths))
    output = tokens[first : start + len(logits)].tolist()
    rows: list[int] = []
    columns: list[int] = []
    for row in range(len(logits)):
        end = start + row + 1 - first
        for length in lengths:
            if length == 0 or length <= end:
                found = last.get(tuple(output[end - length : end]), [])
                rows += [row] * len(found)
                columns += found
    logits[torch.tensor(rows, dtype=torch.int64), torch.tensor(columns, dtype=torch.int64)] = -math.inf


def ban_stops_(logits: Tensor, steering: Steering, start: int) -> None:
    """What would end the request before ``min_tokens`` of output; but a grammar that permits nothing else prevails."""
    early = logits[: max(0, steering.prompt_tokens + steering.min_tokens - 1 - start)]
    if not (steering.min_tokens and steering.stops and len(early)):
        return
    columns = rising_ids(steering.stops, logits.shape[-1]).to(logits.device)
    before = early[:, columns]
    early[:, columns] = -math.inf
    if steering.grammar is not None:
        nothing_else = early.amax(dim=-1, keepdim=True) == -math.inf
        early[:, columns] = torch.where(nothing_else & before.isfinite(), before, -math.inf)


def rising_ids(ids: Sequence[int], vocabulary: int) -> Tensor:
    """[n] int64 on the CPU. Raises ValueError unless they rise and lie in [0, ``vocabulary``)."""
    _require_ids((ids[0], ids[-1]), vocabulary)
    if not all(map(lt, ids, ids[1:])):
        raise ValueError("token ids do not rise")
    return torch.frombuffer(array("q", ids), dtype=torch.int64)  # many times faster than torch.tensor


def _require_ids(ids: Sequence[int], vocabulary: int) -> None:
    if not (min(ids) >= 0 and max(ids) < vocabulary):
        raise ValueError(f"a token id is outside of [0, {vocabulary})")
