"""What the start-up audit puts to the test: planning only, no model."""

import pytest

from llm42.verifier.audit.probes import NEIGHBOURS, PADDING, TAILS, Probes
from llm42.verifier.heads import head_blocks
from llm42.verifier.passes import PassShape

WINDOW, CONTEXT = 32, 512


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8, 16])
def test_the_plan_reaches_every_row(rows: int) -> None:
    """Rows that one target has visited are compared; so are, through it, those that another one has."""
    probes = Probes(PassShape(rows, WINDOW, WINDOW, CONTEXT), 100, "quick")
    rounds = [*probes.references(), *probes.rounds()]
    visited = [
        {row for given in rounds for row, probe in given.targets() if probe.target == index}
        for index in range(len(probes.targets))
    ]
    assert all(len(rows) > 1 for rows in visited)
    reached = visited[0]
    for _ in visited:
        reached = reached.union(*(rows for rows in visited if rows & reached))
    assert reached == set(range(rows))


@pytest.mark.parametrize("rows", [1, 2, 4, 16])
def test_the_plan_disturbs_every_target(rows: int) -> None:
    probes = Probes(PassShape(rows, WINDOW, 2 * WINDOW, 4096), 100, "quick")
    assert probes.windows == [0, 2, 62, 127], "the first, behind a KV block, in the middle, and the last"
    rounds = probes.rounds()
    assert {given.neighbours for given in rounds} == set(NEIGHBOURS)
    assert {probe.tail for given in rounds for _, probe in given.targets()} == set(TAILS)
    for target in probes.targets:
        known = {probe.known for given in rounds for _, probe in given.targets() if probe.target == target.target}
        assert len(known) >= 2
    for given in rounds:
        for _, probe in given.targets():
            assert probe.tokens[: probe.known] == probes.targets[probe.target].tokens[: probe.known]
            assert probe.window == probes.targets[probe.target].window
        if given.neighbours == PADDING:
            assert all(probe is None or probe.known for probe in given.rows)


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8, 16])
def test_the_plan_moves_targets_in_the_head(rows: int) -> None:
    """First, middle and last slots stand elsewhere than in a whole window, and first and last places hold others; in
    blocks that they share with other rows."""
    moved: set[tuple[int, int]] = set()
    shared = 0
    for given in Probes(PassShape(rows, WINDOW, WINDOW, CONTEXT), 100, "quick").rounds():
        asked, targets = given.asked(), dict(given.targets())
        for block in head_blocks(rows, WINDOW, asked, given.lead):
            for piece in block.pieces:
                if asked[piece.number][0] in targets:
                    shared += len(block.pieces) > 1
                    moved |= {
                        (piece.slot + n, piece.place + n) for n in range(piece.count) if piece.place != piece.slot
                    }
    assert {0, WINDOW // 2 - 1, WINDOW - 1} <= {slot for slot, _ in moved}
    assert {0, WINDOW - 1} <= {place for _, place in moved}
    assert shared >= 3


def test_a_plan_for_a_context_of_one_window() -> None:
    probes = Probes(PassShape(2, WINDOW, WINDOW, WINDOW), 100, "full")
    assert probes.windows == [0]
    assert all(probe.window == 0 for given in probes.rounds() for probe in given.rows if probe is not None)
