"""Where the outputs for one router stream wait between the engine's thread and the replica's event loop."""

import asyncio
import threading
import time
from collections.abc import Sequence

from llm42.fastpath.errors import FastPathError, StreamEnded
from llm42.internals.core_steps import EngineCoreOutput

CAPACITY = 65_536
"""Outputs that may wait unread; each is a few hundred bytes."""


class Mailbox:
    """A bounded buffer that the engine fills and the stream empties.

    ``prefix`` keeps the request ids of different streams apart inside the engine. ``in_flight`` (ids as the
    engine knows them) belongs to the engine's thread.
    """

    def __init__(self, stream_id: str, loop: asyncio.AbstractEventLoop, capacity: int = CAPACITY) -> None:
        self.prefix = f"{stream_id}/"
        self.in_flight: set[str] = set()
        self.renewed = time.monotonic()
        self._loop = loop
        self._capacity = capacity
        self._lock = threading.Lock()
        self._arrived = asyncio.Event()
        self._unread: list[EngineCoreOutput] = []
        self._error: FastPathError | None = None

    def renew(self) -> None:
        """The router is alive."""
        self.renewed = time.monotonic()

    def deliver(self, outputs: Sequence[EngineCoreOutput]) -> bool:
        """Add one engine step's outputs. False: nobody reads; drop the stream. From the engine's thread."""
        with self._lock:
            if self._error is not None:
                return False
            full = len(self._unread) + len(outputs) > self._capacity
            if full:
                self._error = StreamEnded(f"{self._capacity} outputs were not read")
            wake = full or not self._unread
            if not full:
                self._unread.extend(outputs)
        return (not wake or self._wake()) and not full

    def fail(self, error: FastPathError) -> None:
        """End the stream with ``error``, after what is unread. From any thread."""
        with self._lock:
            self._error = self._error or error
        self._wake()

    async def take(self, timeout_s: float) -> list[EngineCoreOutput]:
        """Everything unread; empty after ``timeout_s`` without any. Raises what the stream failed with."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return []
        with self._lock:
            self._arrived.clear()
            unread, self._unread = self._unread, []
            if self._error is not None:
                if not unread:
                    raise self._error
                self._arrived.set()
        return unread

    def _wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:  # the loop is closed: this process is ending
            return False
        return True
