"""Calls across actors: bounded, cancelled where they give no result, and readable when they fail."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from llm42.router.calls import CallFailed, bounded


class Call:
    """Like Serve's response object: awaitable, and cancelled only if asked to."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.cancelled = False

    def __await__(self) -> Generator[Any, None, Any]:
        return self._work.__await__()  # type: ignore[no-any-return]

    def cancel(self) -> None:
        self.cancelled = True


async def raising(error: BaseException) -> None:
    raise error


class Wrapped(ValueError):
    """As Ray wraps what a callee raised: an instance of its class whose text is a traceback."""

    def __init__(self, cause: ValueError) -> None:
        super().__init__("Traceback (most recent call last): /somewhere/private.py")
        self.cause = cause


async def test_a_result_is_left_alone() -> None:
    call = Call(asyncio.sleep(0, "done"))
    assert await bounded(call, 1) == "done"
    assert not call.cancelled


async def test_a_timeout_cancels_the_other_end() -> None:
    call = Call(asyncio.sleep(60))
    with pytest.raises(CallFailed, match="no answer in time"):
        await bounded(call, 0.01)
    assert call.cancelled


async def test_a_caller_that_leaves_cancels_the_other_end() -> None:
    call = Call(asyncio.sleep(60))
    task = asyncio.create_task(bounded(call, 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.cancelled


async def test_a_callee_that_was_cancelled_is_no_cancellation_of_ours() -> None:
    with pytest.raises(CallFailed, match="other end"):
        await bounded(Call(raising(asyncio.CancelledError())), 1)


async def test_passing_errors_come_without_the_callees_traceback() -> None:
    with pytest.raises(ValueError, match=r"^plain$"):
        await bounded(Call(raising(Wrapped(ValueError("plain")))), 1, ValueError)


async def test_a_bug_stays_a_bug() -> None:
    with pytest.raises(KeyError):
        await bounded(Call(raising(KeyError("x"))), 1, ValueError)
