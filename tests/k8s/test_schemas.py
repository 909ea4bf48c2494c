"""Every object is one that an API server takes; planted errors show that the judge can say no."""

from typing import Any

import pytest

from tests.k8s.overlay import Object, Overlay, render
from tests.k8s.schemas import faults, is_custom

HEAD = ("spec", "rayClusterConfig", "headGroupSpec", "template", "spec")
WORKER = ("spec", "rayClusterConfig", "workerGroupSpecs", 0)


def test_built_in_kinds_are_valid(overlay: Overlay) -> None:
    judged = [thing for thing in overlay.objects if not is_custom(thing)]
    assert {thing["kind"] for thing in judged} >= {"Namespace", "NetworkPolicy", "PersistentVolumeClaim"}
    for thing in judged:
        assert faults(thing) == []


def test_custom_kinds_are_valid(overlay: Overlay) -> None:
    judged = [thing for thing in overlay.objects if is_custom(thing)]
    assert {thing["kind"] for thing in judged} == {"RayService", "PodMonitor", "PrometheusRule"}
    for thing in judged:
        assert faults(thing) == []


def as_pod(name: str, group: Object) -> Object:
    template = group["template"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **template["metadata"]},
        "spec": template["spec"],
    }


def test_pod_templates_are_valid_pods(overlay: Overlay) -> None:
    for name, group in overlay.groups():
        assert faults(as_pod(name, group)) == []


def plant(thing: Object, path: tuple[str | int, ...], value: Any) -> Object:
    """Set what is at ``path``; everything on the way is there."""
    *way, last = path
    place: Any = thing
    for step in way:
        place = place[step]
    place[last] = value
    return thing


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        pytest.param("RayService", ("spec", "serveConfig"), "", id="unknown field"),
        pytest.param("RayService", (*HEAD, "containers", 0, "volumeMounts", 0, "mountpath"), "/", id="deep down"),
        pytest.param("RayService", ("spec", "rayClusterConfig", "authOptions", "mode"), "tokens", id="no such mode"),
        pytest.param("RayService", (*WORKER, "replicas"), "1", id="text for a number"),
        pytest.param("RayService", (*WORKER, "rayStartParams", "num-cpus"), 0, id="number for a text"),
        pytest.param("RayService", ("metadata", "label"), {}, id="unknown metadata"),
        pytest.param("PodMonitor", ("spec", "podMetricsEndpoint"), [], id="unknown field of a monitor"),
        pytest.param("PrometheusRule", ("spec", "groups", 0, "rules", 0, "for"), "5 minutes", id="no duration"),
        pytest.param("NetworkPolicy", ("spec", "podSelecter"), {}, id="unknown field of a policy"),
        pytest.param("PodDisruptionBudget", ("spec", "minAvailable"), [1], id="list for a number"),
        pytest.param("Namespace", ("metadata", "labels", "restricted"), True, id="truth for a text"),
    ],
)
def test_planted_errors_are_found(kind: str, path: tuple[str | int, ...], value: Any) -> None:
    thing, *_ = render("autoscaled").of_kind(kind)
    assert faults(thing) == []
    assert faults(plant(thing, path, value)) != []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "containers", 0, "securityContext", "readOnlyRootFileSystem"), True),
        (("spec", "tolerations", 0, "affect"), "NoSchedule"),
        (("metadata", "labels", "app.kubernetes.io/part-of"), 42),
    ],
)
def test_planted_errors_in_a_pod_template_are_found(path: tuple[str | int, ...], value: Any) -> None:
    pod = as_pod(*list(render("mixed").groups())[1])
    assert faults(plant(pod, path, value)) != []
