"""Which windows go into the next pass. Pure logic: no clock, no model, no asyncio.

A pass goes ``plan -> begin -> end`` (or ``fail``), one at a time; ``plan`` may be called again at any moment,
also while a pass runs, and changes nothing but who has been admitted.

Jobs are admitted first come, first served, each with all the pages it will need: a running job never waits
for memory, so there is no deadlock and nothing to preempt. Decode rows (an answer is wanted) go before
prefill rows, but never take all of them. Early jobs, for which nobody waits yet, have the rows that these leave, and
fresh ones, which audit, what is left then.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from llm42.protocol.errors import ReplayError, ReplayRefused, VerifierBusy
from llm42.protocol.messages import Haste
from llm42.verifier.jobs import Job
from llm42.verifier.pages import PageCache
from llm42.verifier.passes import Pass, PassOutput, PassShape, Row


class Scheduler:
    """``max_queued`` bounds the jobs held, waiting and running."""

    def __init__(self, shape: PassShape, cache: PageCache, max_queued: int) -> None:
        self._shape = shape
        self._windows_per_block = shape.block // shape.window
        self._cache = cache
        self._max_queued = max_queued
        self._waiting: deque[Job] = deque()
        self._running: dict[Job, None] = {}  # in order of admission
        self._prefill_turn = True
        self._audits = 0
        self.hits = 0
        """Shareable pages found in the cache at admission, so far."""
        self.misses = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs that are not admitted yet."""
        return len(self._waiting)

    @property
    def short_of_pages(self) -> bool:
        """Whether who comes now has to wait until pages are free."""
        return any(not job.fresh for job in self._waiting)

    def submit(self, job: Job) -> None:
        """Raises ReplayRefused if the job can never fit, VerifierBusy if the queue is full."""
        if job.blocks > self._cache.capacity:
            raise ReplayRefused(
                f"{job.length} tokens need {job.blocks} KV pages, but the verifier has {self._cache.capacity}; "
                "give it more KV memory or shorten the request"
            )
        if len(self) >= self._max_queued:
            raise VerifierBusy(f"the verifier already holds {self._max_queued} replays; retry later")
        self._waiting.append(job)

    def cancel(self, job: Job) -> bool:
        """Forget a job; False if it is no longer here. Its pages are freed now, or when the pass using them ends."""
        if job in self._running:
            job.cancelled = True
            del self._running[job]
            if not job.flying:
                self._release(job)
            return True
        if job in self._waiting:
            self._waiting.remove(job)
            return True
        return False

    def plan(self) -> Pass:
        """The best next pass as things stand; without rows if there is no work."""
        self._admit()
        for job in self._running:
            self._adopt(job)
        rows = self._shape.rows
        running = sorted(self._running, key=lambda job: job.fresh)  # stable: first come, first served
        decode = _rows(job for job in running if not job.prefilling and not job.yields)
        prefill = _rows(job for job in running if job.prefilling)
        others = _rows(job for job in running if not job.prefilling and job.yields)
        reserved = self._reserved_for_prefill()
        chosen = list(islice(decode, rows - reserved))
        chosen += islice(prefill, rows - len(chosen))
        chosen += islice(chain(decode, others), rows - len(chosen))
        audited = rows > 1 and any(row.job.fresh for row in chosen)
        return Pass(self._shape, chosen, 1 + self._audits % (rows - 1) if audited else 0)

    def begin(self, planned: Pass) -> None:
        """The pass, planned after the last change of anything, is about to run."""
        for row in planned.rows:
            row.job.next_window = row.window + 1
            row.job.begun = row.job.flying = True
        for job in self._running:
            job.passed += job.haste < Haste.DUE and not job.flying and not job.prefilling
        self._prefill_turn = all(row.asked for row in planned.rows)
        self._audits += planned.first > 0

    def end(self, finished: Pass, output: PassOutput) -> list[Job]:
        """The pass has succeeded: returns the jobs that it completed or (``error``) failed."""
        finished.deliver(output)
        for row in finished.rows:
            self._publish(row)
        return self._settle(finished)

    def fail(self, failed: Pass, error: ReplayError) -> list[Job]:
        """The pass raised: nothing that it wrote is published, and all its jobs fail."""
        for job in failed.jobs:
            job.error = error
        return self._settle(failed)

    def _reserved_for_prefill(self) -> int:
        """Rows kept from decode while prefill waits: a quarter, or every other pass of a single row."""
        if not any(job.prefilling for job in self._running):
            return 0
        return max(1, self._shape.rows // 4) if self._shape.rows > 1 else int(self._prefill_turn)

    def _admit(self) -> None:
        for job in list(self._waiting):
            job.table = self._cache.acquire(job.blocks, job.keys, job.shareable)
            if job.table is None:
                if job.fresh:  # who comes after an audit does not wait for it to be admitted
                    continue
                return
            self._waiting.remove(job)
            self._running[job] = None
            self.hits += job.table.shared
            self.misses += job.shareable - job.table.shared
            job.next_window = job.table.shared * self._windows_per_block

    def _adopt(self, job: Job) -> None:
        """Requests with one prompt arrive together: take what a neighbour has computed in the meantime."""
        block, partly = divmod(job.next_window, self._windows_per_block)
        if job.prefilling and not partly:
            assert job.table is not None
            block = self._cache.adopt(job.table, block, job.keys, job.shareable)
            job.next_window = block * self._windows_per_block

    def _publish(self, row: Row) -> None:
        job = row.job
        blocks, partly = divmod(row.window + 1, self._windows_per_block)
        if not partly and blocks <= len(job.keys) and job.error is None and not job.fresh:
            assert job.table is not None
            self._cache.publish(job.table, blocks - 1, job.keys[blocks - 1])

    def _settle(self, ended: Pass) -> list[Job]:
        done = []
        for job in ended.jobs:
            job.flying = False
            if job.cancelled:
                self._release(job)
            elif job.error is not None or not job.pending:
                del self._running[job]
                self._release(job)
                done.append(job)
        return done

    def _release(self, job: Job) -> None:
        assert job.table is not None
        self._cache.release(job.table)
        job.table = None


def _rows(jobs: Iterable[Job]) -> Iterator[Row]:
    return (Row(job, window) for job in jobs for window in job.pending)
