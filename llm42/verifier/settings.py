"""What the configuration means to vLLM in a verifier: environment and engine arguments."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from llm42.adapters import Adapter
from llm42.config import Config
from llm42.environment import engine_env
from llm42.internals.adapters import adapter_engine_args

CPU_BLOCK, GPU_BLOCK = 32, 16
"""vLLM's attention backends take KV blocks in multiples of these, in tokens."""
CPU_KV_BYTES = 1 << 30


class VerifierEnvironmentError(RuntimeError):
    """The process lacks a pinned environment variable."""


def verifier_env(config: Config, *, gpu: bool = False) -> dict[str, str]:
    """Environment of a verifier process (``gpu``: one that computes on GPUs), set before vLLM or torch is imported.

    Raises ValueError if ``verifier.env`` contradicts a pinned switch.
    """
    pinned = {
        # Attention on CPU splits long contexts over idle threads: rounding would follow the load.
        "VLLM_CPU_ATTN_SPLIT_KV": "0",
        **engine_env(config.verifier.threads),
    }
    if gpu:
        # One attention split, no ahead-of-time schedule, fixed GEMM configurations. On CPU it calls Triton, and fails.
        pinned["VLLM_BATCH_INVARIANT"] = "1"
    for name, value in config.verifier.env.items():
        if pinned.get(name, value) != value:
            raise ValueError(f"verifier.env sets {name} to {value!r}, but replay needs {pinned[name]!r}: leave it out")
    return {**config.verifier.env, **pinned}


def require_environment(wanted: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
    """Fail closed: raise :class:`VerifierEnvironmentError` unless ``environ`` has all that is ``wanted``."""
    wrong = [
        f"{name}={value} (found {environ.get(name)!r})" for name, value in wanted.items() if environ.get(name) != value
    ]
    if wrong:
        raise VerifierEnvironmentError(f"a verifier must be started with {', '.join(wrong)}")


def verifier_engine_args(
    config: Config, model_path: str, adapters: Sequence[Adapter] = (), *, on_cpu: bool
) -> dict[str, Any]:
    """Arguments for ``vllm.EngineArgs``: ours, then those of ``verifier.engine``, which ``Config`` has judged."""
    window, rows = config.window_size, config.verify_batch_size
    return {
        "model": model_path,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "load_format": "llm42",
        "worker_extension_cls": "llm42.internals.replay.ReplayExtension",
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "block_size": math.lcm(window, CPU_BLOCK if on_cpu else GPU_BLOCK),
        "max_num_seqs": rows,
        "max_num_batched_tokens": rows * window,
        **({"kv_cache_memory_bytes": CPU_KV_BYTES} if on_cpu else {}),
        **adapter_engine_args(adapters),
        **config.verifier.engine,
    }
