"""The application with one of two models."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from llm42.models import tiny_adapter
from tests.e2e.client import Client
from tests.e2e.cluster import Cluster

TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--trust-request-chat-template"]
# Else a grammar lets a model without sense write spaces for ever.
GRAMMARS = ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']


def arguments(model: str, kv_mib: int) -> dict[str, Any]:
    """What a Serve YAML would say in ``args``."""
    engine = {"kv_cache_memory_bytes": kv_mib << 20}
    return {
        "model": model,
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "fast_path": {
            # Two, so that attention has an idle one over which to split a lone sequence: the drift under test.
            "threads": 2,
            "num_cpus": 0.5,
            "engine": engine,
            # oneDNN keeps compiled code for 1024 shapes, and each batch is a new one: that looks like a leak.
            # Threads that spin while they wait take the core that a verifier needs.
            "env": {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "OMP_WAIT_POLICY": "passive"},
        },
        "verifier": {"num_cpus": 0.5, "engine": engine},
        "router": {"arguments": [*TOOLS, *GRAMMARS]},
    }


# Little KV memory for the test model: what the first requests have not touched would look like a leak later on.
TINY = arguments("tiny", 32)
DEMO = arguments("demo", 256)


@pytest.fixture(scope="module")
def cluster(ray_and_serve: Cluster, tiny_path: str) -> Cluster:
    """The test model is being served. Random weights: it says nothing, and drifts soon."""
    ray_and_serve.deploy(TINY)
    return ray_and_serve


@pytest.fixture(scope="module")
def audited(ray_and_serve: Cluster, tiny_path: str) -> Cluster:
    """The test model is being served with two adapters, and every answer is audited."""
    lisp = tiny_adapter(seed=2, rank=4, modules=("self_attn.v_proj", "lm_head"))
    adapters = {"drawl": str(tiny_adapter(seed=1)), "lisp": str(lisp)}
    ray_and_serve.deploy({**TINY, "adapters": adapters, "audit": {"share": 1.0}})
    return ray_and_serve


@pytest.fixture(scope="module")
def demo_cluster(ray_and_serve: Cluster) -> Cluster:
    """SmolLM2-135M-Instruct is being served."""
    ray_and_serve.deploy(DEMO)
    return ray_and_serve


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """Deterministic unless told otherwise; the test model's end-of-sequence token means nothing, so goes on."""
    client = Client(cluster.url, "tiny", ignore_eos=True)
    yield client
    await client.openai.close()


@pytest.fixture
async def demo(demo_cluster: Cluster) -> AsyncIterator[Client]:
    client = Client(demo_cluster.url, "demo")
    yield client
    await client.openai.close()
