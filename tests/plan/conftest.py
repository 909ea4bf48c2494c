"""A small plan, with times that are easy to reckon with."""

from typing import Any

import pytest

from llm42.plan.plan import Plan

STEP_S, PASS_S = 0.01, 0.02


def plan(**sections: dict[str, Any]) -> Plan:
    data: dict[str, Any] = {
        "step_times": {
            "model": "m",
            "hardware": "h",
            "source": "entered",
            "draft": {"decode_s": {1: STEP_S}, "prefill_step_s": STEP_S, "prefill_token_s": 1e-5},
            "replay": [{"rows": 4, "window": 32, "pass_s": PASS_S}],
        },
        "workload": {"concurrency": 6, "prompt": 40, "output": 100, "deterministic": 0.5, "duration_s": 3},
        "fleet": {"max_model_len": 1024},
        "drift": {"median_span": 60},
    }
    for section, fields in sections.items():
        data[section] = {**data.get(section, {}), **fields}
    return Plan.model_validate(data)


@pytest.fixture
def small() -> Plan:
    return plan()
