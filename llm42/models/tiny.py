"""The test model: a small random Llama that speaks the demo model's tokens.

It says nothing sensible, but it is a real model with grouped-query attention and a full vocabulary, loads in
seconds, and its logits are flat enough that a change of arithmetic soon changes a token.
"""

import importlib.metadata
import shutil
from pathlib import Path
from typing import Literal

from llm42.models.cache import build_once, cache_root, report
from llm42.models.demo import demo_model

Dtype = Literal["float32", "bfloat16"]
# Raise it when the same seed makes another model.
RECIPE_VERSION = 1
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def tiny_model(cache_dir: Path | None = None, *, seed: int = 0, dtype: Dtype = "float32") -> Path:
    """Directory of a 15-million-parameter random Llama; the same weights for the same seed and torch version.

    Args:
        cache_dir: where made models live; by default :func:`llm42.models.cache.cache_root`.
        seed: of the weights.
        dtype: of the weights on disk. They are drawn in float32, so both dtypes hold the same model.
    """
    version = importlib.metadata.version("torch")  # Of the installed one, without importing it.
    directory = (cache_dir or cache_root()) / f"tiny-s{seed}-{dtype}-torch{version}-v{RECIPE_VERSION}"
    return build_once(directory, lambda staging: _make(staging, cache_dir, seed, dtype))


def _make(directory: Path, cache_dir: Path | None, seed: int, dtype: Dtype) -> None:
    demo = demo_model(cache_dir)
    report(f"tiny model: drawing weights for seed {seed}")
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        dtype=dtype,
        architectures=["LlamaForCausalLM"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.float32)
    weights = {name: tensor.to(getattr(torch, dtype)) for name, tensor in model.state_dict().items()}
    # Tied to the embedding; safetensors refuses two names for one storage.
    del weights["lm_head.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(directory)
    for name in TOKENIZER_FILES:
        shutil.copyfile(demo / name, directory / name)
