"""The start-up audit of sound kernels."""

import json

import pytest

from llm42.verifier.audit.report import Property
from llm42.verifier.audit.run import audit
from llm42.verifier.engine import ReplayEngine
from tests.verifier.conftest import ROWS, WINDOW

pytestmark = pytest.mark.usefixtures("nothing_is_left_in_the_cache")


def test_it_ran_before_anything_was_served(engine: ReplayEngine) -> None:
    report = engine.audit
    assert (report.level, report.properties) == ("quick", tuple(Property))
    assert report.passes <= 16
    assert report.comparisons > 3 * ROWS * WINDOW
    assert json.loads(json.dumps(report.as_json()))["properties"] == [str(checked) for checked in Property]
    assert "row-independent" in str(report)


@pytest.mark.parametrize("engine", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)], indirect=True)
def test_full(engine: ReplayEngine) -> None:
    passes = 0

    def count() -> None:
        nonlocal passes
        passes += 1

    quick, full = engine.audit, audit(engine._model, "full", count)
    assert full.properties == quick.properties
    assert full.passes == passes > 5 * quick.passes
    assert full.comparisons > 5 * quick.comparisons
