"""Blocks of the LM head: every asked slot once, in blocks of one size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm42.verifier.heads import head_blocks

ROWS, WINDOW = 5, 8

ranges = st.lists(
    st.tuples(st.integers(0, WINDOW - 1), st.integers(1, WINDOW)).filter(lambda pair: pair[0] < pair[1]), max_size=ROWS
)


@given(ranges, st.integers(0, WINDOW - 1))
def test_every_asked_slot_once(ranges: list[tuple[int, int]], lead: int) -> None:
    asked = [[row, first, last] for row, (first, last) in enumerate(ranges)]
    found = []
    for block in head_blocks(ROWS, WINDOW, asked, lead):
        assert len(block.slots) == WINDOW
        held: set[int] = set()
        for piece in block.pieces:
            row, first, last = asked[piece.number]
            assert (piece.slot, piece.count) == (first, last - first)
            assert block.slots[piece.places] == list(range(row * WINDOW + first, row * WINDOW + last))
            held |= set(block.slots[piece.places])
            found.append(piece.number)
        assert set(block.slots) == held, "padding is of those that are asked, and so of no further adapter"
        changes = sum(
            one // WINDOW != other // WINDOW for one, other in zip(block.slots, block.slots[1:], strict=False)
        )
        assert changes < len(block.pieces)
    assert sorted(found) == list(range(len(asked)))


@pytest.mark.parametrize(
    ("asked", "lead", "places"),
    [
        ([[0, 0, 6], [1, 7, 8], [2, 3, 6], [3, 2, 3]], 0, [(0, 0), (0, 6), (1, 0), (0, 7)]),
        ([[2, 3, 4], [0, 0, 8]], 3, [(0, 3), (1, 0)]),
        ([[2, 0, 7]], 3, [(0, 1)]),
    ],
    ids=["the first block with room", "moved", "as far as it can"],
)
def test_where(asked: list[list[int]], lead: int, places: list[tuple[int, int]]) -> None:
    found = {
        piece.number: (block, piece.place)
        for block, of_block in enumerate(head_blocks(ROWS, WINDOW, asked, lead))
        for piece in of_block.pieces
    }
    assert [found[number] for number in range(len(asked))] == places


def test_a_row_alone_in_its_pass_stays_where_it_is() -> None:
    """Strict mode: nothing has to be independent of its place."""
    [block] = head_blocks(1, WINDOW, [[0, 3, 5]])
    assert block.slots == list(range(WINDOW))
    assert [(piece.slot, piece.places) for piece in block.pieces] == [(3, slice(3, 5))]
