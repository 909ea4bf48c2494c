"""What cannot be replayed yet does not start, and says why: a server that runs is one that verifies."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import serve

from tests.e2e.cluster import APP, Cluster
from tests.e2e.conftest import TINY
from tests.scenarios.test_fast_paths import NGRAM

START_S = 180.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def empty(ray_and_serve: Cluster) -> Iterator[Cluster]:
    """Nothing is being served."""
    ray_and_serve.clear()
    yield ray_and_serve
    ray_and_serve.clear()


def changed(model: str, tmp: Path, **fields: Any) -> str:
    """The model under another ``config.json``."""
    shutil.copytree(model, tmp, dirs_exist_ok=True)
    config = json.loads((tmp / "config.json").read_text())
    (tmp / "config.json").write_text(json.dumps({**config, **fields}))
    return str(tmp)


def with_verifier(**engine: Any) -> dict[str, Any]:
    verifier = TINY["verifier"]
    return {**TINY, "verifier": {**verifier, "engine": {**verifier["engine"], **engine}}}


async def require_refused(cluster: Cluster, args: dict[str, Any], reason: str) -> None:
    """Deploy; Serve tries a few times, and its status names ``reason``."""
    cluster.apply("llm42.app:build", args, {})
    async with asyncio.timeout(START_S):
        while reason not in (told := str(serve.status().applications.get(APP))):
            assert "status=<ApplicationStatus.RUNNING" not in told
            await asyncio.sleep(1)


async def test_speculating_verifier_differs(empty: Cluster) -> None:
    """vllm#42517: draft and target in one engine. Ours speculates on the fast path, or not at all."""
    await require_refused(empty, with_verifier(speculative_config=NGRAM), "speculation is on")


async def test_sliding_window_is_unprotected(empty: Cluster, tiny_path: str, tmp_path: Path) -> None:
    """vllm#55958: attention that nobody has audited, silently. Refused before any replica starts."""
    model = changed(tiny_path, tmp_path, sliding_window=128)
    with pytest.raises(ValueError, match="sliding window of 128"):
        empty.deploy({**TINY, "model": model})
