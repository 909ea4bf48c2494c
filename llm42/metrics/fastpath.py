"""What a fast path replica measures, beside vLLM's own engine metrics."""

from typing import TYPE_CHECKING, Any

from llm42.fastpath.engine import DraftEngine, StepObserver
from llm42.metrics.metric import Counter, Gauge
from llm42.metrics.reporter import Reporter

if TYPE_CHECKING:
    from llm42.internals.engine_stats import EngineStats

BUSY = Counter("llm42_fast_path_seconds", "seconds", "Time spent in engine steps.")

REQUESTS = Gauge("llm42_fast_path_requests", "requests", "Requests in the engine now: drafts and ordinary ones.")

METRICS = (BUSY, REQUESTS)


class FastPathMetrics(StepObserver):
    """The observer of a draft engine. vLLM's metrics are made once it has started."""

    def __init__(self) -> None:
        self._stats: EngineStats | None = None
        self._reporter = Reporter(METRICS, self._sample)

    def start(self, engine: DraftEngine, model: str) -> None:
        """``model`` is its name in the API."""
        from llm42.internals.engine_stats import EngineStats

        self._engine = engine
        self._stats = EngineStats(engine.core.vllm_config, model)
        self._reporter.start()

    def on_step(self, seconds: float, scheduler: Any, outputs: list[Any]) -> None:
        BUSY.add(seconds)
        if self._stats is not None:
            self._stats.stepped(scheduler, outputs)

    def load(self, max_num_seqs: int) -> float:
        """What the requests in the engine take of it: of its sequences or of its KV memory, whichever is more.

        Those that wait count like those that run, so it is more than 1 where not all of them fit.
        """
        running, kv_usage = self._stats.use if self._stats is not None else (0, 0.0)
        return self._engine.in_flight * max(1 / max_num_seqs, kv_usage / running if running else 0.0)

    def check_health(self) -> None:
        self._reporter.check_health()

    def _sample(self) -> None:
        assert self._stats is not None
        REQUESTS.set(self._engine.in_flight)
        self._stats.report()
