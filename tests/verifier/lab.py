"""Compose replay passes by hand and look at full logits, as raw bytes."""

from array import array
from collections.abc import Sequence
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch

from llm42.protocol.messages import Question, pack_tokens
from llm42.verifier.engine import ReplayEngine
from llm42.verifier.jobs import Job
from llm42.verifier.pages import PageTable
from llm42.verifier.passes import Pass, Row

Kept = TypeVar("Kept")

_seeds = count(1)
_kept: list[object] = []


def random_tokens(length: int, seed: int | None = None) -> list[int]:
    rng = np.random.default_rng(next(_seeds) if seed is None else seed)
    tokens: list[int] = rng.integers(0, 49152, length).tolist()
    return tokens


def keep(engine: Kept) -> Kept:
    """Beside another engine of this process: the first to be collected would take vLLM's process groups from all."""
    _kept.append(engine)
    return engine


def evict_all(engine: ReplayEngine) -> None:
    """Leave nothing in the cache; no page may be held."""
    engine._pool.release(engine._pool.take(engine._pool.free))


def probe(engine: ReplayEngine) -> str:
    """The fingerprint's, made anew."""
    return engine._model._thread.submit(engine._model._probe).result(60)


def full_logits(
    worker: Any, tokens: bytes, starts: bytes, tables: bytes, adapters: list[str], rows: int
) -> list[list[bytes]]:
    """Runs in the worker, beside ``llm42_replay_pass`` and on the same code: logits of each slot of each row."""
    replay = worker._llm42_pass
    with torch.inference_mode():
        hidden = replay.forward(tokens, starts, tables, adapters)
        logits: list[list[bytes]] = [[] for _ in range(rows)]
        for block, pieces in replay.heads(hidden, [[row, 0, replay.window] for row in range(rows)], 0, adapters):
            for piece in pieces:
                logits[piece.number] = [slot.view(torch.uint8).numpy().tobytes() for slot in block[piece.places]]
    return logits


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
        return self._pass(rows, len(rows))

    def prefilled(
        self, tokens: Sequence[int], windows: int | None = None, adapter: str = "", *, abreast: int = 1
    ) -> Job:
        """A sequence whose first windows (by default all but the last) have been computed, so many in a pass."""
        job = self.sequence(tokens, adapter)
        rows = [(job, window) for window in range(job.windows - 1 if windows is None else windows)]
        for first in range(0, len(rows), abreast):
            self._pass(rows[first : first + abreast], 0)
        return job

    def neighbour(self, tokens: Sequence[int], windows: int | None = None, adapter: str = "") -> Job:
        """One that is there to disturb: its K/V comes in as few passes as can be."""
        return self.prefilled(tokens, windows, adapter, abreast=self._engine.shape.rows)

    def _pass(self, rows: Sequence[tuple[Job, int]], heard: int) -> list[list[bytes]]:
        """Logits of the first ``heard`` rows: of all that a pass does they take longest."""
        given = Pass(self._engine.shape, [Row(job, window) for job, window in rows]).input
        [logits] = self._engine._model._core.client.collective_rpc(
            full_logits, args=(given.tokens, given.starts, given.tables, given.adapters, heard)
        )
        assert isinstance(logits, list)
        return logits

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[bytes]:
        """The reference: every window alone in its pass, in order; logits of the known slots of the last one."""
        job = self.prefilled(tokens, adapter=adapter)
        [slots] = self.run((job, job.windows - 1))
        return slots[: (len(tokens) - 1) % self._engine.shape.window + 1]

    def close(self) -> None:
        self._engine._pool.release(self._taken)
