"""One system under test, alive: our deployment through ``llm42 serve``, or vLLM's own, as a user starts them."""

import os
import re
import shutil
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import yaml

from llm42.bench import scrape
from llm42.bench.cell import System
from llm42.bench.errors import BenchError
from llm42.cli.processes import Job
from llm42.cli.target import LOOPBACK, PREPARED_MODELS, QUIET
from llm42.environment import OFFLINE_ENV, engine_env

READY_S = 900.0
STOP_S = 60.0
POLL_S = 0.3
HTTP_S = 10.0
KV_BYTES = 512 << 20
GPU_SHARE = 0.1
"""Of a GPU's memory, that an engine asks to be free: the KV memory has a fixed size."""
METRICS = re.compile(r"Metrics for Prometheus: (\S+)\. Logs")
ROLES = {"llm42:FastPath": "fast path", "llm42:Verifier": "verifier", "llm42:Router": "router"}


@dataclass(frozen=True, slots=True)
class Place:
    """What all systems of a run have in common."""

    model: str
    dtype: str
    max_model_len: int
    gpu: bool
    logs: Path

    def environment(self, threads: int) -> dict[str, str]:
        """Threads that spin while they wait would take cores from whatever is measured beside them."""
        local = self.model in PREPARED_MODELS or Path(self.model).is_dir()
        env = {**QUIET, **(OFFLINE_ENV if local else {}), **os.environ, "OMP_WAIT_POLICY": "passive"}
        for name in ("VLLM_CPU_ATTN_SPLIT_KV", "VLLM_BATCH_INVARIANT", "VLLM_API_KEY", "RAY_ADDRESS"):
            env.pop(name, None)
        pinned = engine_env(threads)
        return {**env, **{name: pinned[name] for name in ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")}}


@dataclass(frozen=True, slots=True)
class Server:
    """``metrics`` is where our counters are; None for vLLM."""

    system: System
    url: str
    model: str
    metrics: str | None
    job: Job

    @classmethod
    def start(cls, system: System, place: Place) -> Self:
        """Blocks until it answers. Raises BenchError, with the end of its log; nothing is left behind then."""
        port = _free_port()
        command = _ours(system, place, port) if system.ours else _vllm(system, place, port)
        env = place.environment(system.threads)
        if system.ours:
            env["RAY_metrics_report_interval_ms"] = str(scrape.REPORT_MS)
        elif system.kind == "invariant":
            env |= {"VLLM_BATCH_INVARIANT": "1"} if place.gpu else {"VLLM_CPU_ATTN_SPLIT_KV": "0"}
        log = place.logs / f"{system.name}.log"
        log.unlink(missing_ok=True)
        job = Job.start(system.name, command, env, log)
        try:
            metrics = _until_ready(job, system.ours, f"http://{LOOPBACK}:{port}")
            model = httpx.get(f"http://{LOOPBACK}:{port}/v1/models", timeout=HTTP_S, trust_env=False).json()
            if system.ours and not place.gpu:
                _pin_verifier(job, system)
        except BaseException:
            _stop(job)
            raise
        return cls(system, f"http://{LOOPBACK}:{port}", model["data"][0]["id"], metrics, job)

    def stop(self) -> None:
        _stop(self.job)

    def require_alive(self) -> None:
        """Raises BenchError, with the end of its log."""
        _require_running(self.job)

    def cpu(self) -> dict[str, float]:
        """CPU seconds of its living processes, by role. "rest" is Ray, or vLLM's frontend."""
        spent: dict[str, float] = {}
        for process in _tree(self.job):
            try:
                times, role = process.cpu_times(), _role(process.cmdline())
            except psutil.NoSuchProcess:
                continue
            spent[role] = spent.get(role, 0.0) + times.user + times.system
        return spent

    def memory(self) -> int:
        """Resident, in bytes; what processes share is counted for each."""
        found = 0
        for process in _tree(self.job):
            try:
                found += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return found


def serve_config(system: System, place: Place, port: int) -> dict[str, Any]:
    """What ``serve run`` would be given for our deployment."""
    engine: dict[str, Any] = {"kv_cache_memory_bytes": KV_BYTES}
    if place.gpu:
        engine["gpu_memory_utilization"] = GPU_SHARE
    pool = {"num_cpus": 0.5, "engine": engine, **({"num_gpus": 0.5} if place.gpu else {})}
    args = {
        "model": place.model,
        "dtype": place.dtype,
        "max_model_len": place.max_model_len,
        "determinism": "off",
        "window_size": system.window_size,
        "verify_batch_size": system.verify_batch_size,
        "cadence": {"mode": system.cadence},
        "fast_path": {"threads": system.threads, **pool},
        "verifier": {"threads": system.verifier_threads, **pool},
    }
    app = {"name": "llm42", "route_prefix": "/", "import_path": "llm42.app:build", "args": args}
    return {"proxy_location": "HeadOnly", "http_options": {"host": LOOPBACK, "port": port}, "applications": [app]}


def _ours(system: System, place: Place, port: int) -> list[str]:
    config = place.logs / f"{system.name}.yaml"
    config.write_text(yaml.safe_dump(serve_config(system, place, port), sort_keys=False))
    return [_script("llm42"), "serve", str(config)]


def _vllm(system: System, place: Place, port: int) -> list[str]:
    from llm42.models import resolve_model

    options = {
        "host": LOOPBACK,
        "port": port,
        "served-model-name": place.model,
        "dtype": place.dtype,
        "max-model-len": place.max_model_len,
        "kv-cache-memory-bytes": KV_BYTES,
        **({"max-num-seqs": 1} if system.kind == "serial" else {}),
        **({"gpu-memory-utilization": GPU_SHARE} if place.gpu else {}),
    }
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    # Not `vllm serve`, which asks for the version of a package `vllm`: the CPU build has another name, and ends there.
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", resolve_model(place.model)]
    return [*server, *given, *([] if place.gpu else ["--enforce-eager"])]


def _script(name: str) -> str:
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise BenchError(f"the command {name!r} is not installed: install llm42 with the extra cpu or gpu")
    return found


def _until_ready(job: Job, ours: bool, url: str) -> str | None:
    deadline = time.monotonic() + READY_S
    while True:
        _require_running(job)
        if ours:
            if found := METRICS.search(job.log.read_text(errors="replace")):
                return found[1]
        elif _healthy(url):
            return None
        if time.monotonic() > deadline:
            raise BenchError(f"{job.name} is not ready after {READY_S:.0f} s; the end of {job.log}:\n{job.tail()}")
        time.sleep(POLL_S)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=HTTP_S, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _pin_verifier(job: Job, system: System) -> None:
    """Give the verifier cores of its own, as a pool of its own has. All other processes of the deployment share as many
    as the drafting engine has threads; the load generator is not pinned."""
    cores = sorted(os.sched_getaffinity(0))
    drafting, verifying = cores[: system.threads], cores[system.threads :][: system.verifier_threads]
    if len(verifying) < system.verifier_threads:
        return  # more threads than cores: they have to share
    found = False
    for process in _tree(job):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it has ended meanwhile
            own = _role(process.cmdline()) == "verifier"
            found |= own
            for thread in process.threads():  # a process's affinity is that of its main thread alone
                os.sched_setaffinity(thread.id, verifying if own else drafting)
    if not found:
        raise BenchError(f"{job.name} has no process of a verifier that could be given its own cores")


def _require_running(job: Job) -> None:
    if not job.running:
        raise BenchError(f"{job.name} exited with {job.process.returncode}; the end of {job.log}:\n{job.tail()}")


def _tree(job: Job) -> list[psutil.Process]:
    try:
        root = psutil.Process(job.process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _stop(job: Job) -> None:
    """``llm42 serve`` stops its own children, in sessions of their own; what it should leave is killed here."""
    children = _tree(job)[1:]
    job.stop(signal.SIGTERM, STOP_S)
    for process in psutil.wait_procs(children, timeout=STOP_S / 10)[1]:
        process.kill()  # psutil knows a reused id by its start time


def _role(command: list[str]) -> str:
    title = " ".join(command)
    if "VLLM::" in title:
        return "engine"
    return next((role for part, role in ROLES.items() if part in title), "rest")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {role: max(0.0, seconds - before.get(role, 0.0)) for role, seconds in after.items()}
