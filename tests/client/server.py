"""A small real HTTP server that answers as LLM-42 does, or breaks its word as a test wants it."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.check.server import serving_app

Answer = Response | None
Disturbance = Callable[[int, dict[str, Any]], Answer]
"""Given how many requests came (this one included) and the body; None: answer as usual."""


@dataclass
class Fake:
    """``disturb`` may answer in the server's place; ``edit`` changes an answer of its own."""

    fingerprint: str = "fp-1"
    disturb: Disturbance = lambda number, body: None
    edit: Callable[[dict[str, Any]], None] = lambda answer: None
    latency_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    running: int = 0
    most_at_once: int = 0

    def asked(self) -> Counter[str]:
        """How often each prompt came."""
        return Counter(prompt_of(body) for body in self.bodies)

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        number = len(self.bodies)  # before others come
        self.headers.append(dict(request.headers))
        self.times.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            await asyncio.sleep(self.latency_s)
            return self.disturb(number, body) or self.answer(body)
        finally:
            self.running -= 1

    def answer(self, body: dict[str, Any]) -> Response:
        if body.get("expected_fingerprint") not in (None, self.fingerprint):
            message = f"expected_fingerprint is {body['expected_fingerprint']}, but these compute as {self.fingerprint}"
            return error(412, message, "expected_fingerprint")
        asked = {name: value for name, value in body.items() if name != "expected_fingerprint"}
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()
        text, logprob = f"{digest.hex()[:12]} \ud83d", -int.from_bytes(digest[:7]) / 7**13
        choice = {"index": 0, "finish_reason": "stop", "logprobs": {"token_logprobs": [logprob, -1e-308]}}
        choice |= {"message": {"content": text}} if "messages" in body else {"text": text}
        answer = {
            "id": f"cmpl-{len(self.bodies)}",
            "created": 1_700_000_000 + len(self.bodies),
            "model": body["model"],
            "choices": [choice],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            "system_fingerprint": self.fingerprint,
            "determinism": {"verified": True, "seed": body.get("seed", 77)},
        }
        self.edit(answer)
        return Response(json.dumps(answer), media_type="application/json")


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"] if "messages" in body else body["prompt"])


def error(status: int, message: str, param: str | None = None, **headers: str) -> Response:
    found = {"message": message, "type": "x", "param": param, "code": status}
    return JSONResponse({"error": found}, status, headers={name.replace("_", "-"): headers[name] for name in headers})


@contextmanager
def serving(fake: Fake) -> Iterator[str]:
    """Serve on a free loopback port, and yield the API's URL."""

    async def models(_: Request) -> Response:
        return JSONResponse({"data": [{"id": "tide"}]})

    routes = [Route("/v1/models", models)]
    routes += [Route(path, fake.complete, methods=["POST"]) for path in ("/v1/completions", "/v1/chat/completions")]
    with serving_app(Starlette(routes=routes)) as url:
        yield f"{url}/v1"
