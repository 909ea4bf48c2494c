"""What vLLM leaves to the framework, in OpenAI's shape: no such path, no such method, a body that cannot be read.

vLLM shapes FastAPI's errors, but not those of Starlette underneath; and JSON within a body, such as the arguments of a
tool call, may be nested too deeply to be read, which is no error of the server's.
"""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from llm42.router.http import openai_error

TOO_DEEP = "something in the request is nested too deeply"


def shape_errors(app: FastAPI) -> None:
    """Before ``app`` has answered anything."""
    app.add_exception_handler(HTTPException, _shaped)
    app.add_exception_handler(RecursionError, _too_deep)
    app.middleware_stack = app.build_middleware_stack()  # vLLM's is built already, and knows no new handlers


async def _shaped(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    response = openai_error(error.status_code, message)
    response.headers.update(error.headers or {})  # such as which methods are allowed
    return response


async def _too_deep(request: Request, error: Exception) -> Response:
    return openai_error(400, TOO_DEEP)
