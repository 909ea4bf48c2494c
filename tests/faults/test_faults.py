"""Every fault on the real deployment, under traffic: nothing lost, nothing wrong. `make faults` runs it."""

import pytest

from tests.e2e.client import Client
from tests.faults.faults import FAULTS, LIE, Fault
from tests.faults.suite import run
from tests.faults.system import System
from tests.faults.verdict import Report, total

LEAST = 500

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_nothing_wrong_under(fault: Fault, system: System, client: Client, report: Report) -> None:
    row = await run(fault, system, client)
    report.add(row)
    print(row)
    assert (row.wrong, row.unverified) == (0, 0)
    assert row.unexpected == []


async def test_enough_was_compared(report: Report) -> None:
    whole = total(report.rows)
    assert whole.compared >= LEAST
    # The drafts did drift: without verifiers, clients would have seen it.
    assert whole.ordinary_differ > 0


async def test_negative_control_a_liar_is_seen(system: System, client: Client) -> None:
    """The comparison can fail: a trusted verifier that lies in good form is believed, and this suite says so."""
    row = await run(LIE, system, client)
    print(row)
    assert row.wrong > 0
    assert row.unverified > 0
