import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llm42.cli import main
from llm42.plan.plan import Plan, read_plan
from tests.plan.conftest import plan

SHIPPED = Path("deployments/plans/8b-h100.yaml")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "small.json"
    path.write_text(plan(workload={"duration_s": 2}).model_dump_json(exclude_unset=True))
    return str(path)


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["plan", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_prediction_is_that_of_the_plan(file: str) -> None:
    status, out, _ = invoke("predict", file, "--json")
    assert status == 0
    assert json.loads(out) == json.loads(plan(workload={"duration_s": 2}).predict().model_dump_json())


def test_a_table_says_that_it_is_a_prediction(file: str) -> None:
    status, out, _ = invoke("predict", file)
    assert status == 0
    assert "a prediction, nothing was served" in out
    assert "recomputed" in out


def test_a_field_can_be_set(file: str) -> None:
    status, out, _ = invoke("predict", file, "--json", "--set", "workload.deterministic=0", "--set", "drift=null")
    assert status == 2
    status, out, _ = invoke("predict", file, "--json", "--set", "workload.deterministic=0")
    assert status == 0
    assert json.loads(out)["deterministic"]["requests"] == 0
    status, out, _ = invoke("predict", file, "--json", "--set", "fleet.cadence={mode: window}")
    assert status == 0
    windows = plan(workload={"duration_s": 2}, fleet={"cadence": {"mode": "window"}}).predict()
    assert json.loads(out) == json.loads(windows.model_dump_json())


def test_verifiers_are_counted(file: str) -> None:
    status, out, _ = invoke("verifiers", file, "--set", "target.ttft_multiple=100")
    assert status == 0
    assert "Verifiers needed: 1, 1 for each fast path engine" in " ".join(out.split())
    status, out, _ = invoke("verifiers", file, "--json", "--set", "target.ttft_multiple=1.001")
    assert status == 1
    assert json.loads(out)["verifiers"] is None


def test_a_sweep_has_a_row_for_each_combination(file: str) -> None:
    status, out, _ = invoke("sweep", file, "--json", "--set", "workload.duration_s=1", "--set", "workload.output=20")
    assert status == 0
    assert {point["window_size"] for point in json.loads(out)} == {8, 16, 32, 64, 128}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("workload.rate=-1", "workload.rate"),
        ("fleet.windows=3", "fleet.windows"),
        ("step_times.model=x", "workload, fleet, drift or target"),
        ("workload.rate", "workload, fleet, drift or target"),
        ("workload.prompt={mean: 3}", "longest"),
        ("workload.prompt=]", "workload.prompt=]"),
    ],
)
def test_what_is_wrong_is_named(file: str, change: str, named: str) -> None:
    status, out, err = invoke("predict", file, "--set", change)
    assert status == 2
    assert not out
    assert named in err


@pytest.mark.parametrize("text", ["]", "3", "step_times: nowhere.json", "workload: {}"])
def test_a_file_that_holds_no_plan_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    status, _, err = invoke("predict", str(path))
    assert status == 2
    assert "bad.yaml" in err or "nowhere.json" in err


def test_step_times_may_be_a_file_beside_the_plan(tmp_path: Path) -> None:
    whole = plan()
    (tmp_path / "times.json").write_text(whole.step_times.model_dump_json())
    data = whole.model_dump(mode="json", exclude_unset=True) | {"step_times": "times.json"}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert read_plan(tmp_path / "plan.json").predict() == whole.predict()


def test_the_shipped_plan_is_a_plan() -> None:
    shipped = read_plan(SHIPPED)
    assert isinstance(shipped, Plan)
    assert shipped.step_times.source == "entered"
    report = shipped.with_fields(workload={"duration_s": 2, "warm_up_s": 0}).predict()
    assert report.deterministic.requests > 5


def test_plans_need_no_ray_vllm_or_torch() -> None:
    code = (
        "import sys, llm42.cli.plan, llm42.plan.advice, llm42.plan.sweep;"
        "sys.exit(', '.join({'ray', 'vllm', 'torch'} & sys.modules.keys()) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
