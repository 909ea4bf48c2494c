"""What all of our own HTTP handlers share: OpenAI's shape of an error, a request's path and its body."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

MAX_BODY_BYTES = 16 * 1024 * 1024
BODY_S = 60.0
"""Time for a client to send a whole body: one that dribbles would hold its place for ever."""
MESSAGE_CHARACTERS = 1000
"""Most that an error repeats of what a client has sent."""


class BadBody(Exception):
    """A body that cannot be had; ``status`` is HTTP's."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def openai_error(status: int, message: str, *, param: str | None = None, kind: str | None = None) -> Response:
    """``kind`` is its ``type``; by default it follows from the status, in the words that vLLM uses: BadRequestError,
    InternalServerError."""
    if len(message) > MESSAGE_CHARACTERS:
        message = f"{message[:MESSAGE_CHARACTERS]}..."
    kind = kind or HTTPStatus(status).phrase.replace(" ", "").removesuffix("Error") + "Error"
    error = {"message": message, "type": kind, "param": param, "code": status}
    # ASCII: what a client has sent may hold half a character, which no UTF-8 can carry.
    return Response(json.dumps({"error": error}), status, media_type="application/json")


def path_of(scope: Scope) -> str:
    """Without the route prefix: Serve leaves it in the path and names it in root_path."""
    path: str = scope.get("path", "")
    return path.removeprefix(scope.get("root_path", ""))


async def read_body(request: Request, hold: Callable[[int], None] = lambda _: None) -> bytes:
    """The whole body; ``hold`` hears of its bytes as they come, and may raise BadBody.

    Raises BadBody if it is longer than :data:`MAX_BODY_BYTES` or takes more than :data:`BODY_S`.
    """
    chunks: list[bytes] = []
    size = 0
    declared = request.headers.get("content-length", "")
    try:
        async with asyncio.timeout(BODY_S):
            if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:  # nothing needs to be read to know it
                raise _too_large()
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                hold(len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        raise BadBody(HTTPStatus.REQUEST_TIMEOUT, f"the request body did not come within {BODY_S:g} s") from None
    return b"".join(chunks)


def _too_large() -> BadBody:
    return BadBody(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request body is larger than {MAX_BODY_BYTES} bytes")


def replaying(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then the client's own messages (its disconnect)."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
