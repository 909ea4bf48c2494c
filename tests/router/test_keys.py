"""Whoever has no key gets nothing done, and whoever has one is known by it: with vLLM's own check."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from llm42.config import Config, Router
from llm42.internals.api_keys import key_index
from llm42.router.http import MAX_BODY_BYTES
from llm42.router.keys import VARIABLE, client_of, read_keys
from llm42.router.overload import RETRY_AFTER_S
from llm42.router.quota import Quotas
from llm42.router.stack import in_front_of
from llm42.router.verifiers import VerifierPool

KEYS = ("first-key", "second-key")
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/receipts/verify")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_vllm_s_check_tells_which_key_it_was() -> None:
    """The contract of llm42.internals.api_keys."""
    index = key_index(KEYS)
    assert [index(Headers(bearer(key))) for key in KEYS] == [0, 1]
    for wrong in ({}, bearer(""), bearer("first-key "), bearer("First-key"), {"authorization": "Basic first-key"}):
        assert index(Headers(wrong)) is None
    assert index(Headers({"authorization": "bearer second-key"})) == 1
    assert key_index(())(Headers(bearer("first-key"))) is None


class Behind:
    """vLLM's app and the verifiers, behind the whole stack: what has come so far."""

    def __init__(self, keys: tuple[str, ...], max_requests: int = 8) -> None:
        self.asked: list[tuple[str, int]] = []
        self.described = 0
        config = Config.model_validate({"router": {"max_requests": max_requests}})
        verifiers = cast(VerifierPool, SimpleNamespace(describe=self.describe))
        quotas = Quotas(config.router.quota, len(keys), lambda _: None)
        self.stack = in_front_of(self.app, config, keys, {}, verifiers, quotas)

    async def describe(self) -> dict[str, Any]:
        self.described += 1
        return {"fingerprint": "F", "parts": {}, "audit": {}}

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append((scope["path"], client_of(scope)))
        await Request(scope, receive).body()
        await PlainTextResponse("done")(scope, receive, send)

    async def ask(self, path: str, method: str = "POST", root_path: str = "", **kwargs: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.stack, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
            return await client.request(method, path, **kwargs)


@pytest.mark.parametrize("key", [None, "wrong-key"])
@pytest.mark.parametrize(
    ("method", "path"), [*(("POST", path) for path in PATHS), ("GET", "/fingerprint"), ("GET", "/openapi.json")]
)
async def test_without_a_key_nothing_is_read_and_nobody_is_asked(method: str, path: str, key: str | None) -> None:
    behind = Behind(KEYS)
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("a body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": headers}
    await behind.stack(scope, receive, send)
    assert (sent[0]["status"], behind.asked, behind.described) == (401, [], 0)
    assert dict(sent[0]["headers"])[b"www-authenticate"] == b"Bearer"
    assert b'"code": 401' in sent[1]["body"]
    assert b"wrong-key" not in sent[1]["body"]


@pytest.mark.parametrize("root_path", ["", "/llm"])
async def test_with_a_key_it_is_passed_on(root_path: str) -> None:
    behind = Behind(KEYS)
    for number, key in enumerate(KEYS):
        for path in PATHS:
            response = await behind.ask(root_path + path, root_path=root_path, headers=bearer(key), content=b"{")
            assert response.text == "done"
            assert behind.asked.pop() == (root_path + path, number)
    response = await behind.ask(f"{root_path}/fingerprint", "GET", root_path, headers=bearer(KEYS[0]))
    assert response.json()["fingerprint"] == "F"


async def test_health_is_for_everybody_and_so_is_a_browser_s_question() -> None:
    behind = Behind(KEYS)
    assert (await behind.ask("/health", "GET")).status_code == 200
    assert (await behind.ask("/v1/completions", "OPTIONS")).status_code == 200
    assert (await behind.ask("/health", "POST")).status_code == 401  # it would have a body
    for other in ("/health/", "/healthz", "//health", "/health/../v1/models", "/llm/health"):
        assert (await behind.ask(other, "GET")).status_code == 401


async def test_whoever_has_no_key_takes_no_place_either() -> None:
    behind = Behind(KEYS, max_requests=1)

    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await behind.ask("/v1/completions")).status_code == 401
        second = await behind.ask("/tokenize", headers=bearer(KEYS[1]))
        assert (second.status_code, second.headers["retry-after"]) == (503, str(RETRY_AFTER_S))
        await PlainTextResponse("done")(scope, receive, send)

    behind.app = full  # type: ignore[method-assign]
    config = Config.model_validate({"router": {"max_requests": 1}})
    verifiers = cast(VerifierPool, SimpleNamespace(describe=behind.describe))
    behind.stack = in_front_of(full, config, KEYS, {}, verifiers, Quotas(config.router.quota, 2, lambda _: None))
    assert (await behind.ask("/v1/completions", headers=bearer(KEYS[0]), content=b"{")).text == "done"


async def test_without_keys_everybody_is_one_client() -> None:
    behind = Behind(())
    assert (await behind.ask("/v1/completions", content=b"{")).text == "done"
    assert behind.asked == [("/v1/completions", 0)]


@pytest.mark.parametrize("path", PATHS)
async def test_every_route_has_the_limit_on_bodies(path: str) -> None:
    behind = Behind(())
    refused = await behind.ask(path, content=b" " * (MAX_BODY_BYTES + 1))
    assert (refused.status_code, behind.asked) == (413, [])


def keys(tmp_path: Path, text: str | None, variable: str | None = None) -> tuple[str, ...]:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    router = Router(api_keys_file=str(path)) if text is not None else Router()
    return read_keys(router, {VARIABLE: variable} if variable is not None else {})


def test_where_keys_come_from(tmp_path: Path) -> None:
    assert keys(tmp_path, None) == ()
    assert keys(tmp_path, None, "") == ()
    assert keys(tmp_path, None, "alone") == ("alone",)
    assert keys(tmp_path, "# of team A\nfirst-key\n\n  second-key \r\n") == KEYS


@pytest.mark.parametrize(
    ("text", "variable", "message"),
    [
        ("", None, "holds no key"),
        ("# first-key", None, "holds no key"),
        ("first-key", "another", f"{VARIABLE} is set too"),
        ("first-key\nsecond key", None, "key 2 .* cannot be sent"),
        ("first-k\u00e9y", None, "key 1 .* cannot be sent"),
        ("first-key\nfirst-key", None, "key 2 .* there twice"),
        (None, "two words", f"key 1 of {VARIABLE} cannot be sent"),
    ],
)
def test_keys_that_cannot_be_meant(tmp_path: Path, text: str | None, variable: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        keys(tmp_path, text, variable)
    assert "first-k" not in str(refused.value)


def test_a_file_that_is_not_there_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: FileNotFoundError"):
        read_keys(Router(api_keys_file=str(tmp_path / "keys")), {})
