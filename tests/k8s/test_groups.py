"""Worker groups as Ray's own autoscaler reads them: they hold the engines, and keep the pools apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from llm42.config import Config, read_config
from llm42.resources import actor_resources
from tests.k8s.overlay import Object, Overlay, render


@dataclass
class Node:
    group: str
    free: dict[str, float]
    holds: list[str] = field(default_factory=list)

    def take(self, engine: str, needs: dict[str, float]) -> bool:
        if any(self.free.get(name, 0) < amount for name, amount in needs.items()):
            return False
        for name, amount in needs.items():
            self.free[name] -= amount
        self.holds.append(engine)
        return True


def node_types(overlay: Overlay) -> Object:
    cluster = {"metadata": {"name": "llm42", "namespace": "llm42"}, "spec": overlay.cluster}
    types: Object = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    return types


def nodes(overlay: Overlay, *, most: bool = False) -> list[Node]:
    """Those that the overlay starts with, or the ``most`` that there may be."""
    types = node_types(overlay)
    found = [Node("headgroup", dict(types["headgroup"]["resources"]))]
    for group in overlay.cluster["workerGroupSpecs"]:
        many, name = group["maxReplicas" if most else "replicas"], group["groupName"]
        found += [Node(name, dict(types[name]["resources"])) for _ in range(many)]
    return found


def configured(overlay: Overlay) -> Config:
    return read_config(overlay.serve_config["applications"][0]["args"])


def engines(config: Config, *, most: bool = False) -> dict[str, int]:
    """Of each pool: those that there always are, or the ``most`` that there may be."""
    pools = {"fast_path": config.fast_path, "verifier": config.verifier}
    return {name: pool.most if most else pool.least for name, pool in pools.items()}


def place(config: Config, cluster: list[Node], counts: Mapping[str, int] | None = None) -> list[str]:
    """Engines that found no node; by default of those that there always are."""
    counts = engines(config) if counts is None else counts
    left = []
    for name, pool in (("fast_path", config.fast_path), ("verifier", config.verifier)):
        needs = actor_resources(pool, gpus=True)
        wanted = {"CPU": needs["num_cpus"], "GPU": needs["num_gpus"], **needs["resources"]}
        left += [name for _ in range(counts[name]) if not any(node.take(name, wanted) for node in cluster)]
    return left


def test_the_nodes_hold_the_engines_and_the_head_none(overlay: Overlay) -> None:
    cluster = nodes(overlay)
    assert place(configured(overlay), cluster) == []
    assert {node.group: node.holds for node in cluster}["headgroup"] == []


def test_the_nodes_are_as_many_as_the_engines_at_least_and_at_most(overlay: Overlay) -> None:
    config = configured(overlay)
    for most in (False, True):
        counts = engines(config, most=most)
        assert place(config, nodes(overlay, most=most), counts) == []
        for pool in counts:
            assert len(place(config, nodes(overlay, most=most), {**counts, pool: counts[pool] + 1})) == 1


@pytest.mark.parametrize("name", ["mixed", "autoscaled"])
def test_pools_do_not_share_a_node(name: str) -> None:
    cluster = nodes(render(name))
    place(configured(render(name)), cluster)
    for node in cluster[1:]:
        assert set(node.holds) == {node.group.replace("-", "_")}


def test_verifiers_alone_are_on_the_nodes_that_are_set_aside() -> None:
    groups = {name: group["template"]["spec"] for name, group in render("mixed").groups()}
    verifier = groups.pop("verifier")
    assert verifier["nodeSelector"] == {"llm42-pool": "verifier"}
    assert {"key": "llm42-pool", "operator": "Equal", "value": "verifier", "effect": "NoSchedule"} in verifier[
        "tolerations"
    ]
    for pod in groups.values():
        assert "nodeSelector" not in pod
        assert all(toleration["key"] != "llm42-pool" for toleration in pod.get("tolerations", []))


def test_only_the_autoscaled_overlay_scales(overlay: Overlay) -> None:
    scales = overlay.name == "autoscaled"
    config = configured(overlay)
    assert all((pool.autoscaling is not None) is scales for pool in (config.fast_path, config.verifier))
    assert overlay.cluster.get("enableInTreeAutoscaling", False) is scales
    assert overlay.cluster.get("autoscalerOptions", {}).get("version") == ("v2" if scales else None)
    for group in overlay.cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert (group["maxReplicas"] > group["replicas"]) is scales
