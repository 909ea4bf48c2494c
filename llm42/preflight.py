"""What can be refused before a replica starts: models that cannot do what is configured.

The verifier's workers judge the loaded model again, and strictly (:mod:`llm42.internals.served_models`). This
is the quick, readable answer for what a model's ``config.json`` already tells.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm42.adapters import Adapter
from llm42.config import Config

_TRAITS: dict[str, str] = {
    "vision_config": "it takes images",
    "audio_config": "it takes audio",
    "kv_lora_rank": "it uses latent attention (MLA)",
    "state_size": "it has recurrent (Mamba) layers",
    "mamba_d_state": "it has recurrent (Mamba) layers",
    "linear_key_head_dim": "it has linear-attention layers",
    "attention_chunk_size": "it attends in chunks",
    "num_kv_shared_layers": "its layers share the KV cache of others",
}


def require_servable(config: Config, model_path: str) -> None:
    """Judge a local model directory; a hub id is left to vLLM.

    Raises ValueError naming the field, its value and what would be right.
    """
    path = Path(model_path)
    if not path.is_dir():
        if model_path.startswith((".", "/", "~")):
            raise ValueError(f"model is {config.model!r}, but there is no directory {model_path}")
        return
    if not (path / "config.json").is_file():
        raise ValueError(f"model is {config.model!r}, but {path} has no config.json: it is no model directory")
    model = json.loads((path / "config.json").read_text())
    if reasons := _unservable(model):
        raise ValueError(
            f"model is {config.model!r}, which cannot be served deterministically: {'; '.join(reasons)}. Served are "
            "decoder-only text models in which every layer has full attention"
        )
    longest = model.get("max_position_embeddings")
    if isinstance(longest, int):
        if config.max_model_len is not None and config.max_model_len > longest:
            raise ValueError(
                f"max_model_len is {config.max_model_len}, but the model was made for {longest} positions: "
                f"use at most {longest}"
            )
        if longest < config.window_size:
            raise ValueError(
                f"window_size is {config.window_size}, but the model has only {longest} positions: use at most that"
            )


def require_adapters(config: Config) -> None:
    """Judge local adapter directories; a hub id is left to vLLM.

    Raises ValueError naming the adapter and what is wrong with it.
    """
    for name, number in config.adapter_numbers.items():
        path = Path(config.adapters[name])
        if not path.is_dir():
            if config.adapters[name].startswith((".", "/", "~")):
                raise ValueError(f"adapters.{name} is {config.adapters[name]!r}, but there is no such directory")
            continue
        try:
            _ = Adapter(name, number, path).rank
        except ValueError as error:
            raise ValueError(f"adapters.{name}: {error}") from None


def _unservable(model: Mapping[str, Any]) -> list[str]:
    reasons = [why for key, why in _TRAITS.items() if model.get(key)]
    if model.get("is_encoder_decoder"):
        reasons.append("it is an encoder-decoder model")
    if model.get("sliding_window") and model.get("use_sliding_window", True):
        reasons.append(f"it attends through a sliding window of {model['sliding_window']}")
    if other := set(model.get("layer_types") or ()) - {"full_attention"}:
        reasons.append(f"it has layers of type {', '.join(sorted(other))}")
    return list(dict.fromkeys(reasons))
