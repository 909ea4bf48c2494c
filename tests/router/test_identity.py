"""``GET /fingerprint``."""

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from llm42.router.identity import IdentityRoute
from llm42.router.verifiers import Unverifiable

FOUND = {"fingerprint": "F", "parts": {"weights": "w"}, "audit": {"level": "quick"}, "in_flight": 3}
SHOWN = {"fingerprint": "F", "parts": {"weights": "w"}, "audit": {"level": "quick"}}
REST = Starlette(routes=[Route("/{path:path}", lambda _: PlainTextResponse("the rest"), methods=["GET", "POST"])])


async def describe() -> dict[str, Any]:
    return FOUND


async def nobody() -> dict[str, Any]:
    raise Unverifiable("no verifier says what it computes")


async def ask(path: str, describing: Any, method: str = "GET", root_path: str = "") -> httpx.Response:
    transport = httpx.ASGITransport(IdentityRoute(REST, describing), root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path)


@pytest.mark.parametrize(("path", "root"), [("/fingerprint", ""), ("/llm/fingerprint", "/llm")])
async def test_it_is_told(path: str, root: str) -> None:
    response = await ask(path, describe, root_path=root)
    assert (response.status_code, response.json()) == (200, SHOWN)


async def test_without_a_verifier_it_is_unknown() -> None:
    response = await ask("/fingerprint", nobody)
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "no verifier says what it computes"


@pytest.mark.parametrize(
    ("path", "method"), [("/v1/models", "GET"), ("/fingerprint", "POST"), ("/fingerprint/x", "GET")]
)
async def test_the_rest_is_left_alone(path: str, method: str) -> None:
    assert (await ask(path, nobody, method)).text == "the rest"
