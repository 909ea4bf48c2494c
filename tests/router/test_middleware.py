"""The middleware sees every completion request, whatever the path it came by."""

import json
from typing import Any

import pytest
from starlette.types import Message

from llm42.router.middleware import MAX_BODY_BYTES, DeterminismMiddleware


async def post(path: str, body: bytes, root_path: str = "") -> tuple[dict[str, Any] | None, list[Message]]:
    """What the app behind the middleware got (None if nothing), and what was answered."""
    got: list[bytes] = []
    answered: list[Message] = []
    chunks = [body[i : i + 65536] for i in range(0, len(body), 65536)] or [b""]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert dict(scope["headers"])[b"content-length"] == str(len(message["body"])).encode()
        got.append(message["body"])
        assert (await receive())["type"] == "http.disconnect"

    async def receive() -> Message:
        if chunks:
            return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answered.append(message)

    headers = [(b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": path, "root_path": root_path, "headers": headers}
    await DeterminismMiddleware(app, "off", {})(scope, receive, send)
    return (json.loads(got[0]) if got else None), answered


BODY = json.dumps({"prompt": "x", "temperature": 0, "is_deterministic": True}).encode()


@pytest.mark.parametrize(
    ("path", "root_path"), [("/v1/completions", ""), ("/llm/v1/completions", "/llm"), ("/v1/chat/completions", "")]
)
async def test_the_flag_is_moved_to_where_it_survives(path: str, root_path: str) -> None:
    body = BODY if "chat" not in path else BODY.replace(b"prompt", b"messages")
    got, _ = await post(path, body, root_path)
    assert got is not None
    assert got["vllm_xargs"] == {"is_deterministic": 1}
    assert "is_deterministic" not in got


async def test_a_refusal_is_an_openai_error() -> None:
    got, answered = await post("/v1/completions", BODY.replace(b'"temperature": 0', b'"temperature": 1'))
    assert got is None
    assert answered[0]["status"] == 400
    error = json.loads(answered[1]["body"])["error"]
    assert (error["param"], error["type"], error["code"]) == ("temperature", "BadRequestError", 400)


@pytest.mark.parametrize(
    "twice",
    [
        b'"is_deterministic": true, "is_deterministic": false',
        b'"vllm_xargs": {"is_deterministic": 1}, "vllm_xargs": {}',
    ],
)
async def test_a_flag_that_is_given_twice(twice: bytes) -> None:
    got, answered = await post("/v1/completions", b'{"prompt": "x", "temperature": 0, ' + twice + b"}")
    assert got is None
    assert b"given twice" in answered[1]["body"]


async def test_too_large_a_body() -> None:
    got, answered = await post("/v1/completions", b" " * (MAX_BODY_BYTES + 1))
    assert got is None
    assert answered[0]["status"] == 413


async def test_too_deep_a_body() -> None:
    got, answered = await post("/v1/completions", b"[" * 1_000_000)
    assert got is None
    assert answered[0]["status"] == 400
