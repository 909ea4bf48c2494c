"""What is refused before a model is loaded, and what the loaded model is refused for."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from llm42.config import Config
from llm42.internals.served_models import NotServedError, require_served
from llm42.verifier.settings import (
    VerifierEnvironmentError,
    require_environment,
    verifier_engine_args,
    verifier_env,
)


def config(engine: dict[str, Any] | None = None, **fields: Any) -> Config:
    return Config.model_validate({"verifier": {"engine": engine or {}}, **fields})


@pytest.mark.parametrize(
    ("window", "on_cpu", "block"), [(32, True, 32), (16, True, 32), (48, True, 96), (16, False, 16), (24, False, 48)]
)
def test_the_block_is_the_smallest_multiple_of_the_window(window: int, on_cpu: bool, block: int) -> None:
    args = verifier_engine_args(config(window_size=window), "m", on_cpu=on_cpu)
    assert args["block_size"] == block
    assert args["max_num_batched_tokens"] == 4 * window


@pytest.mark.parametrize(
    "engine",
    [
        {"block_size": 48},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 127},
        {"enforce_eager": False},
        {"load_format": "dummy"},
        {"max_model_len": 100},
    ],
)
def test_contradictions_are_named(engine: dict[str, Any]) -> None:
    [name] = engine
    with pytest.raises(ValueError, match=name):
        verifier_engine_args(config(engine), "m", on_cpu=True)


def test_the_environment_is_pinned() -> None:
    env = verifier_env(Config())
    require_environment(env, env)
    assert env["VLLM_CPU_ATTN_SPLIT_KV"] == "0"
    assert verifier_env(Config(), gpu=True)["VLLM_BATCH_INVARIANT"] == "1"
    with pytest.raises(VerifierEnvironmentError, match=r"VLLM_CPU_ATTN_SPLIT_KV=0 \(found '1'\)"):
        require_environment(env, env | {"VLLM_CPU_ATTN_SPLIT_KV": "1"})
    contradiction = Config.model_validate({"verifier": {"env": {"OMP_NUM_THREADS": "3"}}})
    with pytest.raises(ValueError, match="OMP_NUM_THREADS"):
        verifier_env(contradiction)


def runner(**changes: Any) -> SimpleNamespace:
    """A served model runner, with single traits changed."""
    model: dict[str, Any] = dict.fromkeys(
        ("is_encoder_decoder", "is_multimodal_model", "use_mla", "is_hybrid", "has_inner_state", "uses_mrope"), False
    ) | {"runner_type": "generate", "model": "m", "quantization": None}
    parallel = dict.fromkeys(
        (
            "pipeline_parallel_size",
            "data_parallel_size",
            "decode_context_parallel_size",
            "prefill_context_parallel_size",
        ),
        1,
    )
    parallel |= dict.fromkeys(("enable_expert_parallel", "enable_eplb"), False)
    engine = {"speculative_config": None}
    spec = changes.pop("spec", full_attention())
    groups = changes.pop("groups", 1)
    shared = changes.pop("shared", {})
    for part in (model, parallel, engine):
        part.update({name: changes.pop(name) for name in list(changes) if name in part})
    assert not changes
    return SimpleNamespace(
        model_config=SimpleNamespace(**model),
        vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(**parallel), **engine),
        kv_cache_config=SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)] * groups),
        shared_kv_cache_layers=shared,
    )


def full_attention(**fields: Any) -> FullAttentionSpec:
    import torch

    return FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float32, **fields)


def sliding() -> SlidingWindowSpec:
    import torch

    return SlidingWindowSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float32, sliding_window=64)


def test_a_plain_decoder_is_served() -> None:
    require_served(runner())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"is_multimodal_model": True}, "multimodal"),
        ({"use_mla": True}, "MLA"),
        ({"has_inner_state": True}, "Mamba"),
        ({"uses_mrope": True}, "M-RoPE"),
        ({"runner_type": "pooling"}, "does not generate"),
        ({"enable_expert_parallel": True}, "expert parallelism"),
        ({"enable_eplb": True}, "moved by load"),
        ({"quantization": "fp8"}, "quantised"),
        ({"pipeline_parallel_size": 2}, "pipeline"),
        ({"speculative_config": object()}, "speculation"),
        ({"groups": 2}, "2 KV cache groups"),
        ({"spec": sliding()}, "SlidingWindowSpec"),
        ({"spec": full_attention(sliding_window=64)}, "sliding window"),
        ({"spec": full_attention(non_causal=True)}, "non-causally"),
        ({"shared": {"a": "b"}}, "share the KV cache"),
    ],
)
def test_refusals_name_the_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotServedError, match=reason):
        require_served(runner(**change))
