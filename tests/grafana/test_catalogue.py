"""Metrics are named and bounded as the catalogue says."""

import itertools
import re

import pytest

from llm42.metrics import CATALOGUE, Counter, Histogram, Metric
from llm42.metrics.metric import OPEN
from llm42.metrics.verifier import FINGERPRINT

MOST_SERIES = 10
"""Of one metric in one replica."""


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_declarations(metric: Metric) -> None:
    assert re.fullmatch(r"llm42_[a-z_]+", metric.name)
    assert not metric.name.endswith("_total"), "Ray appends it"
    assert metric.help.endswith(".")
    if metric.unit == "seconds":
        assert metric.name.endswith("_seconds")
    if isinstance(metric, Histogram):
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.buckets[0] > 0


def test_names_are_unique() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)


def test_cardinality_is_bounded() -> None:
    for metric in CATALOGUE:
        if metric is not FINGERPRINT:  # one series for each verifier: what it is, by the configuration
            assert OPEN not in metric.labels.values()
        assert len(list(itertools.product(*metric.labels.values()))) <= MOST_SERIES


class Instrument:
    def __init__(self) -> None:
        self.counted: list[tuple[float, dict[str, str]]] = []

    def inc(self, amount: float, tags: dict[str, str]) -> None:
        self.counted.append((amount, tags))

    def _record(self, amount: float, tags: dict[str, str]) -> None:
        self.counted.append((amount, tags))


def counter(**labels: tuple[str, ...]) -> tuple[Counter, Instrument]:
    made, instrument = Counter("llm42_test", "tests", "For tests.", labels), Instrument()
    vars(made)["_instrument"] = instrument
    return made, instrument


def test_a_counter_adds_up_until_it_is_reported() -> None:
    made, instrument = counter(kind=("a", "b"))
    made.add(2, kind="a")
    made.add(kind="a")
    made.add(0, kind="b")  # Ray refuses to count nothing
    assert instrument.counted == []
    made.report()
    made.report()
    assert instrument.counted == [(3, {"kind": "a"})]


def test_a_counter_is_there_before_anything_has_happened() -> None:
    made, instrument = counter(kind=("a", "b"), end=("x",))
    made.start()
    assert instrument.counted == [(0, {"kind": "a", "end": "x"}), (0, {"kind": "b", "end": "x"})]


def test_a_label_left_out_is_an_error() -> None:
    made, _ = counter(kind=("a",))
    with pytest.raises(KeyError):
        made.add()
