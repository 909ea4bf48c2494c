"""What a cadence buys: tokens drafted again, against the replay slots that it takes to have fewer of them."""

from collections.abc import Iterator

from llm42.config import Cadence, Frozen
from llm42.plan.plan import Plan
from llm42.plan.report import Report

WINDOWS = (8, 16, 32, 64, 128)
CADENCES = (
    Cadence(mode="window"),
    Cadence(mode="margin", price=4),
    Cadence(mode="margin", price=2),
    Cadence(mode="margin", price=1),
    Cadence(mode="adaptive", min_candidates=16),
    Cadence(mode="adaptive", min_candidates=8),
    Cadence(mode="adaptive", min_candidates=4),
)


class Point(Frozen):
    window_size: int
    cadence: Cadence
    report: Report


def variations(plan: Plan) -> Iterator[Point]:
    """``plan`` with each window and each cadence that makes a difference there. G changes with W, so that a pass keeps
    its slots."""
    slots = plan.fleet.window_size * plan.fleet.verify_batch_size
    for window in WINDOWS:
        fleet = {"window_size": window, "verify_batch_size": max(1, slots // window), "run_ahead": None}
        for cadence in CADENCES:
            if cadence.mode == "adaptive" and cadence.min_candidates >= window:
                continue
            yield Point(
                window_size=window,
                cadence=cadence,
                report=plan.with_fields(fleet={**fleet, "cadence": cadence}).predict(),
            )
