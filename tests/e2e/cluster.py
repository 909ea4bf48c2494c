"""The system under test: our own Ray and Serve, and the application on it, as `serve run` would start it."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.schema import ServeDeploySchema

from tests.ports import free_port

APP = "llm42"
CALL_S = 60.0
DEPLOYED_S = 240.0
REPLACED_S = 120.0
METRICS_S = 30.0
RAY_STARTS = 4
"""Ray gives up a start after 30 s, which a busy machine may need."""


@dataclass
class Cluster:
    """One Ray node with Serve; at most one application at a time, for want of memory."""

    port: int
    metrics_port: int
    deployed: dict[str, Any] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def deploy(self, args: dict[str, Any]) -> None:
        """Serve ``llm42.app:build`` with ``args``, unless that is what is being served; wait until it answers."""
        if self.deployed == args:
            return
        from llm42.app import build

        self.clear()
        serve.run(build(args), name=APP, route_prefix="/", blocking=False)
        self.deployed = args
        self.until_healthy()

    def clear(self) -> None:
        """Take the application down, if there is one."""
        if self.deployed is not None:
            self.deployed = None
            serve.delete(APP)

    def apply(self, import_path: str, args: dict[str, Any], replicas: dict[str, int]) -> None:
        """What ``serve deploy`` does with a YAML; does not wait. An application that runs is changed as it runs.

        ``replicas`` go where Serve changes them without a restart: into ``deployments``.
        """
        app = {
            "name": APP,
            "route_prefix": "/",
            "import_path": import_path,
            "args": args,
            "deployments": [{"name": name, "num_replicas": count} for name, count in replicas.items()],
        }
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [app]}))
        self.deployed = {"import_path": import_path, **args}

    def status(self) -> tuple[str, str]:
        """Serve's word for the application (NOT_STARTED where there is none), and what it has to say about that."""
        app = serve.status().applications.get(APP)
        return ("NOT_STARTED", "") if app is None else (app.status.value, app.message)

    def until_healthy(self) -> None:
        deadline = time.monotonic() + DEPLOYED_S
        while True:
            try:
                status = httpx.get(f"{self.url}/v1/models", timeout=5, trust_env=False).status_code
                if status in (200, 401):  # it wants a key, so it is there
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, "the application did not come up"
            time.sleep(0.2)

    def pid(self, deployment: str) -> int:
        """The process of the only replica of ``deployment``. Looks among our own descendants only."""
        (pid,) = self.pids(deployment)
        return pid

    def memory(self, deployment: str) -> int:
        """Its resident memory in bytes."""
        return int(psutil.Process(self.pid(deployment)).memory_info().rss)

    async def kill(self, *deployments: str) -> None:
        """``kill -9``, all at once."""
        for pid in [self.pid(deployment) for deployment in deployments]:
            os.kill(pid, signal.SIGKILL)

    def pids(self, deployment: str) -> list[int]:
        """The processes of its replicas, those that start or stop included."""
        title = f"ray::ServeReplica:{APP}:{deployment}"
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if " ".join(process.cmdline()).startswith(title):
                    found.append(process.pid)
            except psutil.NoSuchProcess:
                continue
        return found

    async def in_flight(self) -> dict[str, int]:
        """What is going on in each part, by its own account; all 0 when idle."""
        router, fast_path, verifier = await asyncio.gather(
            self.call("Router", "in_flight"), self.call("FastPath", "describe"), self.call("Verifier", "describe")
        )
        return {
            "router sessions": router["sessions"],
            "router streams": router["fast_path"],
            "fast path": fast_path.in_flight,
            "verifier": verifier["in_flight"],
            "verifier pages": verifier["pages"] - verifier["pages_free"],
        }

    async def until_idle(self, timeout_s: float) -> float:
        """Wait until nothing is in flight anywhere; returns the seconds that took."""
        began = time.monotonic()
        while True:
            state = await self.in_flight()
            if not any(state.values()):
                return time.monotonic() - began
            assert time.monotonic() - began < timeout_s, f"still in flight after {timeout_s} s: {state}"
            await asyncio.sleep(0.1)

    async def until_gone(self, deployment: str, pid: int) -> None:
        """Wait until that process is none of the replicas any more."""
        async with asyncio.timeout(REPLACED_S):
            while pid in self.pids(deployment):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.2)

    async def until_replaced(self, deployment: str, dead: int) -> None:
        """Wait until the replica that took the place of process ``dead`` answers."""
        async with asyncio.timeout(REPLACED_S):
            while not (pids := self.pids(deployment)) or dead in pids:  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.2)
            while True:
                try:
                    await self.call(deployment, "describe")
                    return
                except (ray.exceptions.RayError, TimeoutError):
                    await asyncio.sleep(0.2)

    async def call(self, deployment: str, method: str) -> Any:
        handle = serve.get_deployment_handle(deployment, APP)
        return await asyncio.wait_for(handle.options(method_name=method).remote(), CALL_S)

    async def each(self, deployment: str, method: str) -> list[Any]:
        """What the replicas answer that do answer."""
        handle = serve.get_deployment_handle(deployment, APP)
        try:
            answers = await handle.broadcast(method).results_async(timeout_s=CALL_S, return_exceptions=True)
        except DeploymentUnavailableError:  # not one of them is up
            return []
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def exposition(self) -> str:
        """What Prometheus would scrape from the node."""
        async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
            return (await client.get(f"http://127.0.0.1:{self.metrics_port}/metrics")).text

    async def metrics(self) -> dict[str, float]:
        """Our samples on the metrics port, by name; sums over all labels."""
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(await self.exposition()):
            for sample in family.samples:
                if sample.name.startswith("ray_llm42_"):
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    async def until_metric(self, name: str, more_than: float) -> float:
        """The value of ``name`` once it is more than that: metrics arrive some seconds late."""
        async with asyncio.timeout(METRICS_S):
            while (value := (await self.metrics()).get(name, 0.0)) <= more_than:  # noqa: ASYNC110
                await asyncio.sleep(0.3)
        return value


def _start_ray(metrics_port: int) -> None:
    for left in reversed(range(RAY_STARTS)):
        try:
            ray.init(
                address="local",
                num_cpus=4,
                include_dashboard=False,
                log_to_driver=bool(os.environ.get("LLM42_TEST_LOGS")),
                _metrics_export_port=metrics_port,
                _system_config={"metrics_report_interval_ms": 1000},
            )
            return
        except Exception as error:  # Ray has no type of its own for it
            if "timed out during startup" not in str(error) or not left:
                raise
            ray.shutdown()


@contextmanager
def ray_cluster() -> Iterator[Cluster]:
    """A local Ray of our own, whatever else runs on this machine."""
    cluster = Cluster(free_port(), free_port())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}.items():
            patch.setenv(name, value)
        patch.setenv("RAY_worker_niceness", "0")  # by default replicas yield to all else on a busy machine
        # Replicas inherit it: the fast path would be as repeatable as a verifier, and no test would see a rollback.
        patch.delenv("VLLM_CPU_ATTN_SPLIT_KV", raising=False)
        _start_ray(cluster.metrics_port)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": cluster.port})
        yield cluster
    finally:
        serve.shutdown()
        ray.shutdown()
