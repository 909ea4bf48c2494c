"""Receipts: whatever was changed afterwards, the replay tells, and where."""

import hashlib
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from llm42.protocol import GREEDY, Question, ReplayReply, Scores, Selection, Steering, pack_tokens
from llm42.receipt import Receipt, issue

WINDOW = 8
PROMPT = list(range(100, 113))
TOKENS = list(range(200, 230))
SAMPLED = Selection(0.7, 0.9, 40, 0.05, 2**64 - 1)


def logprobs(tokens: list[int]) -> bytes:
    return np.asarray([-1 / (1 + token) for token in tokens], dtype=np.float32).tobytes()


def receipt(selection: Selection = SAMPLED) -> Receipt:
    return issue("f", WINDOW, selection, PROMPT, TOKENS, logprobs(TOKENS))


def reply(tokens: list[int] = TOKENS, prompt: list[int] = PROMPT, bits: bytes | None = None) -> ReplayReply:
    """What an honest verifier says that would have chosen ``tokens``."""
    question = Question(pack_tokens([*prompt, *tokens[:-1]]), len(prompt) - 1)
    return ReplayReply("f", question.digest, Scores(tokens, bits or logprobs(tokens), [1] * len(tokens)), 0)


def tampered(**changes: Any) -> Receipt:
    return Receipt.model_validate({**receipt().model_dump(), **changes})


def steered(**fields: Any) -> list[Any]:
    """The fields of a steering, whatever is in them."""
    plain = dict(zip((field.name for field in dataclass_fields(Steering)), Steering(len(PROMPT)).fields, strict=True))
    return list({**plain, **fields}.values())


@pytest.mark.parametrize("selection", [GREEDY, SAMPLED])
def test_an_honest_receipt_is_confirmed(selection: Selection) -> None:
    honest = receipt(selection)
    assert honest.selection == selection
    assert honest.first_difference(reply()) is None
    assert Receipt.model_validate_json(honest.model_dump_json()) == honest


def test_it_is_small() -> None:
    assert all(len(window) <= 64 for window in receipt().windows)
    assert [len(span) for span in receipt().spans] == [3, 8, 8, 8, 3], "windows of the grid, not of the output"


@pytest.mark.parametrize("index", range(len(TOKENS)))
def test_a_changed_token_is_found_where_it_is(index: int) -> None:
    changed = [*TOKENS[:index], TOKENS[index] + 1, *TOKENS[index + 1 :]]
    window = (len(PROMPT) + index) // WINDOW
    assert tampered(token_ids=changed).first_difference(reply()) == window
    assert receipt().first_difference(reply(changed)) == window, "and so is a verifier that chooses another"


@pytest.mark.parametrize("index", range(len(TOKENS)))
def test_one_bit_of_a_logprob(index: int) -> None:
    bits = bytearray(logprobs(TOKENS))
    bits[4 * index] ^= 1
    assert receipt().first_difference(reply(bits=bytes(bits))) == (len(PROMPT) + index) // WINDOW


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "g"},
        {"adapter": "drawl"},
        {"temperature": 0.71},
        {"top_p": 0.91},
        {"top_k": 41},
        {"min_p": 0.051},
        {"seed": 2**64 - 2},
        {"prompt_token_ids": [*PROMPT[:-1], 99]},
        {"prompt_token_ids": [99, *PROMPT[1:]]},
    ],
)
def test_a_changed_parameter_breaks_the_first_window(change: dict[str, Any]) -> None:
    assert tampered(**change).first_difference(reply()) == len(PROMPT) // WINDOW


def test_another_window_size() -> None:
    sizes = {"window_size": 30, "windows": receipt().windows[:2]}
    assert tampered(**sizes).first_difference(reply()) == 0


@pytest.mark.parametrize("index", range(5))
def test_a_changed_digest(index: int) -> None:
    windows = receipt().windows
    windows[index] = windows[index - 1]
    assert tampered(windows=windows).first_difference(reply()) == len(PROMPT) // WINDOW + index


@pytest.mark.parametrize("kept", [2, 3])
def test_an_answer_that_was_cut_short(kept: int) -> None:
    cut = tampered(token_ids=TOKENS[:kept], windows=receipt().windows[:1])
    assert cut.first_difference(reply(TOKENS[:kept])) == len(PROMPT) // WINDOW


@pytest.mark.parametrize(
    "change",
    [
        {"windows": []},
        {"token_ids": []},
        {"token_ids": [-1] * len(TOKENS)},
        {"prompt_token_ids": [2**31]},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"seed": -1},
        {"seed": 2**64},
        {"top_p": 0.0},
        {"version": 2},
        {"more": 1},
        {"window_size": 0},
        {"steering": steered(bad_words=[[5], [5]])},
        {"steering": steered(bad_words=[[5, number] for number in range(1025)])},
        {"steering": steered(bad_words=[[5] * 2049])},
        {"steering": steered(bad_words=[[5]] * ((1 << 20) + 1))},
    ],
)
def test_what_is_no_receipt(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        tampered(**change)


def test_as_many_bad_words_as_vllm_takes() -> None:
    words = [[5, number] for number in range(1024)]
    steering = tampered(steering=steered(bad_words=words)).selection.steering
    assert steering is not None
    assert len(steering.bad_words) == 1024


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 16))
def test_spans_cover_the_output_once(prompt: int, count: int, window: int) -> None:
    tokens = list(range(count))
    made = issue("f", window, GREEDY, [1] * prompt, tokens, bytes(4 * count))
    assert [position for span in made.spans for position in span] == list(range(prompt, prompt + count))
    assert all(span[0] // window == span[-1] // window for span in made.spans)
    assert len(set(made.windows)) == len(made.windows)


def test_the_chain_never_changes_by_accident() -> None:
    digest = hashlib.sha256(receipt().model_dump_json().encode()).hexdigest()
    assert digest == "b0604f44bfd66114877f6b4c96106655388e22f886a3c7450c0218313a4536c7"
