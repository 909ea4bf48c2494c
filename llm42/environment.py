"""The environment variables that the parts are started with, in one place."""

OFFLINE_ENV = {
    # Nothing leaves this machine: neither usage statistics nor look-ups of models that are already here.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}

VLLM_ENV = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # One process for one replica: it dies as a whole, and Serve sees it.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The runner whose attributes llm42.internals relies on.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # Two requests of one X-Request-Id must not become one.
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "0",
    # Threads are counted, not pinned to cores: several engines share a machine.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def engine_env(threads: int) -> dict[str, str]:
    """Of a replica with an engine that computes on ``threads`` CPU threads."""
    return {**VLLM_ENV, "OMP_NUM_THREADS": str(threads)}


def router_env() -> dict[str, str]:
    """Of a router: it computes nothing, but tokenizes."""
    return {**engine_env(threads=1), "VLLM_TARGET_DEVICE": "cpu", "TOKENIZERS_PARALLELISM": "false"}
