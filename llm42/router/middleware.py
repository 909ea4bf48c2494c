"""ASGI middleware: settles determinism before vLLM's frontend sees the request.

vLLM's OpenAI layer drops unknown top-level fields without a word, and by the time it has built sampling
parameters nobody can tell a default from a wish. So the raw JSON body is judged here, and here the answer learns
to say what it is (:mod:`llm42.router.stamp`).
"""

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm42.router.admission import EXPECTED, FLAG, Admission, Endpoint, Mode, Refused, admit
from llm42.router.answer import ANSWER, Answer
from llm42.router.http import BadBody, openai_error, path_of, read_body
from llm42.router.stamp import stamped
from llm42.router.verifiers import Pin, Unverifiable

ENDPOINTS: dict[str, Endpoint] = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}
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
    """Wraps ``app``; ``generation_config`` holds the model's own sampling defaults."""

    def __init__(
        self, app: ASGIApp, mode: Mode, generation_config: Mapping[str, Any], fingerprint: CurrentFingerprint
    ) -> None:
        self._app = app
        self._mode = mode
        self._generation_config = generation_config
        self._fingerprint = fingerprint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = endpoint_of(scope)
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        try:
            answer, body = await self._settle(await read_body(Request(scope, receive)), endpoint)
        except BadBody as bad:
            error = openai_error(bad.status, str(bad))
        except Refused as refused:
            error = openai_error(refused.status, str(refused), param=refused.param)
        except Unverifiable as unknown:
            error = openai_error(503, str(unknown), param=EXPECTED)
        except RecursionError:
            error = openai_error(400, "the request body is nested too deeply")
        else:
            await self._pass_on(scope, receive, send, answer, body)
            return
        await error(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, answer: Answer | None, body: bytes) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        token = ANSWER.set(answer)
        try:
            await self._app({**scope, "headers": headers}, _replay(body, receive), stamped(send, answer))
        finally:
            ANSWER.reset(token)

    async def _settle(self, body: bytes, endpoint: Endpoint) -> tuple[Answer | None, bytes]:
        """What the answer will have to say (None: it is ordinary), and the body for vLLM."""
        try:
            fields = json.loads(body, object_pairs_hook=_without_doubt)
        except ValueError:
            return None, body  # vLLM's own validation says what is wrong with it
        if not isinstance(fields, dict):
            return None, body
        admission = admit(fields, endpoint, self._mode, self._generation_config)
        answer = await self._answer(admission) if admission.deterministic else None
        return answer, json.dumps(admission.body).encode()

    async def _answer(self, admission: Admission) -> Answer:
        if admission.samples and admission.body.get("seed") in (None, -1):  # vLLM's ways of leaving it open
            admission.body["seed"] = secrets.randbelow(DRAWN_SEEDS)
        expected = admission.expected_fingerprint
        if expected is not None and (found := await self._fingerprint()) != expected:
            message = f"{EXPECTED} is {expected}, but this server's verifiers compute as {found}"
            raise Refused(EXPECTED, message, status=412)
        return Answer(Pin(expected), with_receipts=admission.with_receipts)


def _without_doubt(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a name stand twice, and the last one wins: not where it would settle determinism."""
    fields = dict(pairs)
    for name in (FLAG, "vllm_xargs"):
        if name in fields and sum(key == name for key, _ in pairs) > 1:
            raise Refused(name, f"{name} is given twice")
    return fields


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body once, then the client's own messages (its disconnect)."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
