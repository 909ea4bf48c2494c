"""What a verifier tells its pool's policy."""

import pytest

from llm42.verifier.demand import Demand
from llm42.verifier.usage import PassUse


def a_pass(prefill: int = 0, answered: int = 0, again: int = 0) -> PassUse:
    slots = {"prefill": prefill, "answered": answered, "again": again}
    return PassUse({}, {**slots, "padding": 128 - sum(slots.values())})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("llm42.verifier.demand.time.monotonic", lambda: now[0])
    return now


def test_idle_is_a_figure_too(clock: list[float]) -> None:
    demand = Demand()
    clock[0] += 6
    assert demand.take() == {"wait_s": 0.0, "pass_s": 0.0, "work": 0.0}
    assert demand.take() == {"wait_s": 0.0, "pass_s": 0.0, "work": 0.0}


def test_work_is_what_is_of_use_in_the_time_since_the_last_take(clock: list[float]) -> None:
    demand = Demand()
    for _ in range(2):
        demand.on_pass(a_pass(prefill=64, answered=32, again=16), 1.0)
        demand.on_pass(a_pass(answered=32, again=96), 3.0)
        clock[0] += 5
        assert demand.take() == {"wait_s": 0.0, "pass_s": 2.0, "work": pytest.approx((0.75 + 0.75) / 5)}


@pytest.mark.parametrize(("waits", "wait_s"), [([2.0], 2.0), ([0.1] * 9 + [5.0], 0.1), ([5.0] * 2 + [0.1] * 8, 5.0)])
def test_the_wait_is_that_of_nine_in_ten(clock: list[float], waits: list[float], wait_s: float) -> None:
    demand = Demand()
    for wait in waits:
        demand.on_wait(wait)
    assert demand.take()["wait_s"] == wait_s
    assert demand.take()["wait_s"] == 0.0
