"""Every row and slot of a pass is of some use, or padding: nothing is counted twice or left out."""

from array import array

import pytest

from llm42.protocol import pack_tokens
from llm42.protocol.messages import Question
from llm42.verifier.jobs import Job
from llm42.verifier.pages import PageTable
from llm42.verifier.passes import Pass, PassShape, Row
from llm42.verifier.usage import PassUse, use_of

SHAPE = PassShape(rows=4, window=8, block=8, context=64)


def job(length: int, start: int) -> Job:
    made = Job(SHAPE, Question(pack_tokens(range(length)), start), keys=[])
    made.table = PageTable(pages=[], ids=array("i", range(1, 9)), shared=0)
    return made


def use(*rows: Row) -> PassUse:
    found = use_of(Pass(SHAPE, rows))
    assert sum(found.rows.values()) == SHAPE.rows
    assert sum(found.slots.values()) == SHAPE.rows * SHAPE.window
    return found


def test_prefill_and_the_window_that_answers() -> None:
    one = job(length=21, start=18)  # windows 0 and 1 fill the cache; of window 2, two tokens were known and three ask
    found = use(Row(one, 0), Row(one, 1), Row(one, 2))
    assert found.rows == {"prefill": 2, "full": 0, "partial": 1, "padding": 1}
    assert found.slots == {"prefill": 16, "answered": 3, "again": 2, "padding": 11}
    assert found.kind == "mixed"


def test_a_full_window() -> None:
    found = use(Row(job(length=16, start=8), 1))
    assert found.rows == {"prefill": 0, "full": 1, "partial": 0, "padding": 3}
    assert found.slots == {"prefill": 0, "answered": 8, "again": 0, "padding": 24}
    assert found.kind == "decode"


@pytest.mark.parametrize(("rows", "kind"), [((0, 1), "prefill"), ((1, 2), "mixed"), ((2,), "decode")])
def test_the_kind_of_a_pass(rows: tuple[int, ...], kind: str) -> None:
    one = job(length=20, start=17)
    assert use(*(Row(one, window) for window in rows)).kind == kind
