import numpy as np
import pytest

from llm42.bench.statistics import estimate, percentile, ratio
from llm42.bench.targets import mean, median


def test_percentiles_of_known_values() -> None:
    values = list(range(1, 101))
    assert percentile(values, 50) == 50.5
    assert percentile(values, 95) == pytest.approx(95.05)
    assert percentile(values, 99) == pytest.approx(99.01)
    assert percentile([3.0], 95) == 3.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_an_interval_covers_what_it_should_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(30):
        found = estimate([[value] for value in rng.normal(10, 2, 20)], mean, trial)
        covered += found.low <= 10 <= found.high
    assert 24 <= covered <= 30


def test_an_interval_narrows_with_more_runs_and_is_a_point_for_equal_ones() -> None:
    rng = np.random.default_rng(2)
    few, many = (estimate([[value] for value in rng.normal(10, 2, count)], mean) for count in (10, 400))
    assert many.high - many.low < (few.high - few.low) / 3
    same = estimate([[4.0, 6.0]] * 5, median)
    assert (same.value, same.low, same.high) == (5.0, 5.0, 5.0)


def test_whole_runs_are_drawn_and_not_values() -> None:
    """A slow minute makes all of a run's requests slow: as if independent, they would look surer than they are."""
    runs = [[1.0] * 50, [2.0] * 50, [1.0] * 50, [2.0] * 50]
    found = estimate(runs, mean)
    assert (found.low, found.high) == (1.0, 2.0)


def test_pairs_cancel_what_both_of_them_met() -> None:
    rng = np.random.default_rng(3)
    drift = rng.uniform(1, 10, 10)
    found = ratio([[1.1 * speed] for speed in drift], [[speed] for speed in drift], mean)
    assert found.value == pytest.approx(1.1)
    assert found.high - found.low < 1e-9
    apart = ratio([[1.1 * speed] for speed in drift], [[speed] for speed in drift[::-1]], mean)
    assert apart.high - apart.low > 0.1


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="pairs are needed"):
        ratio([[1.0]], [[1.0], [2.0]], mean)
    with pytest.raises(ValueError, match="no runs"):
        estimate([], mean)
