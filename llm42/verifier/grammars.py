"""Grammars are compiled before a pass needs them: that may take long, and all others would wait."""

import asyncio
from collections.abc import Awaitable, Callable

from llm42.protocol.errors import ReplayFailed, ReplayRefused, VerifierBusy
from llm42.protocol.steering import Grammar

_COMPILING_S = 0.02
_KEPT = 32  # fewer than the worker remembers

Prepare = Callable[[Grammar], Awaitable[list[str]]]
"""Has the worker compile one, and says how far it is: see ``llm42_prepare_grammar``."""


class Grammars:
    """Those that are ready in the worker. Belongs to one event loop."""

    def __init__(self, prepare: Prepare, timeout_s: float) -> None:
        self._prepare = prepare
        self._timeout_s = timeout_s
        self._ready: dict[Grammar, None] = {}

    async def require(self, grammar: Grammar) -> None:
        """Wait until it is ready. Raises ReplayRefused if it never will be, VerifierBusy, or ReplayFailed."""
        if grammar in self._ready:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._prepare(grammar)
                while found[0] == "compiling":
                    await asyncio.sleep(_COMPILING_S)
                    found = await self._prepare(grammar)
        except TimeoutError:
            raise ReplayFailed(f"the grammar was not compiled within {self._timeout_s:g} s") from None
        match found:
            case "refused", reason:
                raise ReplayRefused(reason)
            case "busy", reason:
                raise VerifierBusy(reason)
        self._ready[grammar] = None
        if len(self._ready) > _KEPT:
            del self._ready[next(iter(self._ready))]
