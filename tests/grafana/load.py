"""Mixed load that makes every panel move: calm phases, in which drafts drift, bursts, a killed verifier, mistakes."""

import asyncio
import os
import signal
from typing import Any

import openai

from tests.e2e.client import Client, random_prompt
from tests.e2e.cluster import Cluster
from tests.faults.cases import CONTEXT, Case
from tests.faults.traffic import Outcome, Traffic

ARGS: dict[str, Any] = {
    "model": "tiny",
    "dtype": "bfloat16",
    "max_model_len": CONTEXT,
    "fast_path": {
        # Two, so that attention has an idle one over which to split a lone sequence: that makes drafts drift.
        "threads": 2,
        "num_cpus": 0.25,
        # So little that the burst below puts requests back.
        "engine": {"kv_cache_memory_bytes": 8 << 20},
        "env": {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "OMP_WAIT_POLICY": "PASSIVE"},
    },
    "verifier": {"replicas": 2, "num_cpus": 0.25, "engine": {"kv_cache_memory_bytes": 8 << 20}},
    "audit": {"share": 0.5},
    "timeouts": {"replay_s": 20, "verify_s": 90, "draft_s": 20, "control_s": 10},
}
LONG = [Case(f"long {number}", random_prompt(2000 + number, 380), 96, {}) for number in range(16)]
CALM_S = 45.0
BUSY_S = 30.0
LAST_S = 30.0
MISTAKES, BETWEEN_MISTAKES_S = 4, 3.0


async def load(cluster: Cluster) -> list[Outcome]:
    """Everything that was asked, and what came of it."""
    client = Client(cluster.url, "tiny", ignore_eos=True)
    outcomes = await _calm(client, "first", CALM_S)
    busy = Traffic(client, "busy", streams=6, ordinary=4)
    async with busy:
        await busy.under_way(2)
        verifier = cluster.pids("Verifier")[0]
        os.kill(verifier, signal.SIGSTOP)  # so that calls are on their way when it dies
        await _mistakes(client)
        os.kill(verifier, signal.SIGKILL)
        await asyncio.sleep(BUSY_S)
    burst = Traffic(client, "burst", streams=0, ordinary=0)
    async with burst:
        await asyncio.gather(*(burst.ask(case, deterministic=index % 2 == 0) for index, case in enumerate(LONG)))
    outcomes += busy.outcomes + burst.outcomes + await _calm(client, "last", LAST_S)
    await client.openai.close()
    return outcomes


async def _calm(client: Client, seed: str, seconds: float) -> list[Outcome]:
    """Now a deterministic request and now an ordinary one, each alone."""
    calm = Traffic(client, seed, streams=1, ordinary=1)
    async with calm:
        await asyncio.sleep(seconds)
    return calm.outcomes


async def _mistakes(client: Client) -> None:
    for _ in range(MISTAKES):
        await asyncio.sleep(BETWEEN_MISTAKES_S)  # a counter that is new has to be seen to grow
        try:
            await client.complete([5], 4, temperature=-1)
        except openai.BadRequestError:
            continue
        raise AssertionError("a negative temperature was accepted")
