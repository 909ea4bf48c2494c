"""No proxy between the client and the fake server, no time lost between tries, and a place for the output."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("llm42.client.server.BACKOFF_S", 0.01)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output.jsonl"
