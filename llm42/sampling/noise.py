"""Gumbel noise without a generator: a pure function of (seed, position, token id).

Nothing is drawn in sequence, so a rollback, a resubmission or another batch cannot disturb it. The bits are two rounds
of MurmurHash3's 32-bit finaliser (Appleby, public domain) over the token id, keyed by 64 bits that SplitMix64
(Steele, Lea and Flood, OOPSLA 2014) makes of the seed and the position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from llm42.protocol.selection import Selection
from llm42.sampling.elementary import log

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def noise_keys(seed: int, position: int, count: int) -> Tensor:
    """[count, 2] int32: the keys of ``count`` consecutive positions, of which ``position`` is the first."""
    mixed = _splitmix(seed & _MASK)
    keys = [_splitmix(mixed ^ (position + i)) for i in range(count)]
    return torch.tensor([[_signed(key & 0xFFFFFFFF), _signed(key >> 32)] for key in keys], dtype=torch.int32)


def choice_keys(selections: Sequence[Selection], positions: Sequence[int]) -> Tensor:
    """[n, 2] int32: the key of each selection's choice from the logits at its position; the token stands one further
    on."""
    return torch.cat([noise_keys(s.seed, position + 1, 1) for s, position in zip(selections, positions, strict=True)])


def noise_bits(keys: Tensor, tokens: Tensor) -> Tensor:
    """[n, k] int32 in [0, 2**31), uniform, for ``keys`` [n, 2] and token ids [k] or [n, k], both int32."""
    bits = tokens + keys[:, :1]
    scratch = torch.empty_like(bits)
    _finalise_(bits, scratch)
    _finalise_(bits.bitwise_xor_(keys[:, 1:]), scratch)
    return bits.bitwise_and_(0x7FFFFFFF)


def gumbel(bits: Tensor) -> Tensor:
    """Standard Gumbel noise (fp64) of :func:`noise_bits`: it falls as they rise, from 22.2 to -3.1."""
    # Small fractions make large noise: there the spacing of the values, which is constant, matters least.
    fraction = (bits.double() + 0.5) * 2.0**-31
    return -log(-log(1 - fraction))


def _finalise_(bits: Tensor, scratch: Tensor) -> None:
    """MurmurHash3's fmix32 on int32, whose products wrap; masks make its shifts logical."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, None)):
        torch.bitwise_right_shift(bits, shift, out=scratch)
        bits.bitwise_xor_(scratch.bitwise_and_((1 << (32 - shift)) - 1))
        if factor is not None:
            bits.mul_(_signed(factor))


def _splitmix(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _signed(word: int) -> int:
    return word - (1 << 32) if word & 0x80000000 else word
