"""What the configuration means to vLLM on the fast path: engine arguments and environment."""

from collections.abc import Sequence
from typing import Any

from llm42.adapters import Adapter
from llm42.config import Config
from llm42.environment import engine_env
from llm42.internals.adapters import adapter_engine_args

CPU_KV_CACHE_BYTES = 2 << 30
"""On a CPU vLLM would otherwise take a share of the whole machine's memory, for each engine."""


def fastpath_engine_args(config: Config, model_path: str, adapters: Sequence[Adapter] = ()) -> dict[str, Any]:
    """Arguments of ``vllm.EngineArgs``: vLLM's defaults, the pool's ``engine`` on top.

    ``max_model_len`` is not rounded to windows here, so it is never less than a verifier's.
    """
    from vllm.platforms import current_platform

    args: dict[str, Any] = {
        "model": model_path,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "enable_prefix_caching": True,
        "disable_log_stats": False,  # for vLLM's metrics, see llm42.internals.engine_stats
        **adapter_engine_args(adapters),
    }
    if current_platform.is_cpu():
        args |= {
            "enforce_eager": True,
            "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
            # vLLM 0.32 winds a seeded request's generator back after a partial prefill, which no CPU generator can:
            # one long prompt with a seed would end the engine.
            "enable_chunked_prefill": False,
        }
    return args | config.fast_path.engine


def fastpath_env(config: Config) -> dict[str, str]:
    """Environment of a fast path replica, to be set before its process starts."""
    return {**engine_env(config.fast_path.threads), **config.fast_path.env}
