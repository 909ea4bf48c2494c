"""Masks are a function of their arguments: whatever was asked before, their bits are those of fresh matchers."""

from collections.abc import Sequence

import pytest
import torch
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from llm42.protocol import Grammar
from llm42.sampling import grammar as module
from llm42.sampling.grammar import GrammarMasks
from tests.sampling.grammars import BEGIN, END, GRAMMARS, ONE, TOYS, A, B, compile_toy, fresh_masks, permitted

COMPILED = {grammar: compile_toy(grammar) for grammar in GRAMMARS}
Call = tuple[Grammar, list[int], int, int]


def toy_masks(kept: int = 64, walks: int = 64, special: Sequence[int] = ()) -> GrammarMasks:
    return GrammarMasks(compile_toy, len(TOYS), lambda: special, kept=kept, walks=walks)


def followed(grammar: Grammar, choices: list[int]) -> list[int]:
    """An output that mostly does as the grammar wants, and now and then (a negative choice) as it does not."""
    output: list[int] = []
    for choice in choices:
        allowed = permitted(fresh_masks(COMPILED[grammar], grammar.stops, output, len(output), 1)[0])
        output.append(allowed[choice % len(allowed)] if allowed and choice >= 0 else choice % len(TOYS))
    return output


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Several streams, interleaved; each has stretches in common with others, and goes on after a token is changed."""
    streams: list[tuple[Grammar, list[int]]] = []
    made: list[Call] = []
    for _ in range(draw(st.integers(1, 12))):
        if streams and draw(st.booleans()):
            grammar, known = draw(st.sampled_from(streams))
            choices = [*known[: draw(st.integers(0, len(known)))], *draw(st.lists(st.integers(-4, 60), max_size=6))]
        else:
            grammar = draw(st.sampled_from(GRAMMARS))
            choices = draw(st.lists(st.integers(-1, 60), max_size=14))
        streams.append((grammar, choices))
        first = draw(st.integers(-3, len(choices) + 2))
        made.append((grammar, followed(grammar, choices), first, draw(st.integers(1, 8))))
    return made


def check(masks: GrammarMasks, made: list[Call]) -> None:
    for grammar, output, first, count in made:
        expected = fresh_masks(COMPILED[grammar], grammar.stops, output, first, count)
        assert torch.equal(masks.masks(grammar, output, first, count), expected)


@settings(deadline=None, max_examples=150)
@given(calls(), st.integers(1, 3), st.integers(1, 4))
def test_nothing_but_the_arguments_matters(made: list[Call], kept: int, walks: int) -> None:
    check(toy_masks(kept, walks), made)


@settings(deadline=None, max_examples=50)
@given(calls(), st.data())
def test_masks_do_not_depend_on_the_window(made: list[Call], data: st.DataObject) -> None:
    masks = toy_masks()
    for grammar, output, first, count in made:
        whole = masks.masks(grammar, output, first, count)
        cut = data.draw(st.integers(0, count))
        longer = [*output, *data.draw(st.lists(st.integers(0, len(TOYS) - 1), max_size=3))]
        parts = [masks.masks(grammar, longer, first + cut, count - cut), masks.masks(grammar, output, first, cut)]
        known = max(0, min(count, len(output) + 1 - first))  # the others follow tokens that only `longer` has
        assert torch.equal(torch.cat([parts[1], parts[0]])[:known], whole[:known])


REJECTED = [
    (GRAMMARS[-1], [A, A, ONE, B], 0, 5),
    (GRAMMARS[-1], [A, A, A, ONE], 3, 2),
]


@pytest.mark.parametrize("broken", ["take_back", "agrees"])
def test_a_cache_that_forgets_to_go_back_is_seen(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(toy_masks(), REJECTED)
    if broken == "agrees":
        monkeypatch.setattr(module._Walk, "agrees", lambda walk, tokens: len(walk.tokens))
    else:
        monkeypatch.setattr(
            module._Walk, "take_back", lambda walk, length: walk.tokens.__delitem__(slice(length, None))
        )
    with pytest.raises(AssertionError):
        check(toy_masks(), REJECTED)


def test_rows_without_a_choice_are_zero() -> None:
    masks, grammar = toy_masks(), Grammar("regex", "ab1")
    rows = masks.masks(grammar, [A, B, ONE, END], -2, 9)
    assert [permitted(row) for row in rows[2:7]] == [[A, 4], [B], [ONE], [END], []], (
        "the last one: the output has ended"
    )
    assert (rows[:2] == -1).all(), "before the output"
    assert not rows[7:].any(), "after more tokens than are known"
    refused = masks.masks(grammar, [A, A, ONE], 0, 4)
    assert permitted(refused[1]) == [B]
    assert not refused[2:].any()
    assert not masks.masks(grammar, [A, B], 5, 2).any()


def test_tokens_that_stop_stand_nowhere_else() -> None:
    own = Grammar("regex", "a{1,3}", stops=(A,))
    masks = toy_masks()
    aa = TOYS.index("aa")
    assert permitted(masks.masks(own, [], 0, 1)[0]) == [aa]
    assert permitted(masks.masks(own, [aa], 1, 1)[0]) == [A]
    assert permitted(masks.masks(Grammar("regex", "a{1,3}"), [aa], 1, 1)[0]) == [END, A]


def test_text_has_no_special_tokens() -> None:
    """Detokenizing leaves them out: what is left would not be what the grammar has seen."""
    letters = Grammar("regex", "[<>/s]{1,9}")
    assert BEGIN in permitted(toy_masks().masks(letters, [], 0, 1)[0])
    masks = toy_masks(special=(BEGIN, END))
    assert BEGIN not in permitted(masks.masks(letters, [], 0, 1)[0])
    assert END in permitted(masks.masks(letters, [TOYS.index("<")], 1, 1)[0]), "to stop with"
    assert BEGIN in permitted(masks.masks(Grammar("grammar", 'root ::= "<s>"'), [], 0, 1)[0])


def test_bits_reach_as_far_as_the_logits() -> None:
    padded = GrammarMasks(compile_toy, len(TOYS) + 70)
    grammar = Grammar("regex", "(.|\\n)*")
    row = padded.masks(grammar, [], 0, 1)[0]
    assert len(row) == -(-(len(TOYS) + 70) // 32)
    assert permitted(row) == list(range(len(TOYS))), "and no further, though the tokenizer ends within a word"
    with pytest.raises(ValueError, match="and the model only 32"):
        GrammarMasks(compile_toy, 3).masks(grammar, [], 0, 1)


def test_a_stream_costs_its_new_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams of one grammar, step by step as a drafter asks, do not take each other's matcher away."""
    accepted = []

    class Counting(xgrammar.GrammarMatcher):
        def accept_token(self, token_id: int, **debug: bool) -> bool:
            accepted.append(token_id)
            return super().accept_token(token_id, **debug)

    monkeypatch.setattr(module, "GrammarMatcher", Counting)
    masks, grammar = toy_masks(), Grammar("regex", "[ab]*")
    streams = [[A, B] * 300, [B, A, A] * 200]
    for length in range(600):
        for stream in streams:
            masks.masks(grammar, stream[:length], length, 1)
    assert len(accepted) < 2 * 600


def test_what_does_not_compile_is_a_value_error() -> None:
    masks = toy_masks()
    with pytest.raises(ValueError, match=r"does not compile: .*parenthesis"):
        masks.masks(Grammar("regex", "(("), [], 0, 1)
    assert not masks.masks(GRAMMARS[0], [END, END], 2, 1).any(), "and nobody else's business"
