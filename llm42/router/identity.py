"""``GET /fingerprint``: what the verifiers of this server are, and what their fingerprint is made of."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from llm42.router.http import openai_error, path_of
from llm42.router.verifiers import Unverifiable

PATH = "/fingerprint"


class IdentityRoute:
    """Answers :data:`PATH` itself and gives everything else to ``app``.

    ``describe`` gives the description of a verifier, or raises :class:`Unverifiable`.
    """

    def __init__(self, app: ASGIApp, describe: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._app = app
        self._describe = describe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or path_of(scope) != PATH or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        try:
            found = await self._describe()
        except Unverifiable as unknown:
            response = openai_error(503, str(unknown))
        else:
            response = JSONResponse({name: found[name] for name in ("fingerprint", "parts", "audit")})
        await response(scope, receive, send)
