"""How full a fast path says that it is."""

from types import SimpleNamespace
from typing import Any

import pytest

from llm42.metrics import FastPathMetrics


def load(in_flight: int, running: int = 0, kv_usage: float = 0.0) -> float:
    metrics: Any = FastPathMetrics()
    metrics._engine = SimpleNamespace(in_flight=in_flight)
    metrics._stats = SimpleNamespace(use=(running, kv_usage))
    return float(metrics.load(max_num_seqs=64))


def test_it_is_what_the_requests_take_of_its_sequences_or_of_its_memory() -> None:
    assert load(0) == 0
    assert load(0, running=4, kv_usage=0.5) == 0  # the last step, and nothing since
    assert load(16, running=16, kv_usage=0.1) == 0.25
    assert load(16, running=16, kv_usage=0.8) == pytest.approx(0.8)


def test_those_that_wait_count_like_those_that_run() -> None:
    assert load(96, running=64, kv_usage=0.3) == 1.5
    assert load(30, running=20, kv_usage=1.0) == pytest.approx(1.5)
    assert load(32, running=0) == 0.5  # none has run yet
