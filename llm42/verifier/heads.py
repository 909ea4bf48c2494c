"""Which slots of a pass the LM head computes together: as many as a window has, so that its shape is always the same.

The asked slots of several rows share a block where they fit: the head costs more than the rest of a small model, and
often a row is asked for a single slot. For that, rows have to be independent of each other in the head as in all of the
pass, and of where in a block they stand; the audit sees to it. With one row in a pass its window is the block.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Piece:
    """The asked slots of a row, side by side in a block: ``count`` from slot ``slot``, and from ``place`` on there.

    ``number`` is that of the row among those that are asked.
    """

    number: int
    slot: int
    place: int
    count: int

    @property
    def places(self) -> slice:
        return slice(self.place, self.place + self.count)


@dataclass(frozen=True, slots=True)
class HeadBlock:
    """``slots`` of the pass (row x W + slot), and what is wanted of them."""

    slots: list[int] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)


def head_blocks(rows: int, window: int, asked: Sequence[Sequence[int]], lead: int = 0) -> list[HeadBlock]:
    """For a pass of ``rows`` windows. ``asked`` are row, first slot, and the one behind the last, each row once.

    ``lead`` moves what stands in the first block by so many places, or as far as it can. Padding repeats what is beside
    it, so that it adds no adapter to a block: vLLM has room for as many runs of one adapter as a pass has rows.
    """
    if rows == 1:
        return [HeadBlock(list(range(window)), [Piece(0, first, first, last - first)]) for _, first, last in asked]
    blocks: list[HeadBlock] = []
    for number, (row, first, last) in enumerate(asked):
        count = last - first
        block = next((block for block in blocks if len(block.slots) + count <= window), None)
        if block is None:
            block = HeadBlock([row * window + first] * (0 if blocks else min(lead, window - count)))
            blocks.append(block)
        block.pieces.append(Piece(number, first, len(block.slots), count))
        block.slots.extend(range(row * window + first, row * window + last))
    for block in blocks:
        block.slots.extend(block.slots[-1:] * (window - len(block.slots)))
    return blocks
