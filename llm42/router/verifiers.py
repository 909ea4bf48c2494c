"""The router's one place that speaks to the verifier pool."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

from llm42.config import Timeouts
from llm42.metrics import RouterMetrics
from llm42.protocol import ReplayReply, ReplayRequest
from llm42.protocol.errors import FingerprintMismatch, ReplayFailed, ReplayRefused, VerifierBusy
from llm42.router.calls import CallFailed, bounded

_BACKOFF_S = (0.05, 0.2, 0.5, 1.0)


class Unverifiable(RuntimeError):
    """No verifier gave a trustworthy answer in time. Retryable: HTTP 503."""


class VerifierPool:
    """Asks any verifier, and another one when it does not answer: a repeated replay is harmless.

    ``handle`` is the Serve handle of the verifier deployment. Calls must be made from tasks with a context of
    their own (:mod:`llm42.router.background`).
    """

    def __init__(self, handle: Any, timeouts: Timeouts, metrics: RouterMetrics) -> None:
        self._handle = handle
        self._timeouts = timeouts
        self._metrics = metrics

    async def context_length(self) -> int:
        """Longest sequence the pool replays, in tokens. Waits for its first verifier."""
        description = await self._handle.describe.remote()
        return int(description["max_model_len"])

    async def replay(
        self, request: ReplayRequest, answers: Callable[[ReplayReply], bool], prefer: str | None
    ) -> ReplayReply:
        """The reply to ``request``; one that does not pass ``answers`` counts as no reply.

        ``prefer`` names the verifier whose cache holds the sequence, if any.

        Raises:
            ReplayRefused: the request itself cannot be replayed.
            Unverifiable: no verifier answered within ``timeouts.verify_s``, or the pool changed its fingerprint.
        """
        began = time.monotonic()
        why = "no verifier is up"
        try:
            async with asyncio.timeout(self._timeouts.verify_s):
                for attempt in itertools.count():
                    if attempt:
                        self._metrics.failover(why)
                        prefer = None
                        await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S)) - 1])
                    try:
                        reply: ReplayReply = await bounded(
                            self._handle.replay.remote(request, replica_id=prefer),
                            self._timeouts.replay_s,
                            *(ReplayRefused, VerifierBusy, FingerprintMismatch, ReplayFailed),
                        )
                    except (CallFailed, VerifierBusy, ReplayFailed) as error:
                        why = f"{type(error).__name__}: {error}"
                        continue
                    if answers(reply) and request.fingerprint in (None, reply.fingerprint):
                        self._metrics.replayed(time.monotonic() - began)
                        return reply
                    why = "a verifier answered another question"
        except TimeoutError:
            pass
        except FingerprintMismatch as error:
            raise Unverifiable(f"the verifiers changed while this request ran, send it again: {error}") from error
        raise Unverifiable(f"no verifier answered within {self._timeouts.verify_s:g} s; the last try: {why}")
