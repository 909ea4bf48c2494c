"""Faults that repeat themselves: no audit of one verifier can see these, so fingerprint and fresh replays must."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm42.protocol import Question
from llm42.protocol.messages import ReplayRequest, pack_tokens
from llm42.verifier.engine import ReplayEngine
from llm42.verifier.fingerprint import differences, fingerprint
from llm42.verifier.model import ReplayModel
from tests.verifier import planted as faults
from tests.verifier.conftest import WINDOW, verifier_config
from tests.verifier.lab import keep, probe, random_tokens

ANOTHER_THREAD_COUNT = """
import json, sys
from tests.verifier.conftest import verifier_config
from llm42.verifier.model import ReplayModel
if __name__ == "__main__":
    print(json.dumps(ReplayModel(verifier_config("float32", threads=2), sys.argv[1]).parts))
"""


pytestmark = pytest.mark.usefixtures("nothing_is_left_in_the_cache")


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
def test_one_weight_bit_flipped_on_disk(engine: ReplayEngine, tiny_path: str, tmp_path: Path) -> None:
    flipped = tmp_path / "flipped"
    shutil.copytree(tiny_path, flipped)
    weights = bytearray((flipped / "model.safetensors").read_bytes())
    weights[-4] ^= 1  # the lowest bit of the last value
    (flipped / "model.safetensors").write_bytes(weights)
    parts = keep(ReplayModel(verifier_config("float32"), str(flipped))).parts
    assert {"weights"} <= differences(engine.parts, parts).keys() <= {"weights", "probe"}
    assert fingerprint(parts) != engine.fingerprint


def test_one_weight_bit_flipped_in_memory(engine: ReplayEngine) -> None:
    """After the digest was taken: the probe sees it if it comes before the probe, and if the bit matters to it."""
    assert probe(engine) == engine.parts["probe"]
    faults.in_worker(engine, faults.flip_weight_bit)
    try:
        assert probe(engine) != engine.parts["probe"]
    finally:
        faults.in_worker(engine, faults.flip_weight_bit)
    assert probe(engine) == engine.parts["probe"]


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
@pytest.mark.timeout(600)
def test_another_thread_count(engine: ReplayEngine, tiny_path: str) -> None:
    """And no other part moves, in an interpreter of its own."""
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
    assert found.keys() - {"probe"} == {"threads", "env.OMP_NUM_THREADS"}


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
