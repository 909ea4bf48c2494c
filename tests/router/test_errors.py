"""What the framework itself refuses is OpenAI-shaped, and keeps status and headers."""

from typing import Any

import httpx
import pytest
from fastapi import Body, FastAPI
from fastapi import HTTPException as OfFastAPI

from llm42.router.errors import shape_errors


async def ask(method: str, path: str, content: bytes = b"") -> httpx.Response:
    app = FastAPI()
    app.middleware_stack = app.build_middleware_stack()  # as vLLM's app comes
    shape_errors(app)

    @app.post("/echo")
    async def echo(body: Any = Body()) -> Any:  # noqa: B008 - FastAPI's way
        return body

    @app.get("/kettle")
    async def kettle() -> None:
        raise OfFastAPI(403, "not for you", headers={"x-why": "here"})

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "kind", "says"),
    [
        ("GET", "/nonesuch", b"", 404, "NotFoundError", "Not Found: GET /nonesuch"),
        ("GET", "/echo", b"", 405, "MethodNotAllowedError", "Method Not Allowed: GET /echo"),
        ("POST", "/echo", b"[" * 100_000, 400, "BadRequestError", "error parsing the body: POST /echo"),
        ("GET", "/kettle", b"", 403, "ForbiddenError", "not for you: GET /kettle"),
    ],
)
async def test_the_frameworks_errors(method: str, path: str, content: bytes, status: int, kind: str, says: str) -> None:
    response = await ask(method, path, content)
    assert response.status_code == status
    error = response.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (status, kind, None)
    assert says in error["message"]
    assert response.headers.get("allow") == ("POST" if status == 405 else None)
    assert response.headers.get("x-why") == ("here" if status == 403 else None)


async def test_what_works_is_left_alone() -> None:
    response = await ask("POST", "/echo", b'{"a": 1}')
    assert (response.status_code, response.json()) == (200, {"a": 1})
