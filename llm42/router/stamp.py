"""Writes into a response who computed it, and whether it was verified.

vLLM settles ``system_fingerprint`` when its server starts; ours belongs to the request, and is known when the
first verifier has answered. So vLLM is told to write a placeholder, which is replaced here, in the bytes: JSON
escapes quotes inside of strings, so no text can contain it.
"""

import json

from starlette.responses import Response
from starlette.types import Message, Send

from llm42.router.answer import Answer
from llm42.router.http import openai_error

PLACEHOLDER = "llm42-to-be-stamped"
_FIELD = f'"system_fingerprint":"{PLACEHOLDER}"'.encode()
_ORDINARY = b'"system_fingerprint":null,"determinism":{"verified":false}'


class StampError(RuntimeError):
    """A deterministic answer is complete and does not say where it comes from: a bug, so it must not leave."""


def stamped(send: Send, answer: Answer | None) -> Send:
    """``send`` for the response to a request: deterministic with ``answer``, else ordinary.

    Every successful response carries the header ``x-llm42-verified``. Where vLLM has ``system_fingerprint`` (the
    whole response, or a stream's terminal and usage chunks) a deterministic one gets the fingerprint there, and a
    ``determinism`` object beside it.
    """
    start: Message | None = None
    streamed = False

    async def sending(message: Message) -> None:
        nonlocal start, streamed
        if message["type"] == "http.response.start" and message["status"] == 200:
            verified = b"false" if answer is None else b"true"
            start = {**message, "headers": [*message["headers"], (b"x-llm42-verified", verified)]}
            streamed = not any(name.lower() == b"content-length" for name, _ in start["headers"])
            if streamed:
                await send(start)
        elif message["type"] != "http.response.body" or start is None:
            await send(message)
        else:
            try:
                body = _stamp(message.get("body", b""), answer)
                # vLLM gives a JSON response in one piece.
                if not streamed and answer is not None and body == message.get("body"):
                    raise StampError("no system_fingerprint in a complete response")
            except StampError as bug:
                if not streamed:
                    await _send(openai_error(500, f"internal error: {bug}"), send)
                raise
            if not streamed:  # the length has changed
                headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
                await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
            await send({**message, "body": body})

    return sending


async def _send(response: Response, send: Send) -> None:
    start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(start)
    await send({"type": "http.response.body", "body": response.body})


def _stamp(body: bytes, answer: Answer | None) -> bytes:
    if _FIELD not in body:
        return body
    if answer is None:
        return body.replace(_FIELD, _ORDINARY)
    if answer.pin.fingerprint is None:
        raise StampError("an answer without a verifier")
    statement = answer.statement(_completion_tokens(body) if answer.tells_at_its_end else None)
    fingerprint, said = (json.dumps(value, separators=(",", ":")) for value in (answer.pin.fingerprint, statement))
    return body.replace(_FIELD, f'"system_fingerprint":{fingerprint},"determinism":{said}'.encode())


def _completion_tokens(body: bytes) -> int | None:
    """Of a whole response, or of the chunk of a stream that carries the usage."""
    usage = json.loads(body.removeprefix(b"data: ")).get("usage") or {}
    count: int | None = usage.get("completion_tokens")
    return count
