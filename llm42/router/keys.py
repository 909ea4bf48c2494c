"""API keys: where they come from, and the ASGI middleware in front of everything that asks for one.

vLLM has such a middleware too, but behind ours: whoever has no key must not make us read a body, draw a seed or ask a
verifier.
"""

from collections.abc import Mapping
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from llm42.config import Router
from llm42.internals.api_keys import KeyIndex
from llm42.router.http import openai_error, path_of

VARIABLE = "VLLM_API_KEY"
"""vLLM's environment variable for one key; its own middleware reads it as well."""
OPEN = frozenset({"/health"})
"""What load balancers ask."""
_CLIENT = "llm42.client"


def read_keys(router: Router, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that are right; none: everybody may ask.

    Raises ValueError if keys are configured but cannot be had, or are none that a client could send.
    """
    path, alone = router.api_keys_file, environment.get(VARIABLE)
    if path is None:
        return _sendable((alone,), VARIABLE) if alone else ()
    if alone:
        raise ValueError(f"router.api_keys_file is {path}, but {VARIABLE} is set too: unset it, or leave the file out")
    try:
        lines = [line.strip() for line in Path(path).read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(f"router.api_keys_file is {path}, which cannot be read: {type(error).__name__}") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError(f"router.api_keys_file is {path}, which holds no key: write one a line, or leave the file out")
    return _sendable(keys, path)


def _sendable(keys: tuple[str, ...], source: str) -> tuple[str, ...]:
    """``keys``, none of which is ever shown."""
    for number, key in enumerate(keys, start=1):
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ValueError(f"key {number} of {source} cannot be sent: use printable ASCII characters and no spaces")
        if key in keys[: number - 1]:
            raise ValueError(f"key {number} of {source} is there twice: quotas are for each key, so give each one once")
    return keys


def client_of(scope: Scope) -> int:
    """The number of the key that the request came with; 0 where none is asked for."""
    client: int = scope.get(_CLIENT, 0)
    return client


def _is_open(scope: Scope) -> bool:
    """Nothing that has a body: it would take a place, and time."""
    # A browser asks with OPTIONS, and has no key yet, whether it may ask from another site's page.
    return scope["method"] == "OPTIONS" or (scope["method"] == "GET" and path_of(scope) in OPEN)


class KeyMiddleware:
    """Lets through to ``app`` what carries a right key, or asks for what is :data:`OPEN`; all else gets a 401."""

    def __init__(self, app: ASGIApp, index: KeyIndex) -> None:
        self._app = app
        self._index = index

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope):
            await self._app(scope, receive, send)
            return
        client = self._index(Headers(scope=scope))
        if client is None:
            refusal = openai_error(401, "no API key, or a wrong one: send Authorization: Bearer and the key")
            refusal.headers["www-authenticate"] = "Bearer"
            await refusal(scope, receive, send)
            return
        await self._app({**scope, _CLIENT: client}, receive, send)
