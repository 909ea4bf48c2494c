"""A real Prometheus that scrapes a Ray of ours, as docs say it should: by the file in which Ray names its targets."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.ports import free_port

BINARY = shutil.which("prometheus")
SCRAPE_S = 2
READY_S = 60.0
STOP_S = 30.0
QUERY_S = 60.0


@dataclass(frozen=True)
class Prometheus:
    url: str

    def range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Series, each with its ``metric`` (labels) and ``values``: pairs of a time and a number in a string."""
        return self._get("query_range", query=expr, start=start, end=end, step=step)["result"]

    def now(self, expr: str) -> list[dict[str, Any]]:
        return self._get("query", query=expr)["result"]

    def alerts(self) -> set[str]:
        """Names of those that fire."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def broken_rules(self) -> dict[str, str]:
        """What went wrong, by the name of the rule."""
        rules = [rule for group in self._get("rules")["groups"] for rule in group["rules"]]
        return {rule["name"]: rule["lastError"] for rule in rules if rule["health"] == "err"}

    def targets(self) -> dict[str, str]:
        """Health by address."""
        return {target["scrapeUrl"]: target["health"] for target in self._get("targets")["activeTargets"]}

    def _get(self, what: str, **params: Any) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{what}", params=params, timeout=QUERY_S, trust_env=False)
        assert answer.status_code == 200, f"{params}: {answer.text}"
        return answer.json()["data"]


@contextmanager
def prometheus(folder: Path, targets: Path, rules: dict[str, Any]) -> Iterator[Prometheus]:
    """``targets`` is Ray's file for service discovery; ``rules`` what PrometheusRule has in ``spec``."""
    assert BINARY is not None
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            {"job_name": "ray", "file_sd_configs": [{"files": [str(targets)], "refresh_interval": f"{SCRAPE_S}s"}]}
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        BINARY,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _until_ready(f"http://{address}", process)
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()
            process.wait(STOP_S)


def _until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + READY_S
    while True:
        assert process.poll() is None, "Prometheus has ended"
        try:
            if httpx.get(f"{url}/-/ready", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "Prometheus is not ready"
        time.sleep(0.2)
