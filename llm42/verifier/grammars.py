"""Grammars are compiled before a pass needs them: that may take long, and all others would wait."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from llm42.protocol.errors import GrammarRefused, ReplayFailed, VerifierBusy
from llm42.protocol.steering import Grammar

_COMPILING_S = 0.02
_KEPT = 32  # fewer than the worker remembers

Prepare = Callable[[Grammar], Awaitable[list[str]]]
"""Has the worker compile one, and says how far it is: see ``llm42_prepare_grammar``."""


class Grammars:
    """Those that are ready in the worker. Belongs to one event loop; at most ``most`` replays wait at a time."""

    def __init__(self, prepare: Prepare, timeout_s: float, most: int) -> None:
        self._prepare = prepare
        self._timeout_s = timeout_s
        self._most = most
        self._waiting = 0
        self._compiling: dict[Grammar, asyncio.Task[list[str]]] = {}
        """One for all that wait for the same."""
        self._ready: dict[Grammar, None] = {}

    async def require(self, grammar: Grammar) -> None:
        """Wait until it is ready. Raises GrammarRefused if it never will be, VerifierBusy, or ReplayFailed."""
        if grammar in self._ready:
            return
        if self._waiting >= self._most:
            raise VerifierBusy(f"{self._most} replays wait for grammars already; retry later")
        self._waiting += 1
        try:
            found = await asyncio.shield(self._compiled(grammar))
        except TimeoutError:
            raise ReplayFailed(f"the grammar was not compiled within {self._timeout_s:g} s") from None
        finally:
            self._waiting -= 1
        match found:
            case "refused", reason:
                raise GrammarRefused(reason)
            case "busy", reason:
                raise VerifierBusy(reason)
        self._ready[grammar] = None
        if len(self._ready) > _KEPT:
            del self._ready[next(iter(self._ready))]

    def _compiled(self, grammar: Grammar) -> asyncio.Task[list[str]]:
        task = self._compiling.get(grammar)
        if task is None:
            loop = asyncio.get_running_loop()
            self._compiling[grammar] = task = loop.create_task(self._compile(grammar), context=contextvars.Context())
            task.add_done_callback(lambda done: self._end(grammar, done))
        return task

    async def _compile(self, grammar: Grammar) -> list[str]:
        async with asyncio.timeout(self._timeout_s):
            found = await self._prepare(grammar)
            while found[0] == "compiling":
                await asyncio.sleep(_COMPILING_S)
                found = await self._prepare(grammar)
        return found

    def _end(self, grammar: Grammar, done: asyncio.Task[list[str]]) -> None:
        del self._compiling[grammar]
        if not done.cancelled():
            done.exception()  # whoever still waits gets it; that nobody does is no error
