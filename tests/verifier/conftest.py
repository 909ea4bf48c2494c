"""One verifier per dtype for all tests here, in this process, on the real kernels."""

from collections.abc import Iterator

import pytest

from llm42.config import Config
from llm42.verifier.engine import ReplayEngine
from tests.verifier.lab import Lab, evict_all

ROWS, WINDOW, CONTEXT = 4, 32, 512


def verifier_config(dtype: str, **verifier: object) -> Config:
    return Config.model_validate(
        {
            "dtype": dtype,
            "max_model_len": CONTEXT,
            "window_size": WINDOW,
            "verify_batch_size": ROWS,
            "verifier": {"engine": {"kv_cache_memory_bytes": 32 << 20}, **verifier},
        }
    )


@pytest.fixture(scope="session", params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest, tiny_path: str) -> Iterator[ReplayEngine]:
    engine = ReplayEngine(verifier_config(request.param), tiny_path)
    yield engine
    engine._model._core.client.shutdown()


@pytest.fixture
def lab(engine: ReplayEngine) -> Iterator[Lab]:
    """Passes composed by hand, on pages of their own, with full logits."""
    lab = Lab(engine)
    yield lab
    lab.close()


@pytest.fixture
def nothing_is_left_in_the_cache(engine: ReplayEngine) -> Iterator[None]:
    """Behind what writes pages as if it were alone: an audit, or a fault."""
    yield
    evict_all(engine)
