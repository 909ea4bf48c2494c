"""A real HTTP server that streams completions, stalls and fails as told."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

FIRST_S, STEP_S = 0.05, 0.01


@dataclass
class Behaviour:
    fail: str = ""
    lose: int = 0
    first_s: float = FIRST_S
    step_s: float = STEP_S
    bodies: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most: int = 0


def app(behaviour: Behaviour) -> Starlette:
    async def stream(body: dict[str, Any]) -> AsyncIterator[str]:
        behaviour.running += 1
        behaviour.most = max(behaviour.most, behaviour.running)
        try:
            await asyncio.sleep(behaviour.first_s)
            for token in range(body["max_tokens"] - behaviour.lose):
                choice = {"index": 0, "text": "x", "token_ids": [token]}
                yield f"data: {json.dumps({'choices': [choice]})}\n\n"
                await asyncio.sleep(behaviour.step_s)
            if behaviour.fail == "later":
                yield f"data: {json.dumps({'error': {'message': 'the verifiers are gone'}})}\n\n"
                return
            usage = {"completion_tokens": body["max_tokens"] - behaviour.lose}
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
        finally:
            behaviour.running -= 1

    async def completions(request: HttpRequest) -> Response:
        body = await request.json()
        behaviour.bodies.append(body)
        if behaviour.fail == "at once":
            return JSONResponse({"error": {"message": "too many wait"}}, status_code=503)
        return StreamingResponse(stream(body), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])])
