"""Tests of fit with fixed data: each returns how far the data is off, in units of what chance does in 1 of 1000."""

import math

import numpy as np

NORMAL_999 = 3.0902
"""One-sided; the two-sided tests below thereby err in 2 of 1000."""


def chi_squared(counts: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's statistic over its critical value (Wilson and Hilferty's approximation)."""
    assert expected.min() > 5
    freedom = expected.size - 1
    critical = freedom * (1 - 2 / (9 * freedom) + NORMAL_999 * math.sqrt(2 / (9 * freedom))) ** 3
    return float(((counts - expected) ** 2 / expected).sum() / critical)


def kolmogorov_smirnov(values: np.ndarray, distribution: np.ndarray) -> float:
    """``distribution``: the cumulative distribution function of the sorted ``values``."""
    assert (np.diff(values) >= 0).all()
    steps = np.arange(len(values) + 1) / len(values)
    distance = max((steps[1:] - distribution).max(), (distribution - steps[:-1]).max())
    return float(distance * math.sqrt(len(values)) / math.sqrt(-math.log(0.001 / 2) / 2))


def correlation(left: np.ndarray, right: np.ndarray) -> float:
    r = np.corrcoef(left.ravel(), right.ravel())[0, 1]
    return float(abs(r) * math.sqrt(left.size) / NORMAL_999)


def dependence(left: np.ndarray, right: np.ndarray) -> float:
    """Of two fractions in [0, 1): chi-squared on a 16 x 16 grid, which sees more than a correlation does."""
    cells = (left.ravel() * 16).astype(int) * 16 + (right.ravel() * 16).astype(int)
    counts = np.bincount(cells, minlength=256)
    return chi_squared(counts, np.full(256, left.size / 256))
