"""Logarithm and exponential made of correctly rounded operations only, one torch call each.

A library's ``log`` may differ in the last bit between a vector's lanes and its tail, between processors and between
releases. Sums, products, quotients and powers of two may not, so these are the same bits for a value wherever it
stands, on any device that keeps IEEE 754.
"""

import math

import torch
from torch import Tensor

ONE = 1 << 40
"""The weight of a gap of 0 in :func:`weights`; gaps past ln(ONE) weigh nothing."""

_SQRT_HALF = math.sqrt(0.5)
_LN_2 = math.log(2)
_LOG2_E = 1.4426950408889634
# atanh(s) = s + s^3/3 + s^5/5 + ...; at |s| <= 0.172 the eleventh term is below 2**-53.
_ATANH = [1 / (2 * k + 1) for k in range(11)]
# 2**-x for x in [0, 1], the highest power first: relative error 7.5e-8 (a weighted least-squares fit).
_EXP2 = [
    -0.0009387883195659796,
    0.009188611833655125,
    -0.055279722847887416,
    0.24017218944618707,
    -0.6931422526456917,
    0.9999999250672593,
]
_FAR = 60.0  # bits; past the resolution of a weight, and within the exponents of fp32


def log(x: Tensor) -> Tensor:
    """Natural logarithm of positive normal fp64."""
    mantissa, exponent = torch.frexp(x)
    low = mantissa < _SQRT_HALF
    mantissa = torch.where(low, mantissa * 2, mantissa)  # in [sqrt(1/2), sqrt(2))
    power = exponent.double() - low.double()
    s = (mantissa - 1) / (mantissa + 1)  # log(mantissa) = 2 atanh(s)
    square = s * s
    series = torch.full_like(s, _ATANH[-1])
    for coefficient in reversed(_ATANH[:-1]):
        series.mul_(square).add_(coefficient)
    return power * _LN_2 + series * s * 2


def weights(gaps: Tensor) -> Tensor:
    """``exp(-gap)`` as int64 in units of 1 / :data:`ONE`, for fp32 gaps >= 0: sums of these have no order."""
    bits = gaps.mul(_LOG2_E).clamp_(max=_FAR)
    whole = bits.floor()
    part = bits.sub_(whole)
    value = part.mul(_EXP2[0]).add_(_EXP2[1])
    for coefficient in _EXP2[2:]:
        value.mul_(part).add_(coefficient)
    exponent = whole.to(torch.int32).neg_().add_(127 + 40).bitwise_left_shift_(23)
    return value.mul_(exponent.view(torch.float32)).to(torch.int64)
