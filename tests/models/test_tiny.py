"""The test model is a function of its seed."""

import json
from pathlib import Path

import pytest

from llm42.models import demo_model, resolve_model, tiny_model


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty cache, but for the demo model, from which the tokenizer comes."""
    demo = demo_model()
    (tmp_path / demo.name).symlink_to(demo)
    return tmp_path


def weights(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def test_same_bytes_for_the_same_seed_and_others_for_another(cache: Path, tiny_path: str) -> None:
    again = tiny_model(cache)
    other = tiny_model(cache, seed=1)
    assert again != Path(tiny_path)
    assert weights(again) == weights(Path(tiny_path))
    assert len(weights(other)) == len(weights(again))
    assert weights(other) != weights(again)


def test_drawing_leaves_the_generator_of_others_alone(cache: Path) -> None:
    import torch

    before = torch.get_rng_state()
    tiny_model(cache, seed=2)
    assert torch.equal(before, torch.get_rng_state())


def test_bfloat16_holds_the_same_model(cache: Path, tiny_path: str) -> None:
    import torch
    from safetensors.torch import load_file

    narrow = load_file(tiny_model(cache, dtype="bfloat16") / "model.safetensors")
    wide = load_file(Path(tiny_path) / "model.safetensors")
    assert narrow.keys() == wide.keys()
    assert all(torch.equal(narrow[name], wide[name].to(torch.bfloat16)) for name in wide)


def test_it_speaks_the_demo_model_s_tokens(tiny_path: str) -> None:
    config = json.loads((Path(tiny_path) / "config.json").read_text())
    assert config["vocab_size"] == 49152
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (Path(tiny_path) / name).read_bytes() == (demo_model() / name).read_bytes()
    assert resolve_model("tiny") == tiny_path
