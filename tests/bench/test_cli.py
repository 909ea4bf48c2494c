import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llm42.bench.errors import BenchError
from llm42.bench.store import Store
from llm42.cli import main
from tests.bench.records import CALIBRATION, MACHINE, results


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["bench", *arguments])


def test_a_suite_that_does_not_exist_is_named(tmp_path: Path) -> None:
    result = invoke("run", "--out", str(tmp_path), "--suite", "fast")
    assert result.exit_code == 2
    assert "'fast'" in result.output
    assert "quick, full" in result.output


def test_there_is_nothing_to_plot_in_an_empty_directory(tmp_path: Path) -> None:
    result = invoke("plot", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "holds no" in result.output


def test_a_shape_must_be_one(tmp_path: Path) -> None:
    result = invoke("calibrate", "--out", str(tmp_path / "times.json"), "--shape", "32*4")
    assert result.exit_code == 2
    assert "32x4" in result.output


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else object())
    result = invoke("run", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "matplotlib not installed: pip install 'llm42[bench]'" in result.output


def test_why_it_cannot_go_on_is_said_and_what_there_is_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> None:
        store = Store(tmp_path)
        store.note("machine", MACHINE)
        store.note("calibration-tiny-float32", CALIBRATION)
        for cell, run in results(1.0).where("lone").cells:
            store.add(cell, run)
        raise BenchError("vllm-2t exited with 1; the end of its log: no memory")

    monkeypatch.setattr("llm42.bench.measure.measure_suite", measure)
    result = invoke("run", "--out", str(tmp_path), "--suite", "smoke", "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert "no memory" in said["error"]
    assert said["cells"] == 20
    assert "a lone stream" in (tmp_path / "report.md").read_text()


def test_interrupted_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("llm42.bench.measure.measure_suite", measure)
    result = invoke("run", "--out", str(tmp_path), "--suite", "smoke")
    assert result.exit_code == 130
    assert "run the same command to go on" in result.output
