"""Faults that repeat themselves: no audit of one verifier can see these, so fingerprint and fresh replays must."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm42.protocol import Question
from llm42.protocol.messages import ReplayRequest, pack_tokens
from llm42.verifier.engine import ReplayEngine
from llm42.verifier.fingerprint import differences, fingerprint
from tests.verifier import planted as faults
from tests.verifier.conftest import WINDOW, verifier_config
from tests.verifier.lab import random_tokens

ANOTHER_THREAD_COUNT = """
import json, sys
from tests.verifier.conftest import verifier_config
from llm42.verifier.model import ReplayModel
if __name__ == "__main__":
    print(json.dumps(ReplayModel(verifier_config("float32", threads=2), sys.argv[1]).parts))
"""


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_cache(engine: ReplayEngine) -> Iterator[None]:
    yield
    engine._pool.release(engine._pool.take(engine._pool.free))


def parts_of(config: Any, model_path: str) -> dict[str, Any]:
    other = ReplayEngine(config, model_path, multiprocess=True)  # shut down here, it would take vLLM's groups with it
    other._model._core.client.shutdown()
    return other.parts


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
def test_one_weight_bit_flipped_on_disk(engine: ReplayEngine, tiny_path: str, tmp_path: Path) -> None:
    flipped = tmp_path / "flipped"
    shutil.copytree(tiny_path, flipped)
    weights = bytearray((flipped / "model.safetensors").read_bytes())
    weights[-4] ^= 1  # the lowest bit of the last value
    (flipped / "model.safetensors").write_bytes(weights)
    parts = parts_of(verifier_config("float32"), str(flipped))
    assert {"weights"} <= differences(engine.parts, parts).keys() <= {"weights", "probe"}
    assert fingerprint(parts) != engine.fingerprint


def test_one_weight_bit_flipped_in_memory(engine: ReplayEngine) -> None:
    """After the digest was taken: the probe sees it if it comes before the probe, and if the bit matters to it."""
    assert engine._model._thread.submit(engine._model._probe).result(60) == engine.parts["probe"]
    faults.in_worker(engine, faults.flip_weight_bit)
    try:
        assert engine._model._thread.submit(engine._model._probe).result(60) != engine.parts["probe"]
    finally:
        faults.in_worker(engine, faults.flip_weight_bit)
    assert engine._model._thread.submit(engine._model._probe).result(60) == engine.parts["probe"]


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
def test_a_wrong_window(engine: ReplayEngine, tiny_path: str) -> None:
    parts = parts_of(verifier_config("float32").model_copy(update={"window_size": WINDOW // 2}), tiny_path)
    assert differences(engine.parts, parts)["window_size"] == (WINDOW, WINDOW // 2)
    assert fingerprint(parts) != engine.fingerprint


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
@pytest.mark.timeout(600)
def test_another_thread_count(engine: ReplayEngine, tiny_path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_THREAD_COUNT, tiny_path],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = differences(engine.parts, json.loads(done.stdout.splitlines()[-1]))
    assert found["threads"] == (1, 2)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_published_page_overwritten(engine: ReplayEngine) -> None:
    """Answers from the cache are wrong from then on; a fresh replay, as the continuous audit asks for, is not."""
    tokens = pack_tokens(random_tokens(3 * WINDOW))

    async def ask(*, fresh: bool) -> tuple[list[int], bytes]:
        reply = await engine.replay(ReplayRequest("test", Question(tokens, 2 * WINDOW), fresh=fresh))
        return list(reply.scores.tokens), reply.scores.logprobs

    cold = await ask(fresh=False)
    assert await ask(fresh=False) == await ask(fresh=True) == cold
    page = engine._pool.find(engine._cache.keys(tokens)[1])
    assert page is not None
    faults.in_worker(engine, faults.overwrite_page_of, page.block_id)
    assert await ask(fresh=True) == cold
    assert await ask(fresh=False) != cold
