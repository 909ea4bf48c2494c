"""vLLM's engine metrics, from replicas that have no vLLM frontend: same names, on Ray's metrics port.

Relies on vLLM 0.32.0: ``RayPrometheusStatLogger.record`` with ``SchedulerStats`` and ``IterationStats``; an in-process
core that makes these stats unless ``disable_log_stats``; ``EngineCoreOutput.events`` and ``prefill_stats``; and the
logger's ``histogram_iteration_tokens``.
"""

import threading
from collections.abc import Sequence
from typing import Any

_ENGINE = 0


class EngineStats:
    """Adds up what steps say, and hands it over when told to: a record takes Ray longer than a step may wait.

    ``model`` is its name in the API. Exported are the state of the scheduler, prefix cache, tokens and preemptions;
    what vLLM says of whole requests is the frontend's to say.
    """

    def __init__(self, vllm_config: Any, model: str) -> None:
        from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger
        from vllm.v1.metrics.stats import IterationStats, PrefixCacheStats, SchedulerStats

        vllm_config.model_config.served_model_name = model
        self._logger = RayPrometheusStatLogger(vllm_config, [_ENGINE])
        # One value for each step: what is handed over here stands for many.
        self._logger.histogram_iteration_tokens = {_ENGINE: _Nothing()}
        self._iterations, self._prefixes, self._schedulers = IterationStats, PrefixCacheStats, SchedulerStats
        self._lock = threading.Lock()
        self._scheduler: Any = SchedulerStats()
        self._prefix = PrefixCacheStats()
        self._iteration = IterationStats()

    def stepped(self, scheduler: Any | None, outputs: Sequence[Any]) -> None:
        """After an engine step, with what it says of its scheduler. Takes the events out of ``outputs``."""
        from vllm.v1.engine import EngineCoreEventType

        with self._lock:
            if scheduler is not None:
                self._scheduler = scheduler
                self._prefix.queries += scheduler.prefix_cache_stats.queries
                self._prefix.hits += scheduler.prefix_cache_stats.hits
            for output in outputs:
                self._iteration.num_generation_tokens += len(output.new_token_ids)
                if output.prefill_stats is not None:
                    self._iteration.prompt_token_stats.update_from_output(output.prefill_stats)
                events, output.events = output.events or (), None
                self._iteration.num_preempted_reqs += sum(e.type == EngineCoreEventType.PREEMPTED for e in events)

    def replayed(self, running: int, waiting: int, kv_usage: float, queries: int, hits: int) -> None:
        """The same where vLLM's scheduler is not used; ``queries`` and ``hits`` in tokens, since the last call."""
        with self._lock:
            self._scheduler = self._schedulers(
                num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=kv_usage
            )
            self._prefix.queries += queries
            self._prefix.hits += hits

    @property
    def use(self) -> tuple[int, float]:
        """Requests that ran in the last step, and the share of the KV memory that they held."""
        with self._lock:
            return self._scheduler.num_running_reqs, self._scheduler.kv_cache_usage

    def report(self) -> None:
        """Hand over what has come since the last call."""
        with self._lock:
            scheduler, prefix, iteration = self._scheduler, self._prefix, self._iteration
            self._prefix, self._iteration = self._prefixes(), self._iterations()
        scheduler.prefix_cache_stats = prefix
        self._logger.record(scheduler, iteration)


class _Nothing:
    def observe(self, _value: float) -> None: ...
