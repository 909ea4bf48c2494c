"""The experiments: which loads on which systems, in which order.

Conditions that are compared follow each other within a repeat, and each repeat turns their order round (ABBA), so that
a machine that becomes faster or slower does so for all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llm42.bench.cell import Cell, System
from llm42.bench.suite import Subject, Suite

DRIFT_THREADS = 2
"""CPU attention splits a lone sequence over idle threads: with one, drafts do not drift, and nothing is recomputed."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A name, and its cells in the order in which they are run."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """The systems of a run. All but ``half`` have the same number of CPU threads together; ``half`` has as many as our
    drafting engine alone."""

    ours: System
    plain: System
    half: System
    serial: System
    invariant: System

    @classmethod
    def of(cls, suite: Suite, cores: int) -> "Line":
        drafting = max(1, cores // 2)
        verifying = max(1, cores - drafting)
        return cls(
            ours=System("llm42", drafting, verifying, suite.window_size, suite.verify_batch_size),
            plain=System("vllm", drafting + verifying),
            half=System("vllm", drafting),
            serial=System("serial", drafting + verifying),
            invariant=System("invariant", drafting + verifying),
        )


def experiments(suite: Suite, subject: Subject, cores: int) -> list[Experiment]:
    """Those of one model. The ones with the same systems come together, so that few have to be started."""
    line = Line.of(suite, cores)
    cell = Cell("", subject.model, subject.dtype, line.ours, suite.steady, suite.requests, 0, lanes=suite.lanes)
    made = (
        # First: it is compared with bare step times, which have just been measured.
        ("limit", suite.repeats, _limit(suite, line, cell)),
        ("saturation", suite.repeats, _saturation(suite, line, cell)),
        ("offline", suite.repeats, _offline(suite, line, cell)),
        ("neighbours", suite.pairs, _neighbours(suite, line, cell)),
        ("online", suite.pairs, _online(suite, line, cell)),
        ("lone", suite.pairs, _lone(suite, cell)),
        ("spans", 1, _spans(suite, line, cell)),
        ("recompute", 1, _recompute(suite, line, cell)),
    )
    return [
        Experiment(name, _interleaved(name, repeats, list(conditions)))
        for name, repeats, conditions in made
        if name in subject.experiments
    ]


def _interleaved(name: str, repeats: int, conditions: list[Cell]) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for repeat in range(repeats):
        turn = conditions if repeat % 2 == 0 else conditions[::-1]
        cells += (replace(condition, experiment=name, repeat=repeat) for condition in turn)
    return tuple(cells)


def _saturation(suite: Suite, line: Line, cell: Cell) -> Iterator[Cell]:
    """CPU time of a token, padding, and the capacity that arrivals are measured by, where replays are eager."""
    for share in (0.0, 1.0):
        yield replace(cell, share=share, scrape=True)
    for system in (line.half, line.plain):
        yield replace(cell, system=system)


def _offline(suite: Suite, line: Line, cell: Cell) -> Iterator[Cell]:
    """Throughput by share."""
    for mix in suite.mixes:
        for share in suite.shares:
            yield replace(cell, mix=mix, share=share)
        for system in (line.plain, line.half, line.invariant, line.serial):
            yield replace(cell, mix=mix, system=system)


def _neighbours(suite: Suite, line: Line, cell: Cell) -> Iterator[Cell]:
    """What deterministic requests cost the ordinary ones beside them: one among many, and half of all."""
    for beside in (1, suite.lanes // 2):
        some = replace(cell, requests=suite.requests // 2, lanes=suite.lanes - beside, beside=beside)
        for share in (0.0, 1.0):
            yield replace(some, beside_share=share)
        if beside == 1:
            yield replace(some, system=line.plain)
            yield replace(some, system=line.invariant)


def _online(suite: Suite, line: Line, cell: Cell) -> Iterator[Cell]:
    """Latencies by share and rate, Poisson arrivals."""
    for load in suite.loads:
        some = replace(cell, requests=suite.online_requests, lanes=0, load=load)
        yield replace(some, system=line.plain)
        for share in suite.online_shares:
            yield replace(some, share=share)


def _lone(suite: Suite, cell: Cell) -> Iterator[Cell]:
    """One stream, with nothing else on the server."""
    for share in (0.0, 1.0):
        yield replace(cell, mix=suite.lone, requests=1, lanes=1, share=share)


def _spans(suite: Suite, line: Line, cell: Cell) -> Iterator[Cell]:
    """How long ordinary outputs agree with the canonical ones, alone and in a batch."""
    some = replace(cell, mix=suite.spans, requests=suite.span_requests, keep_tokens=True)
    yield replace(some, share=1.0)
    yield replace(some, system=line.plain)
    yield replace(some, system=line.plain, lanes=1)


def _limit(suite: Suite, line: Line, cell: Cell) -> Iterator[Cell]:
    """CPU time of a token and padding with many streams, where no replay is early."""
    frugal = replace(line.ours, cadence="window")
    lanes = suite.limit_lanes
    for share in (0.0, 1.0):
        yield replace(cell, system=frugal, lanes=lanes, requests=8 * lanes, share=share, scrape=True)


def _recompute(suite: Suite, line: Line, cell: Cell) -> Iterator[Cell]:
    """Recomputed tokens and throughput by the shape of a pass, with drafts that drift."""
    threads = max(DRIFT_THREADS, line.ours.threads)
    for window, rows in suite.shapes:
        system = replace(line.ours, threads=threads, window_size=window, verify_batch_size=rows)
        # Few streams: in a full batch no thread is idle, and nothing drifts.
        yield replace(
            cell, system=system, mix=suite.spans, requests=suite.span_requests, share=1.0, lanes=2, scrape=True
        )
