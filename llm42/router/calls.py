"""Calls across actors: each bounded in time, and failing in few ways."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

REMOTE_ERRORS = (RayError, RayServeException, TimeoutError)
"""How a call on a Serve handle fails; what the callee raised itself is a ``RayError`` as well."""


class CallFailed(RuntimeError):
    """A call did not come back with a result; says why. Nothing is known about what the callee did."""


async def bounded(call: Awaitable[Any], timeout_s: float, *passing: type[Exception]) -> Any:
    """Await ``call``. Exceptions in ``passing`` are raised as the callee raised them, others as :class:`CallFailed`.

    Where there is no result the call is cancelled at its other end too: Ray does not do that by itself.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except BaseException as error:
        if (cancel := getattr(call, "cancel", None)) is not None:
            cancel()
        if isinstance(error, passing):
            raise getattr(error, "cause", None) or error from None  # without the callee's traceback in its message
        if not isinstance(error, (*REMOTE_ERRORS, asyncio.CancelledError)):
            raise
        failure = error
    if isinstance(failure, asyncio.CancelledError):
        _raise_if_cancelled()
        raise CallFailed("the call was cancelled at its other end") from None
    raise CallFailed(_reason(failure)) from failure


async def read_stream(stream: Any, silence_s: float, on_item: Callable[[Any], None]) -> None:
    """Hand every item of a streamed call to ``on_item``; cancel the call at the end.

    Never returns: the end of the stream, ``silence_s`` without an item and every other failure are
    :class:`CallFailed`. What ``on_item`` raises passes.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(silence_s) as silence:
            async for item in stream:
                silence.reschedule(loop.time() + silence_s)
                on_item(item)
        raise CallFailed("the stream came to its end")
    except REMOTE_ERRORS as error:
        raise CallFailed(_reason(error)) from error
    except asyncio.CancelledError:
        _raise_if_cancelled()
        raise CallFailed("the stream was cancelled at its other end") from None
    finally:
        stream.cancel()


def _raise_if_cancelled() -> None:
    """Serve raises ``CancelledError`` also when the *callee* was cancelled: tell the two apart."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _reason(error: BaseException) -> str:
    """One line; Ray's errors carry whole tracebacks."""
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0]}" if lines else type(cause).__name__
