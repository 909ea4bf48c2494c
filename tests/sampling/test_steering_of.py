"""From vLLM's parameters to a steering: what its input processor makes of them, and what means the same."""

import math
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.tokenizers import get_tokenizer

from llm42.internals.steering import steering_of
from llm42.protocol.steering import Grammar, Steering

EOS = 2
GENERATION_CONFIG = {"eos_token_id": [EOS, 17]}


def of(*, tokenizer: Any = None, grammar: Grammar | None = None, **asked: Any) -> Steering | None:
    """As vLLM's input processor does it."""
    params = SamplingParams.from_optional(max_tokens=None, **asked)
    params.update_from_generation_config(GENERATION_CONFIG, EOS)
    if tokenizer is not None:
        params.update_from_tokenizer(tokenizer)
    return steering_of(params, 3, grammar)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "stop_token_ids": [4], "stop": ["a"]},
        {"presence_penalty": -0.0, "frequency_penalty": 0, "repetition_penalty": 1},
        {"logit_bias": {}, "bad_words": [], "min_tokens": 0},
        {"logit_bias": {5: 0.0, "6": -0.0}},
        {"ignore_eos": True},
    ],
)
def test_nothing_asked(asked: dict[str, Any]) -> None:
    assert of(**asked) is None


def test_each_field() -> None:
    assert of(presence_penalty=1, frequency_penalty=-2, repetition_penalty=1.5) == Steering(
        3, presence_penalty=1.0, frequency_penalty=-2.0, repetition_penalty=1.5
    )
    assert of(logit_bias={"30": 2, "7": -1000.0, "9": 0}) == Steering(3, logit_bias=((7, -100.0), (30, 2.0)))
    assert of(allowed_token_ids=[9, 2, 9]) == Steering(3, allowed=(2, 9))


def test_steering_of_a_request_travels() -> None:
    steering = of(presence_penalty=1, logit_bias={"1": 2}, grammar=Grammar("regex", "a", stops=(2, 17)))
    assert steering is not None
    assert Steering.of_fields(steering.fields) == steering
    assert (type(steering.presence_penalty), type(steering.logit_bias[0][1])) == (float, float)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_holds_back_all_that_ends_a_sequence_even_if_that_is_ignored(ignore_eos: bool) -> None:
    asked = of(min_tokens=5, stop_token_ids=[30, 4], ignore_eos=ignore_eos)
    assert asked == Steering(3, min_tokens=5, stops=(EOS, 4, 17, 30))


def test_min_tokens_without_anything_that_ends_a_sequence_is_nothing() -> None:
    assert steering_of(SamplingParams(max_tokens=9, min_tokens=5), 3) is None


def test_bad_words_are_those_of_the_tokenizer_with_and_without_a_space(tiny_path: str) -> None:
    tokenizer = get_tokenizer(tiny_path)
    steering = of(bad_words=["Paris", "New York", "Paris"], tokenizer=tokenizer)
    assert steering is not None
    encoded = {tuple(tokenizer.encode(text, add_special_tokens=False)) for text in ("Paris", " Paris", "New York")}
    assert encoded <= set(steering.bad_words)
    assert steering.bad_words == tuple(sorted(set(steering.bad_words)))
    assert any(len(word) > 1 for word in steering.bad_words)
    with pytest.raises(ValueError, match="bad_words"):
        of(bad_words=["Paris"])


def test_an_empty_allowance_is_refused() -> None:
    with pytest.raises(ValueError, match="steering"):
        of(allowed_token_ids=[])


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_tokens": 1.5},
        {"prompt_tokens": True},
        {"min_tokens": 1.5},
        {"presence_penalty": "1"},
        {"frequency_penalty": math.nan},
        {"repetition_penalty": math.inf},
        {"logit_bias": ((5, "x"),)},
        {"logit_bias": ((5, -math.inf),)},
        {"logit_bias": ((5.0, 1.0),)},
        {"stops": (0.5,)},
        {"stops": (2, 1)},
        {"bad_words": ((1, 2.5),)},
        {"bad_words": ((),)},
        {"bad_words": ((9,), (5,))},
        {"bad_words": {}},
        {"bad_words": ({5: 1},)},
        {"logit_bias": {}},
        {"logit_bias": ({5: 1, 6: 2},)},
        {"logit_bias": ((5, 10**400),)},
        {"stops": {}},
        {"allowed": {}},
        {"allowed": ""},
        {"grammar": ("regex", "a", True, {})},
        {"allowed": (0.5, 1.5)},
        {"allowed": ()},
        {"grammar": ("regex", "a", True, (0.5,))},
        {"grammar": ("regex", 5, True, ())},
        {"grammar": ("regex", "a", 1, ())},
        {"grammar": ("verse", "a", True, ())},
    ],
    ids=str,
)
def test_what_a_receipt_may_hold_and_no_pass_could_carry(wrong: dict[str, Any]) -> None:
    fields = dict(zip(Steering.__dataclass_fields__, Steering(4, grammar=Grammar("regex", "a")).fields, strict=True))
    Steering.of_fields(list(fields.values()))
    with pytest.raises((ValueError, TypeError)):
        Steering.of_fields(list({**fields, **wrong}.values()))
