"""Medians, percentiles, and how sure they are: bootstrap intervals over whole runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
LEVEL = 0.95

Run = Sequence[float] | NDArray[np.float64]
"""What one run measured, a value for each request."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def percentile(values: Run, percent: float) -> float:
    """Linear between neighbours. Raises ValueError without values."""
    if not len(values):
        raise ValueError("no values: there is no percentile of nothing")
    # Some thousand calls for each interval: numpy's own does ten times the work for so few values.
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    place = percent / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def estimate(runs: Sequence[Run], statistic: Callable[[Run], float], seed: int = 0) -> Estimate:
    """``statistic`` of all values together.

    Runs are drawn again, not values: requests of one run shared whatever the machine did meanwhile.
    """
    pool = _pool(runs)
    return _bootstrap(len(runs), lambda chosen: statistic(pool(chosen)), seed)


def ratio(runs: Sequence[Run], base: Sequence[Run], statistic: Callable[[Run], float], seed: int = 0) -> Estimate:
    """``statistic`` of ``runs`` over that of ``base``; the i-th of each were interleaved, so pairs are drawn."""
    if len(runs) != len(base):
        raise ValueError(f"pairs are needed, got {len(runs)} runs and {len(base)} to compare them with")
    above, below = _pool(runs), _pool(base)
    return _bootstrap(len(runs), lambda chosen: statistic(above(chosen)) / statistic(below(chosen)), seed)


def _pool(runs: Sequence[Run]) -> Callable[[Sequence[int]], Run]:
    """The values of chosen runs together."""
    arrays = [np.asarray(run, dtype=np.float64) for run in runs]
    return lambda chosen: np.concatenate([arrays[index] for index in chosen])


def _bootstrap(count: int, statistic: Callable[[Sequence[int]], float], seed: int) -> Estimate:
    if not count:
        raise ValueError("no runs: there is nothing to estimate from")
    rng = np.random.default_rng(seed)
    drawn = [float(statistic(rng.integers(0, count, count).tolist())) for _ in range(RESAMPLES)]
    tail = (1 - LEVEL) / 2 * 100
    return Estimate(float(statistic(range(count))), percentile(drawn, tail), percentile(drawn, 100 - tail))
