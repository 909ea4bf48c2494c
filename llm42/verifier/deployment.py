"""The Serve replica around one :class:`~llm42.verifier.engine.ReplayEngine`."""

from dataclasses import replace
from typing import Any

from llm42.config import Config
from llm42.protocol.messages import ReplayReply, ReplayRequest


class Verifier:
    """Bound by :mod:`llm42.app`. Start-up loads the model, and fails closed."""

    def __init__(self, config: Config) -> None:
        from ray import serve

        from llm42.metrics import VerifierMetrics
        from llm42.models import resolve_model
        from llm42.verifier.engine import ReplayEngine

        self._engine = ReplayEngine(config, resolve_model(config.model), observer=VerifierMetrics())
        self._replica_id: str = serve.get_replica_context().replica_id.unique_id

    async def replay(self, request: ReplayRequest, *, replica_id: str | None = None) -> ReplayReply:
        """See :meth:`ReplayEngine.replay`. ``replica_id`` is the caller's wish, and any verifier may answer."""
        return replace(await self._engine.replay(request), replica_id=self._replica_id)

    async def describe(self) -> dict[str, Any]:
        """Who this is: replica, fingerprint and what it is made of, the shape of a pass; and how busy it is."""
        shape = self._engine.shape
        pages, pages_free = self._engine.pages
        return {
            "replica_id": self._replica_id,
            "fingerprint": self._engine.fingerprint,
            "parts": self._engine.parts,
            "max_model_len": shape.context,
            "window_size": shape.window,
            "verify_batch_size": shape.rows,
            "in_flight": self._engine.in_flight,
            "pages": pages,
            "pages_free": pages_free,
        }

    def check_health(self) -> None:
        """Raises once the engine is dead: Serve then replaces the replica."""
        self._engine.check_health()
