"""Pods: no rights that they do not need, room where they write, and the probes and ports that KubeRay looks for."""

import re
from typing import Any

from llm42.internals import RAY_VERSION
from tests.k8s.overlay import Object, Overlay

UNITS = {"": 1, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def quantity(text: str) -> float:
    match = re.fullmatch(r"(\d+)([a-zA-Z]*)", text)
    assert match is not None, text
    return int(match[1]) * UNITS[match[2]]


def ray_container(group: Object) -> Object:
    """The first container is Ray's, by KubeRay's rule."""
    container: Object = group["template"]["spec"]["containers"][0]
    return container


def test_the_cluster_says_what_kuberay_would_guess(overlay: Overlay) -> None:
    assert overlay.cluster["rayVersion"] == RAY_VERSION
    assert overlay.cluster["authOptions"] == {"mode": "token"}
    assert overlay.service["spec"]["upgradeStrategy"] == {"type": "NewCluster"}
    assert overlay.cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert overlay.cluster["headGroupSpec"]["template"]["metadata"]["annotations"]["llm42-pool"]


def test_no_pod_has_rights_that_it_does_not_need(overlay: Overlay) -> None:
    for name, group in overlay.groups():
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        # Only an autoscaler talks to the API server.
        scales = name == "headgroup" and overlay.cluster.get("enableInTreeAutoscaling", False)
        assert pod["automountServiceAccountToken"] is scales
        for container in pod["containers"]:
            require_confined(container["securityContext"])
    if overlay.cluster.get("enableInTreeAutoscaling"):
        require_confined(overlay.cluster["autoscalerOptions"]["securityContext"])
    (namespace,) = overlay.of_kind("Namespace")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}


def require_confined(context: Any) -> None:
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_pods_can_write_where_they_must(overlay: Overlay) -> None:
    for _, group in overlay.groups():
        pod, container = group["template"]["spec"], ray_container(group)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert "emptyDir" in mounted["/tmp"]
        assert "emptyDir" in mounted[str(env["HOME"])]
        assert mounted["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        for cache in ("HF_HOME", "LLM42_CACHE"):
            assert str(env[cache]).startswith("/models/")
        assert mounted["/models"]["persistentVolumeClaim"] == {"claimName": "llm42-models"}
        # Ray falls back to disk if its object store does not fit, and shared memory counts as the container's.
        shared = quantity(mounted["/dev/shm"]["emptyDir"]["sizeLimit"])
        assert int(group["rayStartParams"]["object-store-memory"]) < shared
        assert shared < quantity(container["resources"]["limits"]["memory"])


def test_api_keys_are_there_for_each_router_if_there_are_any(overlay: Overlay) -> None:
    for _, group in overlay.groups():
        volumes = {volume["name"]: volume for volume in group["template"]["spec"]["volumes"]}
        (mount,) = [m for m in ray_container(group)["volumeMounts"] if m["mountPath"] == "/etc/llm42"]
        assert mount["readOnly"] is True
        secret = {"secretName": "llm42-api-keys", "defaultMode": 0o440, "optional": True}
        assert volumes[mount["name"]]["secret"] == secret


def test_the_autoscaler_has_volumes_of_its_own(overlay: Overlay) -> None:
    mounts = overlay.cluster.get("autoscalerOptions", {}).get("volumeMounts", [])
    volumes = {volume["name"] for volume in overlay.cluster["headGroupSpec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in mounts} <= volumes
    assert {mount["mountPath"] for mount in mounts} == (
        set() if overlay.name != "autoscaled" else {"/tmp", "/home/llm42"}
    )


def test_resources_are_stated(overlay: Overlay) -> None:
    for _, group in overlay.groups():
        resources = ray_container(group)["resources"]
        for name in ("cpu", "memory"):
            assert 0 < quantity(resources["requests"][name]) <= quantity(resources["limits"][name])
        # Ray counts on the limit: it must be there for the taking.
        assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_ports_and_probes_are_those_that_ray_has(overlay: Overlay) -> None:
    port = overlay.serve_config["http_options"]["port"]
    for name, group in overlay.groups():
        container = ray_container(group)
        ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
        assert (ports["serve"], ports["metrics"]) == (port, 8080)
        assert container["livenessProbe"]["httpGet"] == {"path": "/api/healthz", "port": 52365}
        if name == "headgroup":
            assert (ports["gcs-server"], ports["dashboard"]) == (6379, 8265)
            assert container["readinessProbe"]["httpGet"] == {"path": "/api/healthz", "port": 52365}
        else:
            assert container["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": port}


def test_all_pods_run_one_image(overlay: Overlay) -> None:
    images = {c["image"] for _, group in overlay.groups() for c in group["template"]["spec"]["containers"]}
    assert images == {"llm42:0.1.0"}
