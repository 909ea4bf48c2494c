"""Which models and engine settings can be replayed: refuse everything that has not been audited.

Relies on vLLM 0.32.0: the fields of ``VllmConfig``, ``KVCacheConfig`` and the V1 model runner read below.
"""

from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec


class NotServedError(RuntimeError):
    """The model, or an engine setting, is not one that can be served deterministically yet."""


def require_served(runner: Any) -> None:
    """Raise :class:`NotServedError` naming every reason why this model runner cannot replay."""
    reasons = [*_model_reasons(runner.model_config), *_engine_reasons(runner.vllm_config), *_cache_reasons(runner)]
    if reasons:
        raise NotServedError(
            f"{runner.model_config.model} cannot be served deterministically: {'; '.join(reasons)}. "
            "Served are decoder-only text models with exactly one full-attention KV cache group."
        )


def _model_reasons(model: Any) -> list[str]:
    traits = {
        "it is an encoder-decoder model": model.is_encoder_decoder,
        "it takes multimodal input": model.is_multimodal_model,
        "it uses latent attention (MLA)": model.use_mla,
        "it has recurrent (Mamba-like) layers": model.is_hybrid or model.has_inner_state,
        "it uses multi-dimensional positions (M-RoPE)": model.uses_mrope,
        "it does not generate text": model.runner_type != "generate",
        # Activation scales may follow the other slots of a pass; no model of the kind has been audited yet.
        "it is quantised": model.quantization is not None,
    }
    return [reason for reason, present in traits.items() if present]


def _engine_reasons(config: Any) -> list[str]:
    parallel = config.parallel_config
    settings = {
        "pipeline parallelism is on": parallel.pipeline_parallel_size > 1,
        "data parallelism is on": parallel.data_parallel_size > 1,
        "decode context parallelism is on": parallel.decode_context_parallel_size > 1,
        "prefill context parallelism is on": parallel.prefill_context_parallel_size > 1,
        "expert parallelism is on": parallel.enable_expert_parallel,
        "experts are moved by load (EPLB)": parallel.enable_eplb,
        "speculation is on": config.speculative_config is not None,
    }
    return [reason for reason, present in settings.items() if present]


def _cache_reasons(runner: Any) -> list[str]:
    reasons = []
    groups = runner.kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        reasons.append(f"it has {len(groups)} KV cache groups")
    for spec in (group.kv_cache_spec for group in groups):
        # Subclasses (MLA, sinks, reference windows) compute something else: only the plain spec passes.
        if type(spec) is not FullAttentionSpec:
            reasons.append(f"a KV cache group is {type(spec).__name__}, not full attention")
        elif spec.sliding_window is not None or spec.attention_chunk_size is not None:
            reasons.append("layers attend through a sliding window or in chunks")
        elif spec.non_causal:
            reasons.append("layers attend non-causally")
    if runner.shared_kv_cache_layers:
        reasons.append("layers share the KV cache of other layers")
    return reasons
