"""The framework's own errors in OpenAI's shape: no such path, no such method, a body that cannot be read.

vLLM shapes those of FastAPI, but not those of Starlette underneath.
"""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from llm42.router.http import openai_error


def shape_errors(app: FastAPI) -> None:
    """Before ``app`` has answered anything."""
    app.add_exception_handler(HTTPException, _shaped)
    app.middleware_stack = app.build_middleware_stack()  # vLLM's is built already, and knows no new handlers


async def _shaped(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    response = openai_error(error.status_code, message)
    response.headers.update(error.headers or {})  # such as which methods are allowed
    return response
