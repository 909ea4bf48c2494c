"""The Serve replica around one :class:`~llm42.verifier.engine.ReplayEngine`."""

from typing import Any

from llm42.config import Config
from llm42.protocol.messages import ReplayReply, ReplayRequest


class Verifier:
    """Bound by :mod:`llm42.app`. Start-up loads the model, and fails closed."""

    def __init__(self, config: Config | dict[str, Any], model_path: str) -> None:
        from ray import serve

        from llm42.metrics import VerifierMetrics
        from llm42.verifier.engine import ReplayEngine

        config = Config.model_validate(config)
        self._engine = ReplayEngine(config, model_path, observer=VerifierMetrics())
        self._replica_id: str = serve.get_replica_context().replica_id.unique_id

    async def replay(self, request: ReplayRequest) -> ReplayReply:
        """See :meth:`ReplayEngine.replay`."""
        return await self._engine.replay(request)

    async def describe(self) -> dict[str, Any]:
        """Who this is: replica, fingerprint and what it is made of, and the shape of a pass."""
        shape = self._engine.shape
        return {
            "replica_id": self._replica_id,
            "fingerprint": self._engine.fingerprint,
            "parts": self._engine.parts,
            "max_model_len": shape.context,
            "window_size": shape.window,
            "verify_batch_size": shape.rows,
        }

    def check_health(self) -> None:
        """Raises once the engine is dead: Serve then replaces the replica."""
        self._engine.check_health()
