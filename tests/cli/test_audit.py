"""``llm42 audit`` in a process of its own, and what it prints."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llm42.cli import main

SERVE = "applications: [{{name: llm42, import_path: 'llm42.app:build', args: {args}}}]"


def configuration(tmp_path: Path, args: str) -> str:
    path = tmp_path / "serve.yaml"
    path.write_text(SERVE.format(args=args))
    return str(path)


@pytest.mark.timeout(600)
def test_command(tmp_path: Path, tiny_path: str) -> None:
    args = f"{{model: '{tiny_path}', dtype: bfloat16, max_model_len: 512, strict: true}}"
    done = CliRunner().invoke(main, ["audit", configuration(tmp_path, args), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["holds"] is True
    assert found["properties"] == ["repeatable", "tail-independent", "cache-independent"]
    assert found["level"] == "quick"


@pytest.mark.parametrize(
    ("args", "message"),
    [("{window_sise: 3}", "window_sise"), ("{model: /nowhere}", "no directory /nowhere")],
)
def test_command_on_a_wrong_configuration(tmp_path: Path, args: str, message: str) -> None:
    done = CliRunner().invoke(main, ["audit", configuration(tmp_path, args)])
    assert done.exit_code == 2
    assert message in done.output


def test_command_tells_what_is_violated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = {"property": "row-independent", "where": "row 3, slot 0 of window 7"}
    found: dict[str, Any] = {"holds": False, "level": "quick", "failures": [failure], "remedies": ["`strict: true`"]}
    monkeypatch.setattr(importlib.import_module("llm42.cli.audit"), "_in_child", lambda _target, _full: found)
    done = CliRunner().invoke(main, ["audit", configuration(tmp_path, "{model: tiny}")])
    assert done.exit_code == 1
    assert "VIOLATED" in done.output
    assert "row 3, slot 0 of window 7" in done.output
    assert "`strict: true`" in done.output
