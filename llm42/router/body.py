"""ASGI middleware: reads each body before anything else does, up to a size and for a time."""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from llm42.router.http import BadBody, openai_error, read_body, replaying


class BodyMiddleware:
    """``app`` gets whole bodies. Only a POST has one: our routes read none of other methods."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            body = await read_body(Request(scope, receive))
        except BadBody as bad:
            await openai_error(bad.status, str(bad))(scope, receive, send)
            return
        await self._app(scope, replaying(body, receive), send)
