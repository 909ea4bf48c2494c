"""Who waits for company, and for how long; in a whole verifier, that it comes."""

import asyncio
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace

import pytest

from llm42.protocol import Haste, Question, ReplayRequest, pack_tokens
from llm42.verifier import company
from llm42.verifier.company import MOST_S, Company
from llm42.verifier.engine import ReplayEngine
from llm42.verifier.jobs import Job
from llm42.verifier.pages import PageTable
from llm42.verifier.passes import Pass, PassShape, Row
from llm42.verifier.usage import PassUse
from tests.verifier.lab import random_tokens

LAST_S = 0.75
SHAPE = PassShape(rows=2, window=8, block=8, context=64)


def row(request: str, haste: Haste = Haste.EARLY, *, fresh: bool = False) -> Row:
    job = Job(SHAPE, Question(pack_tokens(range(4)), 0), [], fresh, haste, request_id=request)
    job.table = PageTable(pages=[], ids=array("i", [1]), shared=0)
    return Row(job, 0)


@pytest.mark.parametrize(
    ("last", "rows", "patience_s"),
    [
        ("B", [row("A")], LAST_S),
        ("B", [row("A", Haste.DUE)], LAST_S),
        ("B", [row("A", fresh=True)], LAST_S),
        ("B", [row("A", Haste.SOON)], 0.0),
        ("B", [row("A", Haste.URGENT)], 0.0),
        ("B", [row("A", Haste.URGENT, fresh=True)], 0.0),  # a receipt: its client waits
        ("B", [row("A"), row("C")], 0.0),  # full
        ("A", [row("A")], 0.0),  # nobody else is about
        ("AB", [row("A")], LAST_S),
        ("", [row("A")], 0.0),  # nothing has run yet
    ],
)
def test_patience(last: str, rows: list[Row], patience_s: float) -> None:
    company = Company()
    if last:
        company.ran(Pass(SHAPE, [row(request, Haste.URGENT) for request in last]), LAST_S)
    assert company.patience_s(Pass(SHAPE, rows), short_of_pages=False) == patience_s
    assert company.patience_s(Pass(SHAPE, rows), short_of_pages=True) == 0.0, "nobody can join"


def test_a_long_pass_does_not_make_the_next_one_wait_as_long() -> None:
    company = Company()
    company.ran(Pass(SHAPE, [row("B")]), 100.0)
    assert company.patience_s(Pass(SHAPE, [row("A")]), short_of_pages=False) == MOST_S


def test_one_who_is_urgent_is_enough() -> None:
    company = Company()
    wide = replace(SHAPE, rows=3)
    company.ran(Pass(wide, [row("C")]), LAST_S)
    assert company.patience_s(Pass(wide, [row("A"), row("B")]), short_of_pages=False) == LAST_S
    assert company.patience_s(Pass(wide, [row("A"), row("B", Haste.URGENT)]), short_of_pages=False) == 0.0


class Passes:
    """Hears of them."""

    def __init__(self) -> None:
        self.answering: list[int] = []
        self.waits: list[tuple[float, bool]] = []

    def on_pass(self, use: PassUse, seconds: float, parts: list[float]) -> None:
        self.answering.append(use.rows["full"] + use.rows["partial"])

    def on_wait(self, seconds: float, *, urgent: bool) -> None:
        self.waits.append((seconds, urgent))

    def on_cache(self, hits: int, misses: int, evictions: int) -> None: ...
    def on_audit(self, report: object) -> None: ...


@pytest.fixture
def passes(engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Passes]:
    monkeypatch.setattr(company, "MOST_S", 3600.0)
    seen = Passes()
    monkeypatch.setattr(engine, "_observer", seen)
    yield seen
    assert engine._pool.free == engine._pool.capacity


def asked(request: str, haste: Haste) -> ReplayRequest:
    return ReplayRequest(request, Question(pack_tokens(random_tokens(9)), 4), haste=haste)


def met(engine: ReplayEngine, request: str, seconds: float = 3600.0) -> None:
    """As if the last pass had been for that request, and taken so long."""
    engine._company.ran(Pass(SHAPE, [row(request)]), seconds)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_pass_waits_for_those_who_join_it(engine: ReplayEngine, passes: Passes) -> None:
    met(engine, "B")
    early = asyncio.create_task(engine.replay(asked("A", Haste.EARLY)))
    due = asyncio.create_task(engine.replay(asked("C", Haste.DUE)))
    await asyncio.sleep(0.3)
    assert not passes.answering
    urgent = await engine.replay(asked("B", Haste.URGENT))
    assert len(urgent.scores) == len((await early).scores) == len((await due).scores) == 5
    assert passes.answering == [3]


@pytest.mark.asyncio(loop_scope="session")
async def test_nobody_waits_for_ever(engine: ReplayEngine, passes: Passes) -> None:
    met(engine, "B", 0.5)
    began = time.perf_counter()
    early = asyncio.create_task(engine.replay(asked("A", Haste.EARLY)))
    await asyncio.sleep(0.25)
    due = asyncio.create_task(engine.replay(asked("C", Haste.DUE)))  # who joins does not make it wait longer
    async with asyncio.timeout(60):
        await asyncio.gather(early, due)
    assert passes.answering == [2]
    assert time.perf_counter() - began >= 0.5
    assert [urgent for _, urgent in passes.waits] == [True, False]
    assert max(seconds for seconds, _ in passes.waits) < 0.2, "waiting for company is not waiting for rows"


@pytest.mark.asyncio(loop_scope="session")
async def test_the_last_pass_says_who_is_about(engine: ReplayEngine, passes: Passes) -> None:
    met(engine, "A")
    await engine.replay(asked("B", Haste.URGENT))
    assert 0 < engine._company.patience_s(Pass(SHAPE, [row("A")]), short_of_pages=False) < 3600


@pytest.mark.asyncio(loop_scope="session")
async def test_who_is_alone_does_not_wait(engine: ReplayEngine, passes: Passes) -> None:
    met(engine, "A")
    async with asyncio.timeout(60):
        await engine.replay(asked("A", Haste.EARLY))
    assert passes.answering == [1]


@pytest.mark.asyncio(loop_scope="session")
async def test_who_leaves_while_waiting_leaves_no_pass(engine: ReplayEngine, passes: Passes) -> None:
    met(engine, "B")
    early = asyncio.create_task(engine.replay(asked("A", Haste.EARLY)))
    await asyncio.sleep(0.1)
    early.cancel()
    await asyncio.wait([early])
    await asyncio.sleep(0.1)
    assert not passes.answering
    async with asyncio.timeout(60):
        await engine.replay(asked("C", Haste.URGENT))
    assert passes.answering == [1]
