"""The most telling fault of `make faults`, for every run of the tests; kills are in test_kill.py."""

import pytest

from tests.e2e.client import Client
from tests.e2e.cluster import Cluster
from tests.faults.faults import FAULTS, LIE, Fault
from tests.faults.orders import Orders
from tests.faults.suite import run
from tests.faults.system import System, arguments

SHORT = [fault for fault in FAULTS if fault.name == "digest"]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def system(ray_and_serve: Cluster, tiny_path: str, tmp_path_factory: pytest.TempPathFactory) -> System:
    system = System(ray_and_serve, Orders(tmp_path_factory.mktemp("orders")))
    ray_and_serve.clear()
    system.apply(arguments(system.orders, fast_path__replicas=1))
    ray_and_serve.until_healthy()
    return system


@pytest.fixture
async def client(system: System) -> Client:
    return Client(system.cluster.url, "tiny", ignore_eos=True)


@pytest.mark.parametrize("fault", SHORT, ids=lambda fault: fault.name)
async def test_nothing_wrong_under(fault: Fault, system: System, client: Client) -> None:
    row = await run(fault, system, client)
    print(row)
    assert (row.wrong, row.unverified, row.unexpected) == (0, 0, [])
    assert row.compared > 0


async def test_negative_control_a_liar_is_seen(system: System, client: Client) -> None:
    row = await run(LIE, system, client)
    print(row)
    assert min(row.wrong, row.unverified) > 0
