"""The environment of an engine process, and the test model."""

import os
import sys
from collections.abc import Iterator
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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Iterator[None]:
    """End with the tests' verdict, without the interpreter's own end.

    One process has had engines of vLLM, a Ray driver and their threads in it. To take all those libraries down again
    crashes now and then (seen: a segmentation fault after the summary of 1,921 tests that passed), and is nothing that
    a server does: those are ended from outside, and tests of how they end run them in processes of their own.
    """
    status = yield
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status))
