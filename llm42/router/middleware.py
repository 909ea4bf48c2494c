"""ASGI middleware: settles determinism before vLLM's frontend sees the request.

vLLM's OpenAI layer drops unknown top-level fields without a word, and by the time it has built sampling
parameters nobody can tell a default from a wish. So the raw JSON body is judged here.
"""

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm42.router.admission import FLAG, Endpoint, Mode, Refused, admit

ENDPOINTS: dict[str, Endpoint] = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}
MAX_BODY_BYTES = 16 * 1024 * 1024


def openai_error(status: int, message: str, *, kind: str, param: str | None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


class DeterminismMiddleware:
    """Wraps ``app``; ``generation_config`` holds the model's own sampling defaults."""

    def __init__(self, app: ASGIApp, mode: Mode, generation_config: Mapping[str, Any]) -> None:
        self._app = app
        self._mode = mode
        self._generation_config = generation_config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Under a route prefix, Serve leaves it in the path and names it in root_path.
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        endpoint = ENDPOINTS.get(path) if scope["type"] == "http" else None
        if endpoint is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = await self._read(Request(scope, receive))
        if body is None:
            message = f"the request body is larger than {MAX_BODY_BYTES} bytes"
            await openai_error(413, message, kind="BadRequestError", param=None)(scope, receive, send)
            return
        try:
            body = self._settle(body, endpoint)
        except Refused as refused:
            error = openai_error(400, str(refused), kind="BadRequestError", param=refused.param)
            await error(scope, receive, send)
            return
        except RecursionError:
            message = "the request body is nested too deeply"
            await openai_error(400, message, kind="BadRequestError", param=None)(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._app({**scope, "headers": headers}, _replay(body, receive), send)

    def _settle(self, body: bytes, endpoint: Endpoint) -> bytes:
        try:
            fields = json.loads(body, object_pairs_hook=_without_doubt)
        except ValueError:
            return body  # vLLM's own validation says what is wrong with it
        if not isinstance(fields, dict):
            return body
        return json.dumps(admit(fields, endpoint, self._mode, self._generation_config).body).encode()

    @staticmethod
    async def _read(request: Request) -> bytes | None:
        chunks: list[bytes] = []
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                return None
            chunks.append(chunk)
        return b"".join(chunks)


def _without_doubt(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a name stand twice, and the last one wins: not where it would settle determinism."""
    fields = dict(pairs)
    for name in (FLAG, "vllm_xargs"):
        if name in fields and sum(key == name for key, _ in pairs) > 1:
            raise Refused(name, f"{name} is given twice")
    return fields


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body once, then the client's own messages (its disconnect)."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
