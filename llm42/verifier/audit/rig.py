"""Runs the rounds of an audit on the model, on pages of its own.

A context near the limit would be a long prefill. But what is in the K/V does not matter to what is audited, so
the contexts of all rows repeat a few filled pages. These are never written again: each row writes a page that
only it has.
"""

from array import array
from collections.abc import Callable, Sequence

from llm42.internals.replay import DIGEST_BYTES
from llm42.protocol.messages import Question, pack_tokens
from llm42.verifier.audit.probes import Probe, Round
from llm42.verifier.jobs import Job
from llm42.verifier.model import ReplayModel, filler
from llm42.verifier.pages import PageTable
from llm42.verifier.passes import Pass, Row

FILLED_PAGES = 4

Digests = dict[int, list[bytes]]
"""Row -> a digest of the logits of each of its slots up to the last one asked for; empty before the first one."""


class Rig:
    """Uses the first pages of the pool, so nobody else may. ``windows`` are those that rounds will have."""

    def __init__(self, model: ReplayModel, windows: Sequence[int], on_pass: Callable[[], None]) -> None:
        self._model, self._shape, self._on_pass = model, model.shape, on_pass
        self._per_block = self._shape.block // self._shape.window
        filled = min(FILLED_PAGES, self._shape.blocks)
        offsets = sorted({window % self._per_block for window in windows})
        needed = filled + len(offsets) * self._shape.rows
        if needed > model.num_blocks - 1:
            raise ValueError(
                f"the start-up audit needs {needed} KV pages, but the verifier has {model.num_blocks - 1}: give it "
                "more KV memory"
            )
        self._filled = list(range(1, filled + 1))
        first = filled + 1
        self._own = {
            offset: range(first + index * self._shape.rows, first + (index + 1) * self._shape.rows)
            for index, offset in enumerate(offsets)
        }
        """By the window's place in its block: if that is not the first, the page's first windows must stay."""
        self._fill()

    def run(self, given: Round) -> Digests:
        """One pass; digests of the rows that hold targets."""
        rows = [self._row(index, probe) for index, probe in enumerate(given.rows)]
        asked = given.asked()
        compared = {index for index, _ in given.targets()}
        return {
            row: [b""] * first + [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
            for (row, first, _), digests in zip(asked, self._pass(rows, asked, given.lead), strict=True)
            if row in compared
        }

    def _row(self, index: int, probe: Probe | None) -> Row:
        if probe is None:
            return self._window(0, (0,) * self._shape.window, [0])
        blocks, offset = divmod(probe.window, self._per_block)
        context = [self._filled[block % len(self._filled)] for block in range(blocks)]
        return self._window(probe.window, probe.tokens, [*context, self._own[offset][index]], probe.adapter)

    def _fill(self) -> None:
        rows = self._shape.rows
        count = len(self._filled) * self._per_block
        fill = [self._window(window, self._text(window), self._filled) for window in range(count)]
        for first in range(0, count, rows):
            self._pass(fill[first : first + rows], [])
        for offset, pages in self._own.items():
            for window in range(offset):
                self._pass([self._window(window, self._text(window), [page]) for page in pages], [])

    def _text(self, window: int) -> list[int]:
        size = self._shape.window
        return filler(range(window * size, (window + 1) * size), self._model.vocabulary)

    def _window(self, window: int, tokens: Sequence[int], pages: Sequence[int], adapter: str = "") -> Row:
        length = window * self._shape.window
        question = Question(pack_tokens([0] * length + list(tokens)), length, adapter=adapter)
        job = Job(self._shape, question, keys=[])
        job.table = PageTable(pages=[], ids=array("i", pages), shared=0)
        return Row(job, window)

    def _pass(self, rows: Sequence[Row], asked: list[list[int]], lead: int = 0) -> list[bytes]:
        self._on_pass()
        return self._model.digests(Pass(self._shape, rows).input, asked, lead)
