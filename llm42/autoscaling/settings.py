"""What Serve is told about the number of a pool's replicas."""

from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from llm42.autoscaling.policy import FastPathPolicy, VerifierPolicy
from llm42.config import Autoscaling, FastPathAutoscaling, Pool, VerifierAutoscaling


def replica_options(pool: Pool) -> dict[str, Any]:
    """Options of the pool's Serve deployment: a number, or bounds and a policy."""
    wanted = pool.autoscaling
    if wanted is None:
        return {"num_replicas": pool.replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=wanted.min_replicas,
            max_replicas=wanted.max_replicas,
            upscale_delay_s=wanted.upscale_delay_s,
            downscale_delay_s=wanted.downscale_delay_s,
            policy=_policy(wanted),
        )
    }


def _policy(wanted: Autoscaling) -> AutoscalingPolicy:
    match wanted:
        case VerifierAutoscaling():
            return AutoscalingPolicy(
                policy_function=VerifierPolicy, policy_kwargs={"target_wait_s": wanted.target_wait_s}
            )
        case FastPathAutoscaling():
            return AutoscalingPolicy(
                policy_function=FastPathPolicy, policy_kwargs={"target_requests": wanted.target_requests}
            )
    raise TypeError(f"no policy for {type(wanted).__name__}")
