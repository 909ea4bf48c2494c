"""ASGI middleware: a client that leaves takes its request along.

Serve cancels the task of such a request. vLLM's handlers expect the ASGI message instead: cancelled, the task
that watches for it dies, and the one that does the work runs on to its end for nobody.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

GRACE_S = 1.0
"""How long a handler may take to heed the message before it is cancelled after all."""


class DisconnectMiddleware:
    """Turns the cancellation of a request into ``http.disconnect`` for ``app``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left = asyncio.Event()
        handling = asyncio.ensure_future(self._app(scope, _until_left(left, receive), send))
        try:
            await asyncio.shield(handling)
        except asyncio.CancelledError:
            left.set()
            await asyncio.wait([handling], timeout=GRACE_S)
            handling.cancel()
            handling.add_done_callback(_retrieve)
            raise


def _retrieve(handling: "asyncio.Future[None]") -> None:
    """What fails for a client that has left is nobody's error any more."""
    if not handling.cancelled():
        handling.exception()


def _until_left(left: asyncio.Event, receive: Receive) -> Receive:
    """``receive``, and once ``left`` is set the message that says so."""

    async def received() -> Message:
        leaving, message = asyncio.ensure_future(left.wait()), asyncio.ensure_future(receive())
        try:
            done, _ = await asyncio.wait([leaving, message], return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message in done else {"type": "http.disconnect"}
        finally:
            leaving.cancel()
            message.cancel()

    return received
