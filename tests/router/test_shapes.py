"""bad_input: what vLLM would fail on, or hold everybody up with, is refused by name in every mode."""

from typing import Any

import pytest

from llm42.protocol.selection import EXTRA_ARG, MARGINS
from llm42.router.admission import FLAG, admit
from llm42.router.refused import Refused
from llm42.router.shapes import MAX_BAD_WORD_CHARACTERS, MAX_GRAMMAR_CHARACTERS

TOOL = {"type": "function", "function": {"name": "f"}}
LONG = "a" * (MAX_GRAMMAR_CHARACTERS + 1)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("param", "fields"),
    [
        *[(f"vllm_xargs.{name}", {"vllm_xargs": {name: "x"}}) for name in (EXTRA_ARG, MARGINS, "kv_transfer_params")],
        ("structured_outputs", {"structured_outputs": [1]}),
        ("structured_outputs", {"structured_outputs": {"regex": LONG}}),
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": LONG}}}),
        ("tools", {"tools": [{**TOOL, "function": {"name": "f", "description": LONG}}]}),
        *[(f"tools.{len(tools) - 1}", {"tools": tools}) for tools in ([1], [{"type": "function"}], [TOOL, {}])],
        ("tools.0", {"tools": [{"type": "function", "function": {"name": 1}}]}),
        ("bad_words", {"bad_words": ["a" * MAX_BAD_WORD_CHARACTERS, "b"]}),
        ("bad_words", {"bad_words": "a" * (MAX_BAD_WORD_CHARACTERS + 1)}),
    ],
)
def test_refused_by_name(param: str, fields: dict[str, Any], deterministic: bool) -> None:
    with pytest.raises(Refused) as refused:
        admit({"model": "m", "messages": [], FLAG: deterministic, **fields}, "chat", "off", {})
    assert (refused.value.param, refused.value.status) == (param, 400)
    assert param in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL, TOOL], "structured_outputs": {"regex": "a" * 1000}, "bad_words": ["a" * 1000]},
        {"tools": None, "structured_outputs": None, "bad_words": None, "vllm_xargs": {"mine": 1}},
        {"tools": 5, "bad_words": [5], "response_format": "text"},  # vLLM says what is wrong with them
    ],
)
def test_left_to_vllm(fields: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [], **fields}
    assert admit(body, "chat", "off", {}).body == body
