"""A router takes so many requests at a time; whoever is refused for the moment hears when to come back."""

import asyncio

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llm42.router.overload import RETRY_AFTER_S, OverloadMiddleware

COMPLETIONS = "/v1/completions"


def client(middleware: OverloadMiddleware) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=middleware), base_url="http://router")


@pytest.mark.parametrize(
    ("status", "sent", "expected"),
    [
        (429, {}, str(RETRY_AFTER_S)),
        (503, {}, str(RETRY_AFTER_S)),
        (503, {"Retry-After": "7"}, "7"),
        (200, {}, None),
        (400, {}, None),
        (500, {}, None),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, "/fingerprint"])
async def test_refusals_for_the_moment_say_when(
    path: str, status: int, sent: dict[str, str], expected: str | None
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("", status, sent)(scope, receive, send)

    async with client(OverloadMiddleware(app, 1)) as http:
        assert (await http.post(path)).headers.get("retry-after") == expected


async def test_one_request_too_many_is_refused_at_once() -> None:
    proceed = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == COMPLETIONS:
            await proceed.wait()
        await Response("")(scope, receive, send)

    async with client(OverloadMiddleware(app, 2)) as http:
        taken = [asyncio.create_task(http.post(COMPLETIONS)) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await asyncio.wait_for(http.post(COMPLETIONS, json={"stream": True}), 5)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, str(RETRY_AFTER_S))
        assert "2 requests already" in refused.json()["error"]["message"]
        assert (await http.post("/tokenize", json={})).status_code == 503
        assert (await http.get("/v1/models")).status_code == 200  # which has no body
        proceed.set()
        assert [response.status_code for response in await asyncio.gather(*taken)] == [200, 200]
        assert (await http.post(COMPLETIONS)).status_code == 200


async def test_requests_that_fail_or_leave_give_their_place_back() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["headers"] and dict(scope["headers"]).get(b"x-kind") == b"fails":
            raise RuntimeError("on purpose")
        await asyncio.sleep(60)

    middleware = OverloadMiddleware(app, 1)
    async with client(middleware) as http:
        with pytest.raises(RuntimeError):
            await http.post(COMPLETIONS, headers={"x-kind": "fails"})
        leaving = asyncio.create_task(http.post(COMPLETIONS))
        await asyncio.sleep(0.01)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        with pytest.raises(RuntimeError):
            await http.post(COMPLETIONS, headers={"x-kind": "fails"})
