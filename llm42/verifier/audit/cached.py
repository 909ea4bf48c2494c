"""The window cache, through the real scheduler: cold, shared, and filled another way."""

from collections.abc import Callable

from llm42.internals.block_pool import PagePool
from llm42.protocol.messages import Question, Scores, pack_tokens
from llm42.verifier.audit.report import Failure, Property
from llm42.verifier.jobs import Job
from llm42.verifier.model import ReplayModel
from llm42.verifier.pages import PageCache
from llm42.verifier.passes import Pass
from llm42.verifier.scheduler import Scheduler

PREFIX_BLOCKS = 2


class CacheAudit:
    """Replays one request again and again, with each adapter; nobody else may use the model meanwhile."""

    def __init__(self, model: ReplayModel, on_pass: Callable[[], None]) -> None:
        self._model, self._shape, self._on_pass = model, model.shape, on_pass
        blocks = min(PREFIX_BLOCKS, (self._shape.context - self._shape.window) // self._shape.block)
        self._start = blocks * self._shape.block
        self.comparisons = 0
        """Slots compared so far."""

    def failure(self) -> Failure | None:
        """What disagrees with the cold replay of the same request."""
        if not self._start:
            return None  # a context of one block: nothing is ever shared
        return next(filter(None, map(self._failure, self._model.adapters)), None)

    def _failure(self, adapter: str) -> Failure | None:
        window, length = self._shape.window, self._start + self._shape.window
        first = _Replayer(self._model, self._on_pass, adapter)
        cold, shared = first.replay(length, self._start), first.replay(length, self._start)
        assert first.hits == self._start // self._shape.block, "the second replay was not served from the cache"
        second = _Replayer(self._model, self._on_pass, adapter)
        one_by_one = second.replay(length, self._start, most_rows=1)
        for other, how in (
            (shared, "read from the pages that it had published"),
            (one_by_one, "computed one window in a pass instead of side by side"),
        ):
            self.comparisons += window
            if other != cold:
                where = f"the answer from position {self._start} on changed when the K/V before it was {how}"
                return Failure(Property.CACHE, where)
        return None


class _Replayer:
    """Replays a fixed text, on an empty cache at first."""

    def __init__(self, model: ReplayModel, on_pass: Callable[[], None], adapter: str) -> None:
        self._model, self._on_pass, self._adapter = model, on_pass, adapter
        self._cache = PageCache(PagePool(model.num_blocks), model.shape.block, "audit")
        self._scheduler = Scheduler(model.shape, self._cache, max_queued=1)

    @property
    def hits(self) -> int:
        """Pages that were not computed but found."""
        return self._scheduler.hits

    def replay(self, length: int, start: int, most_rows: int | None = None) -> Scores:
        tokens = pack_tokens((104729 * position + 7) % self._model.vocabulary for position in range(length))
        question = Question(tokens, start, adapter=self._adapter)
        job = Job(self._model.shape, question, self._cache.keys(tokens, adapter=self._adapter))
        self._scheduler.submit(job)
        done: list[Job] = []
        while job not in done:
            planned = Pass(self._model.shape, self._scheduler.plan().rows[:most_rows])
            self._scheduler.begin(planned)
            self._on_pass()
            done = self._scheduler.end(planned, self._model.run_now(planned.input))
        if job.error is not None:
            raise job.error
        return job.scores
