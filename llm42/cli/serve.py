"""``llm42 serve``: a local Ray on the loopback interface, and one Serve configuration on it.

A convenience around ``serve run CONFIG``, which works by itself too: the application needs nothing from here.
"""

import secrets
import signal
import socket
import sys
import sysconfig
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm42.cli.processes import Job, Stopped, StopSignals

if TYPE_CHECKING:
    import httpx

RAY_IS_UP = "Ray runtime started"
RAY_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 1800.0
HTTP_TIMEOUT_S = 5.0
POLL_S = 0.5
SERVE_STOP_S = 8.0
STOP_S = 4.0

EXAMPLES = """
Ready. The same answer twice, bit for bit, whatever else the server is doing:

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' {header}-d '{{
    "model": "{model}", "is_deterministic": true, "temperature": 0, "max_tokens": 64,
    "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="{key}")
  answer = client.chat.completions.create(
      model="{model}", temperature=0, max_tokens=64,
      messages=[{{"role": "user", "content": "What is the capital of France?"}}],
      extra_body={{"is_deterministic": True}})
  print(answer.choices[0].message.content)

Ctrl-C stops it. Metrics for Prometheus: {metrics}. Logs: {logs}"""


class LaunchError(Exception):
    """Serving did not work; the message says why."""


def serve(
    config: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Serve configuration, as for `serve run`.")
    ] = Path("deployments/llm42.yaml"),
) -> None:
    """Start a local Ray and serve CONFIG on it, until Ctrl-C."""
    launch = Launch(config)
    try:
        launch.run()
    except Stopped as stopped:
        _say(f"{stopped}: stopping")
    except (LaunchError, ValueError) as error:
        _say(f"error: {error}")
        raise typer.Exit(1) from None
    finally:
        launch.stop()


class Launch:
    """One life of a local Ray with an application on it."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._signals = StopSignals()
        self._logs = Path(tempfile.mkdtemp(prefix="llm42-serve-"))
        self._scripts = Path(sysconfig.get_path("scripts"))
        self._jobs: list[Job] = []
        self._ready = False

    def run(self) -> None:
        """Start everything, say how to use it, and stay until a signal comes or a part dies."""
        from llm42.cli.target import LOOPBACK, PREPARED_MODELS, Target

        target = Target.read(self._config)
        if not _is_free(LOOPBACK, target.port):
            raise LaunchError(
                f"port {target.port} is in use: stop what listens there, or change http_options in {self._config}"
            )
        key = target.key
        self._env = self._with_token(target.environment())
        for model in target.models:
            if model in PREPARED_MODELS:
                self._prepare(model)
        port = _free_port(LOOPBACK)
        metrics = self._start_ray(LOOPBACK, port)
        model = self._deploy(f"{LOOPBACK}:{port}", target.url, key)
        self._ready = True
        # Never the key itself.
        shown, header = ("none", "") if key is None else ("KEY", "-H 'Authorization: Bearer KEY' ")
        typer.echo(
            EXAMPLES.format(url=target.url, model=model, key=shown, header=header, metrics=metrics, logs=self._logs)
        )
        while True:
            self._check()
            self._signals.pause(POLL_S)

    def stop(self) -> None:
        """Stop what was started, last first: Serve drains its replicas while it still has a Ray to do it."""
        for job in reversed(self._jobs):
            if job.name == "serve":
                # Before it was ready there is no request to finish.
                job.stop(signal.SIGINT, SERVE_STOP_S if self._ready else 0)
            else:
                job.stop(signal.SIGTERM, STOP_S)
        _say("stopped")

    def _with_token(self, env: dict[str, str]) -> dict[str, str]:
        """Ray runs what it is sent, and not all of its ports can be kept on the loopback interface: every process wants
        a token. Unless the user has settled that otherwise."""
        if "RAY_AUTH_MODE" in env:
            return env
        token = self._logs / "ray-token"  # in a folder that nobody else may enter
        token.write_text(secrets.token_hex(32))
        return {**env, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}

    def _prepare(self, model: str) -> None:
        """In a child, whose memory (torch, the weights) goes back when it is done."""
        _say(f"preparing the model {model!r}")
        job = self._start("llm42", "model", "prepare", model, stdout=sys.stderr.fileno())
        while job.running:
            self._signals.pause(POLL_S)
        self._finish(job)
        if job.process.returncode != 0:
            raise LaunchError(f"the model {model!r} could not be prepared; the end of {job.log}:\n{job.tail()}")

    def _start_ray(self, host: str, port: int) -> str:
        """Where its metrics are."""
        metrics = _free_port(host)
        _say(f"starting Ray on {host}:{port} (logs: {self._logs})")
        ray = self._start(
            "ray",
            "start",
            "--head",
            "--block",
            f"--node-ip-address={host}",
            f"--port={port}",
            # Its own, or the next `serve run` on this machine would look for this Ray long after it has gone.
            f"--temp-dir={self._logs / 'ray'}",
            # The defaults of these two are fixed ports, which another Ray on this machine may hold.
            f"--ray-client-server-port={_free_port(host)}",
            f"--metrics-export-port={metrics}",
            "--dashboard-agent-listen-port=0",
            "--include-dashboard=false",
            "--disable-usage-stats",
            "--log-color=false",
        )
        deadline = time.monotonic() + RAY_TIMEOUT_S
        while RAY_IS_UP not in ray.log.read_text(errors="replace"):
            self._check()
            if time.monotonic() >= deadline:
                raise LaunchError(f"Ray is not up after {RAY_TIMEOUT_S:.0f} s; the end of {ray.log}:\n{ray.tail()}")
            self._signals.pause(POLL_S)
        return f"http://{host}:{metrics}/metrics"

    def _deploy(self, address: str, url: str, key: str | None) -> str:
        """Name of the served model, once the application answers."""
        import httpx

        _say(f"serving {self._config} on {url}")
        run = self._start("serve", "run", "--address", address, str(self._config))
        watch = self._start("python", "-m", "llm42.cli.watch", address, stdout=sys.stderr.fileno())
        deadline = time.monotonic() + READY_TIMEOUT_S
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        # trust_env off: a proxy from the environment has no business on the loopback interface.
        with httpx.Client(base_url=url, headers=headers, timeout=HTTP_TIMEOUT_S, trust_env=False) as client:
            while True:
                self._check(besides=watch)
                # In this order: a router may answer although another deployment has failed.
                if not watch.running:
                    if watch.process.returncode != 0:
                        raise LaunchError(f"the application does not come up; the end of {run.log}:\n{run.tail()}")
                    if model := _served_model(client):
                        break
                if time.monotonic() >= deadline:
                    raise LaunchError(f"not ready after {READY_TIMEOUT_S:.0f} s; the end of {run.log}:\n{run.tail()}")
                self._signals.pause(POLL_S)
        self._finish(watch)
        return model

    def _start(self, program: str, *arguments: str, stdout: int | None = None) -> Job:
        command = [str(self._scripts / program), *arguments]
        job = Job.start(program, command, self._env, self._logs / f"{program}.log", stdout=stdout)
        self._jobs.append(job)
        return job

    def _finish(self, job: Job) -> None:
        job.stop(signal.SIGTERM, STOP_S)
        self._jobs.remove(job)

    def _check(self, *, besides: Job | None = None) -> None:
        for job in self._jobs:
            if job is not besides and not job.running:
                raise LaunchError(
                    f"{job.name} exited with {job.process.returncode}; the end of {job.log}:\n{job.tail()}"
                )


def _served_model(client: "httpx.Client") -> str | None:
    """The first model that the application lists, or None while it does not answer."""
    import httpx

    try:
        if not client.get("/health").is_success:
            return None
        listing = client.get("/v1/models")
    except httpx.TransportError:
        return None
    if listing.status_code == HTTPStatus.UNAUTHORIZED:
        raise LaunchError(
            "the application asks for an API key that this command does not have: put it into a file, and set "
            "router.api_keys_file"
        )
    return str(listing.json()["data"][0]["id"]) if listing.is_success else None


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
