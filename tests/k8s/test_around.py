"""What surrounds the pods: the network policy, monitors, rules, budgets, and the head's state."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from llm42.metrics import CATALOGUE
from tests.k8s.overlay import Object, Overlay, render
from tests.k8s.test_pods import ray_container

PROMTOOL_S = 60


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


def rules(overlay: Overlay) -> Object:
    (rule,) = overlay.of_kind("PrometheusRule")
    spec: Object = rule["spec"]
    return spec


def test_rules_use_metrics_that_there_are() -> None:
    exported = set()
    for metric in CATALOGUE:
        ends = ("_total",) if metric.kind == "counter" else ("_bucket", "_count", "_sum")
        exported |= {f"ray_{metric.name}{end}" for end in ends}
    for group in rules(render("mixed"))["groups"]:
        for rule in group["rules"]:
            used = set(re.findall(r"\bray_\w+", rule["expr"]))
            assert used
            assert used <= exported, rule["alert"]
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert set(rule["annotations"]) == {"summary", "description"}


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("needs promtool")
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rules(render("mixed"))))
    check = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, timeout=PROMTOOL_S)
    assert check.returncode == 0, check.stderr


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
