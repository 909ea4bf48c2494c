"""KubeRay's part on this machine: nodes started as it would start the pods' containers, and Serve told what to run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from llm42.cli.processes import Job
from tests.k8s.overlay import ROOT, Object, Overlay
from tests.ports import free_port

NETWORK = "127.0.0."
"""Of the loopback interface: a node has an address of its own, as a pod has. Not 127.0.0.1, which Ray would replace by
that of a network interface."""
TOKEN = "0123456789abcdef" * 4
UP_S = 300.0
TRIES = 3
CONNECT_S = 120.0
STOP_S = 20.0
POLL_S = 0.5


@dataclass
class Node:
    job: Job
    host: str
    health_port: int
    metrics_port: int

    def get(self, port: int, path: str) -> httpx.Response:
        """Without a token, as probes and Prometheus do."""
        return httpx.get(f"http://{self.host}:{port}{path}", timeout=10, trust_env=False)

    @property
    def is_up(self) -> bool:
        try:
            return self.get(self.health_port, "/api/healthz").is_success
        except httpx.TransportError:
            return False


@dataclass
class LocalRay:
    """A cluster of the overlay's groups; a group's CPUs are given, for GPUs there are none."""

    overlay: Overlay
    folder: Path
    gcs_port: int = field(default_factory=free_port)
    nodes: list[Node] = field(default_factory=list)

    def start_head(self) -> Node:
        group = self.overlay.cluster["headGroupSpec"]
        return self._start(
            "headgroup",
            group,
            "--head",
            f"--port={self.gcs_port}",
            # Its ten processes keep two cores busy for longer than Ray waits for a node; tests.k8s.driver stands in.
            "--include-dashboard=false",
            f"--ray-client-server-port={free_port()}",
            f"--temp-dir={self.folder}",
        )

    def start_worker(self, name: str, num_cpus: int) -> Node:
        """One pod of the group ``name``."""
        group = dict(self.overlay.groups())[name]
        address = f"--address={self.nodes[0].host}:{self.gcs_port}"
        return self._start(name, group, address, f"--num-cpus={num_cpus}", "--num-gpus=0")

    @property
    def _next_host(self) -> str:
        return f"{NETWORK}{len(self.nodes) + 2}"

    def _start(self, name: str, group: Object, *arguments: str) -> Node:
        health, metrics = free_port(), free_port()
        settings = [f"--{key}={value}" for key, value in group["rayStartParams"].items()]
        if custom := {key: float(value) for key, value in group.get("resources", {}).items()}:
            settings.append(f"--resources={json.dumps(custom)}")
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start"),
            "--block",
            f"--node-ip-address={self._next_host}",
            f"--dashboard-agent-listen-port={health}",
            f"--metrics-export-port={metrics}",
            "--disable-usage-stats",
            *settings,
            *arguments,
        ]
        for _ in range(TRIES):
            job = Job.start(name, command, self._environment(name, group), self.folder / f"{name}.log")
            node = Node(job, self._next_host, health, metrics)
            self.nodes.append(node)
            until(lambda node=node: node.is_up or not node.job.running, UP_S, f"{name} is not up")
            if job.running:
                return node
            self.nodes.remove(node)
            job.stop(signal.SIGTERM, STOP_S)
            # Ray waits 15 s for its agents and 30 s for a node, which a busy machine may not keep.
            assert "timed out during startup" in job.tail(), job.tail()
        raise AssertionError(f"{name} is not up after {TRIES} tries: {job.tail()}")

    def _environment(self, name: str, group: Object) -> dict[str, str]:
        container = group["template"]["spec"]["containers"][0]
        # Those that name a place name one in the pod.
        stated = {e["name"]: e["value"] for e in container["env"] if not e.get("value", "/").startswith("/")}
        return {
            **os.environ,
            **stated,
            "PYTHONPATH": str(ROOT),
            "RAY_worker_niceness": "0",  # by default replicas yield to all else on a busy machine
            # What KubeRay adds.
            "RAY_AUTH_MODE": self.overlay.cluster["authOptions"]["mode"],
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_CLUSTER_NAME": "llm42",
            "RAY_CLOUD_INSTANCE_ID": f"llm42-{name}-0",
            "RAY_NODE_TYPE_NAME": name,
            "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
        }

    def deploy(self, config: Object | None, *, until_status: str, timeout_s: float, token: str = TOKEN) -> None:
        """Apply ``config``, if there is one, and wait until the application has the status.

        Raises AssertionError if it cannot be.
        """
        head = self.nodes[0]
        command = [sys.executable, "-m", "tests.k8s.driver", f"{head.host}:{self.gcs_port}", head.host, until_status]
        run = subprocess.run(
            [*command, str(timeout_s)],
            input="" if config is None else json.dumps(config),
            env={**self._environment("headgroup", self.overlay.cluster["headGroupSpec"]), "RAY_AUTH_TOKEN": token},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s + CONNECT_S,
        )
        assert run.returncode == 0, run.stderr[-4000:]

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.job.stop(signal.SIGTERM, STOP_S)


def until(true: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(POLL_S)


@contextmanager
def local_ray(overlay: Overlay) -> Iterator[LocalRay]:
    # Not pytest's folder: a socket's path may have no more than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    ray = LocalRay(overlay, folder)
    try:
        yield ray
    finally:
        ray.stop()
        shutil.rmtree(folder, ignore_errors=True)
