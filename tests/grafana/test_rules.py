"""Recording and alert rules read what there is, fire when they should and only then, and each has its runbook entry."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm42.dashboards import DASHBOARDS
from tests.grafana.promql import selectors, unknown

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).parent / "alerts.yaml"
PROMTOOL_S = 120

Rule = dict[str, Any]


def spec() -> dict[str, Any]:
    """What Prometheus reads; the rest of the file is for Kubernetes."""
    rule = yaml.safe_load((ROOT / "k8s/components/monitoring/prometheus-rule.yaml").read_text())
    found: dict[str, Any] = rule["spec"]
    return found


RULES: list[Rule] = [rule for group in spec()["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in RULES if "record" in rule}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_read_what_there_is(rule: Rule) -> None:
    assert unknown(rule["expr"]) == []
    read = {selector.name for selector in selectors(rule["expr"])}
    assert read
    assert {name for name in read if name.startswith("llm42:")} <= set(RECORDS)


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_says_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
    _, _, entry = (ROOT / "docs/runbook.md").read_text().partition(f"\n## {name}\n")
    entry, _, _ = entry.partition("\n## ")
    for part in ("**Means.**", "**Look.**", "**Do.**"):
        assert part in entry, f"the entry of {name} lacks {part}"


def test_the_runbook_is_about_alerts_that_there_are() -> None:
    headings = set(re.findall(r"^## (LLM42\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE))
    assert headings == set(ALERTS)


def test_the_runbook_names_panels_that_there_are() -> None:
    panels = {dashboard.title.rpartition(" ")[2]: {p.title for p in dashboard.panels} for dashboard in DASHBOARDS}
    text = " ".join(re.sub("`[^`]*`", "", (ROOT / "docs/runbook.md").read_text()).split())
    looks = re.findall(r"\*\*Look\.\*\* (.*?) \*\*Do\.\*\*", text)
    assert len(looks) == len(ALERTS)
    which = rf"({'|'.join(panels)}) \S (?=\*)"  # "Pools > *Replicas*", but with an arrow that is none on a keyboard
    for look in looks:
        _, *parts = re.split(which, look)
        for dashboard, named in zip(parts[::2], parts[1::2], strict=True):
            assert set(re.findall(r"\*([^*]+)\*", named)) <= panels[dashboard]


def test_each_alert_is_seen_to_fire_and_to_keep_quiet() -> None:
    """Each case has application "sick", which has to fire, and "well", which must not."""
    text = CASES.read_text()
    for name in ALERTS:
        assert f'alertname="{name}"' in text, f"no case for {name}"
    for case in yaml.safe_load(text)["tests"]:
        series = "\n".join(given["series"] for given in case["input_series"])
        assert 'application="sick"' in series
        assert 'application="well"' in series


def promtool(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    if (found := shutil.which("promtool")) is None:
        pytest.skip("needs promtool (Debian: prometheus)")
    (folder / "rules.yaml").write_text(yaml.safe_dump(spec()))
    shutil.copy(CASES, folder)
    return subprocess.run([found, *command], cwd=folder, capture_output=True, text=True, timeout=PROMTOOL_S)


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    check = promtool(tmp_path, "check", "rules", "rules.yaml")
    assert check.returncode == 0, check.stderr


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    run = promtool(tmp_path, "test", "rules", CASES.name)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_rule_that_does_not_fire_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ill = spec()
    for group in ill["groups"]:
        for rule in group["rules"]:
            if rule.get("alert") == "LLM42DeterminismBroken":
                rule["expr"] = rule["expr"].replace("> 0", "> 1000")
    monkeypatch.setattr(f"{__name__}.spec", lambda: ill)
    run = promtool(tmp_path, "test", "rules", CASES.name)
    assert run.returncode != 0
    assert "LLM42DeterminismBroken" in run.stdout + run.stderr
