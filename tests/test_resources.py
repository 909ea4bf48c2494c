"""What is refused for want of resources, and what is waited for."""

import logging
from typing import Any

import pytest

from llm42.config import Config
from llm42.resources import NODE_GROUP, may_grow, require_resources

TWO_GPUS = Config.model_validate(
    {"fast_path": {"num_gpus": 1}, "verifier": {"num_gpus": 1, "resources": {"pinned": 1}}}
)


def node(*, alive: bool = True, **labels: str) -> dict[str, Any]:
    return {"Alive": alive, "Labels": {"ray.io/node-id": "1234", **labels}}


def test_only_nodes_that_were_started_as_a_group_say_that_more_may_come() -> None:
    assert may_grow([node(), node(**{NODE_GROUP: "headgroup"})])
    assert not may_grow([node(), node()])
    assert not may_grow([node(), node(alive=False, **{NODE_GROUP: "headgroup"})])


def test_a_shortage_is_refused_where_no_more_may_come() -> None:
    with pytest.raises(ValueError, match="need 2 GPU, but Ray has found 1"):
        require_resources(TWO_GPUS, {"CPU": 8, "GPU": 1, "pinned": 1})
    with pytest.raises(ValueError, match="need 1 pinned, but Ray has found 0"):
        require_resources(TWO_GPUS, {"CPU": 8, "GPU": 2})


def test_a_shortage_is_a_warning_where_more_may_come(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ray.serve"):
        require_resources(TWO_GPUS, {"CPU": 8, "GPU": 2, "pinned": 1}, growing=True)
        assert not caplog.messages
        require_resources(TWO_GPUS, {}, growing=True)
    told = "\n".join(caplog.messages)
    for name in ("2 CPU", "2 GPU", "1 pinned"):
        assert f"need {name}, but Ray has found 0. Waiting for nodes to join" in told


@pytest.mark.parametrize("cluster", [{"CPU": 0.0}, {"CPU": 64.0, "GPU": 8.0}])
def test_whether_engines_use_gpus_must_be_said_where_more_may_come(cluster: dict[str, float]) -> None:
    config = Config.model_validate({"verifier": {"num_gpus": 1}})
    with pytest.raises(ValueError, match=r"^fast_path\.num_gpus must be set"):
        require_resources(config, cluster, growing=True)
    require_resources(Config.model_validate({p: {"num_gpus": 0} for p in ("fast_path", "verifier")}), {}, growing=True)


def test_autoscaled_pools_need_the_least_and_are_told_of_the_most(caplog: pytest.LogCaptureFixture) -> None:
    scaled = Config.model_validate(
        {
            "fast_path": {"num_gpus": 1, "autoscaling": {"min_replicas": 1, "max_replicas": 2}},
            "verifier": {"num_gpus": 1, "autoscaling": {"min_replicas": 2, "max_replicas": 4}},
        }
    )
    with pytest.raises(ValueError, match=r"min_replicas is 1 and .*min_replicas is 2: .* need 3 GPU, but .* found 2"):
        require_resources(scaled, {"CPU": 8, "GPU": 2})
    with caplog.at_level(logging.WARNING, logger="ray.serve"):
        require_resources(scaled, {"CPU": 8, "GPU": 6})
        assert not caplog.messages
        require_resources(scaled, {"CPU": 8, "GPU": 3})
    (told,) = caplog.messages
    assert "verifier.autoscaling.max_replicas is 4: together they need 6 GPU, but Ray has found 3. The pools" in told
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="ray.serve"):  # nodes will come with the replicas
        require_resources(scaled, {"CPU": 8, "GPU": 3}, growing=True)
    assert not caplog.messages
