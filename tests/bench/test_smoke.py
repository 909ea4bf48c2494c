"""The whole way once: real servers, a small suite, the report."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from llm42.bench.report import split_models
from llm42.bench.store import Store
from llm42.plan.step_times import StepTimes

RUN_S = 1500


@pytest.mark.slow
@pytest.mark.timeout(RUN_S + 60)
def test_a_suite_from_nothing_to_the_report(tmp_path: Path) -> None:
    command = [str(Path(sysconfig.get_path("scripts")) / "llm42"), "bench", "run", "--suite", "smoke", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], stdout=subprocess.PIPE, stderr=sys.stderr, timeout=RUN_S, check=False
    )
    said = json.loads(done.stdout)
    assert done.returncode == 0, said
    assert said["error"] is None
    store = Store(tmp_path)
    ((model, results),) = split_models(store).items()
    assert model == ("tiny", "float32")
    assert {cell.experiment for cell, _ in results.cells} == {
        "saturation", "offline", "neighbours", "online", "lone", "spans", "limit",
    }  # fmt: skip
    assert not any(measured.failures for measured in results.measured)
    (ours,) = results.where("saturation", share=1.0).measured
    asked = sum(answer.tokens for answer in ours.answers)
    # Replayed, and counted; without determinism nothing is.
    assert ours.counters["tokens_committed_total"] == ours.counters["output_tokens_total:deterministic"] == asked
    assert ours.cpu["fast path"] > 0
    assert ours.cpu["verifier"] > 0
    ordinary = next(measured for cell, measured in results.where("saturation", share=0.0).cells if cell.system.ours)
    assert "tokens_committed_total" not in ordinary.counters
    noted = store.noted("calibration-tiny-float32")
    assert noted is not None
    assert StepTimes.model_validate(noted["times"]).replay[0].pass_s > 0
    report = (tmp_path / "report.md").read_text()
    assert "not measured" not in report
    assert (tmp_path / "plots" / "tiny-float32-offline.png").exists()
