"""A small real HTTP server with the completions API, deterministic or not as a test wants it."""

import asyncio
import hashlib
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

STEP_S = 0.05
"""How long a completion takes, so that those of a burst overlap."""


@dataclass
class Behaviour:
    """``drift``: what happens to a completion that has a neighbour, and where the server ``honours``
    `is_deterministic`, has not asked to be spared."""

    drift: str | None = None
    honours: bool = False
    refuses: frozenset[str] = frozenset()
    gives_logprobs: bool = True
    fail_at: int | None = None
    fail_with: Response | None = None
    latency_s: float = STEP_S
    models: Any = field(default_factory=lambda: {"object": "list", "data": [{"id": "tide"}, {"id": "other"}]})
    fingerprints: tuple[str, ...] = ("fp-1",)
    identity: dict[str, Any] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    running: int = 0


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "x", "code": status}}, status_code=status)


def app(behaviour: Behaviour) -> Starlette:
    async def models(_: Request) -> Response:
        return JSONResponse(behaviour.models)

    async def completions(request: Request) -> Response:
        body = await request.json()
        behaviour.requests.append(body)
        number = len(behaviour.requests)
        refused = behaviour.refuses & body.keys()
        if refused:
            return _error(400, f"Unrecognized request argument supplied: {min(refused)}")
        if behaviour.fail_at is not None and number >= behaviour.fail_at:
            return behaviour.fail_with or _error(500, "the engine has died: \x1b[31mred\x1b[0m [bold]")
        behaviour.running += 1
        at_start = behaviour.running
        behaviour.most_at_once = max(behaviour.most_at_once, at_start)
        await asyncio.sleep(behaviour.latency_s)
        at_end = behaviour.running
        behaviour.running -= 1
        return JSONResponse(answer(behaviour, body, number, neighbours=max(at_start, at_end) > 1))

    async def fingerprint(_: Request) -> Response:
        return JSONResponse(behaviour.identity) if behaviour.identity else _error(404, "Not Found")

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/fingerprint", fingerprint),
        ]
    )


def answer(behaviour: Behaviour, body: dict[str, Any], number: int, *, neighbours: bool) -> dict[str, Any]:
    digest = hashlib.sha256(body["prompt"].encode()).digest()
    tokens = [f" w{byte}" for byte in digest[: body["max_tokens"]]]
    logprobs = [-byte / 7 for byte in digest[: body["max_tokens"]]]
    neighbours = neighbours and not (behaviour.honours and body.get("is_deterministic") is True)
    if neighbours and behaviour.drift == "token":
        tokens[5] = " drifted"
        logprobs[3] = math.nextafter(logprobs[3], 0)
    if neighbours and behaviour.drift == "ulp":
        logprobs[3] = math.nextafter(logprobs[3], 0)
    choice: dict[str, Any] = {
        "index": 0,
        "text": "".join(tokens),
        "finish_reason": "length",
        "logprobs": None,
    }
    if "logprobs" in body and behaviour.gives_logprobs:
        choice["logprobs"] = {"tokens": tokens, "token_logprobs": logprobs, "text_offset": []}
    return {
        "id": f"cmpl-{number}",
        "object": "text_completion",
        "model": body["model"],
        "choices": [choice],
        "system_fingerprint": behaviour.fingerprints[number % len(behaviour.fingerprints)],
    }


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """Serve on a free loopback port, and yield the URL."""
    with serving_app(app(behaviour)) as url:
        yield url


@contextmanager
def serving_app(asgi: ASGIApp) -> Iterator[str]:
    """The same for any application."""
    config = uvicorn.Config(
        asgi,
        host="127.0.0.1",
        port=0,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            assert thread.is_alive(), "the server died"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
