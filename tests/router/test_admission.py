"""bad_input: what is deterministic, and what is refused by name."""

from typing import Any

import pytest

from llm42.protocol.selection import EXTRA_ARG, MARGINS
from llm42.router.admission import EXPECTED, FLAG, STATS, Endpoint, Mode, admit
from llm42.router.refused import Refused

GREEDY: dict[str, Any] = {"model": "m", "prompt": "p", "temperature": 0}


def settle(
    body: dict[str, Any], mode: Mode = "off", endpoint: Endpoint = "completions", **defaults: Any
) -> tuple[bool, dict[str, Any]]:
    admission = admit(body, endpoint, mode, defaults)
    return admission.deterministic, admission.body


@pytest.mark.parametrize(
    ("mode", "extra", "deterministic"),
    [
        ("off", {}, False),
        ("off", {"seed": 1}, False),
        ("off", {FLAG: True}, True),
        ("off", {"vllm_xargs": {FLAG: 1}}, True),
        ("seeded", {}, False),
        ("seeded", {"seed": 0}, True),
        ("seeded", {"seed": -1}, False),
        ("seeded", {"seed": 0, FLAG: False}, False),
        ("on", {}, True),
        ("on", {FLAG: False}, False),
        ("on", {FLAG: None}, True),
    ],
)
def test_who_is_deterministic(mode: Mode, extra: dict[str, Any], deterministic: bool) -> None:
    found, body = settle({**GREEDY, **extra}, mode)
    assert found is deterministic
    assert FLAG not in body, "vLLM would drop it in silence"
    assert (body.get("vllm_xargs") or {}).get(FLAG) == (1 if deterministic else None)


def test_ordinary_requests_pass_untouched() -> None:
    body = {"prompt": "p", "n": 3, "temperature": 1.3, "anything": {"goes": 1}, "vllm_xargs": {"mine": 2}}
    assert settle(body) == (False, body)


@pytest.mark.parametrize("value", ["yes", 2, [], {}, 0.5])
def test_malformed_flag(value: Any) -> None:
    with pytest.raises(Refused, match="true or false") as refused:
        settle({**GREEDY, FLAG: value})
    assert refused.value.param == FLAG


@pytest.mark.parametrize("name", ["isDeterministic", "Is_Deterministic", "is-deterministic", "is_deterministic "])
def test_near_misses_of_the_flag_are_told(name: str) -> None:
    with pytest.raises(Refused, match="did you mean is_deterministic"):
        settle({**GREEDY, name: True})


def test_the_clients_own_wrapper_is_told() -> None:
    with pytest.raises(Refused, match="at the top level"):
        settle({**GREEDY, "extra_body": {FLAG: True}})


def test_contradicting_flags() -> None:
    with pytest.raises(Refused, match="differ"):
        settle({**GREEDY, FLAG: True, "vllm_xargs": {FLAG: 0}})


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("seed", "-1"),
        ("seed", True),
        ("n", 2),
        ("n", "16.0"),
        ("logprob_token_ids", [1]),
        ("logprobs", -1),
        ("prompt_logprobs", -1),
        ("thinking_token_budget", 5),
        ("repetition_penalty", 1e-40),
        ("repetition_penalty", 1e300),
        ("repetition_penalty", float("nan")),
        ("repetition_detection", {"max_pattern_size": 3}),
        ("use_beam_search", True),
        ("prompt_embeds", "AAAA"),
        ("suffix", "x"),
        ("a_parameter_of_the_future", 1),
    ],
)
def test_unverified_parameters_are_refused_by_name(param: str, value: Any) -> None:
    with pytest.raises(Refused) as refused:
        settle({**GREEDY, param: value, FLAG: True})
    assert refused.value.param == param
    assert f"{param} is " in str(refused.value)
    assert settle({**GREEDY, param: value})[0] is False, "an ordinary request may ask for it"


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 1},
        {"presence_penalty": 0.1, "frequency_penalty": -0.1, "repetition_penalty": 1.1},
        {"logit_bias": {"5": 1}, "bad_words": ["x"], "allowed_token_ids": [1], "min_tokens": 1},
        {"structured_outputs": {"regex": "a"}},
        {"response_format": {"type": "json_object"}},
        {"logprobs": 5, "prompt_logprobs": 2, "echo": True},
        {"cache_salt": "s"},
        {"stop": ["\n"], "stop_token_ids": [7], "ignore_eos": True},
        {"top_p": 0.5, "top_k": 3, "min_p": 0.1},
        {"seed": 5, "user": "u", "stream": True, "stream_options": {"include_usage": True}},
        {"response_format": {"type": "text"}, "logit_bias": {}, "bad_words": []},
        {"temperature": 0.0, "best_of": None},
    ],
)
def test_what_can_be_verified_is_admitted(extra: dict[str, Any]) -> None:
    assert settle({**GREEDY, **extra, FLAG: True})[0] is True


@pytest.mark.parametrize(
    ("param", "extra"),
    [
        ("ignore_eos", {"ignore_eos": True, "response_format": {"type": "json_object"}}),
        ("ignore_eos", {"ignore_eos": True, "structured_outputs": {"regex": "a"}}),
        ("ignore_eos", {"ignore_eos": True, "tool_choice": "required"}),
        ("structured_outputs.whitespace_pattern", {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
        (
            "structured_outputs.disable_additional_properties",
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
        ),
    ],
)
def test_what_no_grammar_does_is_refused_before_a_stream_begins(param: str, extra: dict[str, Any]) -> None:
    endpoint: Endpoint = "chat" if "tool_choice" in extra else "completions"
    with pytest.raises(Refused) as refused:
        admit({"temperature": 0, FLAG: True, **extra}, endpoint, "off", {})
    assert refused.value.param == param
    assert not admit({"temperature": 0, FLAG: False, **extra}, endpoint, "off", {}).deterministic


@pytest.mark.parametrize("name", [EXTRA_ARG, MARGINS])
@pytest.mark.parametrize("flag", [True, False])
def test_names_of_drafts_are_nobody_elses(name: str, flag: bool) -> None:
    with pytest.raises(Refused, match="is for drafts") as refused:
        admit({"prompt": "p", "vllm_xargs": {name: 1}, FLAG: flag}, "completions", "off", {})
    assert refused.value.param == f"vllm_xargs.{name}"


@pytest.mark.parametrize(
    ("extra", "defaults", "samples"),
    [
        ({"temperature": 0}, {"temperature": 0.6}, False),
        ({"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 3}, {}, True),
        ({}, {}, True),
        ({"temperature": None}, {"temperature": 0.6}, True),
        ({"temperature": None}, {"temperature": 0.0}, False),
    ],
)
def test_who_samples(extra: dict[str, Any], defaults: dict[str, Any], samples: bool) -> None:
    admission = admit({"prompt": "p", FLAG: True, **extra}, "completions", "off", defaults)
    assert (admission.deterministic, admission.samples) == (True, samples)


def test_several_choices_are_samples() -> None:
    assert settle({"prompt": "p", FLAG: True, "temperature": 0.5, "n": 3})[0]
    for greedy in (0, 0.0):
        with pytest.raises(Refused, match="send 1") as refused:
            settle({"prompt": "p", FLAG: True, "temperature": greedy, "n": 3})
        assert refused.value.param == "n"


@pytest.mark.parametrize("several", [{"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"prompt": "a", "n": 2}])
def test_receipts_of_several_choices_do_not_go_with_stop_strings(several: dict[str, Any]) -> None:
    body = {FLAG: True, "receipt": True, **several}
    assert admit(body, "completions", "off", {}).with_receipts
    with pytest.raises(Refused, match="stop") as refused:
        settle({**body, "stop": "x"})
    assert refused.value.param == "receipt"


@pytest.mark.parametrize("flag", [True, False])
def test_the_drafts_own_argument_is_refused(flag: bool) -> None:
    with pytest.raises(Refused, match="leave it out") as refused:
        settle({**GREEDY, FLAG: flag, "vllm_xargs": {"llm42_selection": [1.0, 1.0, 0, 0.0, 7]}})
    assert refused.value.param == "vllm_xargs.llm42_selection"


def test_receipts() -> None:
    admission = admit({**GREEDY, FLAG: True, "receipt": True, "stream": True}, "completions", "off", {})
    assert admission.with_receipts
    assert admission.body["stream_options"] == {"include_usage": True}
    assert "receipt" not in admission.body
    for wrong in ({"receipt": 1, FLAG: True}, {"receipt": "yes", FLAG: True}, {"receipt": True}):
        with pytest.raises(Refused) as refused:
            settle({**GREEDY, **wrong})
        assert refused.value.param == "receipt"


def test_stats() -> None:
    body = {**GREEDY, FLAG: True, STATS: True}
    admission = admit({**body, "stream": True, "stream_options": {"x": 1}}, "completions", "off", {})
    assert (admission.with_stats, admission.with_receipts) == (True, False)
    assert admission.body["stream_options"] == {"x": 1, "include_usage": True}
    assert STATS not in admission.body
    assert "stream_options" not in settle(body)[1]
    for unasked in ({}, {STATS: False}, {STATS: None}):
        assert not admit({**GREEDY, FLAG: True, **unasked}, "completions", "off", {}).with_stats
        assert settle({**GREEDY, **unasked}) == (False, GREEDY)
    for wrong in ({STATS: 1, FLAG: True}, {STATS: "yes", FLAG: True}):
        with pytest.raises(Refused, match="true or false") as refused:
            settle({**GREEDY, **wrong})
        assert refused.value.param == STATS
    with pytest.raises(Refused, match="only deterministic requests have stats") as refused:
        settle({**GREEDY, STATS: True})
    assert refused.value.param == STATS


def test_expected_fingerprint() -> None:
    admission = admit({**GREEDY, FLAG: True, EXPECTED: "abc"}, "completions", "off", {})
    assert admission.expected_fingerprint == "abc"
    assert EXPECTED not in admission.body
    for value in (7, "", ["abc"]):
        with pytest.raises(Refused, match="system_fingerprint of an earlier answer"):
            settle({**GREEDY, FLAG: True, EXPECTED: value})
    with pytest.raises(Refused, match="deterministic requests only") as refused:
        settle({**GREEDY, EXPECTED: "abc"})
    assert refused.value.param == EXPECTED


def test_chat() -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "temperature": 0, FLAG: True}
    tool = {"type": "function", "function": {"name": "f"}}
    asked = {
        "logprobs": True,
        "top_logprobs": 3,
        "max_completion_tokens": 4,
        "tools": [tool],
        "tool_choice": "required",
    }
    assert settle({**chat, **asked}, endpoint="chat")[0]
    for param in ("mm_processor_kwargs", "prompt"):
        with pytest.raises(Refused) as refused:
            settle({**chat, param: {"x": 1}}, endpoint="chat")
        assert refused.value.param == param


def test_other_engine_arguments_are_refused() -> None:
    with pytest.raises(Refused) as refused:
        settle({**GREEDY, "vllm_xargs": {FLAG: True, "other": 1}})
    assert refused.value.param == "vllm_xargs.other"
