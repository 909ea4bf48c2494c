"""The Serve application: ``import_path: llm42.app:build`` in a Serve YAML, with a :class:`Config` as ``args``."""

import logging
import os
import uuid
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import BackpressureConfig, RequestRouterConfig

from llm42.autoscaling.settings import replica_options
from llm42.config import Pool, read_config
from llm42.environment import OFFLINE_ENV, router_env
from llm42.fastpath.deployment import FastPath
from llm42.fastpath.settings import fastpath_env
from llm42.internals import require_ray
from llm42.internals.pinned_router import PinnedRouter
from llm42.models import resolve_model
from llm42.preflight import require_adapters, require_servable
from llm42.resources import actor_resources, may_grow, require_resources
from llm42.router.deployment import Router
from llm42.router.keys import read_keys
from llm42.router.overload import RETRY_AFTER_S
from llm42.verifier.deployment import Verifier
from llm42.verifier.settings import verifier_env

logger = logging.getLogger("ray.serve")

DRAIN_S = 120
"""How long a fast path that is to go may go on with the ordinary answers that it has begun."""
REPLAYS_S = 10
"""The same for a verifier: what it does not finish, another one is asked."""


def build(args: dict[str, Any]) -> Application:
    """The builder that `serve run` calls. Everything that can be refused before a model is loaded is refused here."""
    require_ray()
    config = read_config(args)
    asks_for_keys = bool(read_keys(config.router, os.environ))
    cluster = ray.cluster_resources()
    gpus = cluster.get("GPU", 0) > 0
    verifier_on_gpu = actor_resources(config.verifier, gpus=gpus)["num_gpus"] > 0
    model_path = resolve_model(config.model)
    require_servable(config, model_path)
    require_adapters(config)
    require_resources(config, cluster, growing=may_grow(ray.nodes()))
    offline = OFFLINE_ENV if model_path != config.model else {}

    def pool(part: type, settings: Pool, env: dict[str, str], *, max_ongoing: int, drain_s: float) -> Any:
        return serve.deployment(part).options(
            name=part.__name__,
            **replica_options(settings),
            max_ongoing_requests=max_ongoing,
            ray_actor_options={
                **actor_resources(settings, gpus=gpus),
                "runtime_env": {"env_vars": {**offline, **env}},
            },
            logging_config={"enable_access_log": False},  # one line for each replay, and two a second when idle
            request_router_config=RequestRouterConfig(request_router_class=PinnedRouter),
            health_check_period_s=2,
            health_check_timeout_s=30,
            graceful_shutdown_timeout_s=drain_s,
        )

    fast_path = pool(FastPath, config.fast_path, fastpath_env(config), max_ongoing=10_000, drain_s=DRAIN_S)
    verifier = pool(
        Verifier,
        config.verifier,
        verifier_env(config, gpu=verifier_on_gpu),
        max_ongoing=config.verifier.max_queued + 16,
        drain_s=REPLAYS_S,
    )
    router = serve.deployment(serve.ingress()(Router)).options(
        name="Router",
        num_replicas=config.router.replicas,
        # The router itself refuses what is too much. These are for one that does not keep up even with refusing.
        max_ongoing_requests=2 * config.router.max_requests,
        max_queued_requests=config.router.max_requests,
        backpressure_config=BackpressureConfig(retry_after_s=RETRY_AFTER_S),
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": {**offline, **router_env()}}},
        health_check_period_s=5,
        health_check_timeout_s=30,
        # Long enough for what it has begun to end by itself, or with a clear error where the pool has changed.
        graceful_shutdown_timeout_s=config.timeouts.verify_s + 10,
        max_surge_percent=100,  # a deploy starts new routers before it stops old ones: there is always one to ask
    )
    # One for each deploy: verifiers that replace others later are held to the first one's fingerprint, and a new deploy
    # may bring another.
    pool_id = uuid.uuid4().hex
    return router.bind(config, fast_path.bind(config), verifier.bind(config, pool_id), asks_for_keys)
