"""ASGI middleware: bounds the requests at work, and whoever is told "not now" is told when."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm42.router.http import openai_error

RETRY_AFTER_S = 2
"""About as long as it takes for a busy router to have room, or for another verifier to be asked."""
_NOT_NOW = (429, 503)


class OverloadMiddleware:
    """At most ``max_requests`` requests with a body at once; one more is answered with a 503 before it is read.

    vLLM has such a limit too, but looks at it a second time when a stream's response has begun: too late to say 503.
    """

    def __init__(self, app: ASGIApp, max_requests: int) -> None:
        self._app = app
        self._max_requests = max_requests
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, _saying_when(send))
            return
        if self._running >= self._max_requests:
            message = f"this router works on {self._running} requests already, and takes no more: ask again later"
            refusal = openai_error(503, message)
            await refusal(scope, receive, _saying_when(send))
            return
        self._running += 1
        try:
            await self._app(scope, receive, _saying_when(send))
        finally:
            self._running -= 1


def _saying_when(send: Send) -> Send:
    """Adds ``Retry-After`` where it belongs and is not there."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] in _NOT_NOW:
            headers = message["headers"]
            if not any(name.lower() == b"retry-after" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"retry-after", str(RETRY_AFTER_S).encode())]}
        await send(message)

    return sending
