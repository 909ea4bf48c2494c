"""``llm42 fingerprint``: what it prints, how it compares, and its exit status."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from llm42.cli import main
from llm42.router.keys import KeyMiddleware
from llm42.verifier.fingerprint import fingerprint
from tests.check.server import Behaviour, app, serving, serving_app

PARTS: dict[str, Any] = {
    "weights": "a1",
    "threads": 1,
    "frontend": [],
    "env": {"A": "[red]0"},
    "model_config": {"hidden_size": 8, "rope": None},
}


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "200")


@contextmanager
def server(parts: dict[str, Any]) -> Iterator[str]:
    with serving(Behaviour(identity={"fingerprint": fingerprint(parts), "parts": parts, "audit": {}})) as url:
        yield url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fingerprint", *arguments])


def saved(path: Path, parts: dict[str, Any]) -> str:
    path.write_text(json.dumps({"fingerprint": fingerprint(parts), "parts": parts}))
    return str(path)


@pytest.mark.parametrize("path", ["", "/", "/v1"])
def test_one_explains_itself(path: str) -> None:
    with server(PARTS) as url:
        result = run(url + path)
    assert result.exit_code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    assert rows == [
        ["env.A", "[red]0"],
        ["frontend", "[]"],
        ["model_config.hidden_size", "8"],
        ["model_config.rope", "null"],
        ["threads", "1"],
        ["weights", "a1"],
    ]
    assert result.stdout.endswith(f"fingerprint {fingerprint(PARTS)}\n")


def test_what_was_saved_can_be_compared_later(tmp_path: Path) -> None:
    file = tmp_path / "today.json"
    with server(PARTS) as url:
        file.write_text(run(url, "--json").stdout)
        result = run(str(file), url)
    assert (result.exit_code, result.stdout) == (0, f"Equal: {fingerprint(PARTS)}\n")


def test_a_difference_is_named_with_both_values(tmp_path: Path) -> None:
    other = {**PARTS, "threads": 2, "env": {"A": "[red]0", "B": "1"}, "model_config": {"hidden_size": 9, "rope": None}}
    a, b = saved(tmp_path / "a", PARTS), saved(tmp_path / "b", other)
    result = run(a, b, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "equal": False,
        "fingerprints": [fingerprint(PARTS), fingerprint(other)],
        "differences": {"env.B": ["(absent)", "1"], "model_config.hidden_size": [8, 9], "threads": [1, 2]},
    }
    table = run(a, b)
    assert table.exit_code == 1
    for text in ("env.B", "(absent)", "model_config.hidden_size", "threads", fingerprint(PARTS), fingerprint(other)):
        assert text in table.stdout
    assert "weights" not in table.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "neither an http(s) URL nor a file"),
        ("", "holds no fingerprint"),
        ("[]", "holds no fingerprint"),
        ('{"fingerprint": "x"}', "holds no fingerprint"),
        ('{"fingerprint": "x", "parts": {}}', "do not give that"),
    ],
)
def test_what_is_no_fingerprint(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "file.json"
    if content is not None:
        file.write_text(content)
    result = run(str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_server_that_does_not_know() -> None:
    with serving(Behaviour()) as url:
        result = run(url)
        assert result.exit_code == 2
        assert "HTTP 404" in result.stderr
    result = run(url)
    assert result.exit_code == 2
    assert "does not answer" in result.stderr


def test_of_a_server_that_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = app(Behaviour(identity={"fingerprint": fingerprint(PARTS), "parts": PARTS, "audit": {}}))
    guarded = KeyMiddleware(behind, lambda headers: 0 if headers.get("authorization") == "Bearer right" else None)
    with serving_app(guarded) as url:
        refused = run(url)
        assert (refused.exit_code, "HTTP 401" in refused.stderr) == (2, True)
        assert run(url, "--api-key", "right").exit_code == 0
        monkeypatch.setenv("LLM42_API_KEY", "right")
        assert run(url).exit_code == 0
        assert run(url, "--api-key", "wrong").exit_code == 2
