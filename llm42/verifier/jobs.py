"""One replay request on its way through the passes."""

from array import array
from dataclasses import dataclass, field

from llm42.protocol.errors import ReplayError, ReplayImpossible
from llm42.protocol.selection import GREEDY, Selection
from llm42.verifier.pages import PageTable
from llm42.verifier.passes import PassShape


@dataclass(slots=True, eq=False)
class Job:
    """Replay packed ``tokens`` [0, length) and answer for the positions from ``start`` on.

    Windows are run in order. Those before :attr:`first_asked` only fill the cache (prefill), and are skipped
    where it already holds them.
    """

    shape: PassShape
    tokens: bytes
    start: int
    keys: list[bytes] = field(repr=False)
    """Names of all complete blocks; see :class:`~llm42.verifier.pages.PageCache`."""
    selection: Selection = GREEDY
    fresh: bool = False
    """Nothing is taken from the cache, and nothing left there."""
    submitted: float = 0.0
    """Seconds, on the caller's clock."""

    table: PageTable | None = None
    next_window: int = 0
    """First window not yet given to a pass."""
    begun: bool = False
    """Whether a pass has had rows of this job."""
    flying: bool = False
    """Whether a running pass has rows of this job: its pages must stay."""
    cancelled: bool = False
    error: ReplayError | None = None
    chosen: "array[int]" = field(default_factory=lambda: array("i"))
    logprobs: bytearray = field(default_factory=bytearray)
    ranks: "array[int]" = field(default_factory=lambda: array("i"))

    @property
    def length(self) -> int:
        return len(self.tokens) // 4

    @property
    def first_asked(self) -> int:
        """The window of ``start``."""
        return self.start // self.shape.window

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
        return 0 if self.fresh else self.start // self.shape.block

    @property
    def pending(self) -> range:
        """Windows not yet given to a pass."""
        return range(self.next_window, self.windows)

    @property
    def prefilling(self) -> bool:
        return self.next_window < self.first_asked

    def receive(self, tokens: bytes, logprobs: bytes, ranks: bytes, valid: bytes) -> None:
        """Take the choices for the next asked positions; one invalid choice fails the job."""
        if not all(valid):
            position = self.start + len(self.chosen) + valid.index(0)
            self.error = ReplayImpossible(f"logits at position {position} hold NaN, +inf or nothing but -inf")
            return
        self.chosen.frombytes(tokens)
        self.logprobs += logprobs
        self.ranks.frombytes(ranks)
