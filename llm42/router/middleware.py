"""ASGI middleware: settles determinism before vLLM's frontend sees the request.

vLLM's OpenAI layer drops unknown top-level fields without a word, and by the time it has built sampling
parameters nobody can tell a default from a wish. So the raw JSON body is judged here, and here the answer learns
to say what it is (:mod:`llm42.router.stamp`).
"""

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from llm42.router.admission import EXPECTED, FLAG, Admission, Endpoint, Mode, admit
from llm42.router.answer import ANSWER, Answer
from llm42.router.errors import TOO_DEEP
from llm42.router.http import openai_error, path_of, replaying
from llm42.router.keys import client_of
from llm42.router.quota import OverQuota, Quotas, Spend, answers_of
from llm42.router.refused import Refused
from llm42.router.stamp import stamped
from llm42.router.verifiers import Pin, Unverifiable

ENDPOINTS: dict[str, Endpoint] = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}
TRACE_CONTEXT = ("traceparent", "tracestate")
DRAWN_SEEDS = 2**53
"""Seeds that are drawn here stay below this: every JSON reader gives them back exactly."""

CurrentFingerprint = Callable[[], Awaitable[str]]
"""That of the verifier pool; raises Unverifiable where none answers."""


def endpoint_of(scope: Scope) -> Endpoint | None:
    """Which of the generating endpoints a request is for; None: something else."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    return ENDPOINTS.get(path_of(scope))


class DeterminismMiddleware:
    """Wraps ``app``; ``generation_config`` holds the model's own sampling defaults.

    ``most`` answers are what one request may ask for: the router will never have room for more.
    """

    def __init__(
        self,
        app: ASGIApp,
        mode: Mode,
        generation_config: Mapping[str, Any],
        fingerprint: CurrentFingerprint,
        quotas: Quotas,
        most: int,
    ) -> None:
        self._app = app
        self._mode = mode
        self._generation_config = generation_config
        self._fingerprint = fingerprint
        self._quotas = quotas
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = endpoint_of(scope)
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        with ExitStack() as places:  # of its key's quota, until it is answered
            try:
                answer, body = await self._settle(scope, await Request(scope, receive).body(), endpoint, places)
            except Refused as refused:
                error = openai_error(refused.status, str(refused), param=refused.param)
            except OverQuota as over:
                error = over.response()
            except Unverifiable as unknown:
                error = openai_error(503, str(unknown), param=EXPECTED)
            except RecursionError:
                error = openai_error(400, TOO_DEEP)
            else:
                await self._pass_on(scope, receive, send, answer, body)
                return
        await error(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, answer: Answer | None, body: bytes) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        token = ANSWER.set(answer)
        try:
            await self._app({**scope, "headers": headers}, replaying(body, receive), stamped(send, answer))
        finally:
            ANSWER.reset(token)

    async def _settle(
        self, scope: Scope, body: bytes, endpoint: Endpoint, places: ExitStack
    ) -> tuple[Answer | None, bytes]:
        """What the answer will have to say (None: it is ordinary), and the body for vLLM."""
        try:
            fields = json.loads(body, object_pairs_hook=_without_doubt)
        except ValueError:
            return None, body  # vLLM's own validation says what is wrong with it
        if not isinstance(fields, dict):
            return None, body
        admission = admit(fields, endpoint, self._mode, self._generation_config)
        answers, param = answers_of(admission.body)
        if answers > self._most:
            raise Refused(param, f"{param} asks for {answers} answers at once, but a router works on {self._most}")
        if not admission.deterministic:
            return None, json.dumps(admission.body).encode()
        spend = places.enter_context(self._quotas.admit(client_of(scope), answers, param))
        answer = await self._answer(admission, spend)
        headers = Headers(scope=scope)
        answer.singly = endpoint == "chat" and bool(admission.body.get("stream"))
        answer.trace_headers = {name: headers[name] for name in TRACE_CONTEXT if name in headers}
        return answer, json.dumps(admission.body).encode()

    async def _answer(self, admission: Admission, spend: Spend) -> Answer:
        if admission.samples and admission.body.get("seed") in (None, -1):  # vLLM's ways of leaving it open
            admission.body["seed"] = secrets.randbelow(DRAWN_SEEDS)
        expected = admission.expected_fingerprint
        if expected is not None and (found := await self._fingerprint()) != expected:
            message = f"{EXPECTED} is {expected}, but this server's verifiers compute as {found}"
            raise Refused(EXPECTED, message, status=412)
        return Answer(
            Pin(expected), with_receipts=admission.with_receipts, with_stats=admission.with_stats, spend=spend
        )


def _without_doubt(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a name stand twice, and the last one wins: not where it would settle determinism."""
    fields = dict(pairs)
    for name in (FLAG, "vllm_xargs"):
        if name in fields and sum(key == name for key, _ in pairs) > 1:
            raise Refused(name, f"{name} is given twice")
    return fields
