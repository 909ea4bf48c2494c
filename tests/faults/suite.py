"""Runs one fault under traffic, and judges what the clients got."""

import re
import time

from tests.e2e.client import Client
from tests.faults.faults import Fault, Scene
from tests.faults.system import System
from tests.faults.traffic import Outcome, Traffic
from tests.faults.verdict import Row, judge, reason_of

ORDINARY = 2
AFTERWARDS = 4
"""Deterministic requests that are served when all is over."""


async def run(fault: Fault, system: System, client: Client) -> Row:
    """Traffic, the fault, and traffic again; then the comparison.

    Raises AssertionError if the fault was not met.
    """
    if fault.args is not None and system.args != (args := fault.args(system)):
        system.apply(args)
    await system.until_whole()
    await system.learn(client)
    row = Row(fault.name, fault.description)
    began = time.monotonic()
    async with Traffic(client, seed=fault.name, streams=fault.streams, ordinary=ORDINARY) as traffic:
        row.injected = await fault.inject(Scene(system, traffic, row.notes))
        await traffic.finished(AFTERWARDS)
    row.seconds = round(time.monotonic() - began, 1)
    await system.learn(client)  # what is there now may be another pool
    judge(row, traffic.outcomes, system.canonical)
    row.unexpected = [
        reason_of(outcome.error)
        for outcome in traffic.outcomes
        if outcome.error is not None and not _is_its_right(fault, outcome)
    ]
    return row


def _is_its_right(fault: Fault, outcome: Outcome) -> bool:
    pattern = fault.failures if outcome.deterministic else fault.ordinary_failures
    return pattern is not None and re.search(pattern, outcome.error or "") is not None
