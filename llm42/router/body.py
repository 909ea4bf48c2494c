"""ASGI middleware: reads each body before anything else does, up to a size and for a time."""

from http import HTTPStatus

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from llm42.router.http import BadBody, openai_error, read_body, replaying

MAX_HELD_BYTES = 256 * 1024 * 1024
"""Of all bodies at a time: a router answers many requests, but few with bodies of the greatest size."""


class BodyMiddleware:
    """``app`` gets whole bodies. Only a POST has one: our routes read none of other methods."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0
        """Bytes of the bodies that are being read or answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            if self._held + size > MAX_HELD_BYTES:
                raise BadBody(HTTPStatus.SERVICE_UNAVAILABLE, "this router holds too much already: ask again later")
            self._held += size
            mine += size

        try:
            body = await read_body(Request(scope, receive), hold)
        except BadBody as bad:
            await openai_error(bad.status, str(bad))(scope, receive, send)
        else:
            await self._app(scope, replaying(body, receive), send)
        finally:
            self._held -= mine
