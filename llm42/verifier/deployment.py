"""The Serve replica around one :class:`~llm42.verifier.engine.ReplayEngine`."""

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from llm42.config import Config
from llm42.logs import printable
from llm42.protocol.errors import ReplayError, ReplayFailed, ReplayImpossible
from llm42.protocol.messages import ReplayReply, ReplayRequest

logger = logging.getLogger("ray.serve")


class Verifier:
    """Bound by :mod:`llm42.app`. Start-up loads the model, and fails closed.

    ``pool`` names those that must compute the same bits: all verifiers of one deploy.
    """

    def __init__(self, config: Config, pool: str) -> None:
        from ray import serve

        from llm42.internals.log_files import keep_log_files
        from llm42.metrics import VerifierMetrics
        from llm42.models import resolve_model
        from llm42.tracing import tracing_of
        from llm42.verifier.audit.report import AuditFailed
        from llm42.verifier.engine import ReplayEngine
        from llm42.verifier.pool import PoolMismatch, join_pool

        keep_log_files()
        self._metrics = metrics = VerifierMetrics()
        try:
            self._engine = ReplayEngine(config, resolve_model(config.model), observer=metrics)
            join_pool(pool, self._engine.parts)
        except (AuditFailed, PoolMismatch) as refusal:
            metrics.refused("audit" if isinstance(refusal, AuditFailed) else "fingerprint")
            logger.error("this verifier is refused: %s", refusal)
            raise
        metrics.start(self._engine, config.served_model_name or config.model)
        self._replica_id: str = serve.get_replica_context().replica_id.unique_id
        self._tracing = tracing_of(config.traces, "verifier", self._replica_id)

    async def replay(
        self, request: ReplayRequest, *, replica_id: str | None = None, avoid: Collection[str] = ()
    ) -> ReplayReply:
        """See :meth:`ReplayEngine.replay`. ``replica_id`` and ``avoid`` are the caller's wish where to go
        (:mod:`llm42.internals.pinned_router`); any verifier of its pool may answer."""
        with self._tracing.replay(request) as on_begin:
            try:
                reply = await self._engine.replay(request, on_begin)
            except ReplayError as error:
                if isinstance(error, ReplayFailed | ReplayImpossible):  # not of the caller's making, nor a full queue
                    logger.warning("replay of %s: %s: %s", printable(request.request_id), type(error).__name__, error)
                raise error.named(self._replica_id, self._engine.fingerprint) from None
        return replace(reply, replica_id=self._replica_id)

    async def condemn(self, reason: str, *, replica_id: str) -> bool:
        """Answer no more, if this is replica ``replica_id``: it has been found wrong. Serve replaces it.

        Returns whether this is the one.
        """
        if replica_id == self._replica_id:
            self._engine.condemn(reason)
        return replica_id == self._replica_id

    async def describe(self) -> dict[str, Any]:
        """Who this is: replica, fingerprint and what it is made of, audit, shape of a pass; and how busy it is."""
        shape = self._engine.shape
        pages, pages_free = self._engine.pages
        return {
            "replica_id": self._replica_id,
            "fingerprint": self._engine.fingerprint,
            "parts": self._engine.parts,
            "audit": self._engine.audit.as_json(),
            "max_model_len": shape.context,
            "window_size": shape.window,
            "verify_batch_size": shape.rows,
            "in_flight": self._engine.in_flight,
            "pages": pages,
            "pages_free": pages_free,
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """How busy this has been since Serve has asked last; where the pool is autoscaled, it does each few seconds."""
        return self._metrics.demand.take()

    def check_health(self) -> None:
        """Raises once the engine is dead: Serve then replaces the replica."""
        self._engine.check_health()
        self._metrics.check_health()

    def __del__(self) -> None:
        """Serve calls this when it stops a replica. Nothing is there if loading failed."""
        if hasattr(self, "_tracing"):
            self._tracing.close()
