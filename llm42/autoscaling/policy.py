"""How many engines a pool should have. Serve's controller asks ten times a second.

Serve copies this module into its controller by value, which need not have LLM-42 installed, and an exception there
would stop all that the controller does for the application: so nothing of ours is imported here, and nothing raises.

Serve adds to what is decided here: a decision must hold for ``upscale_delay_s`` or ``downscale_delay_s``, and the
bounds. Replicas take a figure each six seconds, and send what they have of the last thirty each ten.
"""

import logging
import math
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

MOST_GROWTH = 2
"""A pool of verifiers grows to so many times its size at most, and then looks again."""
PASSES = 2
"""A replay that comes while a pass runs waits for its end, whatever the load: a wait is one from so many passes on."""
FULL = 0.5
"""What a full verifier does, in passes of which every slot is of use, until one has been seen."""
SPARE = 0.7
"""A verifier goes if the others would have at most this share of what a full one does."""
ENGINE_FILL = 0.75
"""Of what an engine can run at once: the rest is for what comes while another one loads its model."""

SILENCE_S = 60.0
"""A replica that has just started is silent for some seconds; what lasts so long is told."""

Figures = dict[str, float]
State = dict[str, Any]

logger = logging.getLogger("ray.serve")


class PoolPolicy:
    """Serve calls it with what it knows of the pool. ``names`` are the figures that each replica reports.

    It changes nothing as long as one of the running replicas has not said how it fares, and lets engines go one by
    one.
    """

    names: tuple[str, ...]

    def __call__(self, context: "AutoscalingContext") -> tuple[int, State]:
        """The number of engines to have, and what to remember until the next call."""
        figures, target = recent(context, self.names), context.target_num_replicas
        state = dict(context.policy_state)
        if figures is not None or not context.running_replicas:
            state["silence"] = context.current_time
        elif context.current_time - state.setdefault("silence", context.current_time) > SILENCE_S:
            state["silence"] = context.current_time
            logger.warning("%s stays at %d: not all replicas say how busy they are", context.deployment_name, target)
        wanted = target if figures is None else max(self.wanted(figures, target, state), target - 1)
        least = max(context.capacity_adjusted_min_replicas, 1)
        return max(min(wanted, context.capacity_adjusted_max_replicas), least), state

    def wanted(self, figures: list[Figures], target: int, state: State) -> int:
        """Before bounds. ``figures`` has an entry for each replica that runs, of which there are to be ``target``."""
        raise NotImplementedError


class VerifierPolicy(PoolPolicy):
    """By the time that replays wait for their first row.

    A wait does not say how many verifiers too many there are, so they go by what they do. That is measured in slots
    of use: routers send replays early as long as rows are idle, so a pool's rows are busy whatever its size.
    """

    names = ("wait_s", "pass_s", "work")

    def __init__(self, target_wait_s: float) -> None:
        self.target_wait_s = target_wait_s

    def wanted(self, figures: list[Figures], target: int, state: State) -> int:
        running = len(figures)
        work = sum(each["work"] for each in figures)
        wait_s = sum(each["wait_s"] for each in figures) / running
        limit_s = max(self.target_wait_s, PASSES * max(each["pass_s"] for each in figures))
        if wait_s > limit_s:
            state["full"] = work / running
            # Those that still load are not asked for again.
            return target if running < target else math.ceil(running * min(wait_s / limit_s, MOST_GROWTH))
        return target - 1 if work <= SPARE * state.get("full", FULL) * (target - 1) else target


class FastPathPolicy(PoolPolicy):
    """By the requests in the engines, running and waiting. Routers spread them evenly."""

    names = ("requests", "load")

    def __init__(self, target_requests: int | None) -> None:
        self.target_requests = target_requests

    def wanted(self, figures: list[Figures], target: int, state: State) -> int:
        if self.target_requests is not None:
            return math.ceil(sum(each["requests"] for each in figures) / self.target_requests)
        return math.ceil(sum(each["load"] for each in figures) / ENGINE_FILL)


def recent(context: "AutoscalingContext", names: tuple[str, ...]) -> list[Figures] | None:
    """Means of the last ``look_back_period_s``, for each running replica; None if one of them has not reported.

    Only over the time in which all of them have: what the others say of the time before a newcomer is no longer so.
    """
    reported = context.raw_metrics or {}
    begin = context.current_time - context.config.look_back_period_s
    series = [
        [[point for point in reported.get(name, {}).get(replica, ()) if _is_figure(point, begin)] for name in names]
        for replica in context.running_replicas
    ]
    if not all(points for of_replica in series for points in of_replica) or not series:
        return None
    begin = max(points[0].timestamp for of_replica in series for points in of_replica)
    since = [[[p.value for p in points if p.timestamp >= begin] for points in of_replica] for of_replica in series]
    if not all(values for of_replica in since for values in of_replica):
        return None
    return [dict(zip(names, map(fmean, of_replica), strict=True)) for of_replica in since]


def _is_figure(point: Any, begin: float) -> bool:
    return point.timestamp >= begin and math.isfinite(point.value)
