"""The launcher on a real Ray: up, told how to use it, and gone without a trace."""

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import textwrap
import time
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from ray.serve.generated import serve_pb2, serve_pb2_grpc

from tests.ports import free_port

UP_S = 240
DOWN_S = 60
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
CONFIG = """
proxy_location: HeadOnly
http_options: {{host: 127.0.0.1, port: {port}}}
applications:
  - {{name: llm42, route_prefix: /llm, import_path: "tests.cli.stand_in:build", args: {{fail: {fail}}}}}
"""


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """Not pytest's: a socket's path may have no more than 107 characters."""
    folder = tempfile.mkdtemp(prefix="ray-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def launch(folder: Path, ray_folder: str, port: int, *, fail: bool) -> subprocess.Popen[str]:
    config = folder / "serve.yaml"
    config.write_text(CONFIG.format(port=port, fail=str(fail).lower()))

    def as_in_the_background() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    return subprocess.Popen(
        [f"{sysconfig.get_path('scripts')}/llm42", "serve", str(config)],
        env={**ENVIRONMENT, "RAY_TMPDIR": ray_folder, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=(folder / "progress").open("w"),
        text=True,
        preexec_fn=as_in_the_background,
    )


def processes() -> dict[int, tuple[int, int]]:
    """Parent and session of each live process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found[int(entry.name)] = (int(parent), int(session))
    return found


def started_by(pid: int) -> set[int]:
    """Processes in the sessions that the launcher has opened."""
    found = processes()
    sessions = {child for child, (parent, _) in found.items() if parent == pid}
    return {child for child, (_, session) in found.items() if session in sessions}


def is_loopback(address: str) -> bool:
    parsed = ip_address(address)
    inner = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None  # as gRPC writes it
    return (inner or parsed).is_loopback


def beyond_loopback(pids: set[int]) -> dict[int, str]:
    """Whose ports of ``pids`` are open to other machines: the process's title by port."""
    found = {}
    for pid in pids:
        process = psutil.Process(pid)
        for connection in process.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and not is_loopback(connection.laddr.ip):
                found[connection.laddr.port] = " ".join(process.cmdline()).strip()
    return found


def call_replica(port: int, token: str) -> grpc.StatusCode:
    """How an empty call ends on the port that replicas call each other on."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = serve_pb2_grpc.ASGIServiceStub(channel).HandleRequest
        with pytest.raises(grpc.RpcError) as refused:
            call(serve_pb2.ASGIRequest(), metadata=(("authorization", f"Bearer {token}"),), timeout=30)
        code: grpc.StatusCode = refused.value.code()
        return code


def test_up_and_down(tmp_path: Path, ray_folder: str) -> None:
    port = free_port()
    with launch(tmp_path, ray_folder, port, fail=False) as launcher:
        try:
            assert launcher.stdout is not None
            examples = ""
            while "Ctrl-C" not in examples:  # pytest's timeout bounds it.
                line = launcher.stdout.readline()
                assert line, (tmp_path / "progress").read_text()
                examples += line
            assert f"curl http://127.0.0.1:{port}/llm/v1/chat/completions" in examples
            assert '"model": "stand-in", "is_deterministic": true, "temperature": 0' in examples
            python = examples[examples.index("  from openai") : examples.index("\nCtrl-C")]
            compile(textwrap.dedent(python), "example", "exec")
            metrics = examples.partition("Metrics for Prometheus: ")[2].partition(". ")[0]
            assert "ray_node_mem_total" in httpx.get(metrics, trust_env=False).text

            environment = httpx.get(f"http://127.0.0.1:{port}/llm/environment", trust_env=False).json()
            assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
            started = started_by(launcher.pid)
            assert len(started) > 5  # The control: there is something to stop.

            assert environment["RAY_AUTH_MODE"] == "token"
            token = Path(environment["RAY_AUTH_TOKEN_PATH"])
            assert token.parent.stat().st_mode & 0o077 == 0
            # Serve's replicas alone, who unpickle what they are sent: from those who have the token.
            everywhere = beyond_loopback(started)
            assert set(everywhere.values()) == {"ray::ServeReplica:llm42:Engine", "ray::ServeReplica:llm42:Router"}
            for port in everywhere:
                assert call_replica(port, "") == grpc.StatusCode.UNAUTHENTICATED
                assert call_replica(port, "f" * 64) == grpc.StatusCode.UNAUTHENTICATED
                assert call_replica(port, token.read_text()) == grpc.StatusCode.UNKNOWN  # no pickle

            launcher.send_signal(signal.SIGINT)
            assert launcher.wait(timeout=DOWN_S) == 0
            assert not started & processes().keys()
            # Ray notes its address where the next `serve run` looks for a Ray to join, and leaves the note behind.
            assert not list(Path(ray_folder).rglob("ray_current_cluster"))
            progress = (tmp_path / "progress").read_text()
            assert "llm42/Engine: 1 running" in progress
            assert progress.endswith("SIGINT: stopping\nstopped\n")
        finally:
            launcher.terminate()


def test_a_deployment_that_fails_ends_it(tmp_path: Path, ray_folder: str) -> None:
    with launch(tmp_path, ray_folder, free_port(), fail=True) as launcher:
        try:
            assert launcher.wait(timeout=UP_S) == 1
        finally:
            launcher.terminate()
        progress = (tmp_path / "progress").read_text()
        assert "llm42/Router: 1 running" in progress  # The control: one that answers is not enough.
        assert "no such weights" in progress
        assert "error: the application does not come up" in progress


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path, ray_folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with launch(tmp_path, ray_folder, port, fail=False) as launcher:
            started = time.monotonic()
            assert launcher.wait(timeout=30) == 1
            assert time.monotonic() - started < 20
    assert f"port {port} is in use" in (tmp_path / "progress").read_text()
