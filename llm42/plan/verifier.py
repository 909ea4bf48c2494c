"""A verifier: the real scheduler, window cache and jobs, with a clock and a script in place of the model."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import simpy

from llm42.plan.fleet import Fleet
from llm42.plan.ledger import Ledger
from llm42.plan.page_store import PageStore
from llm42.plan.step_times import StepTimes
from llm42.protocol import ReplayReply, Verify
from llm42.protocol.messages import WORD
from llm42.verifier.company import Company
from llm42.verifier.heads import head_blocks
from llm42.verifier.jobs import Job
from llm42.verifier.pages import PageCache
from llm42.verifier.passes import Pass, PassOutput, Row, RowOutput
from llm42.verifier.scheduler import Scheduler
from llm42.verifier.usage import use_of

FINGERPRINT = "plan"


@dataclass(frozen=True, slots=True)
class _Asked:
    canonical: bytes
    """Packed tokens of the whole request."""
    answer: Callable[[ReplayReply], None]


class VerifierEngine:
    """Its pass loop is that of :class:`llm42.verifier.engine.ReplayEngine`: the next pass is planned while one runs."""

    def __init__(self, env: simpy.Environment, name: str, fleet: Fleet, times: StepTimes, ledger: Ledger) -> None:
        self.name = name
        self.load = 0
        """Replays on the way here, waiting and running; kept by the router."""
        self._env = env
        self._shape = fleet.shape
        self._times = times.replay_of(self._shape.rows, self._shape.window)
        self._ledger = ledger
        pages = PageStore(fleet.verifier_kv_tokens // self._shape.block)
        self._cache = PageCache(pages, self._shape.block, FINGERPRINT)
        self._scheduler = Scheduler(self._shape, self._cache, fleet.max_queued)
        self._asked: dict[Job, _Asked] = {}
        self._next = self._scheduler.plan()
        self._company = Company()
        self._planned = env.event()
        env.process(self._run_passes())

    def submit(self, number: int, order: Verify, canonical: bytes, answer: Callable[[ReplayReply], None]) -> None:
        """For request ``number``. Raises VerifierBusy if the queue is full."""
        keys = self._cache.keys(order.question.tokens)
        job = Job(self._shape, order.question, keys, haste=order.haste, request_id=str(number))
        self._scheduler.submit(job)
        self._asked[job] = _Asked(canonical, answer)
        self._plan()

    def _plan(self) -> None:
        self._next = self._scheduler.plan()
        if not self._planned.triggered:
            self._planned.succeed()

    def _due(self) -> Generator[simpy.Event, None, None]:
        ready_at = self._env.now
        while True:
            self._planned = self._env.event()
            if not self._next.rows:
                yield self._planned
                ready_at = self._env.now
                continue
            patience_s = self._company.patience_s(self._next, short_of_pages=self._scheduler.short_of_pages)
            left = ready_at + patience_s - self._env.now
            if left <= 0:
                return
            yield self._env.any_of([self._planned, self._env.timeout(left)])

    def _run_passes(self) -> Generator[simpy.Event, None, None]:
        while True:
            yield from self._due()
            current, began = self._next, self._env.now
            use = use_of(current)
            self._scheduler.begin(current)
            self._plan()
            blocks = head_blocks(self._shape.rows, self._shape.window, current.input.asked)
            seconds = self._times.pass_s + self._times.asked_row_s * len(blocks)
            yield self._env.timeout(seconds)
            self._company.ran(current, seconds)
            self._ledger.work("verifier", began, self._env.now)
            self._ledger.work("rows", began, self._env.now, len(current.rows) / self._shape.rows)
            self._ledger.used(use)
            done = self._scheduler.end(current, self._compute(current))
            if self._next.idle_rows:
                self._plan()
            for job in done:
                asked = self._asked.pop(job)
                asked.answer(ReplayReply(FINGERPRINT, job.question.digest, job.scores, self._next.idle_rows, self.name))

    def _compute(self, current: Pass) -> PassOutput:
        """What the model would say: the script, for each asked slot."""
        return PassOutput([self._row(self._asked[row.job].canonical, row) for row in current.rows if row.asked])

    def _row(self, canonical: bytes, row: Row) -> RowOutput:
        first, last = (WORD * (row.window * self._shape.window + slot + 1) for slot in row.slots)
        tokens = canonical[first:last].ljust(last - first, b"\0")
        return RowOutput(tokens, bytes(len(tokens)), bytes(len(tokens)), b"\1" * (len(tokens) // WORD), b"", b"")
