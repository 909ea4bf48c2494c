"""The deployment under fault: who is there, how to hurt it, and when it is whole again."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.client import Answer, Client, Transcript
from tests.e2e.cluster import Cluster
from tests.faults.cases import CASES, CONTEXT
from tests.faults.orders import ENV, Order, Orders

BUILD = "tests.faults.parts:build"
WHOLE_S = 600.0
REPLAY_S = 8.0
PROBES = {"FastPath": "describe", "Verifier": "describe", "Router": "in_flight"}
"""What a replica of each part answers as soon as it works."""

Args = dict[str, Any]


def arguments(orders: Orders, **changes: Any) -> Args:
    """What the Serve YAML says, with ``changes`` such as ``verifier__engine={...}`` inside of it."""
    kv = {"kv_cache_memory_bytes": 16 << 20}
    args: Args = {
        "model": "tiny",
        "dtype": "bfloat16",
        "max_model_len": CONTEXT,
        "fast_path": {
            "replicas": 2,
            # Two, so that attention has an idle one over which to split a lone sequence: the drift under test.
            "threads": 2,
            "num_cpus": 0.25,
            "engine": kv,
            # Idle threads sleep: several engines share few cores here.
            "env": {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "OMP_WAIT_POLICY": "PASSIVE"},
        },
        "verifier": {"replicas": 2, "num_cpus": 0.25, "engine": kv, "env": {ENV: str(orders.directory)}},
        "router": {"max_requests": 24},
        "timeouts": {"replay_s": REPLAY_S, "verify_s": 120, "draft_s": 8, "control_s": 10},
    }
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        args[part] = {**args[part], inner: value} if inner else value
    return args


@dataclass
class System:
    """``canonical`` grows by one table for each fingerprint that is met."""

    cluster: Cluster
    orders: Orders
    args: Args = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    canonical: dict[str, dict[str, Answer]] = field(default_factory=dict)

    # -- deploying -----------------------------------------------------------------------------------

    def apply(self, args: Args, **replicas: int) -> None:
        """Change the running application to ``args``; ``replicas`` by part where they are not those of ``args``."""
        self.args = args
        configured = {"FastPath": "fast_path", "Verifier": "verifier", "Router": "router"}
        self.replicas = {part: args[name].get("replicas", 1) for part, name in configured.items()} | replicas
        self.cluster.apply(BUILD, args, self.replicas)

    async def until_whole(self, *gone: int) -> None:
        """Until each part has its replicas, all of the last version, all answering; and none of ``gone``."""
        async with asyncio.timeout(WHOLE_S):
            while not await self._whole(gone):  # noqa: ASYNC110 - other processes' state
                await asyncio.sleep(0.3)

    async def _whole(self, gone: tuple[int, ...]) -> bool:
        status, message = self.cluster.status()
        if status != "RUNNING":
            assert "FAILED" not in status, message
            return False
        for part, count in self.replicas.items():
            pids = self.cluster.pids(part)
            if len(pids) != count or set(pids) & set(gone):
                return False
            if len(await self.cluster.each(part, PROBES[part])) != count:
                return False
        return True

    async def learn(self, client: Client) -> None:
        """Ask every case once, one after another, unless the pool that is there has been asked before.

        To be called on the calm deployment only.
        """
        answers: dict[str, Answer] = {}
        fingerprints = set()
        for case in sorted(CASES, key=lambda case: case.max_tokens):
            said = Transcript()
            await client.follow(said, case.prompt, case.max_tokens, stream=False, **case.fields)
            answers[case.name] = said.answer(None)
            fingerprints.add(said.fingerprint)
            if said.fingerprint in self.canonical:
                break
        (fingerprint,) = fingerprints
        assert fingerprint is not None
        known = self.canonical.setdefault(fingerprint, answers)
        assert all(known[name] == answer for name, answer in answers.items()), "the calm deployment contradicts itself"

    # -- hurting -------------------------------------------------------------------------------------

    def kill(self, *parts: str) -> list[int]:
        """``kill -9`` one replica of each part, all at once."""
        pids = [self.cluster.pids(part)[0] for part in parts]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return pids

    def kill_all(self, part: str) -> list[int]:
        pids = self.cluster.pids(part)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return pids

    async def stop_for(self, part: str, seconds: float) -> None:
        """One replica stands still (SIGSTOP), then goes on where it was."""
        pid = self.cluster.pids(part)[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def misbehave(self, order: Order, until: Callable[[], Awaitable[None]], *, all_of_them: bool = False) -> int:
        """One verifier obeys ``order`` until ``until()`` returns; returns how many calls it has spoilt."""
        before = self.orders.count()
        verifiers = sorted(described["replica_id"] for described in await self.cluster.each("Verifier", "describe"))
        try:
            for replica_id in verifiers if all_of_them else verifiers[:1]:
                self.orders.give(replica_id, order)
            await until()
        finally:
            self.orders.withdraw()
        return self.orders.count() - before

    # -- looking -------------------------------------------------------------------------------------

    async def watch(self, part: str, method: str, seconds: float) -> list[Any]:
        """Everything that the replicas of ``part`` answer to ``method``, asked over and over for ``seconds``."""
        answers: list[Any] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answers += await self.cluster.each(part, method)
            await asyncio.sleep(0.1)
        return answers
