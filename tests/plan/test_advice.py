from typing import Any

import pytest

from llm42.plan.advice import advise
from llm42.plan.sweep import variations
from tests.plan.conftest import plan

BUSY: dict[str, dict[str, Any]] = {
    "step_times": {"replay": [{"rows": 2, "window": 32, "pass_s": 0.2}]},
    "workload": {"deterministic": 1, "concurrency": 12, "duration_s": 5},
    "fleet": {"verify_batch_size": 2, "cadence": {"mode": "window"}},
}


def test_the_fewest_verifiers_that_are_enough() -> None:
    tried: list[int] = []
    advice = advise(plan(**BUSY, target={"ttft_multiple": 1000}), tried.append)
    assert advice.verifiers is not None
    assert advice.verifiers > 1
    assert advice.for_each_fast_path == advice.verifiers
    assert sorted(tried) == [trial.verifiers for trial in advice.trials]
    assert all(trial.enough == (trial.verifiers >= advice.verifiers) for trial in advice.trials)
    assert advice.verifiers - 1 in tried
    assert advice.baseline.deterministic.requests == 0


def test_a_target_that_verifiers_cannot_meet_is_said_to_be_so() -> None:
    advice = advise(plan(target={"ttft_multiple": 1.01}, workload={"duration_s": 2}))
    assert advice.verifiers is advice.for_each_fast_path is None
    assert [trial.verifiers for trial in advice.trials] == [1, 2, 4, 8]


def test_nothing_deterministic_needs_one() -> None:
    advice = advise(plan(workload={"deterministic": 0, "duration_s": 2}))
    assert advice.verifiers == 1
    assert advice.trials[0].ttft_multiple is None


def test_variations_keep_the_slots_of_a_pass() -> None:
    points = list(variations(plan(workload={"duration_s": 1, "output": 20})))
    assert {point.window_size for point in points} == {8, 16, 32, 64, 128}
    assert len({(point.window_size, point.cadence) for point in points}) == len(points) > 10
    assert all(point.report.deterministic.requests for point in points)


@pytest.mark.parametrize("fields", [{"fleet": {"verifiers": 0}}, {"workload": {"rate": 1}}])
def test_changes_are_judged(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        plan().with_fields(**fields)
