"""The test models: small random ones of several families, all of which speak the demo model's tokens.

They say nothing sensible, but they are real models with grouped-query attention and a full vocabulary, load in
seconds, and their logits are flat enough that a change of arithmetic soon changes a token.
"""

import importlib.metadata
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from llm42.models.cache import build_once, cache_root, report
from llm42.models.demo import demo_model

Dtype = Literal["float32", "bfloat16"]
Family = Literal["llama", "qwen3", "olmoe"]
"""``qwen3`` has norms on queries and keys; ``olmoe`` is a mixture of experts."""

# Raise it when the same seed makes another model.
RECIPE_VERSION = 1
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


_COMMON: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "initializer_range": 0.05,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
_FAMILIES: dict[Family, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"intermediate_size": 512}),
    "qwen3": ("Qwen3", {"intermediate_size": 512}),
    # vLLM has no tied ones of it.
    "olmoe": (
        "Olmoe",
        {"tie_word_embeddings": False, "intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2},
    ),
}

_ADAPTED = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (256, 128),
    "self_attn.v_proj": (256, 128),
    "self_attn.o_proj": (256, 256),
    "mlp.gate_proj": (256, 512),
    "mlp.up_proj": (256, 512),
    "mlp.down_proj": (512, 256),
}
"""What each layer of the ``llama`` has: width of its input, and of its output."""


def tiny_model(
    cache_dir: Path | None = None, *, seed: int = 0, dtype: Dtype = "float32", family: Family = "llama"
) -> Path:
    """Directory of a random model of 15 million parameters; the same weights for the same seed and versions.

    Args:
        cache_dir: where made models live; by default :func:`llm42.models.cache.cache_root`.
        seed: of the weights.
        dtype: of the weights on disk. They are drawn in float32, so both dtypes hold the same model.
        family: whose architecture it has.
    """
    version = importlib.metadata.version("torch")  # Of the installed one, without importing it.
    directory = (cache_dir or cache_root()) / f"tiny-{family}-s{seed}-{dtype}-torch{version}-v{RECIPE_VERSION}"
    return build_once(directory, lambda staging: _make(staging, cache_dir, seed, dtype, family))


def tiny_adapter(
    cache_dir: Path | None = None, *, seed: int = 0, rank: int = 8, modules: Sequence[str] = tuple(_ADAPTED)
) -> Path:
    """Directory of a random LoRA adapter for the ``llama`` of these, as peft would have written it.

    Args:
        cache_dir: as of :func:`tiny_model`.
        seed: of its weights. They are large enough to change what the model says from the first token on.
        rank: of all its matrices.
        modules: those of each layer that it changes, and perhaps ``lm_head``.
    """
    version = importlib.metadata.version("torch")
    named = f"tiny-adapter-s{seed}-r{rank}-{'+'.join(modules)}-torch{version}-v{RECIPE_VERSION}"
    return build_once((cache_dir or cache_root()) / named, lambda staging: _make_adapter(staging, seed, rank, modules))


def _make(directory: Path, cache_dir: Path | None, seed: int, dtype: Dtype, family: Family) -> None:
    demo = demo_model(cache_dir)
    report(f"tiny model: drawing weights of a {family} for seed {seed}")
    import torch
    import transformers

    name, fields = _FAMILIES[family]
    architecture = f"{name}ForCausalLM"
    config = getattr(transformers, f"{name}Config")(**{**_COMMON, **fields}, dtype=dtype, architectures=[architecture])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, architecture)(config).to(torch.float32)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    for file in TOKENIZER_FILES:
        shutil.copyfile(demo / file, directory / file)


def _make_adapter(directory: Path, seed: int, rank: int, modules: Sequence[str]) -> None:
    import torch
    from safetensors.torch import save_file

    layers = range(_COMMON["num_hidden_layers"])
    shapes = {
        f"model.layers.{layer}.{name}": _ADAPTED[name] for layer in layers for name in modules if name in _ADAPTED
    }
    if "lm_head" in modules:
        shapes["lm_head"] = (_COMMON["hidden_size"], _COMMON["vocab_size"])
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, (width, out) in shapes.items():
        weights[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, width, generator=generator) / width**0.5
        weights[f"base_model.model.{name}.lora_B.weight"] = torch.randn(out, rank, generator=generator) / 8
    save_file(weights, directory / "adapter_model.safetensors")
    targets = [name.rpartition(".")[2] for name in modules]
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": targets}
    (directory / "adapter_config.json").write_text(json.dumps(config))
