"""What one replay pass is: ``rows`` windows of ``window`` tokens, always that shape."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from llm42.protocol.errors import ReplayError
from llm42.protocol.messages import WORD

if TYPE_CHECKING:
    from llm42.verifier.jobs import Job


@dataclass(frozen=True, slots=True)
class PassShape:
    """``rows`` G, ``window`` W and ``block`` B in tokens (a multiple of W), ``context`` in tokens (also one)."""

    rows: int
    window: int
    block: int
    context: int

    def __post_init__(self) -> None:
        if self.block % self.window or self.context % self.window:
            raise ValueError(f"block and context must be multiples of the window in {self}")

    @property
    def blocks(self) -> int:
        """Width of a block table."""
        return -(-self.context // self.block)


@dataclass(frozen=True, slots=True)
class Row:
    """One window of one job."""

    job: "Job"
    window: int

    @property
    def asked(self) -> bool:
        """Whether an answer is wanted from it (a decode row), or only its K/V (a prefill row)."""
        return self.window >= self.job.first_asked

    @property
    def slots(self) -> tuple[int, int]:
        """Of a row that is asked: its first slot that is, and the one behind the last."""
        start, window = self.window * self.job.shape.window, self.job.shape.window
        return max(self.job.question.start - start, 0), min(self.job.length - start, window)


@dataclass(frozen=True, slots=True)
class PassInput:
    """Arguments of ``llm42_replay_pass``: packed int32 arrays, the adapter of each row, the asked rows with their asked
    slots, how far the first of them is moved in the LM head, and of each of them what :func:`_order` says."""

    tokens: bytes
    starts: bytes
    tables: bytes
    adapters: list[str]
    asked: list[list[int]]
    lead: int
    orders: list[list[Any]]


class RowOutput(NamedTuple):
    """What an asked row says of each of its :attr:`Row.slots`, packed: token, logprob and rank (32 bits each), whether
    these mean anything (a byte), and the most probable tokens and their logprobs, as many as were asked for."""

    tokens: bytes
    logprobs: bytes
    ranks: bytes
    valid: bytes
    top_tokens: bytes
    top_logprobs: bytes


@dataclass(frozen=True, slots=True)
class PassOutput:
    """Of all asked rows, in their order; see ``llm42_replay_pass``."""

    rows: Sequence[RowOutput | ReplayError]
    """What each says, or why it says nothing."""
    seconds: list[float] = field(default_factory=list)
    """Spent in the model, in the LM head, and in choosing."""


class Pass:
    """Rows to run together, encoded at once; the rest of the shape is padding.

    ``first`` is where in the pass the rows begin (they go on at its top). If it is not 0, the padding has tokens too:
    what is replayed to audit it stands in other rows than usual, beside other neighbours, and often elsewhere in the LM
    head.
    """

    def __init__(self, shape: PassShape, rows: Sequence[Row], first: int = 0) -> None:
        self.shape = shape
        self.rows = tuple(rows)
        self.first = first
        self.input = _encode(shape, rows, first)

    @property
    def idle_rows(self) -> int:
        return self.shape.rows - len(self.rows)

    @property
    def jobs(self) -> Iterator["Job"]:
        """Each job once, in row order."""
        return iter(dict.fromkeys(row.job for row in self.rows))

    def deliver(self, output: PassOutput) -> None:
        """Give each asked row's choices to its job."""
        asked = (row for row in self.rows if row.asked)
        for row, said in zip(asked, output.rows, strict=True):
            if isinstance(said, ReplayError):
                row.job.error = row.job.error or said
            else:
                row.job.receive(said)


def _encode(shape: PassShape, rows: Sequence[Row], first: int) -> PassInput:
    """Padding is token 0 at position 0 on block 0, vLLM's null block, without an adapter: nobody reads it."""
    width = WORD * shape.window
    tokens = bytearray(width * shape.rows)
    if first:
        tokens[:] = rows[0].job.question.tokens[:width].ljust(width, b"\0") * shape.rows
    places = [(first + number) % shape.rows for number in range(len(rows))]
    starts = array("i", bytes(WORD * shape.rows))
    tables = array("i", bytes(WORD * shape.rows * shape.blocks))
    adapters = [""] * shape.rows
    for index, row in zip(places, rows, strict=True):
        adapters[index] = row.job.question.adapter
        start, end = row.window * shape.window, (row.window + 1) * shape.window
        # vLLM's rotary kernel reads past its table in silence.
        assert end <= shape.context, f"window {row.window} lies past the context of {shape.context} tokens"
        assert row.job.table is not None
        known = row.job.question.tokens[WORD * start : WORD * end]
        tokens[width * index : width * (index + 1)] = known.ljust(width, b"\0")
        starts[index] = start
        ids = row.job.table.ids[: -(-end // shape.block)]
        tables[index * shape.blocks : index * shape.blocks + len(ids)] = ids
    asked = [[index, *row.slots] for index, row in zip(places, rows, strict=True) if row.asked]
    orders = [_order(row, shape.window) for row in rows if row.asked]
    return PassInput(bytes(tokens), starts.tobytes(), tables.tobytes(), adapters, asked, first, orders)


def _order(row: Row, window: int) -> list[Any]:
    """What is asked of a row: how to choose (the fields of a Selection), how many alternatives to name, the packed
    tokens to score in its first slots instead of choosing, and the sequence so far where the choice depends on it."""
    question = row.job.question
    start, end = row.window * window, (row.window + 1) * window
    last = min(end, question.start + question.given)
    scored = question.tokens[WORD * (start + 1) : WORD * (last + 1)] if question.given else b""
    history = question.tokens[: WORD * end] if question.selection.steering is not None else b""
    return [question.selection.fields, question.top, scored, history]
