"""The dashboards and rules on a live deployment with mixed load, rollbacks and a killed verifier.

    python -m tests.grafana.live [--images FOLDER]

Serves the test model with two verifiers on this machine, and has a real Prometheus scrape Ray's metrics ports. Fails if
a query of a panel returns nothing, a metric of the catalogue is not there, a rule cannot be evaluated, or determinism
did not hold. With ``--images``, draws each dashboard from what its queries returned.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
from ray._private.metrics_agent import PrometheusServiceDiscoveryWriter
from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE

import tests.conftest  # noqa: F401 - the environment of an engine process
from llm42.dashboards import DASHBOARDS
from llm42.metrics import CATALOGUE, FOREIGN
from llm42.models.tiny import tiny_model
from tests.e2e.cluster import ray_cluster
from tests.faults.traffic import Outcome
from tests.grafana.load import ARGS, load
from tests.grafana.prometheus import Prometheus, prometheus
from tests.grafana.reading import Shown, read
from tests.grafana.test_rules import RECORDS, spec

SETTLED_S = 8.0
"""Until what has happened is exported and scraped."""


@dataclass(frozen=True)
class Live:
    """``start`` and ``end`` are those of the load; ``dashboards`` by uid: title, panels and what they showed."""

    source: Prometheus
    start: float
    end: float
    outcomes: list[Outcome]
    dashboards: dict[str, tuple[str, list[Shown]]]

    def empty(self) -> list[str]:
        """Queries of panels that returned nothing."""
        return [
            f"{title} / {shown.title}: {expr}"
            for title, panels in self.dashboards.values()
            for shown in panels
            for expr in shown.empty
        ]

    def missing(self) -> list[str]:
        """Metrics that nobody has exported."""
        samples = [sample for metric in CATALOGUE for sample in metric.samples] + list(FOREIGN)
        return [sample for sample in samples if not self.source.now(f"count(last_over_time({sample}[15m]))")]

    def unrecorded(self) -> list[str]:
        """Recording rules without a result."""
        return [name for name in RECORDS if not self.source.now(f"last_over_time({name}[15m])")]

    def total(self, metric: str) -> float:
        (result,) = self.source.now(f"sum(max_over_time({metric}[15m]))")
        return float(result["value"][1])


@contextmanager
def live() -> Iterator[Live]:
    """After the load; Prometheus still runs."""
    tiny_model()
    with ray_cluster() as cluster, tempfile.TemporaryDirectory(prefix="llm42-prometheus-") as folder:
        # What Ray's dashboard process does every few seconds; there is none here.
        gcs = ray.get_runtime_context().gcs_address
        PrometheusServiceDiscoveryWriter(gcs, folder, folder).write()
        targets = Path(folder) / PROMETHEUS_SERVICE_DISCOVERY_FILE
        with prometheus(Path(folder), targets, spec()) as source:
            cluster.deploy(ARGS)
            time.sleep(SETTLED_S)
            start = time.time()
            outcomes = asyncio.run(load(cluster))
            time.sleep(SETTLED_S)
            end = time.time()
            shown = {dashboard.uid: read(dashboard.uid, source, start, end) for dashboard in DASHBOARDS}
            yield Live(source, start, end, outcomes, shown)


def wrong(run: Live) -> list[str]:
    """All that is not as it should be."""
    found = [f"no data: {query}" for query in run.empty()]
    found += [f"not exported: {sample}" for sample in run.missing()]
    found += [f"nothing recorded: {name}" for name in run.unrecorded()]
    found += [f"rule {name}: {error}" for name, error in run.source.broken_rules().items()]
    found += [f"target {url} is {health}" for url, health in run.source.targets().items() if health != "up"]
    alarms = {"LLM42DeterminismBroken", "LLM42UnverifiedTokens", "LLM42VerifierRefused"} & run.source.alerts()
    found += [f"firing: {name}" for name in sorted(alarms)]
    found += [f"failed: {outcome.case.name}: {outcome.error}" for outcome in run.outcomes if outcome.error]
    answers: dict[str, set[object]] = {}
    for outcome in run.outcomes:
        if outcome.deterministic and outcome.finished:
            answers.setdefault(outcome.case.name, set()).add(outcome.said.answer(None))
    found += [f"{len(different)} answers to {name}" for name, different in answers.items() if len(different) > 1]
    for metric in ("ray_llm42_rollbacks_total", "ray_llm42_failovers_total"):
        if not run.total(metric):
            found.append(f"the load was too tame: {metric} is 0")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.grafana.live", description="Check the dashboards live.")
    parser.add_argument("--images", type=Path, help="draw each dashboard into this folder")
    images: Path | None = parser.parse_args().images
    with live() as run:
        problems = wrong(run)
        for title, panels in run.dashboards.values():
            asked = sum(len(shown.answers) for shown in panels)
            print(f"{title}: {asked - sum(len(shown.empty) for shown in panels)} of {asked} queries answered")
        deterministic = [outcome for outcome in run.outcomes if outcome.deterministic and outcome.finished]
        print(f"{len(run.outcomes)} requests, {len(deterministic)} of them deterministic and finished")
        if images is not None:
            from tests.grafana.draw import draw

            images.mkdir(parents=True, exist_ok=True)
            for uid, (title, panels) in run.dashboards.items():
                draw(title, panels, run.start, run.end, images / f"{uid}.png")
                print(f"drawn: {images / uid}.png")
        for problem in problems:
            print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    sys.exit(main())
