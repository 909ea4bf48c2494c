"""One tiny model and one local Serve instance for all tests of the fast path."""

import os
import socket
from collections.abc import Iterator

import pytest

from llm42.config import Config
from llm42.fastpath.settings import fastpath_env
from llm42.models import tiny_model

ENGINE = {"kv_cache_memory_bytes": 256 << 20, "max_num_seqs": 16}
MAX_MODEL_LEN = 512
CONTROL_S = 5.0


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
        "RAY_worker_niceness": "0",  # by default replicas yield to everything else on a busy machine
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (fastpath_env(config) | local).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="package")
def http_port(environment: None) -> Iterator[int]:
    """A local Ray with Serve on it; the port of its HTTP proxy on 127.0.0.1."""
    import ray
    from ray import serve

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    logs = bool(os.environ.get("LLM42_TEST_LOGS"))
    # A cluster of our own, whatever else runs on this machine.
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=logs)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield port
    serve.shutdown()
    ray.shutdown()
