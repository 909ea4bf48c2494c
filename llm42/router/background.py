"""Tasks that belong to one object: none outlives it, and none fails unseen."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """Starts tasks, each in a context of its own.

    A new context matters for calls on Serve handles: they inherit the HTTP request of the context they are
    made in, are cancelled with it, and concurrent ones wait for each other for ever on some request routers
    (:mod:`llm42.internals.pinned_router`).
    """

    def __init__(self, on_crash: Callable[[str, BaseException], None]) -> None:
        """``on_crash(name, error)`` is told of every task that ends in an exception."""
        self._on_crash = on_crash
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run ``coroutine`` as a task of the running loop; once closed, one that is cancelled before it begins."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if self._closed:
            task.cancel()
        return task

    async def close(self, timeout_s: float) -> None:
        """Cancel all tasks but the caller's, and wait for them."""
        self._closed = True
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(task.get_name(), error)
