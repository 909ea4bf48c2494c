"""The identity of a verifier: a digest of everything that may change canonical bits."""

import hashlib
import json
from typing import Any

from llm42 import __version__
from llm42.internals import VLLM_VERSION
from llm42.sampling import SELECT_VERSION
from llm42.verifier.passes import PassShape

# Says where a model came from, not what it computes.
_PROVENANCE = ("_name_or_path", "transformers_version")


def fingerprint_parts(
    shape: PassShape, hf_config: dict[str, Any], env: dict[str, str], facts: dict[str, Any], ranks: int
) -> dict[str, Any]:
    """What the fingerprint is made of, in JSON types: kept to explain why two verifiers differ.

    ``facts`` are those of ``ReplayExtension.llm42_setup``; ``ranks`` is the tensor-parallel size.
    """
    model = {name: value for name, value in hf_config.items() if name not in _PROVENANCE}
    return {
        **facts,
        "model_config": _digest(model),
        "window_size": shape.window,
        "verify_batch_size": shape.rows,
        "block_size": shape.block,
        "max_model_len": shape.context,
        "tensor_parallel_size": ranks,
        "env": env,
        "vllm": VLLM_VERSION,
        "select": SELECT_VERSION,
        "llm42": __version__,
    }


def fingerprint(parts: dict[str, Any]) -> str:
    """SHA-256 (hex) of the parts as canonical JSON."""
    return _digest(parts)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
