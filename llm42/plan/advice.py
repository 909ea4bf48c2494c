"""How many verifiers a load needs."""

from collections.abc import Callable

from pydantic import Field

from llm42.config import Frozen
from llm42.plan.plan import Plan
from llm42.plan.report import Report

MOST_FOR_EACH = 8
"""Verifiers for one fast path engine, at most: beyond it something else is wrong."""


class Trial(Frozen):
    verifiers: int
    verifier_load: float
    ttft_multiple: float | None = Field(description="None if there is nothing to compare.")
    enough: bool


class Advice(Frozen):
    """The fewest verifiers that meet the plan's target, if any do."""

    verifiers: int | None
    for_each_fast_path: float | None
    baseline: Report = Field(description="The same requests, none deterministic.")
    trials: tuple[Trial, ...] = Field(description="In rising order of verifiers.")


def advise(plan: Plan, on_trial: Callable[[int], None] = lambda verifiers: None) -> Advice:
    """Tries one verifier, then twice as many each time until they are enough, then halves what lies between.
    ``on_trial`` hears of each number before it is tried."""
    baseline = plan.with_fields(workload={"deterministic": 0.0}, fleet={"verifiers": 1}).predict()
    trials: dict[int, Trial] = {}

    def enough(verifiers: int) -> bool:
        on_trial(verifiers)
        report = plan.with_fields(fleet={"verifiers": verifiers}).predict()
        trials[verifiers] = _trial(plan, verifiers, report, baseline)
        return trials[verifiers].enough

    most = MOST_FOR_EACH * plan.fleet.fast_paths
    short, found = 0, 1
    while not enough(found):
        short, found = found, min(2 * found, most)
        if short == most:
            break
    while short != most and found - short > 1:
        middle = (short + found) // 2
        short, found = (short, middle) if enough(middle) else (middle, found)
    verifiers = found if short != most else None
    return Advice(
        verifiers=verifiers,
        for_each_fast_path=verifiers / plan.fleet.fast_paths if verifiers is not None else None,
        baseline=baseline,
        trials=tuple(trials[number] for number in sorted(trials)),
    )


def _trial(plan: Plan, verifiers: int, report: Report, baseline: Report) -> Trial:
    ours, theirs = report.deterministic.ttft_s, baseline.ordinary.ttft_s
    multiple = ours.p95 / theirs.p95 if ours is not None and theirs is not None and theirs.p95 > 0 else None
    return Trial(
        verifiers=verifiers,
        verifier_load=report.verifier_load,
        ttft_multiple=multiple,
        enough=report.verifier_load <= plan.target.verifier_load
        and (multiple is None or multiple <= plan.target.ttft_multiple),
    )
