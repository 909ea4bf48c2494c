"""The ingress: vLLM's OpenAI server on our core, as a Ray Serve deployment."""

import asyncio
import os
import uuid
from typing import Any

from llm42.config import Config
from llm42.internals.adapters import adapter_arguments
from llm42.router.stamp import PLACEHOLDER


class Router:
    """Binds the handles of the two pools to one OpenAI server. ``asks_for_keys``: whoever deployed it has seen some."""

    def __init__(self, config: Config, fast_path: Any, verifier: Any, asks_for_keys: bool) -> None:
        self._config = config
        self._fast_path = fast_path
        self._verifier = verifier
        self._asks_for_keys = asks_for_keys
        self._core: Any = None

    async def __serve_build_asgi_app__(self) -> Any:
        """Serve calls this once, after the constructor; the app serves until the replica ends."""
        # Heavy, and only needed in the replica.
        from ray import serve

        from llm42.internals.frontend import make_frontend
        from llm42.internals.log_files import keep_log_files
        from llm42.internals.separate_outputs import keep_apart
        from llm42.metrics import RouterMetrics
        from llm42.models import resolve_model
        from llm42.router.answer import ANSWER
        from llm42.router.core import RouterCore
        from llm42.router.errors import shape_errors
        from llm42.router.hub import DraftHub
        from llm42.router.keys import VARIABLE, read_keys
        from llm42.router.openapi import describe
        from llm42.router.quota import Quotas
        from llm42.router.receipts import receipts_route
        from llm42.router.stack import in_front_of
        from llm42.router.verifiers import VerifierPool
        from llm42.tracing import tracing_of
        from llm42.verifier.fingerprint import text_digest, text_parts

        keep_log_files()
        config = self._config
        keys = read_keys(config.router, os.environ)
        if self._asks_for_keys and not keys:  # else this node would serve everybody
            raise ValueError(f"whoever deployed this has {VARIABLE}, but this node has not: use router.api_keys_file")
        self._metrics = metrics = RouterMetrics()
        model_path = resolve_model(config.model)
        revision = config.verifier.engine.get("revision")
        text = text_digest(text_parts(model_path, revision, config.router.arguments))
        self._verifiers = VerifierPool(self._verifier, config.timeouts, metrics, text)
        self._hub = DraftHub(self._fast_path, uuid.uuid4().hex, config)
        self._core = RouterCore(config, self._hub, self._verifiers, metrics)
        arguments = _arguments(config, model_path)
        keep_apart(lambda: (answer := ANSWER.get(None)) is not None and answer.singly)
        self._frontend = await make_frontend(self._core, arguments, config.window_size)
        self._core.fail, self._core.structured_outputs = self._frontend.fail, self._frontend.structured_outputs
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._core.tracing = tracing_of(config.traces, "router", replica_id)
        metrics.start(self._core.watched.running, self._core.ages.oldest)
        self._hub.start()  # not before vLLM is imported: that blocks the loop, and a silent stream is a lost one
        quotas = Quotas(config.router.quota, len(keys), metrics.over_quota)
        self._frontend.app.router.routes.append(receipts_route(self._verifiers, quotas))
        shape_errors(self._frontend.app)
        describe(self._frontend.app)
        defaults = self._frontend.generation_config
        return in_front_of(self._frontend.app, config, keys, defaults, self._verifiers, quotas)

    def check_health(self) -> None:
        """Raises once this router cannot answer any more; Serve then replaces it."""
        if self._hub.failure is not None or self._frontend.failed:
            raise RuntimeError(self._hub.failure or "vLLM's frontend has failed")
        self._metrics.check_health()

    async def in_flight(self) -> dict[str, int]:
        """Deterministic sessions, and requests on the fast path: both 0 on an idle router."""
        return {"sessions": self._core.in_flight, "fast_path": self._hub.in_flight}

    async def __del__(self) -> None:
        """Serve awaits this when it stops a replica. Nothing is there if start-up failed."""
        if self._core is not None:
            await self._core.close()
            await asyncio.to_thread(self._core.tracing.close)
            await self._hub.close()
            await self._verifiers.close()
            self._frontend.shutdown()
            self._metrics.close()


def _arguments(config: Config, model_path: str) -> list[str]:
    """The arguments of ``vllm serve`` for the frontend alone."""
    return [
        *("--model", model_path),
        *("--served-model-name", config.served_model_name or config.model),
        *("--dtype", config.dtype),
        *(("--max-model-len", str(config.max_model_len)) if config.max_model_len is not None else ()),
        *(("--revision", str(revision)) if (revision := config.verifier.engine.get("revision")) is not None else ()),
        *("--max-num-queued-reqs", str(config.router.max_requests)),
        # vLLM's own names the frontend's configuration, not what computed the answer.
        *("--fingerprint-mode", "custom", "--fingerprint-value", PLACEHOLDER),
        *adapter_arguments({name: config.adapters[name] for name in config.adapter_numbers}),
        "--enforce-eager",
        "--disable-log-stats",
        *config.router.arguments,
    ]
