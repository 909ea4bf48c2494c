"""The environment of an engine process, and the test model."""

import os
from pathlib import Path

import pytest

from llm42.config import Config
from llm42.environment import OFFLINE_ENV
from llm42.verifier.settings import verifier_env

# Before anything imports vLLM or torch: they read these once.
os.environ.update({**OFFLINE_ENV, **verifier_env(Config()), "RAY_USAGE_STATS_ENABLED": "0"})


@pytest.fixture(scope="session")
def tiny_path() -> str:
    """Directory of a small random Llama, see :mod:`llm42.models.tiny`."""
    from llm42.models.tiny import tiny_model

    path: Path = tiny_model()
    return str(path)
