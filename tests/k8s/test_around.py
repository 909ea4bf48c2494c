"""What surrounds the pods: the network policy, monitors, rules, budgets, and the head's state."""

import json

from tests.k8s.overlay import ROOT, Object, Overlay, render
from tests.k8s.test_pods import ray_container

GRAFANA = ROOT / "grafana"
MOST_IN_AN_ANNOTATION = 256 * 1024
"""Kubernetes' limit; `kubectl apply` keeps a copy of each object in one."""


def pod_labels(name: str, group: Object) -> dict[str, str]:
    """With those that KubeRay adds."""
    node_type = "head" if name == "headgroup" else "worker"
    return {**group["template"]["metadata"]["labels"], "ray.io/node-type": node_type, "ray.io/group": name}


def selected(overlay: Overlay, selector: dict[str, dict[str, str]]) -> set[str]:
    """Names of the groups whose pods it selects."""
    wanted = selector["matchLabels"].items()
    return {name for name, group in overlay.groups() if wanted <= pod_labels(name, group).items()}


def test_everything_is_in_one_namespace(overlay: Overlay) -> None:
    for thing in overlay.objects:
        assert thing["kind"] == "Namespace" or thing["metadata"]["namespace"] == "llm42"


def test_the_network_policy_is_for_all_pods_and_names_who_may_come(overlay: Overlay) -> None:
    policy = next(p for p in overlay.of_kind("NetworkPolicy") if p["metadata"]["name"] == "llm42")["spec"]
    assert selected(overlay, policy["podSelector"]) == {name for name, _ in overlay.groups()}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    among_themselves, *others = policy["ingress"]
    assert among_themselves == {"from": [{"podSelector": policy["podSelector"]}]}
    allowed = {}
    for rule in others:
        (peer,) = rule["from"]
        allowed[next(iter(peer["podSelector"]["matchLabels"].values()))] = {port["port"] for port in rule["ports"]}
    ports = {p["name"]: p["containerPort"] for p in ray_container(overlay.cluster["headGroupSpec"])["ports"]}
    assert allowed == {
        "true": {ports["serve"]},
        "kuberay-operator": {ports["dashboard"], ports["serve"]},
        "prometheus": {ports["metrics"], ports["as-metrics"], ports["dash-metrics"]},
    }


def test_each_pod_is_scraped_once(overlay: Overlay) -> None:
    groups = dict(overlay.groups())
    scraped: list[str] = []
    for monitor in overlay.of_kind("PodMonitor"):
        names = selected(overlay, monitor["spec"]["selector"])
        scraped += names
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            for name in names:
                assert endpoint["port"] in {port["name"] for port in ray_container(groups[name])["ports"]}
    assert sorted(scraped) == sorted(groups)


def test_the_dashboards_are_configmaps_that_grafana_finds(overlay: Overlay) -> None:
    maps = [found for found in overlay.of_kind("ConfigMap") if "grafana_dashboard" in found["metadata"]["labels"]]
    dashboards = {name: text for found in maps for name, text in found["data"].items()}
    assert dashboards == {path.name: path.read_text() for path in GRAFANA.glob("*.json")}
    for found in maps:
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(found)) < MOST_IN_AN_ANNOTATION


def test_budgets_leave_one_engine_of_two() -> None:
    overlay = render("autoscaled")
    replicas = {name: group["replicas"] for name, group in overlay.groups() if name != "headgroup"}
    for budget in overlay.of_kind("PodDisruptionBudget"):
        (name,) = selected(overlay, budget["spec"]["selector"])
        assert budget["spec"]["minAvailable"] == replicas.pop(name) - 1 == 1
    assert replicas == {}


def test_the_head_keeps_its_state_in_redis_where_asked_for(overlay: Overlay) -> None:
    options = overlay.cluster.get("gcsFaultToleranceOptions")
    if overlay.name != "autoscaled":
        assert options is None
        return
    assert options["redisPassword"] == {"valueFrom": {"secretKeyRef": {"name": "llm42-redis", "key": "password"}}}
    port = int(options["redisAddress"].rpartition(":")[2])
    policy = next(p for p in overlay.of_kind("NetworkPolicy") if p["metadata"]["name"] == "llm42-redis")
    assert policy["spec"]["egress"] == [{"ports": [{"protocol": "TCP", "port": port}]}]
