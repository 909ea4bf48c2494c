"""Stepping a vLLM engine core in this process, and speaking its types.

Relies on vLLM 0.32.0: ``InprocClient.engine_core`` (an ``EngineCore``) with ``step_fn``, ``post_step``,
``scheduler.has_requests`` and ``batch_queue``, used as ``EngineCoreProc`` uses them.
``InprocClient.get_output`` does the same, but hides whether the model ran, and so when there is nothing to
wait for.
"""

from typing import Any

from llm42.internals.engine_core import EngineCore

EngineCoreRequest = Any
"""``vllm.v1.engine.EngineCoreRequest``; named here so that annotations do not import vLLM."""
EngineCoreOutput = Any
"""``vllm.v1.engine.EngineCoreOutput``."""
SchedulerStats = Any
"""``vllm.v1.metrics.stats.SchedulerStats``."""


def has_work(core: EngineCore) -> bool:
    """Whether a step would do anything: requests to run, finished ones to clear, or a batch under way."""
    engine = core.client.engine_core
    return engine.scheduler.has_requests() or bool(engine.batch_queue)


def step(core: EngineCore) -> tuple[list[EngineCoreOutput], SchedulerStats | None, bool]:
    """One engine step: its outputs (of client 0), what the scheduler says of itself, and whether the model ran."""
    engine = core.client.engine_core
    outputs, executed = engine.step_fn()
    engine.post_step(model_executed=executed)
    ours = outputs.get(0) if outputs else None
    return (ours.outputs if ours else []), (ours.scheduler_stats if ours else None), executed


def failed_output(request_id: str) -> EngineCoreOutput:
    """The output that ends one request with ``FinishReason.ERROR`` (a 500 in vLLM's frontend)."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    return EngineCoreOutput(request_id=request_id, new_token_ids=[], finish_reason=FinishReason.ERROR)


def vocab_size(core: EngineCore) -> int:
    """Rows of the embedding table: a token id at or past it crashes the whole step."""
    return int(core.vllm_config.model_config.get_vocab_size())


def max_num_seqs(core: EngineCore) -> int:
    return int(core.vllm_config.scheduler_config.max_num_seqs)
