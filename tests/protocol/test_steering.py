"""What a request steers by travels as it is: some name a whole vocabulary, and every pass asks for it."""

import json
from dataclasses import astuple

from llm42.protocol.selection import Selection
from llm42.protocol.steering import Grammar, Steering

EVERYTHING = Steering(
    7,
    presence_penalty=0.5,
    logit_bias=tuple((token, 1.0) for token in range(50_000)),
    min_tokens=2,
    stops=(1, 2),
    bad_words=((3,), (4, 5)),
    allowed=tuple(range(50_000)),
    grammar=Grammar("regex", "a+", stops=(2,)),
)


def test_fields_are_the_values_themselves() -> None:
    _, _, _, _, bias, _, _, _, allowed, grammar = EVERYTHING.fields
    assert bias is EVERYTHING.logit_bias
    assert allowed is EVERYTHING.allowed
    assert grammar == ["regex", "a+", True, (2,)]


def test_they_say_all_of_it_as_json_too() -> None:
    assert json.dumps(EVERYTHING.fields) == json.dumps(astuple(EVERYTHING)), "digests and receipts are made of this"
    assert Steering.of_fields(json.loads(json.dumps(EVERYTHING.fields))) == EVERYTHING
    selection = Selection(0.5, seed=3, steering=EVERYTHING)
    assert Selection.of_fields(selection.fields) == selection
    assert Steering(7).fields[-1] is None
