"""The router's one place that speaks to the verifiers."""

import asyncio
import contextvars
import itertools
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from llm42.config import Timeouts
from llm42.metrics import RouterMetrics
from llm42.protocol import Haste, ReplayReply, ReplayRequest
from llm42.protocol.errors import FingerprintMismatch, ReplayFailed, ReplayImpossible, ReplayRefused, VerifierBusy
from llm42.router.background import Background
from llm42.router.calls import CallFailed, bounded

GONE_S = 5.0
"""As long as nobody but verifiers of other pools is met, a pool may still be there; then it is not."""
DESCRIBED_S = 3.0
"""How long a verifier's description is good for."""

_BACKOFF_S = (0.05, 0.2, 0.5, 1.0)
_DOUBLINGS = 2
_REMEMBERED = 256


@dataclass(slots=True)
class Pin:
    """The one fingerprint that an answer comes from: expected from the start, or that of its first reply."""

    fingerprint: str | None = None


class Unverifiable(RuntimeError):
    """No verifier gave a trustworthy answer in time. Retryable: HTTP 503."""


class VerifierPool:
    """Asks any verifier, and another one when it does not answer: a repeated replay is harmless.

    ``handle`` is the Serve handle of the verifier deployment. While that changes it may lead to verifiers of two
    pools, so each answer is pinned to one of them. Calls must be made from tasks with a context of their own
    (:mod:`llm42.router.background`).
    """

    def __init__(self, handle: Any, timeouts: Timeouts, metrics: RouterMetrics, text: str | None = None) -> None:
        """``text`` is the digest of what makes tokens of a request here: a verifier with another one refuses."""
        self._handle = handle
        self._text = text
        self._timeouts = timeouts
        self._metrics = metrics
        self._fingerprints: dict[str, str] = {}
        """Of the replicas met last, by id."""
        self._condemned: set[str] = set()
        """Those that are being told."""
        self._background = Background(metrics.crashed)
        self._description: asyncio.Task[dict[str, Any]] | None = None
        self._described = 0.0

    async def replay(
        self,
        request: ReplayRequest,
        prefer: str | None,
        pin: Pin,
        avoid: Collection[str] = (),
        retried: Callable[[Exception], None] | None = None,
    ) -> ReplayReply:
        """The reply to ``request``; one that does not answer its question counts as no reply.

        ``prefer`` names the verifier whose cache holds the sequence, if any; those in ``avoid`` are not asked while
        there are others, nor are those that have failed it. A reply comes from ``pin``'s fingerprint, or settles it.
        ``retried`` hears why a try has failed, before the next one.

        Raises:
            ReplayRefused, ReplayImpossible: no verifier will ever answer this request. Two have to say the latter: one
                that is contradicted is condemned.
            Unverifiable: none answered within ``timeouts.verify_s``, or only those of another pool are left.
        """
        began = time.monotonic()
        mismatched_since: float | None = None
        impossible: ReplayImpossible | None = None
        failed = set(avoid)
        error: Exception = CallFailed("no verifier is up")
        try:
            async with asyncio.timeout(self._timeouts.verify_s):
                for attempt in itertools.count():
                    if attempt:
                        self._metrics.failover(request.request_id, error)
                        if retried is not None:
                            retried(error)
                        failed |= {prefer or ""}
                        prefer = None
                        if not (request.fresh or isinstance(error, VerifierBusy)):
                            request = replace(request, haste=Haste.URGENT)  # by now, somebody waits for it
                        await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S)) - 1])
                    try:
                        # Longer each time: where all are busy, who gives up and asks anew only makes them busier.
                        patience_s = self._timeouts.replay_s * 2 ** min(attempt, _DOUBLINGS)
                        reply = await self._ask(request, prefer, pin, failed, patience_s)
                        if not reply.answers(request.question):
                            failed.add(reply.replica_id)
                            raise CallFailed("a verifier answered another question")
                    except FingerprintMismatch as mismatch:
                        error = mismatch
                        failed.add(mismatch.replica_id)
                        mismatched_since = mismatched_since or time.monotonic()
                        if time.monotonic() - mismatched_since > GONE_S:
                            raise Unverifiable(
                                f"the verifiers have changed, none computes as {pin.fingerprint or 'asked'} any more "
                                f"({mismatch}); ask again"
                            ) from None
                    except ReplayImpossible as claim:
                        if impossible is not None:
                            raise
                        # The model's, or a broken device's? Another verifier knows; where there is none, the same one.
                        error = impossible = claim
                        failed.add(claim.replica_id)
                    except (CallFailed, VerifierBusy, ReplayFailed) as failure:
                        error = failure
                        mismatched_since = None
                        failed.add(getattr(failure, "replica_id", ""))
                    else:
                        pin.fingerprint = reply.fingerprint
                        self._metrics.replayed(time.monotonic() - began)
                        if impossible is not None and impossible.fingerprint == reply.fingerprint:
                            self.condemn([impossible.replica_id], f"{impossible}; {reply.replica_id} found one")
                        return reply
        except TimeoutError:
            pass
        raise Unverifiable(
            f"no verifier answered within {self._timeouts.verify_s:g} s; the last try: {type(error).__name__}: {error}"
        )

    async def close(self) -> None:
        await self._background.close(self._timeouts.control_s)

    async def describe(self) -> dict[str, Any]:
        """How one of the verifiers describes itself, at most :data:`DESCRIBED_S` ago.

        Raises Unverifiable if none answers within ``timeouts.control_s``. May be called from any context.
        """
        task = self._description
        if task is None or (task.done() and time.monotonic() - self._described > DESCRIBED_S):
            self._description = task = asyncio.get_running_loop().create_task(
                self._describe(), context=contextvars.Context()
            )
        return await asyncio.shield(task)

    async def _describe(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = await bounded(self._handle.describe.remote(), self._timeouts.control_s)
        except CallFailed as failed:
            raise Unverifiable(f"no verifier says what it computes: {failed}") from None
        finally:
            self._described = time.monotonic()
        return found

    def condemn(self, replica_ids: Iterable[str], reason: str) -> None:
        """Have verifiers replaced, in the background: they must not answer any more."""
        for replica_id in replica_ids:
            if replica_id not in self._condemned:
                self._condemned.add(replica_id)
                self._background.spawn(self._condemn(replica_id, reason), f"condemning {replica_id}")

    async def _condemn(self, replica_id: str, reason: str) -> None:
        """Until it is told or gone: a busy replica takes no call at once."""
        error = "no time was left"
        try:
            async with asyncio.timeout(self._timeouts.verify_s):
                while True:
                    try:
                        call = self._handle.condemn.remote(reason, replica_id=replica_id)
                        # Told, or gone: a call for a replica that is not there reaches another one.
                        await bounded(call, self._timeouts.control_s)
                        return
                    except CallFailed as failed:
                        error = str(failed)
                        await asyncio.sleep(_BACKOFF_S[-1])
        except TimeoutError:
            self._metrics.uncondemned(replica_id, error)
        finally:
            self._condemned.discard(replica_id)

    async def _ask(
        self, request: ReplayRequest, prefer: str | None, pin: Pin, avoid: Collection[str], timeout_s: float
    ) -> ReplayReply:
        others = [replica for replica, found in self._fingerprints.items() if found != pin.fingerprint]
        call = self._handle.replay.remote(
            replace(request, fingerprint=pin.fingerprint, text=self._text),
            replica_id=prefer,
            avoid=[*avoid, *(others if pin.fingerprint is not None else ())],
        )
        try:
            reply: ReplayReply = await bounded(
                call,
                timeout_s,
                *(ReplayRefused, ReplayImpossible, VerifierBusy, FingerprintMismatch, ReplayFailed),
            )
        except FingerprintMismatch as mismatch:
            self._remember(mismatch.replica_id, mismatch.fingerprint)
            raise
        self._remember(reply.replica_id, reply.fingerprint)
        # Not what was asked for, or others have settled the pin meanwhile.
        if pin.fingerprint not in (None, reply.fingerprint):
            message = f"a verifier computes as {reply.fingerprint}, this answer as {pin.fingerprint}"
            raise FingerprintMismatch(message, reply.replica_id, reply.fingerprint)
        return reply

    def _remember(self, replica_id: str, fingerprint: str) -> None:
        if not replica_id:
            return
        self._fingerprints[replica_id] = fingerprint
        if len(self._fingerprints) > _REMEMBERED:
            del self._fingerprints[next(iter(self._fingerprints))]
