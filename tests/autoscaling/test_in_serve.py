"""Contract with Ray Serve 2.60.0: its own bookkeeping, with our policies and settings, and a clock that is set."""

import pickle
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ray import cloudpickle
from ray.serve._private.autoscaling_state import DeploymentAutoscalingState
from ray.serve._private.common import ReplicaID, ReplicaMetricReport, TimeStampedValue
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.config import AutoscalingConfig

from llm42.autoscaling.policy import PoolPolicy
from llm42.autoscaling.settings import replica_options
from llm42.config import Config
from tests.autoscaling.contexts import DEPLOYMENT, NOW, context, replica

IDLE = {"wait_s": 0.0, "pass_s": 0.0, "work": 0.0}
BUSY = {"wait_s": 1.0, "pass_s": 0.02, "work": 0.8}
SAMPLE_S, PUSH_S = 6, 10


class Controller:
    """Second by second, as long as ``run`` says; replicas come and go at once with the target."""

    def __init__(self, args: dict[str, Any], clock: "Clock") -> None:
        options = replica_options(Config.model_validate({"verifier": args}).verifier)
        # The way to the controller and back: by value, and through protobuf.
        sent = DeploymentConfig.from_proto_bytes(DeploymentConfig(**options).to_proto_bytes())
        self._clock = clock
        self._state = DeploymentAutoscalingState(DEPLOYMENT)
        self.target = self._state.register(_info(sent), 0)
        self._points: dict[ReplicaID, list[tuple[float, dict[str, float]]]] = {}
        self.history = [self.target]

    def run(self, seconds: int, figures: dict[str, float]) -> None:
        for _ in range(seconds):
            self._clock.now += 1
            running = [replica(str(number)) for number in range(self.target)]
            self._state.update_running_replica_ids(running)
            for each in running:
                self._report(each, figures)
            wanted = self._state.get_decision_num_replicas(self.target)
            if wanted != self.target:
                for gone in running[wanted:]:
                    self._state.on_replica_stopped(gone)
                    del self._points[gone]
                self.target = wanted
                self.history.append(wanted)

    def _report(self, each: ReplicaID, figures: dict[str, float]) -> None:
        points, now = self._points.setdefault(each, []), self._clock.now
        if now % SAMPLE_S == 0:
            points.append((now, figures))
        if now % PUSH_S == 0:
            kept = [(when, what) for when, what in points if when >= now - 30]
            metrics = {
                name: [TimeStampedValue(when, what[name]) for when, what in kept if name in what] for name in figures
            }
            self._state.record_request_metrics_for_replica(
                ReplicaMetricReport(replica_id=each, timestamp=now, metrics=metrics)
            )


class Clock:
    now = NOW


def _info(config: DeploymentConfig) -> DeploymentInfo:
    info = DeploymentInfo.__new__(DeploymentInfo)  # what it is made of beyond this has no part in scaling
    info.deployment_config = config
    info.target_capacity = info.target_capacity_direction = None
    return info


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: clock.now)
        yield clock


@pytest.mark.parametrize("pool", ["fast_path", "verifier"])
def test_the_controller_needs_nothing_of_ours(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled = getattr(Config.model_validate({pool: SCALED}), pool)
    policy = replica_options(scaled)["autoscaling_config"].policy
    sent, by_name = policy.get_serialized_policy_def(), pickle.dumps(PoolPolicy)
    for module in [name for name in sys.modules if name.split(".")[0] == "llm42"]:
        monkeypatch.setitem(sys.modules, module, None)
    assert cloudpickle.loads(sent)(**policy.policy_kwargs)(context({}, target=3)) == (3, {"silence": NOW})
    with pytest.raises(ModuleNotFoundError):  # what is sent by name would
        pickle.loads(by_name)


SCALED = {"autoscaling": {"min_replicas": 1, "max_replicas": 3}}


def test_a_pool_of_a_fixed_size_has_no_policy() -> None:
    assert replica_options(Config.model_validate({"verifier": {"replicas": 3}}).verifier) == {"num_replicas": 3}
    assert isinstance(
        replica_options(Config.model_validate({"verifier": SCALED}).verifier)["autoscaling_config"], AutoscalingConfig
    )


def test_it_begins_and_stays_with_the_least_as_long_as_nothing_is_to_be_done(clock: Clock) -> None:
    pool = Controller({"autoscaling": {"min_replicas": 2, "max_replicas": 4}}, clock)
    pool.run(600, IDLE)
    assert pool.history == [2]


def test_it_grows_while_replays_wait_and_then_shrinks_one_by_one(clock: Clock) -> None:
    pool = Controller(SCALED, clock)
    pool.run(30, BUSY)
    assert pool.history == [1, 2]
    pool.run(90, BUSY)
    assert pool.history == [1, 2, 3]
    pool.run(300, IDLE)
    assert pool.history == [1, 2, 3]
    pool.run(60, IDLE)
    assert pool.history == [1, 2, 3, 2]
    pool.run(600, IDLE)
    assert pool.history == [1, 2, 3, 2, 1]


def test_what_comes_and_goes_changes_nothing(clock: Clock) -> None:
    pool = Controller(SCALED, clock)
    for _ in range(10):
        pool.run(6, BUSY | {"wait_s": 0.9})
        pool.run(54, BUSY | {"wait_s": 0.0, "work": 0.2})
    assert pool.history == [1]
    pool.run(120, BUSY)
    grown = pool.history[:]
    for _ in range(4):
        pool.run(240, IDLE)
        pool.run(60, BUSY | {"wait_s": 0.1})
    assert pool.history == grown


def test_figures_that_end_hold_it(clock: Clock) -> None:
    pool = Controller(SCALED, clock)
    pool.run(120, BUSY)
    pool.run(600, {})
    assert pool.history == [1, 2, 3]
    pool.run(600, dict.fromkeys(IDLE, float("nan")))
    assert pool.history == [1, 2, 3]
