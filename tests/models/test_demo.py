"""The demo model is what vLLM expects of a model directory, and it answers."""

import json
from pathlib import Path

import pytest

import llm42.models.demo as demo
from llm42.models import demo_model, resolve_model


@pytest.fixture(scope="module")
def demo_path() -> Path:
    return demo_model()


def test_the_directory_is_named_after_the_weights_and_the_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def converted(content: bytes, version: int) -> Path:
        gguf = tmp_path / "model.gguf"
        gguf.write_bytes(content)
        monkeypatch.setattr(demo, "gguf_file", lambda: gguf)
        monkeypatch.setattr(demo, "CONVERSION_VERSION", version)
        monkeypatch.setattr(demo, "_convert", lambda gguf, staging: None)
        return demo_model(tmp_path / "cache")

    assert converted(b"one", 1) == converted(b"one", 1)
    assert len({converted(b"one", 1), converted(b"two", 1), converted(b"one", 2)}) == 3


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PACKAGE", "llm42-no-such-package")
    with pytest.raises(FileNotFoundError, match="llm42-no-such-package"):
        demo.gguf_file()


def test_it_is_a_plain_float32_llama(demo_path: Path) -> None:
    from safetensors import safe_open

    config = json.loads((demo_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"
    assert "quantization_config" not in config
    with safe_open(demo_path / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
    assert "lm_head.weight" not in names
    assert "model.embed_tokens.weight" in names
    assert len(names) == 2 + 9 * config["num_hidden_layers"]


def test_generation_config_injects_no_sampling(demo_path: Path) -> None:
    generation = json.loads((demo_path / "generation_config.json").read_text())
    generation.pop("transformers_version")
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_tokenizer_has_a_chat_template_and_gives_text_back(demo_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_path)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id == 2
    # Special tokens of a template are single tokens, and encoding adds none of its own.
    assert tokenizer.encode("<|im_start|>user") == [1, 4093]
    assert tokenizer.decode(tokenizer.encode(demo.ROUND_TRIP_SAMPLE)) == demo.ROUND_TRIP_SAMPLE


def test_it_answers(demo_path: Path) -> None:
    """Through transformers: the conversion is right, whatever vLLM does with it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_path)
    model = AutoModelForCausalLM.from_pretrained(demo_path)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(output[0][prompt["input_ids"].shape[1] :])
    assert "Paris" in answer


def test_names_are_resolved(demo_path: Path) -> None:
    assert resolve_model("demo") == str(demo_path)
    assert resolve_model("some/model") == "some/model"
