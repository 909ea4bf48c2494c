"""The canonical choice spelled out for one row, in plain Python: nothing is skipped, packed or vectorised."""

import math
from itertools import accumulate

import numpy as np

from llm42.protocol import Selection

MASK_64, MASK_32 = 2**64 - 1, 2**32 - 1


def splitmix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK_64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK_64
    return value ^ value >> 31


def fmix32(value: int) -> int:
    value = ((value ^ value >> 16) * 0x85EBCA6B) & MASK_32
    value = ((value ^ value >> 13) * 0xC2B2AE35) & MASK_32
    return value ^ value >> 16


def bits(seed: int, position: int, token: int) -> int:
    key = splitmix(splitmix(seed) ^ position)
    return fmix32(fmix32((token + key) & MASK_32) ^ key >> 32) & 0x7FFFFFFF


def gumbel(seed: int, position: int, token: int) -> float:
    return -math.log(-math.log(1 - (bits(seed, position, token) + 0.5) / 2**31))


def kept(gaps: list[float], selection: Selection) -> list[int]:
    """Tokens that may be chosen, best first, by how far they are behind the best one."""
    order = sorted(range(len(gaps)), key=lambda token: (gaps[token], token))
    if selection.min_p:
        order = [token for token in order if gaps[token] <= np.float32(-math.log(selection.min_p))]
    if selection.top_k:
        order = order[: selection.top_k]
    if selection.top_p == 1:
        return order
    weights = [math.exp(-gaps[token]) for token in order]
    enough = selection.top_p * math.fsum(weights)
    return [token for token, mass in zip(order, accumulate(weights, initial=0.0), strict=False) if mass < enough]


def choice(logits: np.ndarray, selection: Selection, position: int) -> int:
    """For the token at ``position``; ``logits`` [V] fp32."""
    gaps = ((logits.max() - logits) * np.float32(1 / selection.temperature)).tolist()
    scores = {token: gumbel(selection.seed, position, token) - gaps[token] for token in kept(gaps, selection)}
    return min(scores, key=lambda token: (-scores[token], token))
