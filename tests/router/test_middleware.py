"""The middleware sees every completion request, whatever the path it came by."""

import contextvars
import json
from typing import Any

import pytest
from starlette.types import Message

from llm42.config import Quota
from llm42.router.answer import ANSWER, Answer
from llm42.router.middleware import DRAWN_SEEDS, DeterminismMiddleware
from llm42.router.quota import Quotas

FINGERPRINT = "f1"
MOST = 64
NO_QUOTAS = Quotas(Quota(), 0, lambda _: None)


async def fingerprint() -> str:
    return FINGERPRINT


seen: list[Answer | None] = []
"""What the app behind the middleware found in its context."""


async def post(path: str, body: bytes, root_path: str = "") -> tuple[dict[str, Any] | None, list[Message]]:
    """What the app behind the middleware got (None if nothing), and what was answered."""
    got: list[bytes] = []
    seen.clear()
    answered: list[Message] = []
    chunks = [body[i : i + 65536] for i in range(0, len(body), 65536)] or [b""]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert dict(scope["headers"])[b"content-length"] == str(len(message["body"])).encode()
        got.append(message["body"])
        seen.append(ANSWER.get())
        assert (await receive())["type"] == "http.disconnect"

    async def receive() -> Message:
        if chunks:
            return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answered.append(message)

    headers = [(b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": path, "root_path": root_path, "headers": headers}
    await DeterminismMiddleware(app, "off", {}, fingerprint, NO_QUOTAS, MOST)(scope, receive, send)
    assert ANSWER not in contextvars.copy_context(), "one request's context is not the next one's"
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
    got, answered = await post("/v1/completions", BODY.replace(b'"temperature": 0', b'"temperature": 0, "n": 2'))
    assert got is None
    assert answered[0]["status"] == 400
    error = json.loads(answered[1]["body"])["error"]
    assert (error["param"], error["type"], error["code"]) == ("n", "BadRequestError", 400)


async def test_a_deterministic_request_has_a_context() -> None:
    await post("/v1/completions", BODY)
    assert seen == [Answer()]
    await post("/v1/completions", BODY.replace(b"true", b"false"))
    assert seen == [None]


async def test_a_seed_is_drawn_where_one_is_needed() -> None:
    sampling = BODY.replace(b'"temperature": 0', b'"temperature": 0.8')
    seeds = set()
    for body in (sampling, sampling, sampling.replace(b"0.8", b'0.8, "seed": -1')):
        got, _ = await post("/v1/completions", body)
        assert got is not None
        assert 0 <= got["seed"] < DRAWN_SEEDS
        seeds.add(got["seed"])
    assert len(seeds) == 3, "never one hidden constant seed"
    for body, seed in ((BODY, None), (sampling.replace(b"0.8", b'0.8, "seed": 7'), 7)):
        got, _ = await post("/v1/completions", body)
        assert got is not None
        assert got.get("seed") == seed


async def test_an_expected_fingerprint() -> None:
    expecting = BODY[:-1] + b', "expected_fingerprint": "%s"}'
    got, _ = await post("/v1/completions", expecting % FINGERPRINT.encode())
    assert got is not None
    assert [answer.pin.fingerprint for answer in seen if answer is not None] == [FINGERPRINT]
    got, answered = await post("/v1/completions", expecting % b"another")
    assert got is None
    assert answered[0]["status"] == 412
    error = json.loads(answered[1]["body"])["error"]
    assert (error["param"], error["code"]) == ("expected_fingerprint", 412)
    assert "another" in error["message"]
    assert FINGERPRINT in error["message"]


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


@pytest.mark.parametrize("odd", ['"\\ud800": 1', '"expected_fingerprint": "\\ud800"'])
async def test_half_a_character_in_what_is_refused(odd: str) -> None:
    got, answered = await post("/v1/completions", BODY[:-1] + b", " + odd.encode() + b"}")
    assert got is None
    assert answered[0]["status"] in (400, 412)
    assert "\ud800" in json.loads(answered[1]["body"])["error"]["message"]


async def test_too_deep_a_body() -> None:
    got, answered = await post("/v1/completions", b"[" * 1_000_000)
    assert got is None
    assert answered[0]["status"] == 400


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("n", {"n": MOST + 1}),
        ("n", {"n": MOST // 2 + 1, "prompt": ["x", "y"]}),
        ("prompt", {"prompt": ["x"] * (MOST + 1)}),
    ],
)
@pytest.mark.parametrize("deterministic", [True, False])
async def test_what_there_will_never_be_room_for(param: str, fields: dict[str, Any], deterministic: bool) -> None:
    """To ask again later, as a 503 says, would not help."""
    body = {"prompt": "x", "temperature": 1, "is_deterministic": deterministic}
    got, answered = await post("/v1/completions", json.dumps({**body, **fields}).encode())
    assert got is None
    error = json.loads(answered[1]["body"])["error"]
    assert (error["param"], error["code"]) == (param, 400)
    got, _ = await post("/v1/completions", json.dumps({**body, "n": MOST}).encode())
    assert got is not None
