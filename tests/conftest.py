"""The environment of an engine process, the test model, and one Ray for all tests that serve something."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llm42.config import Config
from llm42.environment import OFFLINE_ENV
from llm42.verifier.settings import verifier_env

if TYPE_CHECKING:
    from tests.e2e.cluster import Cluster

# Before anything imports vLLM or torch: they read these once.
os.environ.update({**OFFLINE_ENV, **verifier_env(Config()), "RAY_USAGE_STATS_ENABLED": "0"})


@pytest.fixture(scope="session")
def tiny_path() -> str:
    """Directory of a small random Llama, see :mod:`llm42.models.tiny`."""
    from llm42.models.tiny import tiny_model

    path: Path = tiny_model()
    return str(path)


SERVING = ("e2e", "scenarios", "fastpath")
"""Directories whose tests share one Ray, in this order: those after one another that want the same deployment."""
_ray = ExitStack()


@pytest.fixture(scope="session")
def ray_and_serve() -> Iterator["Cluster"]:
    """For tests in :data:`SERVING`. They come first, and it ends with the last: others start a Ray of their own."""
    from tests.e2e.cluster import ray_cluster

    yield _ray.enter_context(ray_cluster())
    _ray.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


@pytest.hookimpl(trylast=True)  # after the fixtures that need it
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None or _turn(nextitem) == len(SERVING):
        _ray.close()


def _turn(item: pytest.Item) -> int:
    needs_ray = "ray_and_serve" in getattr(item, "fixturenames", ())
    return SERVING.index(item.path.parent.name) if needs_ray else len(SERVING)


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
