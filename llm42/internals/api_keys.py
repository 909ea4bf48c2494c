"""vLLM's own check of an API key, made to tell which of several keys it was.

Relies on vLLM 0.32.0: ``AuthenticationMiddleware(app, tokens)`` compares the digests of all ``tokens`` with that of
the bearer token, in constant time, in ``verify_token(headers)``. Its ``__call__`` is not used: it leaves ``/tokenize``
and whatever else is not below ``/v1`` to everybody.
"""

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers

KeyIndex = Callable[[Headers], int | None]
"""The number of the key that a request carries; None: it has none that is right."""


def key_index(keys: Sequence[str]) -> KeyIndex:
    """For ``keys``, which are all different."""
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    checks = [AuthenticationMiddleware(None, [key]).verify_token for key in keys]

    def index(headers: Headers) -> int | None:
        found = None
        for number, is_right in enumerate(checks):  # all of them: the time must not tell which one it was
            if is_right(headers):
                found = number
        return found

    return index
