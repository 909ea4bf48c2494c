"""The fingerprint: all of DESIGN's parts are in it, each one moves it, and nothing else does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llm42.internals.facts import inherited_switches
from llm42.verifier import fingerprint as module
from llm42.verifier.engine import ReplayEngine
from llm42.verifier.fingerprint import (
    ABSENT,
    differences,
    engine_parts,
    fingerprint,
    fingerprint_parts,
    text_parts,
)
from llm42.verifier.passes import PassShape

SHAPE, HF_CONFIG, ENV = PassShape(4, 32, 32, 512), {"hidden_size": 8, "_name_or_path": "/somewhere"}, {"A": "0"}
FACTS: dict[str, Any] = {"weights": "w", "threads": 1, "env": {"MKL_CBWR": "AVX2"}}


def parts(
    shape: PassShape = SHAPE, hf_config: Any = HF_CONFIG, env: Any = ENV, facts: Any = FACTS, ranks: int = 1
) -> Any:
    return fingerprint_parts(shape, hf_config, env, facts, ranks)


def test_it_moves_with_every_argument() -> None:
    assert fingerprint(parts()) == fingerprint(parts(hf_config=HF_CONFIG | {"_name_or_path": "elsewhere"}))
    others = [
        parts(shape=PassShape(2, 32, 32, 512)),
        parts(shape=PassShape(4, 16, 32, 512)),
        parts(shape=PassShape(4, 32, 64, 512)),
        parts(shape=PassShape(4, 32, 32, 480)),
        parts(hf_config=HF_CONFIG | {"hidden_size": 9}),
        parts(env={"A": "1"}),
        parts(facts=FACTS | {"weights": "v"}),
        parts(facts=FACTS | {"env": {}}),
        parts(ranks=2),
    ]
    assert len({fingerprint(parts()), *map(fingerprint, others)}) == 1 + len(others)


def test_it_moves_with_every_part_of_a_real_verifier(engine: ReplayEngine) -> None:
    """And all that DESIGN asks for is among them."""
    found = engine.parts
    assert fingerprint(found) == engine.fingerprint
    assert len({fingerprint({**found, name: "other"}) for name in found} | {engine.fingerprint}) == 1 + len(found)
    asked = """weights model_config generation_config tokenizer chat_template dtype quantization window_size
    verify_batch_size max_model_len block_size tensor_parallel_size device cpu vllm torch_build libraries attention
    threads env select probe"""
    assert set(asked.split()) <= found.keys()
    for part in ("weights", "generation_config", "tokenizer", "chat_template", "cpu", "probe"):
        assert found[part], part
    assert {"name", "capability", "instructions", "cache_bytes"} <= found["cpu"].keys()
    assert any("MKL-DNN" in line for line in found["torch_build"]["with"]), "the oneDNN version"
    assert {"torch"} < found["libraries"].keys()
    assert found["env"]["VLLM_CPU_ATTN_SPLIT_KV"] == "0"


def test_more_memory_for_the_cache_does_not_move_it() -> None:
    assert engine_parts({"kv_cache_memory_bytes": 1 << 30, "quantization": "fp8"}) == {"quantization": "fp8"}


def test_parts_survive_json() -> None:
    odd = parts(hf_config={"ids": {0: "a"}, "eos": (1, 2), "dtype": Path("x")})
    assert json.loads(json.dumps(odd)) == odd


def test_differences_are_named_with_both_values() -> None:
    one = {"a": 1, "same": [1], "env": {"X": "0", "Y": "1", "deep": {"z": None}}, "gone": {}}
    other = {"a": 2, "same": [1], "env": {"X": "0", "deep": {"z": 0}}, "new": "n"}
    expected = {
        "a": (1, 2),
        "env.Y": ("1", ABSENT),
        "env.deep.z": (None, 0),
        "gone": ({}, ABSENT),
        "new": (ABSENT, "n"),
    }
    assert differences(one, other) == expected
    assert differences(other, one) == {name: (right, left) for name, (left, right) in expected.items()}
    assert differences(one, one) == {}


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("tokenizer.json", "tokenizer"),
        ("tokenizer_config.json", "tokenizer"),
        ("merges.txt", "tokenizer"),
        ("chat_template.jinja", "chat_template"),
        ("chat_templates/tools.jinja", "chat_template"),
        ("additional_chat_templates/tools.jinja", "tokenizer"),
        ("tokenization_ours.py", "tokenizer"),
        ("generation_config.json", "generation_config"),
        ("README.md", None),
        ("model.safetensors.index.json", None),
        ("config.json", None),
    ],
)
def test_the_text_side_of_a_model(tiny_path: str, tmp_path: Path, file: str, part: str | None) -> None:
    """Of the directory itself nothing counts; of a file that makes tokens, every byte. config.json is in as loaded."""
    copy = tmp_path / "copy"
    shutil.copytree(tiny_path, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    before = text_parts(str(copy), None, [])
    assert before == text_parts(tiny_path, None, [])
    (copy / file).parent.mkdir(exist_ok=True)
    with (copy / file).open("a") as changed:
        changed.write(" ")
    moved = differences(before, text_parts(str(copy), None, []))
    assert {name.partition(".")[0] for name in moved} == ({part} if part else set())


@pytest.mark.parametrize("form", [["--chat-template={}"], ["--chat-template", "{}"]])
def test_a_file_that_the_frontend_is_told_to_use(tiny_path: str, tmp_path: Path, form: list[str]) -> None:
    template = tmp_path / "template.jinja"
    arguments = [argument.format(template) for argument in form]
    template.write_text("a")
    before = text_parts(tiny_path, None, arguments)
    template.write_text("b")
    assert differences(before, text_parts(tiny_path, None, arguments)).keys() == {"frontend"}


def test_switches_that_nobody_pinned_are_found() -> None:
    inherited = {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "VLLM_CPU_INT4_W4A8": "0", "OMP_NUM_THREADS": "2"}
    others = {"PATH": "/bin", "HOME": "/root", "VLLM_HOST_IP": "10.0.0.1", "VLLM_CACHE_ROOT": "/x", "LANG": "C"}
    assert inherited_switches({**inherited, **others}) == inherited


def test_secrets_are_no_part_of_it(tmp_path: Path) -> None:
    """The parts are published."""
    arguments = ["--api-key", "sk-1", "sk-2", "--trust-remote-code", "--api-key=sk-3", "--seed", "1"]
    assert text_parts(str(tmp_path), None, arguments)["frontend"] == ["--trust-remote-code", "--seed", "1"]
    assert engine_parts({"hf_token": "hf_1", "tokenizer_mode": "slow"}) == {"tokenizer_mode": "slow"}


def test_another_line_of_ours_is_another_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(module.__file__).parents[1]
    copy = tmp_path / "llm42"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    here = parts()["llm42"]["code"]
    monkeypatch.setattr(module, "__file__", str(copy / "verifier" / "fingerprint.py"))
    assert parts()["llm42"]["code"] == here, "where it lies is no matter"
    for name, moves in (("sampling/steer.py", True), ("cli/serve.py", False)):
        before = parts()["llm42"]["code"]
        with (copy / name).open("a") as file:
            file.write("# another\n")
        assert (parts()["llm42"]["code"] != before) is moves, name
