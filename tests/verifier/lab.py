"""Compose replay passes by hand and look at full logits, as raw bytes."""

from array import array
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import torch

from llm42.protocol.messages import Question, pack_tokens
from llm42.verifier.engine import ReplayEngine
from llm42.verifier.jobs import Job
from llm42.verifier.pages import PageTable
from llm42.verifier.passes import Pass, Row

_seeds = count(1)


def random_tokens(length: int, seed: int | None = None) -> list[int]:
    rng = np.random.default_rng(next(_seeds) if seed is None else seed)
    tokens: list[int] = rng.integers(0, 49152, length).tolist()
    return tokens


def full_logits(
    worker: Any, tokens: bytes, starts: bytes, tables: bytes, adapters: list[str], rows: int
) -> list[list[bytes]]:
    """Runs in the worker, beside ``llm42_replay_pass`` and on the same code: logits of each slot of each row."""
    replay = worker._llm42_pass
    with torch.inference_mode():
        hidden = replay.forward(tokens, starts, tables, adapters)
        logits = [replay.logits(hidden[row], adapters[row]) for row in range(rows)]
    return [[slot.contiguous().view(torch.uint8).numpy().tobytes() for slot in row] for row in logits]


class Lab:
    """Takes pages from the engine's pool, so that nothing in its cache is overwritten."""

    def __init__(self, engine: ReplayEngine) -> None:
        self._engine = engine
        self._taken: list[Any] = []

    def sequence(self, tokens: Sequence[int], adapter: str = "") -> Job:
        """A sequence with pages of its own, nothing computed yet."""
        shape = self._engine.shape
        job = Job(shape, Question(pack_tokens(tokens), 0, adapter=adapter), [])
        pages = self._engine._pool.take(job.blocks)
        self._taken += pages
        job.table = PageTable(pages, array("i", [page.block_id for page in pages]), 0)
        return job

    def run(self, *rows: tuple[Job, int]) -> list[list[bytes]]:
        """One pass over (sequence, window) rows; the rest is padding. Logits per given row and slot."""
        given = Pass(self._engine.shape, [Row(job, window) for job, window in rows]).input
        [logits] = self._engine._model._core.client.collective_rpc(
            full_logits, args=(given.tokens, given.starts, given.tables, given.adapters, len(rows))
        )
        assert isinstance(logits, list)
        return logits

    def prefilled(self, tokens: Sequence[int], windows: int | None = None, adapter: str = "") -> Job:
        """A sequence whose first windows (by default all but the last) have been computed, one pass each."""
        job = self.sequence(tokens, adapter)
        for window in range(job.windows - 1 if windows is None else windows):
            self.run((job, window))
        return job

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[bytes]:
        """The reference: every window alone in its pass, in order; logits of the known slots of the last one."""
        job = self.prefilled(tokens, adapter=adapter)
        [slots] = self.run((job, job.windows - 1))
        return slots[: (len(tokens) - 1) % self._engine.shape.window + 1]

    def close(self) -> None:
        self._engine._pool.release(self._taken)
