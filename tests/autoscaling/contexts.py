"""What Serve's controller would tell a policy."""

from collections.abc import Mapping, Sequence
from typing import Any

from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingConfig, AutoscalingContext

NOW = 1_000_000.0
DEPLOYMENT = DeploymentID("Verifier", "llm42")

Points = Sequence[tuple[float, float]]
"""Seconds ago, and the value; oldest first."""


def steady(value: float) -> Points:
    """The same for all of the look-back period, as a replica samples it."""
    return [(ago, value) for ago in (28.0, 22.0, 16.0, 10.0)]


def replica(name: str) -> ReplicaID:
    return ReplicaID(name, DEPLOYMENT)


def context(
    replicas: Mapping[str, Mapping[str, Points]],
    target: int | None = None,
    *,
    bounds: tuple[int, int] = (1, 8),
    state: dict[str, Any] | None = None,
    now: float = NOW,
) -> AutoscalingContext:
    """``replicas`` run, and have reported those points; ``target`` are to run, by default as many."""
    running = [replica(name) for name in replicas]
    raw: dict[str, dict[ReplicaID, list[TimeStampedValue]]] = {}
    for name, reported in replicas.items():
        for figure, points in reported.items():
            raw.setdefault(figure, {})[replica(name)] = [TimeStampedValue(NOW - ago, value) for ago, value in points]
    least, most = bounds
    return AutoscalingContext(
        deployment_id=DEPLOYMENT,
        deployment_name=DEPLOYMENT.name,
        app_name=DEPLOYMENT.app_name,
        current_num_replicas=len(running),
        target_num_replicas=len(running) if target is None else target,
        running_replicas=running,
        total_num_requests=0.0,
        total_queued_requests=0.0,
        aggregated_metrics=None,
        raw_metrics=raw,
        capacity_adjusted_min_replicas=least,
        capacity_adjusted_max_replicas=most,
        policy_state=state or {},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=now,
        config=AutoscalingConfig(min_replicas=least, max_replicas=most),
    )
