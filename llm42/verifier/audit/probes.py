"""What an audit puts into its passes: targets, and whatever might disturb them. Planning only: no model.

A *target* is a window of tokens behind some context, and the adapter that the model has on; its logits must come out
the same whatever else is in the pass. A pass is one :class:`Round`: some rows hold targets, with everything behind a
few known slots replaced (the tail), the others hold neighbours. Tails and neighbours are chosen to move the statistics
of a batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from random import Random
from typing import Literal

from llm42.verifier.passes import PassShape

Level = Literal["quick", "full"]

SAME, SINK, COPIES, LIMIT, RANDOM, PADDING = (
    "the same token throughout",
    "window 0",
    "copies of a target",
    "contexts near the limit",
    "random tokens",
    "padding",
)
NEIGHBOURS = (SAME, SINK, COPIES, LIMIT, RANDOM, PADDING)
TAILS = ("the last known token again", "random tokens", "token 0", "the window's own start")

FULL_REPEATS = 8
"""How many times as many rounds the full audit has."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One row: ``tokens`` (a whole window) in window ``window``."""

    window: int
    tokens: tuple[int, ...]
    target: int = -1
    """Which target the first ``known`` slots are those of."""
    known: int = 0
    """Slots whose logits are compared; 0 for a neighbour."""
    heard: int = 0
    """Slots that are asked for though nobody compares them, if more than ``known``: a neighbour's are beside those of
    targets in the LM head, and move them."""
    first: int = 0
    """First slot that is asked for."""
    tail: str = "its own"
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """One pass: G rows, None for padding. ``lead`` moves the first slots asked for in the LM head."""

    rows: tuple[Probe | None, ...]
    neighbours: str
    lead: int = 0

    def targets(self) -> Iterator[tuple[int, Probe]]:
        """Row index and probe of all rows that are compared."""
        return ((index, probe) for index, probe in enumerate(self.rows) if probe is not None and probe.known)

    def asked(self) -> list[list[int]]:
        """Row index, and the first slot and the one behind the last that are asked for."""
        there = ((index, probe) for index, probe in enumerate(self.rows) if probe is not None)
        asked = ([index, probe.first, max(probe.known, probe.heard)] for index, probe in there)
        return [[index, first, last] for index, first, last in asked if last > first]


class Probes:
    """The plan of one audit; the same for the same arguments. Each of ``adapters`` has a target at least."""

    def __init__(self, shape: PassShape, vocabulary: int, level: Level, adapters: Sequence[str] = ("",)) -> None:
        self._shape, self._vocabulary, self._level, self._adapters = shape, vocabulary, level, adapters
        self._random = Random(42)
        self.windows = _windows(shape, level)
        count = max(len(self.windows), len(adapters))
        each = zip(range(count), cycle(self.windows), cycle(adapters), strict=False)
        self.targets = [
            Probe(window, self._tokens(), index, shape.window, adapter=adapter) for index, window, adapter in each
        ]

    def references(self) -> list[Round]:
        """Every target at least once, whole."""
        rows, targets = self._shape.rows, self.targets
        if rows >= len(targets):
            return [Round(tuple(targets[row % len(targets)] for row in range(rows)), "the other targets")]
        groups = [targets[first : first + rows] for first in range(0, len(targets), rows)]
        return [Round((*group, *[None] * (rows - len(group))), "the other targets") for group in groups]

    def rounds(self) -> list[Round]:
        """Targets wander over the rows while tails, fills and neighbours change."""
        count = len(NEIGHBOURS) * len(self.references()) * (FULL_REPEATS if self._level == "full" else 1)
        return [self._round(number) for number in range(1, count + 1)]

    def alone(self, probe: Probe, row: int) -> Round:
        """The probe with nothing but padding beside it."""
        rows: list[Probe | None] = [None] * self._shape.rows
        rows[row] = probe
        return Round(tuple(rows), PADDING)

    def disturbed(self, target: int, known: int, tail: str) -> Probe:
        """The target with its slots from ``known`` on replaced."""
        tokens = self.targets[target].tokens
        head, length = tokens[:known], len(tokens) - known
        behind = {
            TAILS[0]: (head[-1],) * length,
            TAILS[1]: self._tokens()[:length],
            TAILS[2]: (0,) * length,
            TAILS[3]: tokens[:length],
        }
        return replace(self.targets[target], tokens=head + behind[tail], known=known, tail=tail)

    def _round(self, number: int) -> Round:
        rows: list[Probe | None] = []
        window, kind = self._shape.window, NEIGHBOURS[number % len(NEIGHBOURS)]
        fills = sorted({1, max(window // 4, 1), max(window // 2, 1), max(window - 1, 1), window})
        for row in range(self._shape.rows):
            # Which of two takes turns, and which target takes more: every target meets every row.
            target = (row + number + number // 2) % len(self.targets)
            if self._shape.rows > 1 and (row + number) % 2:
                rows.append(self._neighbour(kind, target))
            else:
                turn = number + target
                probe = self.disturbed(target, fills[turn % len(fills)], TAILS[(turn + row) % len(TAILS)])
                # Most replays ask for a few slots, anywhere in their window.
                rows.append(replace(probe, first=0 if number % 3 else probe.known - 1))
        leads = (window - 1, window // 2, 0, 1)
        return Round(tuple(rows), kind, lead=leads[number % len(leads)])

    def _neighbour(self, kind: str, target: int) -> Probe | None:
        if kind == PADDING:
            return None
        adapter, heard = self._random.choice(self._adapters), self._random.randint(1, -(-self._shape.window // 2))
        return replace(self._disturber(kind, target), adapter=adapter, heard=heard)

    def _disturber(self, kind: str, target: int) -> Probe:
        window = self._random.choice(self.windows)
        match kind:
            case "the same token throughout":
                return Probe(window, (self._random.randrange(self._vocabulary),) * self._shape.window)
            case "window 0":
                return Probe(0, self._tokens())
            case "copies of a target":
                return replace(self.targets[target], target=-1, known=0)
            case "contexts near the limit":
                return Probe(self.windows[-1], self._tokens())
            case _:
                return Probe(window, self._tokens())

    def _tokens(self) -> tuple[int, ...]:
        return tuple(self._random.randrange(self._vocabulary) for _ in range(self._shape.window))


def _windows(shape: PassShape, level: Level) -> list[int]:
    """The first one, one just behind a KV block's end, one in the middle, and the last that fits; full: more."""
    last, block = shape.context // shape.window - 1, shape.block // shape.window
    wanted = {0, block, last // 2 // block * block, last}
    if level == "full":
        wanted |= {1, block + 1, last // 4, 3 * last // 4, last - 1}
    return sorted(window for window in wanted if 0 <= window <= last)
