"""The process behind ``calibrate``: ``python -m llm42.bench.calibrate_worker draft|replay JOB_AS_JSON``.

It must be started in the environment of the pool that it measures. Stdout has one JSON object; all else goes to stderr.
Seconds are wall-clock, ``cpu`` those of all threads of this process, in which the engine is.
"""

import json
import os
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from llm42.bench.workload import FIRST_ID, LAST_ID
from llm42.config import Config

SETTLING = 2
"""Runs of anything that do not count."""
SHORT = 16
"""Prompt tokens of a decoding sequence, where its context is to weigh nothing."""


def main(kind: str, job: dict[str, Any]) -> None:
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM logs to stdout
    config = Config.model_validate(job["config"])
    found = measure_draft(config, **job["sizes"]) if kind == "draft" else measure_replay(config, **job["sizes"])
    print(json.dumps(found), file=lines)


class Steps:
    """A fast path engine, one step at a time."""

    def __init__(self, config: Config) -> None:
        from llm42.fastpath.settings import fastpath_engine_args
        from llm42.internals.draft_sampler import make_drafting_core
        from llm42.models import resolve_model

        self._core = make_drafting_core(fastpath_engine_args(config, resolve_model(config.model)))
        self._rng = np.random.default_rng(0)
        self._asked = 0

    def add(self, prompt: int, tokens: int) -> str:
        """A request of ``prompt`` random tokens."""
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        self._asked += 1
        self._core.client.add_request(
            EngineCoreRequest(
                request_id=str(self._asked),
                prompt_token_ids=self._rng.integers(FIRST_ID, LAST_ID, prompt).tolist(),
                mm_features=None,
                sampling_params=SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False),
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
        )
        return str(self._asked)

    def step(self) -> int:
        """New tokens."""
        from llm42.internals.core_steps import step

        return sum(len(output.new_token_ids) for output in step(self._core)[0])

    def decode(self, sequences: int, context: int, steps: int) -> tuple[float, float]:
        """Seconds and CPU seconds of a step that decodes ``sequences`` behind prompts of ``context`` tokens."""
        names = [self.add(context, self._core.max_model_len - context) for _ in range(sequences)]
        came = 0
        while came < sequences * (1 + SETTLING):
            came += self.step()
        found = timed(lambda: [self.step() for _ in range(steps)])
        self._core.client.abort_requests(names)
        self._drain()
        return found[0] / steps, found[1] / steps

    def prefill(self, tokens: int) -> tuple[float, float]:
        """Seconds and CPU seconds of a step that computes ``tokens`` tokens of one prompt, and nothing else."""
        self.add(tokens, 1)

        def until_answered() -> None:
            while not self.step():
                pass

        found = timed(until_answered)
        self._drain()
        return found

    def _drain(self) -> None:
        from llm42.internals.core_steps import has_work, step

        while has_work(self._core):
            step(self._core)


def measure_draft(config: Config, batches: list[int], steps: int, repeats: int) -> dict[str, Any]:
    """The fields of ``DraftTimes``, and under ``cpu`` the same in CPU seconds."""
    engine = Steps(config)
    longest = config.max_model_len or 1024
    sizes = sorted({size for size in (32, 128, 256, longest // 2) if size < longest})
    deep = longest // 2
    decoded = {
        size: median([engine.decode(size, SHORT, steps) for _ in range(repeats)]) for size in sorted({1, *batches})
    }
    far = median([engine.decode(1, deep, steps) for _ in range(repeats)])
    prefilled = {size: median([engine.prefill(size) for _ in range(repeats + SETTLING)][SETTLING:]) for size in sizes}

    def fields(which: int) -> dict[str, Any]:
        slope, base = np.polyfit(sizes, [prefilled[size][which] for size in sizes], 1)
        return {
            "decode_s": {size: seconds[which] for size, seconds in decoded.items()},
            "prefill_step_s": max(0.0, float(base)),
            "prefill_token_s": max(0.0, float(slope)),
            "context_token_s": max(0.0, (far[which] - decoded[1][which]) / (deep - SHORT)),
        }

    return {**fields(0), "cpu": fields(1)}


def measure_replay(config: Config, repeats: int) -> dict[str, Any]:
    """The fields of ``ReplayTimes``, and under ``cpu`` the same in CPU seconds."""
    from llm42.models import resolve_model
    from llm42.protocol.messages import Question, pack_tokens
    from llm42.verifier.jobs import Job
    from llm42.verifier.model import ReplayModel, filler
    from llm42.verifier.pages import PageTable
    from llm42.verifier.passes import Pass, Row

    model = ReplayModel(config, resolve_model(config.model))
    shape = model.shape
    length = min(shape.rows + 1, shape.context // shape.window) * shape.window
    tokens = pack_tokens(filler(range(length), model.vocabulary))
    blocks = -(-length // shape.block)

    def run(start: int) -> None:
        """A full pass; rows from that of position ``start`` on answer."""
        job = Job(shape, Question(tokens, start), keys=[])
        job.table = PageTable(pages=[], ids=array("i", range(1, blocks + 1)), shared=0)
        # Where the context is too short for so many windows, some are there twice: a pass reads what it wrote.
        rows = [Row(job, number % max(1, job.windows - 1)) for number in range(shape.rows)]
        model.run_now(Pass(shape, rows).input)

    silent, answering = (
        median([timed(lambda: run(start)) for _ in range(repeats + SETTLING)][SETTLING:])  # noqa: B023  called at once
        for start in (length - 1, 0)
    )

    def fields(which: int) -> dict[str, Any]:
        asked = (answering[which] - silent[which]) / shape.rows
        return {"rows": shape.rows, "window": shape.window, "pass_s": silent[which], "asked_row_s": max(0.0, asked)}

    return {**fields(0), "cpu": fields(1)}


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and CPU seconds."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - spent


def median(found: list[tuple[float, float]]) -> tuple[float, float]:
    return float(np.median([seconds for seconds, _ in found])), float(np.median([cpu for _, cpu in found]))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
