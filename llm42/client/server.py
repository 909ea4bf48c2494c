"""One request to the server: tried again while that may help, and its answer judged.

Three ends: an :class:`Outcome` (answered, or refused for good), or a :class:`BatchError` where no other request
would fare better. To send a deterministic request twice is harmless.
"""

import asyncio
import email.utils
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from llm42.check.client import clip
from llm42.client.errors import BatchError, FingerprintError, UnverifiedError
from llm42.client.outcome import Outcome
from llm42.client.request import Request

CONNECT_S = 10.0
BACKOFF_S, MOST_BACKOFF_S = 0.5, 30.0
MOST_WAIT_S = 300.0
"""Longest ``Retry-After`` that is waited for."""
_STATE = frozenset({429, 502, 503, 504})
"""Statuses that speak of the server, not of the request."""
_AGAIN = _STATE | {408, 409, 500}
"""Worth another try."""


@dataclass(frozen=True, slots=True)
class Options:
    """``base_url`` ends in ``/v1`` or what stands for it; ``timeout_s`` is for one try, ``tries`` are for a request.

    ``expected_fingerprint`` None: that of the first answer. The key is sent as bearer token.
    """

    base_url: str
    api_key: str | None = None
    expected_fingerprint: str | None = None
    concurrency: int = 16
    timeout_s: float = 300.0
    tries: int = 10

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.tries < 1 or not 0 < self.timeout_s < math.inf:
            raise ValueError(f"concurrency, tries and timeout_s must be positive, got {self}")


OnWait = Callable[[str, float], None]
"""Told why a request waits, and for how many seconds, before it is tried again."""


class _Again(Exception):
    """Try again. ``code`` None: it is not about the request, so the batch ends if no try helps."""

    def __init__(self, reason: str, code: int | str | None, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.wait_s = wait_s


class Server:
    """``on_wait`` is called before each wait."""

    def __init__(self, options: Options, on_wait: OnWait) -> None:
        self._options = options
        self._on_wait = on_wait
        key = {"authorization": f"Bearer {options.api_key}"} if options.api_key is not None else {}
        self._http = httpx.AsyncClient(
            headers={"content-type": "application/json", **key},
            timeout=httpx.Timeout(options.timeout_s, connect=min(CONNECT_S, options.timeout_s)),
            limits=httpx.Limits(max_connections=options.concurrency),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def ask(self, request: Request, fingerprint: str | None) -> Outcome:
        """``fingerprint`` is what the answer must come from, unless None. Raises BatchError."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._try(request, fingerprint)
            except _Again as error:
                if attempt == self._options.tries:
                    if error.code is None:
                        raise BatchError(f"{error}, {attempt} times in a row") from None
                    return Outcome.failed(request, error.code, str(error))
                wait_s = max(_backoff(attempt), error.wait_s or 0.0)
                if wait_s > MOST_WAIT_S:
                    raise BatchError(f"{error}; the server wants to be left alone for {wait_s:.0f} s") from None
                self._on_wait(str(error), wait_s)
            await asyncio.sleep(wait_s)

    async def _try(self, request: Request, fingerprint: str | None) -> Outcome:
        body = request.body if fingerprint is None else {**request.body, "expected_fingerprint": fingerprint}
        url = self._options.base_url.rstrip("/") + request.url.removeprefix("/v1")
        try:
            async with asyncio.timeout(self._options.timeout_s):
                # Not httpx's `json`: that cannot send half a character.
                response = await self._http.post(url, content=json.dumps(body).encode())
        except (TimeoutError, httpx.ReadTimeout):
            raise _Again(f"no answer within {self._options.timeout_s:g} s", "timeout") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise BatchError(f"{url} cannot be asked: {clip(str(error))}") from None
        except httpx.RequestError as error:
            raise _Again(f"cannot reach {url} ({type(error).__name__}: {clip(str(error))})", None) from None
        if response.status_code == 200:
            return _judge(request, response.content, fingerprint)
        return _refusal(request, response, fingerprint)


def _judge(request: Request, content: bytes, fingerprint: str | None) -> Outcome:
    """A success is one only if it says that it is verified, and by whom."""
    try:
        body = json.loads(content)
        verified = body["determinism"]["verified"] is True and bool(body["choices"])
        found = body["system_fingerprint"]
    except (ValueError, RecursionError, LookupError, TypeError):
        verified, found = False, None
    if not verified or not isinstance(found, str) or not found:
        raise UnverifiedError(
            f"the answer to {request.custom_id!r} does not say that it is verified, so it is not kept. Is this an "
            f"LLM-42 server? It said: {clip(content[:2000].decode(errors='replace'))}"
        )
    if fingerprint is not None and found != fingerprint:
        raise FingerprintError(
            f"the answer to {request.custom_id!r} has the fingerprint {found}. {_advice(fingerprint)}"
        )
    return Outcome.answered(request, body)


def _refusal(request: Request, response: httpx.Response, fingerprint: str | None) -> Outcome:
    """Raises what ends the batch or may pass; gives what is for this request alone."""
    status = response.status_code
    error = _openai_error(response.content)
    said = clip(str(error["message"]) if error is not None else response.text[:2000] or response.reason_phrase)
    reason = f"HTTP {status}: {said}"
    if status in _AGAIN:
        raise _Again(reason, None if status in _STATE else status, _retry_after(response.headers.get("retry-after")))
    if status == 412 and fingerprint is not None:
        raise FingerprintError(f"{reason}. {_advice(fingerprint)}")
    if status in (401, 403):
        raise BatchError(f"{reason}. Give the right key")
    param = error.get("param") if error is not None else None
    # A 404 is about the model that a request names, or about the address of all of them.
    elsewhere = status == 404 and param != "model" and not said.startswith("The model ")
    if error is None or not 400 <= status < 500 or elsewhere:
        raise BatchError(f"{reason}. Is {response.url} the right address?")
    return Outcome.failed(request, status, said, param if isinstance(param, str) else None)


def _advice(fingerprint: str) -> str:
    return (
        f"The batch is held to {fingerprint}: answers of two fingerprints cannot be compared. Go on once verifiers of "
        "that fingerprint serve again, or begin anew with another output"
    )


def _openai_error(content: bytes) -> dict[str, Any] | None:
    try:
        error = json.loads(content)["error"]
        return error if isinstance(error, dict) and "message" in error else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def _backoff(attempt: int) -> float:
    """Seconds; drawn, so that requests that failed together do not come back together."""
    return min(math.ldexp(BACKOFF_S, attempt - 1), MOST_BACKOFF_S) * random.uniform(0.5, 1.0)


def _retry_after(value: str | None) -> float | None:
    """Seconds, from either of HTTP's two forms; None if there is none that can be read."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
