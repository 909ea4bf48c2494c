"""Step times of this machine: what a decode step, a prompt token and a replay pass take, each measured bare.

Each engine is in a process of its own, in the environment of its pool. Threads are those of one engine of each pool.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm42.bench.errors import BenchError
from llm42.bench.server import KV_BYTES, Place
from llm42.config import Config
from llm42.fastpath.settings import fastpath_env
from llm42.plan.step_times import DraftTimes, ReplayTimes, StepTimes
from llm42.verifier.settings import verifier_env

WORKER_S = 1800.0
STEPS = 20
REPEATS = 3
LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class Calibration:
    """``cpu`` has the same fields as the times, in CPU seconds: ``draft`` and, in the same order, ``replay``."""

    times: StepTimes
    cpu: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"times": self.times.model_dump(mode="json"), "cpu": self.cpu}


def calibrate(
    place: Place,
    threads: tuple[int, int],
    passes: Sequence[tuple[int, int]],
    batches: Sequence[int],
    hardware: str,
    on_step: Callable[[str], None],
) -> Calibration:
    """``threads`` of the drafting engine and of the verifier; ``passes`` are (W, G). Raises BenchError."""
    on_step("decode steps and prompts")
    draft = _worker(
        "draft", place, _config(place, threads, 1, 1), {"batches": list(batches), "steps": STEPS, "repeats": REPEATS}
    )
    replays = []
    for window, rows in passes:
        on_step(f"replay passes, W {window}, G {rows}")
        replays.append(_worker("replay", place, _config(place, threads, window, rows), {"repeats": 3 * REPEATS}))
    cpu = {"draft": draft.pop("cpu"), "replay": [replay.pop("cpu") for replay in replays]}
    times = StepTimes(
        model=f"{place.model} ({place.dtype})",
        hardware=hardware,
        source="measured",
        note=f"`llm42 bench calibrate`: medians on {threads[0]} (draft) and {threads[1]} (replay) threads, one engine "
        "at a time. The wire is not measured.",
        draft=DraftTimes.model_validate(draft),
        replay=tuple(ReplayTimes.model_validate(replay) for replay in replays),
    )
    return Calibration(times, cpu)


def _config(place: Place, threads: tuple[int, int], window: int, rows: int) -> Config:
    engine = {"kv_cache_memory_bytes": KV_BYTES}
    return Config.model_validate(
        {
            "model": place.model,
            "dtype": place.dtype,
            "max_model_len": place.max_model_len,
            "window_size": window,
            "verify_batch_size": rows,
            "fast_path": {"threads": threads[0], "engine": engine},
            "verifier": {"threads": threads[1], "engine": engine},
        }
    )


def _worker(kind: str, place: Place, config: Config, sizes: dict[str, Any]) -> dict[str, Any]:
    env = fastpath_env(config) if kind == "draft" else verifier_env(config, gpu=place.gpu)
    job = json.dumps({"config": config.model_dump(mode="json"), "sizes": sizes})
    log = place.logs / f"calibrate-{kind}.log"
    command = [sys.executable, "-m", "llm42.bench.calibrate_worker", kind, job]
    with log.open("w") as file:
        try:
            found = subprocess.run(
                command,
                env={**place.environment(1), **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                timeout=WORKER_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"no {kind} times after {WORKER_S:.0f} s; its log is {log}") from None
    if found.returncode != 0:
        raise BenchError(f"the {kind} engine failed; the end of {log}:\n{_tail(log)}")
    result: dict[str, Any] = json.loads(found.stdout)
    return result


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
