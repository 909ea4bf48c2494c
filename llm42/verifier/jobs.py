"""One replay request on its way through the passes."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from llm42.protocol.errors import ReplayError, ReplayImpossible
from llm42.protocol.messages import WORD, Haste, Question, Scores
from llm42.verifier.pages import PageTable
from llm42.verifier.passes import PassShape, RowOutput

PATIENCE = 8
"""Passes without a row after which an early job is as good as any: its window may be full by now."""


@dataclass(slots=True, eq=False)
class Job:
    """Replay the tokens of ``question`` and answer it.

    Windows are run in order. Those before :attr:`first_asked` only fill the cache (prefill), and are skipped
    where it already holds them.
    """

    shape: PassShape
    question: Question
    keys: list[bytes] = field(repr=False)
    """Names of all complete blocks; see :class:`~llm42.verifier.pages.PageCache`."""
    fresh: bool = False
    """Nothing is taken from the cache, and nothing left there."""
    haste: Haste = Haste.URGENT
    """Who is not yet due has the rows that others leave, until it has been passed over often enough."""
    submitted: float = 0.0
    """Seconds, on the caller's clock."""
    request_id: str = ""
    """Names the request that it belongs to."""
    on_begin: Callable[[], None] | None = field(default=None, repr=False)
    """Told that the first pass with rows of this job begins."""

    table: PageTable | None = None
    next_window: int = 0
    """First window not yet given to a pass."""
    passed: int = 0
    """Passes that had no row for it while it was not due."""
    begun: bool = False
    """Whether a pass has had rows of this job."""
    flying: bool = False
    """Whether a running pass has rows of this job: its pages must stay."""
    cancelled: bool = False
    error: ReplayError | None = None
    _tokens: "array[int]" = field(default_factory=lambda: array("i"))
    _logprobs: bytearray = field(default_factory=bytearray)
    _ranks: "array[int]" = field(default_factory=lambda: array("i"))
    _top_tokens: bytearray = field(default_factory=bytearray)
    _top_logprobs: bytearray = field(default_factory=bytearray)
    _ended: bool = False
    """Whether some position had no valid choice: nothing after it counts."""

    @property
    def length(self) -> int:
        return self.question.length

    @property
    def first_asked(self) -> int:
        """The window of the first position asked for."""
        return self.question.start // self.shape.window

    @property
    def windows(self) -> int:
        return -(-self.length // self.shape.window)

    @property
    def blocks(self) -> int:
        """Pages that the job needs."""
        return -(-self.length // self.shape.block)

    @property
    def shareable(self) -> int:
        """How many blocks may come from the cache: those that lie wholly before :attr:`first_asked`."""
        return 0 if self.fresh else self.question.start // self.shape.block

    @property
    def pending(self) -> range:
        """Windows not yet given to a pass."""
        return range(self.next_window, self.windows)

    @property
    def prefilling(self) -> bool:
        return self.next_window < self.first_asked

    @property
    def yields(self) -> bool:
        """Whether others' rows go before its own."""
        return self.fresh or (self.haste < Haste.DUE and self.passed < PATIENCE)

    @property
    def patient(self) -> bool:
        """Whether it would rather wait a little for company than have a pass for itself."""
        return self.haste in (Haste.EARLY, Haste.DUE)

    @property
    def scores(self) -> Scores:
        """The answer so far."""
        return Scores(
            self._tokens.tolist(),
            bytes(self._logprobs),
            self._ranks.tolist(),
            self.question.top,
            bytes(self._top_tokens),
            bytes(self._top_logprobs),
        )

    def receive(self, row: RowOutput) -> None:
        """Take what a pass says of the next asked positions. Up to the first that has no valid choice, if any: the
        job fails only if that is the first of all, whatever came of candidates that may be wrong."""
        if self._ended:
            return
        self._ended = 0 in row.valid
        words = WORD * (row.valid.index(0) if self._ended else len(row.valid))
        self._tokens.frombytes(row.tokens[:words])
        self._logprobs += row.logprobs[:words]
        self._ranks.frombytes(row.ranks[:words])
        self._top_tokens += row.top_tokens[: words * self.question.top]
        self._top_logprobs += row.top_logprobs[: words * self.question.top]
        if self._ended and len(self._tokens) <= self.question.given:
            position = self.question.start + len(self._tokens)
            self.error = ReplayImpossible(f"at position {position} the model's logits leave no token to choose")
