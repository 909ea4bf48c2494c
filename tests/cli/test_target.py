"""A Serve configuration is judged before anything is started."""

from pathlib import Path

import pytest

from llm42.cli.target import Target
from llm42.config import Config

OURS = "applications: [{import_path: 'llm42.app:build', args: {model: MODEL}}]"


def target(tmp_path: Path, text: str) -> Target:
    config = tmp_path / "serve.yaml"
    config.write_text(text)
    return Target.read(config)


def test_defaults_are_serve_s(tmp_path: Path) -> None:
    assert target(tmp_path, "applications: [{import_path: 'llm42.app:build'}]") == Target(8000, "", (Config(),))


def test_address_and_prefix(tmp_path: Path) -> None:
    text = "http_options: {port: 8123}\napplications: [{import_path: 'a:b', route_prefix: /llm}]"
    assert target(tmp_path, text).url == "http://127.0.0.1:8123/llm"
    assert target(tmp_path, text).configs == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a Serve configuration"),
        ("applications: []", "not a Serve configuration"),
        ("applications: [{args: {}}]", "import_path"),
        (": : :", "not a Serve configuration"),
        (OURS.replace("MODEL", "demo, window_sise: 3"), "window_sise"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        target(tmp_path, text)


@pytest.mark.parametrize(("model", "offline"), [("demo", True), ("HERE", True), ("some/model", False)])
def test_the_hub_is_off_unless_a_model_comes_from_it(
    model: str, offline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    env = target(tmp_path, OURS.replace("MODEL", model.replace("HERE", str(tmp_path)))).environment()
    assert ("HF_HUB_OFFLINE" in env) is offline
    assert env["RAY_USAGE_STATS_ENABLED"] == "0"
    assert "RAY_ADDRESS" not in env


def test_the_launcher_asks_with_a_key_where_one_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    ours = OURS.replace("MODEL", "demo, router: {api_keys_file: KEYS}").replace("KEYS", str(tmp_path / "keys"))
    with pytest.raises(ValueError, match="cannot be read"):
        _ = target(tmp_path, ours).key
    (tmp_path / "keys").write_text("first-key\nsecond-key")
    assert target(tmp_path, ours).key == "first-key"
    assert target(tmp_path, OURS.replace("MODEL", "demo")).key is None
    monkeypatch.setenv("VLLM_API_KEY", "alone")
    assert target(tmp_path, OURS.replace("MODEL", "demo")).key == "alone"
    assert target(tmp_path, "applications: [{import_path: 'a:b'}]").key is None
