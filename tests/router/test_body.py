"""Bodies are read once, up to a size and for a time."""

import asyncio
import json

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from llm42.router import body, http
from llm42.router.body import BodyMiddleware
from llm42.router.http import MAX_BODY_BYTES

CHUNK = 65536


async def post(
    chunks: list[bytes], declared: int | None = None, method: str = "POST"
) -> tuple[list[bytes], int, bytes]:
    """The bodies that the app behind it got, and what was answered. Sends ``chunks``, then nothing more for ever."""
    got: list[bytes] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if method == "POST":
            got.append(await Request(scope, receive).body())
        await PlainTextResponse("done")(scope, receive, send)

    async def receive() -> Message:
        if not chunks:
            await asyncio.sleep(3600)
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": chunk != b""}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-length", str(declared).encode())] if declared is not None else []
    scope = {"type": "http", "method": method, "path": "/tokenize", "root_path": "", "headers": headers}
    await BodyMiddleware(app)(scope, receive, send)
    return got, sent[0]["status"], sent[1]["body"]


async def test_a_body_is_passed_on_whole() -> None:
    assert await post([b"a", b"b", b""]) == ([b"ab"], 200, b"done")
    assert await post([b"a" * MAX_BODY_BYTES, b""], MAX_BODY_BYTES) == ([b"a" * MAX_BODY_BYTES], 200, b"done")
    assert await post([], method="GET") == ([], 200, b"done")


async def test_one_that_is_too_large_is_not_read_to_its_end() -> None:
    chunks = [b" " * CHUNK] * (MAX_BODY_BYTES // CHUNK + 9)
    got, status, said = await post(chunks)
    assert (got, status, len(chunks)) == ([], 413, 8)
    assert json.loads(said)["error"]["code"] == 413
    got, status, _ = await post([], MAX_BODY_BYTES + 1)  # nor read at all where its length is told
    assert (got, status) == ([], 413)


async def test_one_that_does_not_come_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_S", 0.01)
    got, status, body = await post([b"{"])
    assert (got, status) == ([], 408)
    assert "did not come" in json.loads(body)["error"]["message"]


async def test_all_of_them_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while they are read; and what has been answered makes room again."""
    monkeypatch.setattr(body, "MAX_HELD_BYTES", 100)
    answering, statuses = asyncio.Event(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answering.wait()
        await PlainTextResponse("done")(scope, receive, send)

    middleware = BodyMiddleware(app)

    async def post_bytes(size: int) -> None:
        chunks = [b"x" * size, b""]

        async def receive() -> Message:
            await asyncio.sleep(0)
            chunk = chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": chunk != b""}

        async def send(message: Message) -> None:
            if "status" in message:
                statuses.append(message["status"])

        await middleware({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)

    first = asyncio.create_task(post_bytes(70))
    await asyncio.sleep(0.01)
    await post_bytes(40)
    assert statuses == [503]
    second = asyncio.create_task(post_bytes(30))
    await asyncio.sleep(0.01)
    answering.set()
    await asyncio.gather(first, second)
    await post_bytes(100)
    assert statuses == [503, 200, 200, 200]
