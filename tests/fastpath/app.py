"""A Serve application around the fast path: real replicas, and an ingress that does nothing but use the hub."""

import asyncio
import contextvars
import os
import time
from dataclasses import dataclass, field
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from starlette.requests import Request

from llm42.config import Config
from llm42.fastpath.deployment import FastPath
from llm42.fastpath.settings import fastpath_env
from llm42.internals.pinned_router import PinnedRouter
from llm42.router.hub import DraftHub
from tests.fastpath.engine_requests import greedy, prompt

POOL = "fastpath-test-pool"
GRACE_S = 40.0
RUN_S = 60.0


@dataclass
class Job:
    """One request: greedy, from ``prompt(seed)``; aborted after so many tokens if ``abort_after``."""

    name: str
    seed: int = 0
    max_tokens: int = 16
    abort_after: int | None = None
    prefer: str | None = None


@dataclass
class Result:
    """What the sink and ``on_lost`` saw."""

    replica: str
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    lost: list[str] = field(default_factory=list)
    late: int = 0
    """Sink calls after the abort."""
    placed_s: float = 0.0
    first_s: float = 0.0
    done_s: float = 0.0


class ShownFastPath(FastPath):
    """A fast path that tells its process id, for tests that kill it."""

    async def pid(self, *, replica_id: str) -> int:
        self._require_me(replica_id)
        return os.getpid()


class Ingress:
    """Runs jobs over a hub."""

    async def __init__(self, config: Config) -> None:
        import vllm.v1.engine  # noqa: F401 - takes long: not while streams are open

        self.fast_path = serve.get_deployment_handle("FastPath", POOL)
        self.hub = DraftHub(self.fast_path, serve.get_replica_context().replica_id.unique_id, config)
        self.hub.start()

    async def __del__(self) -> None:
        await self.hub.close()

    async def __call__(self, request: Request) -> list[list[int]]:
        """``n`` siblings from one HTTP request."""
        jobs = [Job(f"http-{i}", seed=i) for i in range(int(request.query_params["n"]))]
        return [result.tokens for result in await self.run(jobs)]

    async def run(self, jobs: list[Job]) -> list[Result]:
        return await asyncio.gather(*(self._run(job) for job in jobs))

    async def state(self) -> tuple[list[str], int, str | None]:
        return sorted(self.hub.replicas), self.hub.in_flight, self.hub.failure

    async def pid(self) -> int:
        return os.getpid()

    async def replica_pids(self) -> dict[str, int]:
        """By replica id; pinned calls, all at once."""
        ids = self.hub.replicas
        tasks = [asyncio.create_task(self._pid(id_), context=contextvars.Context()) for id_ in ids]
        return dict(zip(ids, await asyncio.gather(*tasks), strict=True))

    async def pinned_siblings(self, n: int, own_context: bool, timeout_s: float) -> int:
        """How many of ``n`` concurrent pinned calls come back, with or without a context of their own."""
        replica_id = self.hub.replicas[0]

        tasks = [
            asyncio.create_task(
                self._pid(replica_id, timeout_s), context=contextvars.Context() if own_context else None
            )
            for _ in range(n)
        ]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        return sum(isinstance(outcome, int) for outcome in outcomes)

    async def _pid(self, replica_id: str, timeout_s: float = 10.0) -> int:
        async with asyncio.timeout(timeout_s):
            return await self.fast_path.pid.remote(replica_id=replica_id)

    async def _run(self, job: Job) -> Result:
        done = asyncio.Event()
        result = Result("")
        aborted = False
        began = time.perf_counter()

        def sink(output: Any) -> None:
            assert output.request_id == job.name
            result.late += aborted
            if not result.tokens:
                result.first_s = time.perf_counter() - began
            result.tokens.extend(output.new_token_ids)
            if output.finish_reason is not None:
                result.finish = str(output.finish_reason)
                done.set()
            elif job.abort_after is not None and len(result.tokens) >= job.abort_after:
                done.set()

        def on_lost(reason: str) -> None:
            result.lost.append(reason)
            done.set()

        request = greedy(job.name, prompt(job.seed), job.max_tokens)
        result.replica = await self.hub.submit(request, sink, on_lost, job.prefer)
        result.placed_s = time.perf_counter() - began
        async with asyncio.timeout(RUN_S):
            await done.wait()
        result.done_s = time.perf_counter() - began
        if job.abort_after is not None:
            self.hub.abort(job.name)
            self.hub.abort(job.name)
            aborted = True
            await asyncio.sleep(0.5)
        return result


def pool(config: Config, replicas: int) -> serve.Application:
    """The fast path, as an application of its own, so that a test can take it away from its router."""
    return (
        serve.deployment(ShownFastPath)
        .options(
            name="FastPath",
            num_replicas=replicas,
            max_ongoing_requests=1000,
            health_check_period_s=2,
            graceful_shutdown_timeout_s=GRACE_S,
            request_router_config=RequestRouterConfig(request_router_class=PinnedRouter),
            ray_actor_options={"num_cpus": 0.5, "runtime_env": {"env_vars": fastpath_env(config)}},
        )
        .bind(config)
    )


def ingress(config: Config) -> serve.Application:
    """The router."""
    return (
        serve.deployment(Ingress)
        .options(max_ongoing_requests=100, health_check_period_s=2, ray_actor_options={"num_cpus": 0.5})
        .bind(config)
    )
