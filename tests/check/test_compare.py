"""The comparison finds every difference, the smallest too, and nothing else."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm42.check.compare import Completion, Ledger, compare, first_difference, float_bits

TOKENS = ("The", " sea", " is", " wide", ".")
LOGPROBS = (-0.5, -1.25, -0.1, -2.0, -0.0)
BASE = Completion(
    text="The sea is wide.",
    finish_reason="stop",
    tokens=TOKENS,
    token_ids=(4, 8, 15, 16, 23),
    logprobs=LOGPROBS,
)


def with_logprob(index: int, value: float | None) -> Completion:
    return replace(BASE, logprobs=(*LOGPROBS[:index], value, *LOGPROBS[index + 1 :]))


def test_equal_completions_have_no_divergence() -> None:
    assert compare(BASE, replace(BASE)) is None


def test_float_bits_are_ieee_754() -> None:
    assert float_bits(1.0) == "3ff0000000000000"
    assert float_bits(-0.0) == "8000000000000000"
    assert float_bits(0.0) == "0000000000000000"
    assert float_bits(None) is None


@pytest.mark.parametrize("index", range(len(LOGPROBS)))
@pytest.mark.parametrize("direction", [-math.inf, math.inf])
def test_one_ulp_of_a_logprob_is_found(index: int, direction: float) -> None:
    moved = math.nextafter(LOGPROBS[index], direction)
    divergence = compare(BASE, with_logprob(index, moved))
    assert divergence is not None
    assert (divergence.kind, divergence.position, divergence.logprob_position) == ("logprob", index, index)
    assert divergence.before == TOKENS[:index]
    assert divergence.alone.bits == float_bits(LOGPROBS[index])
    assert divergence.other.bits == float_bits(moved) != divergence.alone.bits


@pytest.mark.parametrize("value", [0.0, None, math.nan])
def test_another_zero_a_missing_and_a_nan_logprob_are_found(value: float | None) -> None:
    divergence = compare(BASE, with_logprob(4, value))
    assert divergence is not None
    assert (divergence.kind, divergence.position) == ("logprob", 4)


def test_equal_nans_are_equal_bits() -> None:
    assert compare(with_logprob(1, math.nan), with_logprob(1, math.nan)) is None


def test_equal_tokens_with_another_text_are_found_by_character() -> None:
    divergence = compare(BASE, replace(BASE, text="The sea is wide!"))
    assert divergence is not None
    assert (divergence.kind, divergence.unit, divergence.position) == ("text", "character", 15)
    assert divergence.alone.continuation == (".",)
    assert divergence.other.continuation == ("!",)
    assert divergence.logprob_position is None


def test_a_token_is_reported_before_its_earlier_logprob() -> None:
    other = replace(with_logprob(1, -1.5), tokens=("The", " sea", " is", " deep", "."), text="The sea is deep.")
    divergence = compare(BASE, other)
    assert divergence is not None
    assert (divergence.kind, divergence.position, divergence.logprob_position) == ("token", 3, 1)
    assert divergence.before == ("The", " sea", " is")
    assert divergence.other.continuation == (" deep", ".")


def test_equal_token_strings_with_another_id_are_found() -> None:
    divergence = compare(BASE, replace(BASE, token_ids=(4, 8, 99, 16, 23)))
    assert divergence is not None
    assert (divergence.kind, divergence.position) == ("token", 2)


@pytest.mark.parametrize("swap", [False, True])
def test_a_shorter_completion_diverges_at_its_end(swap: bool) -> None:
    shorter = Completion(
        "The sea is wide", "length", tokens=TOKENS[:4], token_ids=(4, 8, 15, 16), logprobs=LOGPROBS[:4]
    )
    divergence = compare(shorter, BASE) if swap else compare(BASE, shorter)
    assert divergence is not None
    assert (divergence.kind, divergence.position, divergence.logprob_position) == ("token", 4, 4)
    ended = divergence.alone if swap else divergence.other
    assert ended.continuation == ()
    assert ended.logprob is None
    assert ended.finish_reason == "length"


def test_only_the_finish_reason_differs() -> None:
    divergence = compare(BASE, replace(BASE, finish_reason="length"))
    assert divergence is not None
    assert (divergence.kind, divergence.unit, divergence.position) == ("finish_reason", "token", 5)


def test_text_alone_is_compared_where_there_are_no_tokens() -> None:
    bare = Completion("blue", "stop")
    assert compare(bare, Completion("blue", "stop")) is None
    divergence = compare(bare, Completion("blur", "stop"))
    assert divergence is not None
    assert (divergence.kind, divergence.unit, divergence.position) == ("text", "character", 3)


def test_logprobs_that_come_and_go_are_a_divergence() -> None:
    divergence = compare(BASE, replace(BASE, logprobs=None))
    assert divergence is not None
    assert (divergence.kind, divergence.position) == ("logprob", 0)
    assert first_difference(None, ()) == 0


def optional(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | st.lists(values, max_size=3).map(tuple)


COMPLETIONS = st.builds(
    Completion,
    text=st.text("ab", max_size=2),
    finish_reason=st.sampled_from(["stop", "length", None]),
    tokens=optional(st.sampled_from(["a", "b"])),
    token_ids=optional(st.integers(0, 1)),
    logprobs=optional(st.sampled_from([0.0, -0.0, math.nan, -math.inf, None])),
)


@given(COMPLETIONS, COMPLETIONS)
def test_compare_and_digests_agree(a: Completion, b: Completion) -> None:
    same_output = a.output_digest() == b.output_digest()
    same_logprobs = a.logprob_digest() == b.logprob_digest()
    divergence = compare(a, b)
    assert (divergence is None) == (same_output and same_logprobs)
    if divergence is not None:
        assert (divergence.kind == "logprob") == same_output
        assert (divergence.logprob_position is None) == same_logprobs


def test_ledger_counts_kinds_and_keeps_the_worst_divergence() -> None:
    ledger = Ledger()
    late = replace(BASE, tokens=(*TOKENS[:4], "!"), text="The sea is wide!")
    early = replace(BASE, tokens=("A", *TOKENS[1:]), text="A sea is wide.")
    for burst, completion in ((1, BASE), (2, with_logprob(0, -9.0)), (3, late), (4, early), (5, BASE)):
        ledger.add(7, completion, burst=burst)
    for prompt in (3, 5):
        ledger.add(prompt, BASE, burst=1)
    ledger.add(3, with_logprob(2, -9.0), burst=2)
    record = ledger.records[7]
    assert (record.completions, len(record.outputs), len(record.logprob_sequences)) == (5, 3, 2)
    assert (ledger.completions, ledger.unique_max) == (8, 4)
    assert [finding.prompt for finding in ledger.findings] == [3, 7]
    first = ledger.first_divergence
    assert first is not None
    assert (first.prompt, first.burst, first.divergence.kind, first.divergence.position) == (7, 4, "token", 0)


def test_an_empty_ledger_has_found_nothing() -> None:
    ledger = Ledger()
    assert (ledger.completions, ledger.unique_max, ledger.findings, ledger.first_divergence) == (
        0,
        0,
        [],
        None,
    )
