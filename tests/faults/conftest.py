"""Two of each part on a Ray of its own, and the report over all faults."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.client import Client
from tests.e2e.cluster import ray_cluster
from tests.faults.orders import Orders
from tests.faults.system import System, arguments
from tests.faults.verdict import Report, table

REPORT = "LLM42_FAULTS_REPORT"
"""Names the JSON file to write, in the environment; without it none is written."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, tiny_path: str) -> Iterator[System]:
    with ray_cluster() as cluster:
        system = System(cluster, Orders(tmp_path_factory.mktemp("orders")))
        system.apply(arguments(system.orders))
        cluster.until_healthy()
        yield system


@pytest.fixture
async def client(system: System) -> AsyncIterator[Client]:
    client = Client(system.cluster.url, "tiny", ignore_eos=True)
    yield client
    await client.openai.close()


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """Filled by the tests; printed when they are through."""
    report = Report(Path(os.environ[REPORT]) if os.environ.get(REPORT) else None)
    yield report
    if report.rows:
        print(f"\n{table(report.rows)}")
