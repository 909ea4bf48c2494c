"""The router's one place that speaks to the verifier pool."""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llm42.config import Timeouts
from llm42.metrics import RouterMetrics
from llm42.protocol import ReplayReply, ReplayRequest
from llm42.protocol.errors import FingerprintMismatch, ReplayFailed, ReplayImpossible, ReplayRefused, VerifierBusy
from llm42.router.calls import CallFailed, bounded

_BACKOFF_S = (0.05, 0.2, 0.5, 1.0)


class Unverifiable(RuntimeError):
    """No verifier gave a trustworthy answer in time. Retryable: HTTP 503."""


class VerifierPool:
    """Asks any verifier, and another one when it does not answer: a repeated replay is harmless.

    A pool has one fingerprint, that of its first answer here; who computes other bits is asked no more.
    ``handle`` is the Serve handle of the verifier deployment. Calls must be made from tasks with a context of
    their own (:mod:`llm42.router.background`).
    """

    def __init__(self, handle: Any, timeouts: Timeouts, metrics: RouterMetrics) -> None:
        self._handle = handle
        self._timeouts = timeouts
        self._metrics = metrics
        self._fingerprint: str | None = None
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Why this pool cannot be used any more from here: it has changed its fingerprint for good."""
        return self._failure

    async def replay(
        self, request: ReplayRequest, answers: Callable[[ReplayReply], bool], prefer: str | None
    ) -> ReplayReply:
        """The reply to ``request``; one that does not pass ``answers`` counts as no reply.

        ``prefer`` names the verifier whose cache holds the sequence, if any.

        Raises:
            ReplayRefused, ReplayImpossible: no verifier will ever answer this request.
            Unverifiable: none answered within ``timeouts.verify_s``.
        """
        began = time.monotonic()
        error: Exception = CallFailed("no verifier is up")
        try:
            async with asyncio.timeout(self._timeouts.verify_s):
                for attempt in itertools.count():
                    if attempt:
                        self._metrics.failover(f"{type(error).__name__}: {error}")
                        prefer = None
                        await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S)) - 1])
                    try:
                        reply = await self._ask(request, prefer)
                    except (CallFailed, VerifierBusy, FingerprintMismatch, ReplayFailed) as failed:
                        error = failed
                        continue
                    if answers(reply):
                        self._metrics.replayed(time.monotonic() - began)
                        return reply
                    error = CallFailed("a verifier answered another question")
        except TimeoutError:
            pass
        if isinstance(error, FingerprintMismatch):
            self._failure = str(error)
        raise Unverifiable(
            f"no verifier answered within {self._timeouts.verify_s:g} s; the last try: {type(error).__name__}: {error}"
        )

    async def _ask(self, request: ReplayRequest, prefer: str | None) -> ReplayReply:
        reply: ReplayReply = await bounded(
            self._handle.replay.remote(replace(request, fingerprint=self._fingerprint), replica_id=prefer),
            self._timeouts.replay_s,
            *(ReplayRefused, ReplayImpossible, VerifierBusy, FingerprintMismatch, ReplayFailed),
        )
        self._fingerprint = self._fingerprint or reply.fingerprint
        if reply.fingerprint != self._fingerprint:
            raise FingerprintMismatch(f"a verifier computes as {reply.fingerprint}, this pool as {self._fingerprint}")
        return reply
