"""The configuration of the fast path, and its environment in this process."""

from collections.abc import Iterator

import pytest

from llm42.config import Config
from llm42.fastpath.settings import fastpath_env
from llm42.models import tiny_model

ENGINE = {"kv_cache_memory_bytes": 256 << 20, "max_num_seqs": 16}
MAX_MODEL_LEN = 512
CONTROL_S = 3.0


@pytest.fixture(scope="session")
def config() -> Config:
    return Config.model_validate(
        {
            "model": str(tiny_model()),
            "dtype": "float32",
            "max_model_len": MAX_MODEL_LEN,
            "fast_path": {"engine": ENGINE},
            "timeouts": {"control_s": CONTROL_S},
        }
    )


@pytest.fixture(scope="package", autouse=True)
def environment(config: Config) -> Iterator[None]:
    """What a replica's environment says, for the engine in this process; before vLLM is imported."""
    local = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (fastpath_env(config) | local).items():
            patch.setenv(name, value)
        yield
